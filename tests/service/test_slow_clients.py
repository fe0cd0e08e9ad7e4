"""Clients that read slowly, or never: they keep neither a place nor a connection."""

from __future__ import annotations

import contextlib
import json
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest

import anncur
from anncur.service import server
from anncur.service.served import ServedIndex
from programs import wait_until
from service_worlds import Overlap, serving_in_thread

pytestmark = pytest.mark.slow

N_LARGE, LARGE = 150, 100_000  # items and characters of each: more than sockets hold


@pytest.fixture
def url(folder: Path, scorer: Overlap, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setattr(server, "SEND_SECONDS", 0.5)
    with anncur.Index.open(folder, scorer) as index:
        index.upsert([anncur.Item(f"large-{number}", f"bird {number} " + "x" * LARGE) for number in range(N_LARGE)])
    with serving_in_thread(ServedIndex.open("things", folder, scorer)) as found:
        yield found


def ask(url: str, path: str) -> socket.socket:
    """Ask for large items, over a socket that holds little."""
    body = json.dumps({"query": "bird", "k": 1000, "filter": [f"large-{number}" for number in range(N_LARGE)]}).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
    connection.connect(("127.0.0.1", urlsplit(url).port))
    connection.settimeout(20)
    connection.sendall(head.encode() + b"\r\n\r\n" + body)
    return connection


@pytest.mark.parametrize("path", ["/v1/search", "/v1/search:exhaustive"])
def test_a_client_that_takes_nothing_is_given_up(url: str, path: str) -> None:
    assert any(n_bytes_after(url, path, seconds) < N_LARGE * LARGE for seconds in (4, 8, 16))


def n_bytes_after(url: str, path: str, seconds: float) -> int:
    """How much is still to be had when nothing was taken for some seconds; a busy machine may not have sent it yet."""
    n_bytes = 0
    with ask(url, path) as connection, contextlib.suppress(ConnectionResetError):
        time.sleep(seconds)
        while part := connection.recv(65536):
            n_bytes += len(part)
    return n_bytes


def test_a_client_that_reads_slowly_gets_all_of_it(url: str) -> None:
    n_bytes, began = 0, time.monotonic()
    with ask(url, "/v1/search") as connection:
        while n_bytes < N_LARGE * LARGE:
            n_bytes += len(connection.recv(2**19))
            time.sleep(0.02)
    assert time.monotonic() - began > 2 * server.SEND_SECONDS


def test_a_place_is_free_when_the_search_has_ended_whether_or_not_its_client_reads(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "SEND_SECONDS", 600.0)
    with ask(url, "/v1/search:exhaustive") as connection:
        assert connection.recv(1), "its search has a place"

        def is_free() -> bool:
            return httpx.post(f"{url}/v1/search:exhaustive", json={"query": "bird"}, timeout=20).status_code == 200

        wait_until(is_free)
