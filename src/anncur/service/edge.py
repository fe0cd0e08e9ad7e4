"""The edge of the service: what happens to every request before a route sees it, and to every answer after.

A request gets an id, is addressed to this service, shows a token where one is needed, and has a body within the cap;
then it is counted and written down, without its text. `except Exception` stands here and nowhere else: whatever goes
wrong becomes a problem, and a line in the log."""

from __future__ import annotations

import asyncio
import hmac
import logging
import re
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from starlette._utils import get_route_path  # what routes go by, so that nothing is taken for another path here
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from anncur.errors import AnncurError
from anncur.service.access_log import described, write_event, write_line
from anncur.service.answers import ProblemAnswer
from anncur.service.bodies import CappedReceive, too_large
from anncur.service.metrics import Metrics
from anncur.service.problems import (
    DRAINING,
    FORBIDDEN,
    INTERNAL,
    LARGE_HEADERS,
    UNAUTHORIZED,
    WRONG_HOST,
    ProblemError,
    problem_of,
)
from anncur.service.settings import LARGEST_HEADERS, AccessTokens, ServiceSettings
from anncur.tracing import span

REQUEST_ID = re.compile(rb"[A-Za-z0-9._-]{1,64}")
OPEN_PATHS = {"/livez", "/readyz", "/version", "/openapi.json"}  # for probes and clients that have no token yet
HEADERS = {
    b"x-content-type-options": b"nosniff",
    b"referrer-policy": b"no-referrer",
    b"cache-control": b"no-store",
}
CLOSED = 499  # in logs and metrics: the client went away


class ClientGoneError(Exception):
    """Nobody waits for the answer."""


@dataclass
class Exchange:
    """One request and what came of it, for the log; routes add to `facts`."""

    id: str
    method: str
    path: str
    started: float = field(default_factory=time.perf_counter)
    status: int = CLOSED
    facts: dict[str, Any] = field(default_factory=dict)


class Edge:
    """Wraps the application."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        settings: ServiceSettings,
        metrics: Metrics,
        open_paths: frozenset[str] = frozenset(),
        is_draining: Callable[[], bool] = lambda: False,
    ) -> None:
        self._app = app
        self._is_draining = is_draining
        self._settings = settings
        self._metrics = metrics
        self._open_paths = OPEN_PATHS | open_paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = dict(scope["headers"])
        exchange = Exchange(_request_id(headers), scope["method"], get_route_path(scope))
        scope.setdefault("state", {})["exchange"] = exchange
        sending = Sending(send, exchange)
        with span("anncur.request", **{"http.request.method": exchange.method, "anncur.request_id": exchange.id}):
            try:
                await self._answer(scope, headers, receive, sending)
            except (ClientGoneError, ClientDisconnect):
                pass  # nobody to answer
            except asyncio.CancelledError:
                if not self._is_draining():
                    raise
                await self._end(scope, receive, sending)
            except Exception as error:
                await self._report(error, scope, receive, sending)
            finally:
                self._write_down(exchange, scope)

    async def _answer(self, scope: Scope, headers: Mapping[bytes, bytes], receive: Receive, send: Sending) -> None:
        settings = self._settings
        if sum(len(name) + len(value) + 4 for name, value in scope["headers"]) > LARGEST_HEADERS:
            raise ProblemError(LARGE_HEADERS, f"they may have {LARGEST_HEADERS} bytes", headers={"Connection": "close"})
        check_host(headers.get(b"host", b""), settings.hosts)
        path = send.exchange.path
        if path not in self._open_paths:
            is_write = _is_write(scope["method"], path)
            check_token(settings.tokens, headers.get(b"authorization", b""), is_write=is_write)
        length = headers.get(b"content-length", b"0")
        if length.isdigit() and int(length[:20]) > settings.max_body_bytes:
            raise too_large(settings.max_body_bytes)
        capped = CappedReceive(receive, most_bytes=settings.max_body_bytes, seconds=settings.body_seconds)
        await self._app(scope, capped, send)

    async def _report(self, error: Exception, scope: Scope, receive: Receive, send: Sending) -> None:
        """Answer with a problem, unless an answer has begun."""
        problem = as_problem(error)
        if problem.kind.status >= INTERNAL.status:
            send.exchange.facts["error"] = described(error, log_texts=self._settings.log_texts)
        if problem.kind is INTERNAL:
            write_event("an error of the service", send.exchange, level=logging.ERROR, exc_info=error)
        if send.has_begun:
            raise error
        await ProblemAnswer(problem, send.exchange.id)(scope, receive, send)

    async def _end(self, scope: Scope, receive: Receive, send: Sending) -> None:
        """The time of a request is over because the service shuts down; its task does nothing more after this."""
        send.exchange.facts["problem"] = DRAINING.name
        if not send.has_begun:
            await ProblemAnswer(ProblemError(DRAINING, retry_after=1), send.exchange.id)(scope, receive, send)

    def _write_down(self, exchange: Exchange, scope: Scope) -> None:
        seconds, route = time.perf_counter() - exchange.started, getattr(scope.get("route"), "path", "other")
        self._metrics.observe(exchange.method, route, exchange.status, seconds)
        write_line(exchange, route, seconds)


class Sending:
    """Sends an answer, with the headers that all have, and notes its status."""

    def __init__(self, send: Send, exchange: Exchange) -> None:
        self._send = send
        self.exchange = exchange
        self.has_begun = False

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.has_begun, self.exchange.status = True, message["status"]
            own = dict(message["headers"])
            message["headers"] = [
                *message["headers"],
                *((name, value) for name, value in HEADERS.items() if name not in own),
                (b"x-request-id", self.exchange.id.encode("ascii")),
            ]
        await self._send(message)


def as_problem(error: Exception) -> ProblemError:
    """What a client sees of any error."""
    if isinstance(error, ProblemError):
        return error
    return problem_of(error) if isinstance(error, AnncurError) else ProblemError(INTERNAL)


def check_host(host: bytes, hosts: tuple[str, ...]) -> None:
    """Refuse requests that were addressed to another name: a page elsewhere may have let its name point to us."""
    name = host.decode("latin-1").lower()
    without_port = re.sub(r":\d*$", "", name)
    if hosts and without_port not in hosts:
        raise ProblemError(WRONG_HOST, f"it goes by {', '.join(hosts)}; --allow-host adds a name")


def check_token(tokens: AccessTokens, header: bytes, *, is_write: bool) -> None:
    """Refuse who doesn't show the token that is needed. Compares bytes, all of them, whatever they are."""
    scheme, _, shown = header.partition(b" ")
    shown = shown.strip() if scheme.lower() == b"bearer" else b""
    may_write = _is_same(shown, tokens.write)
    may_read = _is_same(shown, tokens.read) or may_write or tokens.read is None
    if is_write and tokens.write is None:
        raise ProblemError(FORBIDDEN, "this service was started without a write token, and so nobody may change items")
    if may_write or (may_read and not is_write):
        return
    if is_write and shown and _is_same(shown, tokens.read):
        raise ProblemError(FORBIDDEN, "this token is for searches; changes need the write token")
    detail = "send Authorization: Bearer …, with the " + ("write token" if is_write else "token of this service")
    raise ProblemError(UNAUTHORIZED, detail, headers={"WWW-Authenticate": 'Bearer realm="anncur"'})


def _is_same(shown: bytes, token: bytes | None) -> bool:
    return token is not None and hmac.compare_digest(shown, token)


def _is_write(method: str, path: str) -> bool:
    return method != "GET" and (path == "/v1/items" or path.startswith("/v1/items/"))


def _request_id(headers: Mapping[bytes, bytes]) -> str:
    """The client's, if it is plain, or a new one."""
    given = headers.get(b"x-request-id", b"")
    return given.decode("ascii") if REQUEST_ID.fullmatch(given) else uuid.uuid4().hex
