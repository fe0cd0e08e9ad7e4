"""Runs the application in a server: on loopback unless tokens guard it, with patience for slow clients that ends, and
a shutdown that lets running requests finish.

Reads an application, feeds nobody: it returns when the service has shut down."""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import os
import socket
import sys
import uuid
from types import FrameType
from typing import Any

import h11
import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.h11_impl import H11Protocol

from anncur.errors import InputError
from anncur.service.answers import as_json
from anncur.service.problems import MEDIA_TYPE, NO_HTTP, ProblemError
from anncur.service.settings import LARGEST_HEADERS, AccessTokens
from anncur.service.state import Service

HEADER_SECONDS = 10.0  # for a request to begin and its headers to come
IDLE_SECONDS = 30  # of a connection between requests
SEND_SECONDS = 30.0  # in which a client must take something of what is sent
LAST_SECONDS = 1.0  # after the drain, for what was cancelled
MOST_CONNECTIONS = 1_000
SWITCH_SECONDS = 0.001  # that a thread may compute while another one has something to answer
LOOPBACK_HOSTS = ("localhost", "127.0.0.1", "[::1]")


def run_app(app: FastAPI, *, host: str, port: int, drain_seconds: float = 30.0) -> None:
    """Serve until SIGTERM or Ctrl-C; what runs then has `drain_seconds` to finish."""
    config = uvicorn.Config(
        app,
        host=host,
        port=port,
        http=PatientProtocol,
        ws="none",
        loop="asyncio",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        date_header=False,
        proxy_headers=False,
        timeout_keep_alive=IDLE_SECONDS,
        timeout_graceful_shutdown=max(1, round(drain_seconds)),
        h11_max_incomplete_event_size=LARGEST_HEADERS,
        backlog=MOST_CONNECTIONS,
    )
    sys.setswitchinterval(SWITCH_SECONDS)
    DrainingServer(config, app.state.service).run()


def check_address(host: str, tokens: AccessTokens) -> None:
    """Refuse to listen where others can reach it, unless they must show a token."""
    if tokens.read is None and not is_loopback(host):
        raise InputError(
            f"{host} can be reached by others, so that a token is needed: set ANNCUR_READ_TOKEN, or pass "
            "--read-token-file; without one, listen on 127.0.0.1"
        )


def allowed_hosts(host: str, tokens: AccessTokens, others: tuple[str, ...]) -> tuple[str, ...]:
    """The names that requests may be addressed to. Behind a token any will do; without one, a page in a browser on
    this machine could let its own name point here."""
    if others:
        return tuple(dict.fromkeys((*LOOPBACK_HOSTS, *(name.lower() for name in others))))
    return () if tokens.read is not None else tuple(dict.fromkeys((*LOOPBACK_HOSTS, host.lower())))


def is_loopback(host: str) -> bool:
    """Whether an address can be reached from this machine alone; of a name, all its addresses."""
    try:
        found = {info[4][0] for info in socket.getaddrinfo(host, None)}
    except OSError as error:
        raise InputError(f"the address {host!r} can't be listened on: {error}") from error
    return all(ipaddress.ip_address(str(address).partition("%")[0]).is_loopback for address in found)


class DrainingServer(uvicorn.Server):
    """Says that it isn't ready any more as soon as it is asked to stop."""

    def __init__(self, config: uvicorn.Config, service: Service) -> None:
        super().__init__(config)
        self._service = service

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """A signal to stop."""
        self._service.is_draining = True
        super().handle_exit(sig, frame)
        self._captured_signals.clear()  # which would be raised again at the end: that it was asked for is no failure

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Drain, and then end, also where a scorer is busy in a thread, for which the interpreter would wait."""
        await super().shutdown(sockets)
        if await _cancel_others():
            logging.shutdown()
            os._exit(0)  # what is written to an index survives this at any moment


async def _cancel_others() -> bool:
    """End all other tasks; whether some don't, because of a thread that they wait for."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    return bool(others) and bool((await asyncio.wait(others, timeout=LAST_SECONDS))[1])


class PatientProtocol(H11Protocol):
    """Closes connections whose requests don't begin, whose headers don't end or whose answers nobody takes, and takes
    no more of them than it can hold.

    Bodies have a limit of their own, in `bodies.py`."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._header_timer: asyncio.TimerHandle | None = None
        self._send_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A client has come."""
        super().connection_made(transport)
        if len(self.connections) > MOST_CONNECTIONS:
            transport.close()
            return
        transport.set_write_buffer_limits(0)  # writing is paused as long as there is anything that nobody took
        self._expect_headers()

    def connection_lost(self, exc: Exception | None) -> None:
        """It has gone."""
        self._stop_timer()
        self._stop_send_timer()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        """The client takes less than it is sent."""
        super().pause_writing()
        self._expect_taking(self.transport.get_write_buffer_size())

    def resume_writing(self) -> None:
        """It has taken everything."""
        self._stop_send_timer()
        super().resume_writing()

    def handle_events(self) -> None:
        """After bytes have come in: the timer runs from the first of them until a request is whole."""
        before = self.cycle
        super().handle_events()
        if self.cycle is not before or self._is_answering():
            self._stop_timer()
        elif self._header_timer is None:
            self._expect_headers()

    def send_400_response(self, msg: str) -> None:
        """What came is no HTTP. If a request was being read, its application has nobody to answer any more."""
        if self._is_answering():
            self.cycle.disconnected = True
            self.cycle.message_event.set()
            if self.cycle.response_started:
                self.transport.close()
                return
        request_id = uuid.uuid4().hex
        body = as_json(ProblemError(NO_HTTP, msg).body(request_id))
        headers = [
            ("Content-Type", MEDIA_TYPE),
            ("Content-Length", str(len(body))),
            ("X-Request-Id", request_id),
            ("Connection", "close"),
        ]
        for event in (h11.Response(status_code=400, headers=headers), h11.Data(data=body), h11.EndOfMessage()):
            self.transport.write(self.conn.send(event) or b"")
        self.transport.close()

    def _is_answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _expect_headers(self) -> None:
        self._header_timer = self.loop.call_later(HEADER_SECONDS, self._give_up)

    def _stop_timer(self) -> None:
        if self._header_timer is not None:
            self._header_timer.cancel()
            self._header_timer = None

    def _expect_taking(self, n_bytes: int) -> None:
        self._stop_send_timer()
        self._send_timer = self.loop.call_later(SEND_SECONDS, self._check_taking, n_bytes)

    def _check_taking(self, n_before: int) -> None:
        n_bytes = self.transport.get_write_buffer_size()
        if n_bytes < n_before:
            self._expect_taking(n_bytes)
        else:
            self.transport.abort()

    def _stop_send_timer(self) -> None:
        if self._send_timer is not None:
            self._send_timer.cancel()
            self._send_timer = None

    def _give_up(self) -> None:
        self._header_timer = None
        if not self._is_answering() and not self.transport.is_closing():
            self.transport.close()
