"""Runs the application in a server: on loopback unless tokens guard it, with patience for slow clients that ends, and
a shutdown that lets running requests finish.

Reads an application, feeds nobody: it returns when the service has shut down."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import sys
from types import FrameType
from typing import Any

import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.h11_impl import H11Protocol

from anncur.errors import InputError
from anncur.service.settings import LARGEST_HEADERS, AccessTokens
from anncur.service.state import Service

HEADER_SECONDS = 10.0  # for a request to begin and its headers to come
IDLE_SECONDS = 30  # of a connection between requests
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


class PatientProtocol(H11Protocol):
    """Closes connections whose requests don't begin or whose headers don't end, and takes no more than it can hold.

    Bodies have a limit of their own, in `bodies.py`."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._header_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A client has come."""
        super().connection_made(transport)
        if len(self.connections) > MOST_CONNECTIONS:
            transport.close()
            return
        self._expect_headers()

    def connection_lost(self, exc: Exception | None) -> None:
        """It has gone."""
        self._stop_timer()
        super().connection_lost(exc)

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
        super().send_400_response(msg)

    def _is_answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _expect_headers(self) -> None:
        self._header_timer = self.loop.call_later(HEADER_SECONDS, self._give_up)

    def _stop_timer(self) -> None:
        if self._header_timer is not None:
            self._header_timer.cancel()
            self._header_timer = None

    def _give_up(self) -> None:
        self._header_timer = None
        if not self._is_answering() and not self.transport.is_closing():
            self.transport.close()
