"""Sends one request to an endpoint, and says what went wrong in the words of `errors.py`.

Used by `formats.py` and `judge.py`, which know what goes over the wire. No retries, no splitting and no limits: the
guard does all that. A key is read from the environment when a client is made; it is never stored, shown or logged."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import ipaddress
import math
import os
import re
import threading
import weakref
from collections.abc import AsyncGenerator, Sequence
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any, TypeAlias
from urllib.parse import urlsplit

from anncur.errors import (
    InputError,
    RequestTooLargeError,
    ScorerAccessError,
    ScorerBusyError,
    ScorerError,
    ScorerOutputError,
    ScorerRefusedError,
)
from anncur.numbers import number
from anncur.scorers.http.answers import Reply, explanation, shortened

if TYPE_CHECKING:
    import ssl

    import httpx

Opened: TypeAlias = "dict[asyncio.AbstractEventLoop, tuple[httpx.AsyncClient, AsyncGenerator[None]]]"

TIMEOUT = 60.0  # seconds without a byte; large batches on a CPU take many
CONNECT_TIMEOUT = 10.0  # seconds
BUSY = {408, 409, 424, 425, 429}  # and all from 500; 424 is what text-embeddings-inference says when its model failed
OF_ONE_REQUEST = {400, 413, 422}  # others may be answered; where any other status refuses one, it refuses all
SHORTEST_KEY = 8  # characters
TOO_MANY = re.compile(
    r"batch size|too many (documents|texts|inputs|items|pairs)|at most \d+ (documents|texts|inputs|items)"
    r"|number of documents|maximum of \d+ documents|tokens per (submitted )?batch",
    re.I,
)

TOO_LONG = re.compile(
    r"(less|fewer) than \d+ tokens|maximum context length|context window|too many tokens|max_model_len"
    r"|longer than the maximum|maximum (model|sequence|input) length|(input|text|prompt|sequence) is too long",
    re.I,
)


class Client:
    """Talks to the endpoint at one URL; safe to share between threads and event loops.

    The key is the value of the first of the environment variables `key_names` that is set. A connection pool belongs
    to an event loop: each loop gets one, closed when the loop shuts down its generators, as `asyncio.run` does."""

    def __init__(
        self, url: str, *, key_names: Sequence[str] = (), needs_key: bool = False, timeout: float = TIMEOUT
    ) -> None:
        self.url = checked_url(url)
        self.key_names = tuple(key_names)
        self.needs_key = needs_key
        self.timeout = number("timeout", timeout, least=0.001)
        self._begin()
        _check_extra(self.url)
        self._key()

    def __repr__(self) -> str:
        return f"Client({self.url!r})"

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name not in {"_opened", "_lock"}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._begin()

    def _begin(self) -> None:
        self._opened: Opened = {}
        self._lock = threading.Lock()
        weakref.finalize(self, _close_all, self._opened)

    async def post(self, path: str, body: dict[str, Any]) -> Reply:
        """Send one request; `ScorerBusyError` where another try may succeed."""
        import httpx

        client = await self._client()
        try:
            response = await client.post(joined(self.url, path), json=body)
        except httpx.RequestError as error:
            raise self._failure(error) from error
        return self._reply(response)

    def get(self, path: str, *, timeout: float) -> Reply:
        """Ask once, waiting for the answer."""
        import httpx

        try:
            response = httpx.get(
                joined(self.url, path), headers=self._headers(), verify=_ssl_context(), timeout=timeout
            )
        except httpx.RequestError as error:
            raise self._failure(error) from error
        return self._reply(response)

    def refusal(self, reply: Reply, remedy: str = "") -> ScorerError:
        """The error for a reply that is no answer."""
        message = f"the endpoint {self.url} refused the request (HTTP {reply.status}): {shortened(reply.message)}"
        if reply.refuses(TOO_MANY) or (reply.status == 413 and not is_too_long(reply)):
            return RequestTooLargeError(f"{message}; send fewer pairs at once, by a smaller batch size")
        kind = ScorerRefusedError if reply.status in OF_ONE_REQUEST else ScorerAccessError
        return kind(f"{message}; {remedy or self._remedy(reply.status)}")

    async def _client(self) -> httpx.AsyncClient:
        loop = asyncio.get_running_loop()
        with self._lock:
            for other in [other for other, (client, _) in self._opened.items() if client.is_closed]:
                del self._opened[other]
            if loop in self._opened:
                return self._opened[loop][0]
            client = self._new_client()
            closing = _closing(client)
            self._opened[loop] = (client, closing)
        await anext(closing)  # from here on the loop knows the generator, and finishes it
        return client

    def _new_client(self) -> httpx.AsyncClient:
        import httpx

        return httpx.AsyncClient(
            headers=self._headers(),
            verify=_ssl_context(),
            timeout=httpx.Timeout(self.timeout, connect=min(CONNECT_TIMEOUT, self.timeout)),
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=None),  # the guard bounds them
        )

    def _headers(self) -> dict[str, str]:
        key = self._key()
        return {"Authorization": f"Bearer {key}"} if key else {}

    def _key(self) -> str:
        for name in self.key_names:
            key = os.environ.get(name, "").strip()
            if key and not (key.isascii() and key.isprintable()):
                raise InputError(f"the key in the environment variable {name} must be plain ASCII; set it again")
            if key:
                return key
        if self.needs_key:
            raise InputError(
                f"the endpoint {self.url} needs a key, in the environment variable {' or '.join(self.key_names)}, "
                f"got none; run export {self.key_names[0]}=…"
            )
        return ""

    def _reply(self, response: httpx.Response) -> Reply:
        status = response.status_code
        if 200 <= status < 300:
            return Reply(status, response.content, "")
        reply = Reply(status, response.content, _without_key(explanation(response.content), response.request))
        is_out_of_quota = status == 429 and b"insufficient_quota" in response.content  # no waiting helps
        if (status in BUSY or status >= 500) and not is_out_of_quota:
            raise ScorerBusyError(
                f"the endpoint {self.url} is busy or failed (HTTP {status}): {shortened(reply.message)}",
                retry_after=retry_after(response.headers),
            )
        return reply

    def _failure(self, error: httpx.RequestError) -> ScorerError:
        import httpx

        reason = f"{type(error).__name__} {error}".strip()
        if isinstance(error, httpx.DecodingError):
            return ScorerOutputError(f"the answer of the endpoint {self.url} can't be decoded: {shortened(reason)}")
        if "CERTIFICATE_VERIFY_FAILED" in reason:
            return ScorerAccessError(
                f"the certificate of the endpoint {self.url} can't be verified: {shortened(reason)}; for one of your "
                "own, name its file in the environment variable SSL_CERT_FILE"
            )
        if isinstance(error, httpx.TimeoutException):
            return ScorerBusyError(f"the endpoint {self.url} gave no answer within {self.timeout:g} s ({reason})")
        return ScorerBusyError(f"the endpoint {self.url} can't be reached: {shortened(reason)}")

    def _remedy(self, status: int) -> str:
        if status in {401, 403} and self.key_names:
            return f"set the environment variable {' or '.join(self.key_names)} to a key that is valid for it"
        if status in {402, 429}:
            return "the account's quota is used up; renew it, and run the same again"
        if status < 400:
            return "it redirects elsewhere; give the URL that it leads to"
        return "check the model's name, the URL and the length of texts"


def is_too_long(reply: Reply) -> bool:
    """Whether the endpoint refuses a single text as too long for its model, and not the request as a whole."""
    return reply.refuses(TOO_LONG) and not reply.refuses(TOO_MANY)


def checked_url(url: str) -> str:
    """A plain http or https URL without its last slash; the error never shows it, as it may hold a password."""
    try:
        parts = urlsplit(url)
        is_plain = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_plain = False
    if not is_plain or any(not character.isprintable() or character.isspace() for character in url):
        raise InputError("an endpoint's URL must look like http://host:port or https://host, got something else")
    if "@" in parts.netloc:
        raise InputError(
            "an endpoint's URL must not hold a user or a password, since it is shown in messages; take them out, and "
            "put the key into the environment variable that the endpoint's format reads"
        )
    if parts.query or parts.fragment:
        raise InputError(
            "an endpoint's URL must end with its path, got one with '?' or '#'; give only scheme, host and path"
        )
    return url.rstrip("/?#")


def is_loopback(url: str) -> bool:
    """Whether the URL leads to this machine."""
    host = urlsplit(url).hostname or ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def joined(url: str, path: str) -> str:
    """The URL of a path; where users gave the beginning of the path with the URL, it isn't repeated."""
    parts = path.strip("/").split("/")
    given = urlsplit(url).path.strip("/").split("/")
    n_given = next((n for n in range(len(parts), 0, -1) if given[-n:] == parts[:n]), 0)
    return "/".join([url, *parts[n_given:]])


def retry_after(headers: httpx.Headers) -> float | None:
    """How long the endpoint asks to wait, in seconds: a number or a date."""
    for name, seconds in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        try:
            wait = float(headers.get(name, "")) * seconds
        except ValueError:
            continue
        return max(0.0, wait) if math.isfinite(wait) else None
    try:
        moment = parsedate_to_datetime(headers.get("retry-after", ""))
    except (ValueError, OverflowError):
        return None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return max(0.0, (moment - datetime.now(UTC)).total_seconds())


def _close_all(opened: Opened) -> None:
    """Close the clients of somebody who is gone, each on its loop."""
    for loop, (client, _) in opened.items():
        if not loop.is_closed():
            with contextlib.suppress(RuntimeError):  # it was closed just now, and the client with it
                loop.call_soon_threadsafe(functools.partial(_close_on, loop, client))


def _close_on(loop: asyncio.AbstractEventLoop, client: httpx.AsyncClient) -> None:
    closing = loop.create_task(client.aclose())
    closing.add_done_callback(lambda task: task.cancelled() or task.exception())  # nobody is left to hear of it


async def _closing(client: httpx.AsyncClient) -> AsyncGenerator[None]:
    """Closes the client when the loop shuts down, or when nobody holds the generator any more."""
    try:
        yield
    finally:
        await client.aclose()


@functools.cache
def _ssl_context() -> ssl.SSLContext:
    """The certificates that are trusted, read once: that takes longer than a request to a server nearby."""
    import httpx

    return httpx.create_ssl_context()


def _without_key(text: str, request: httpx.Request) -> str:
    """The text without the key that was sent, which some endpoints repeat; a short one is a stand-in, not a secret."""
    key = request.headers.get("authorization", "").removeprefix("Bearer ")
    return text.replace(key, "[key]") if len(key) >= SHORTEST_KEY else text


def _check_extra(url: str) -> None:
    try:
        import httpx
    except ModuleNotFoundError as error:
        raise InputError(f"endpoints need {error.name}; run pip install 'anncur[http]'") from error
    try:
        httpx.URL(url)
    except httpx.InvalidURL as error:
        raise InputError(f"an endpoint's URL must name a host, got {url}: {error}") from error
