"""A service in a process of its own, and requests that mean no good: only documented answers, no growth, no end.

Everything goes over a socket, byte by byte, as no client library would send it."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from anncur.service import server
from service_worlds import READ, WRITE, RunningService, read_answer, running

pytestmark = pytest.mark.processes

TOKEN = f"Authorization: Bearer {WRITE}\r\n".encode()
HEAD = b"Host: localhost\r\n" + TOKEN
GOOD = b'{"query": "small red bird", "budget": 10, "k": 1}'
MOST_BODY_MB = 4


@pytest.fixture(scope="module")
def service(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningService]:
    folder = tmp_path_factory.mktemp("hostile")
    shutil.copytree(built, folder / "things.anncur")
    with running(folder / "things.anncur", folder / "log", "--max-body-mb", str(MOST_BODY_MB)) as found:
        yield found
        assert found.process.poll() is None, "it still runs after all that"


def post(path: bytes, body: bytes, *, head: bytes = HEAD, kind: bytes = b"application/json") -> bytes:
    length = str(len(body)).encode()
    lines = b"POST " + path + b" HTTP/1.1\r\n" + head + b"Content-Type: " + kind + b"\r\nContent-Length: " + length
    return lines + b"\r\n\r\n" + body


def get(path: bytes, *, head: bytes = HEAD, method: bytes = b"GET") -> bytes:
    return method + b" " + path + b" HTTP/1.1\r\n" + head + b"\r\n"


def search(body: bytes) -> bytes:
    return post(b"/v1/search", body)


def item(metadata: bytes) -> bytes:
    return post(b"/v1/items", b'{"items": [{"id": "odd", "text": "a", "metadata": ' + metadata + b"}]}")


def chunked(*chunks: bytes, head: bytes = HEAD) -> bytes:
    lines = (
        b"POST /v1/search HTTP/1.1\r\n" + head + b"Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
    )
    return lines + b"".join(b"%x\r\n%s\r\n" % (len(chunk), chunk) for chunk in chunks)


def many_fields(n_fields: int) -> bytes:
    return b", ".join(b'"%x": 0' % number for number in range(n_fields))


def authorized(token: bytes) -> bytes:
    return post(b"/v1/search", GOOD, head=b"Host: localhost\r\nAuthorization: " + token + b"\r\n")


# what is sent -> the statuses that may come back; None for a connection that is closed without an answer
CORPUS: dict[str, tuple[bytes, set[int | None]]] = {
    "lone surrogate": (search(b'{"query": "\\ud800"}'), {400}),
    "surrogates the wrong way round": (search(b'{"query": "\\udc00\\ud800"}'), {400}),
    "invalid UTF-8": (search(b'{"query": "\xc3\x28"}'), {400}),
    "overlong UTF-8": (search(b'{"query": "\xc0\xaf"}'), {400}),
    "UTF-16": (search('{"query": "a"}'.encode("utf-16")), {400}),
    "byte order mark": (search(b"\xef\xbb\xbf" + GOOD), {400, 200}),
    "NaN": (search(b'{"query": "a", "min_score": NaN}'), {400}),
    "-Infinity": (search(b'{"query": "a", "min_score": -Infinity}'), {400}),
    "1e999": (search(b'{"query": "a", "min_score": 1e999}'), {422}),
    "1e999 as a filter": (search(b'{"query": "a", "filter": {"number": {"<": 1e999}}}'), {422, 200}),
    "a number of 100,000 digits": (search(b'{"query": "a", "k": ' + b"9" * 100_000 + b"}"), {400, 422}),
    "a filter with a number of 4,000 digits": (
        search(b'{"query": "a", "filter": {"number": ' + b"9" * 4_000 + b"}}"),
        {400, 422, 200},
    ),
    "a negative zero": (search(b'{"query": "a", "min_score": -0.0}'), {200}),
    "a filter of null": (search(b'{"query": "a", "filter": {"number": null}}'), {422, 200}),
    "a filter of an empty name": (search(b'{"query": "a", "filter": {"": 1}}'), {422}),
    "a filter of __class__": (search(b'{"query": "a", "filter": {"__class__": 1}}'), {422}),
    "a key twice": (search(b'{"query": "a", "query": "b", "budget": 5}'), {200, 400, 422}),
    "100,000 brackets": (search(b"[" * 100_000), {400}),
    "100,000 braces": (search(b'{"a":' * 100_000), {400}),
    "a deep filter": (search(b'{"query": "a", "filter": ' + b'{"not": ' * 150 + b"1" + b"}" * 151), {422}),
    "a deep metadata": (
        item(b'{"a": ' * 180 + b"1" + b"}" * 180),
        {400, 422, 200},
    ),
    "an id of NUL": (post(b"/v1/items", b'{"items": [{"id": "\\u0000", "text": "a"}]}'), {422}),
    "metadata with a lone surrogate": (
        item(b'{"b": "\\udfff"}'),
        {400},
    ),
    "metadata with a NUL": (
        item(b'{"b\\u0000": "\\u0000"}'),
        {200, 422},
    ),
    "metadata with a large number": (
        post(
            b"/v1/items",
            b'{"items": [{"id": "large", "text": "a", "metadata": {"number": 1e308, "n": 99999999999999999999}}]}',
        ),
        {200, 422},
    ),
    "metadata of an index's own names": (
        post(
            b"/v1/items",
            b'{"items": [{"id": "own", "text": "a", "metadata": {"id": 1, "text": 2, "and": 3, "__proto__": {}}}]}',
        ),
        {200, 422},
    ),
    "300,000 unknown fields": (search(b'{"query": "a", ' + many_fields(300_000) + b"}"), {422}),
    "1,000 items of 250 unknown fields": (
        post(b"/v1/items", b'{"items": [' + b", ".join([b"{" + many_fields(250) + b"}"] * 1_000) + b"]}"),
        {422},
    ),
    "1,000 items of 8 unknown fields": (
        post(b"/v1/items", b'{"items": [' + b", ".join([b"{" + many_fields(8) + b"}"] * 1_000) + b"]}"),
        {422},
    ),
    "300,000 fields that other services may have": (
        post(b"/rerank", b'{"query": "a", "texts": ["a"], ' + many_fields(300_000) + b"}"),
        {200},
    ),
    "a filter of 300,000 fields": (search(b'{"query": "a", "filter": {' + many_fields(300_000) + b"}}"), {422}),
    "metadata of 1,001 fields": (item(b"{" + many_fields(1_001) + b"}"), {422}),
    "metadata of 300,000 fields inside": (item(b'{"a": {' + many_fields(300_000) + b"}}"), {200, 422}),
    "no body": (search(b""), {400}),
    "a body of white space": (search(b" " * 1000), {400}),
    "a form": (post(b"/v1/search", b"query=a", kind=b"application/x-www-form-urlencoded"), {415}),
    "a media type of bytes": (post(b"/v1/search", GOOD, kind=b"\xff\xfe"), {415}),
    "a token of bytes": (authorized(b"Bearer \xff\xfe\xc3\xa4"), {401}),
    "a token in UTF-8": (authorized("Bearer tökén".encode()), {401}),
    "a token of 30,000 bytes": (authorized(b"Bearer " + b"a" * 30_000), {401}),
    "a basic token": (authorized(b"Basic " + WRITE.encode()), {401}),
    "a token without a scheme": (authorized(WRITE.encode()), {401}),
    "the token with white space": (authorized(b"Bearer   " + READ.encode() + b"  "), {200}),
    "two tokens": (
        post(b"/v1/search", GOOD, head=b"Host: a\r\nAuthorization: Bearer wrong\r\nAuthorization: Bearer worse\r\n"),
        {401},
    ),
    "no host": (get(b"/v1/indexes", head=TOKEN), {400}),
    "two hosts": (get(b"/v1/indexes", head=b"Host: a\r\nHost: b\r\n" + TOKEN), {400}),
    "dots": (get(b"/v1/../../etc/passwd"), {404}),
    "encoded dots": (get(b"/page/%2e%2e%2f%2e%2e%2fetc%2fpasswd"), {404}),
    "a backslash": (get(b"/page/..\\..\\app.py"), {404, 400}),
    "a double slash": (get(b"//v1/indexes"), {404}),
    "a trailing slash": (get(b"/v1/indexes/"), {404}),
    "another case": (get(b"/V1/Indexes"), {404}),
    "a NUL in the path": (get(b"/v1/indexes/%00/map"), {404, 422}),
    "a path of bytes": (get(b"/v1/indexes/\xff/map"), {400}),
    "encoded bytes in the path": (get(b"/v1/indexes/%ff%fe/map"), {404, 422}),
    "an index with dots": (get(b"/v1/indexes/..%2f..%2fthings/map"), {404, 422}),
    "a whole URL": (get(b"http://elsewhere.example/v1/indexes"), {404, 400, 200}),
    "an asterisk": (get(b"*", method=b"OPTIONS"), {404, 405, 400}),
    "another host to connect to": (get(b"elsewhere.example:443", method=b"CONNECT"), {404, 405, 400}),
    "a method of one's own": (get(b"/v1/search", method=b"STEAL"), {405}),
    "TRACE": (get(b"/v1/indexes", method=b"TRACE"), {405}),
    "HEAD": (get(b"/v1/indexes", method=b"HEAD"), {405, 200}),
    "a query string of bytes": (get(b"/v1/indexes/things/map?n=%ff"), {422}),
    "a query string of a large number": (get(b"/v1/indexes/things/map?n=" + b"9" * 6000), {422}),
    "a query string twice": (get(b"/v1/indexes/things/map?n=1&n=2"), {200, 422}),
    "an id of an item with bytes": (get(b"/v1/items/%ff%00", method=b"DELETE"), {200, 422}),
    "an id of an item with dots": (get(b"/v1/items/../../search", method=b"DELETE"), {200, 404, 405}),
    "an empty id": (get(b"/v1/items/", method=b"DELETE"), {404, 405, 422}),
    "headers of 100 kB": (get(b"/version", head=HEAD + b"X: " + b"a" * 100_000 + b"\r\n"), {400, 431}),
    "9,000 headers": (get(b"/version", head=HEAD + b"X: a\r\n" * 9_000), {400, 431}),
    "a header without a name": (get(b"/version", head=HEAD + b": a\r\n"), {400}),
    "a header with a line feed": (get(b"/version", head=HEAD + b"X-Request-Id: a\nX: b\r\n"), {400, 200}),
    "a folded header": (get(b"/version", head=HEAD + b"X: a\r\n b\r\n"), {400, 200}),
    "a request id that splits": (get(b"/version", head=HEAD + b"X-Request-Id: a%0d%0aSet-Cookie: b\r\n"), {200}),
    "a negative length": (b"POST /v1/search HTTP/1.1\r\n" + HEAD + b"Content-Length: -1\r\n\r\n", {400}),
    "a length of letters": (b"POST /v1/search HTTP/1.1\r\n" + HEAD + b"Content-Length: ten\r\n\r\n", {400}),
    "two lengths": (
        b"POST /v1/search HTTP/1.1\r\n" + HEAD + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\n{}   ",
        {400},
    ),
    "a length of a terabyte": (
        b"POST /v1/search HTTP/1.1\r\n" + HEAD + b"Content-Length: 1000000000000\r\n\r\n",
        {413},
    ),
    "a length beyond any number": (
        b"POST /v1/search HTTP/1.1\r\n" + HEAD + b"Content-Length: " + b"9" * 30 + b"\r\n\r\n",
        {400, 413},
    ),
    "length and chunks": (
        b"POST /v1/search HTTP/1.1\r\n" + HEAD + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        {400, 415},
    ),
    "chunks of a size of letters": (
        b"POST /v1/search HTTP/1.1\r\n" + HEAD + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n",
        {400, 415},
    ),
    "an unknown encoding": (b"POST /v1/search HTTP/1.1\r\n" + HEAD + b"Transfer-Encoding: gzip\r\n\r\n", {400}),
    "a compressed body": (
        post(b"/v1/search", b"\x1f\x8b" + b"\x00" * 100, head=HEAD + b"Content-Encoding: gzip\r\n"),
        {400},
    ),
    "HTTP/0.9": (b"GET /version\r\n\r\n", {400}),
    "HTTP/3.0": (b"GET /version HTTP/3.0\r\n" + HEAD + b"\r\n", {400, 200}),
    "an upgrade": (get(b"/v1/search", head=HEAD + b"Connection: Upgrade\r\nUpgrade: websocket\r\n"), {405, 400, 404}),
    "TLS": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\x00" * 200, {400, None}),
    "zeros": (b"\x00" * 10_000, {400, None}),
    "a line feed": (b"\n" * 1_000 + get(b"/version"), {400, 200}),
}


@pytest.mark.parametrize("name", CORPUS)
def test_only_documented_answers_come_back(service: RunningService, name: str) -> None:
    content, statuses = CORPUS[name]
    answer = service.raw(content, seconds=15)
    status = int(answer.split(b" ", 2)[1]) if answer else None
    assert status in statuses, answer[:500]
    head, _, body = answer.partition(b"\r\n\r\n")
    if status is not None and status >= 400:
        assert b"problem+json" in head
        assert not body or json.loads(body)["status"] == status


def test_the_next_request_on_a_connection_is_one_of_its_own(service: RunningService) -> None:
    """Pipelined requests are answered in turn, and none is taken from another's body."""
    with socket.create_connection(("127.0.0.1", service.port), timeout=15) as connection:
        inner = get(b"/readyz")
        connection.sendall(search(b'{"query": "a"}' + inner) + get(b"/livez"))
        first = read_answer(connection)
        assert first.startswith(b"HTTP/1.1 400")
        rest = first.partition(b"\r\n\r\n")[2].partition(b"}")[2] or read_answer(connection)
        assert b"alive" in rest
        assert b"ready" not in rest


def test_a_body_of_a_gigabyte_is_cut_off_while_it_comes_in(service: RunningService) -> None:
    service.raw(search(GOOD))
    before = service.resident_mb()
    for _ in range(3):
        n_sent = 0
        with socket.create_connection(("127.0.0.1", service.port), timeout=30) as connection:
            connection.sendall(chunked())
            chunk = b"%x\r\n%s\r\n" % (2**20, b" " * 2**20)
            with contextlib.suppress(ConnectionError, TimeoutError):
                for _ in range(1024):
                    connection.sendall(chunk)
                    n_sent += 1
            answer = b""
            with contextlib.suppress(ConnectionError):
                answer = read_answer(connection)
        assert not answer or answer.startswith(b"HTTP/1.1 413")
        assert n_sent < 64, "megabytes, until it hung up"
    assert service.resident_mb() < before + 40


def test_a_cut_off_body_is_answered(service: RunningService) -> None:
    """A little over the cap, so that the client has sent all of it before it is cut off."""
    answer = service.raw(chunked(*[b" " * 2**18] * (4 * MOST_BODY_MB + 1)))
    assert answer.startswith(b"HTTP/1.1 413")


def test_headers_that_never_end_are_given_up(service: RunningService) -> None:
    began = time.monotonic()
    connections = [socket.create_connection(("127.0.0.1", service.port), timeout=30) for _ in range(50)]
    try:
        end = began + server.HEADER_SECONDS + 5
        open_ones = list(connections)
        for connection in connections:
            connection.sendall(b"GET /version HTTP/1.1\r\nHost: localhost\r\n")
        while open_ones and time.monotonic() < end:
            time.sleep(0.5)
            open_ones = [one for one in open_ones if _is_open(one)]
        assert not open_ones
        assert time.monotonic() - began > server.HEADER_SECONDS / 2
        assert service.raw(get(b"/livez")).startswith(b"HTTP/1.1 200"), "others are served meanwhile"
    finally:
        for connection in connections:
            connection.close()


def _is_open(connection: socket.socket) -> bool:
    """After another header was sent; whether it hung up meanwhile."""
    try:
        connection.sendall(b"X: a\r\n")
        connection.setblocking(False)
        return connection.recv(1) != b""
    except BlockingIOError:
        return True
    except ConnectionError:
        return False
    finally:
        connection.setblocking(True)


@pytest.mark.slow
def test_a_body_that_comes_byte_by_byte_is_given_up(service: RunningService) -> None:
    began = time.monotonic()
    with socket.create_connection(("127.0.0.1", service.port), timeout=60) as connection:
        connection.sendall(b"POST /v1/search HTTP/1.1\r\n" + HEAD + b"Content-Type: application/json\r\n")
        connection.sendall(b"Content-Length: 100000\r\n\r\n")
        with contextlib.suppress(ConnectionError):
            while time.monotonic() - began < 40:
                connection.sendall(b" ")
                time.sleep(0.5)
                connection.setblocking(False)
                with contextlib.suppress(BlockingIOError):
                    if answer := connection.recv(65536):
                        assert answer.startswith(b"HTTP/1.1 408")
                        break
                connection.setblocking(True)
    assert time.monotonic() - began < 35


def test_many_bad_requests_leave_no_memory_behind(service: RunningService) -> None:
    bad = [content for content, _ in CORPUS.values() if len(content) < 50_000]
    for content in bad:
        service.raw(content, seconds=5) if content.endswith(b"}") else None
    for _ in range(300):
        service.raw(search(b'{"query": "' + b"a" * 9_000 + b'"'))
    before = service.resident_mb()
    for _ in range(1_000):
        service.raw(search(b'{"query": "' + b"a" * 9_000 + b'"'))
    assert service.resident_mb() < before + 10


@pytest.mark.parametrize("name", [name for name in CORPUS if "fields" in name])
def test_very_many_fields_take_little_memory(service: RunningService, name: str) -> None:
    service.raw(search(GOOD))
    before = service.forget_peak_mb()
    assert service.raw(CORPUS[name][0], seconds=30)
    assert service.peak_mb() < before + 150


def test_a_client_that_goes_away_ends_its_search(service: RunningService) -> None:
    for _ in range(20):
        with socket.create_connection(("127.0.0.1", service.port), timeout=15) as connection:
            connection.sendall(search(b'{"query": "small red bird", "budget": 120}'))
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        text = service.raw(get(b"/metrics")).decode()
        running_now = re.search(r"^anncur_running_searches (\S+)", text, re.MULTILINE)
        if running_now is not None and float(running_now[1]) == 0:
            return
        time.sleep(0.1)
    raise AssertionError("searches of clients that are gone still run")


def test_a_client_that_breaks_off_during_its_body_is_no_error_of_ours(service: RunningService) -> None:
    n_before = len(service.log_lines())
    with socket.create_connection(("127.0.0.1", service.port), timeout=15) as connection:
        connection.sendall(search(GOOD)[:-10])
    deadline = time.monotonic() + 10
    while not (found := [line for line in service.log_lines()[n_before:] if line.get("route") == "/v1/search"]):
        assert time.monotonic() < deadline, "it is in the log"
        time.sleep(0.05)
    assert [line["status"] for line in found] == [499]


def test_nothing_of_all_that_was_an_error_of_ours(service: RunningService) -> None:
    """Stands last: the log of what came before."""
    assert [line for line in service.log_lines() if line.get("status", 0) >= 500 or "traceback" in line] == []
