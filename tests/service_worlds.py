"""What tests of the service are made of: a corpus, scorers that are found by name, and services in processes."""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
import subprocess
import sys
import threading
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import httpx
import uvicorn
from starlette.testclient import TestClient

import anncur
from anncur.scorers.base import Pair, ScorerLike
from anncur.service.app import make_app
from anncur.service.served import ServedIndex, ServedIndexes
from anncur.service.server import PatientProtocol
from anncur.service.settings import AccessTokens, ServiceSettings

MakeClient: TypeAlias = Callable[..., TestClient]

READ, WRITE = "read-token-of-tests", "write-token-of-tests"
WORDS = ["small", "large", "red", "blue", "green", "old", "young", "fast", "slow", "bird", "fish", "horse", "tree"]
WORDS += ["stone", "river", "house"]
TESTS = Path(__file__).parent


def corpus(n_items: int = 120) -> list[anncur.Item]:
    """Items of a few words each, with metadata."""
    return [
        anncur.Item(
            f"item-{number}",
            " ".join(WORDS[(number * step + step) % len(WORDS)] for step in (1, 3, 5, 7)),
            title=f"thing {number}",
            metadata={"number": number, "colour": WORDS[2 + number % 3], "tags": ["a", "b"] if number % 2 else ["c"]},
        )
        for number in range(n_items)
    ]


def queries(n_queries: int = 12) -> list[str]:
    """Queries of the same words."""
    return [f"{WORDS[number % len(WORDS)]} {WORDS[(3 * number + 1) % len(WORDS)]}" for number in range(n_queries)]


def overlap(query: str, text: str) -> float:
    """Words in common, and a little that is each pair's own."""
    own = zlib.crc32(f"{query}|{text}".encode("utf-8", "surrogatepass")) / 2**32
    return len(set(query.split()) & set(text.split())) + 0.5 * own


class Overlap:
    """Scores by words in common; takes pairs of several queries. `seconds` for each request and each pair."""

    fingerprint = "overlap-of-words"

    def __init__(self, latency: float = 0.0, per_pair: float = 0.0) -> None:
        self._latency, self._per_pair = latency, per_pair
        self.requests: list[int] = []
        self.is_down = False

    def slow_down(self, latency: float) -> None:
        """Take this long for each request from now on."""
        self._latency = latency

    def score_pairs(self, pairs: Sequence[Pair]) -> list[float]:
        self.requests.append(len(pairs))
        if self.is_down:
            raise ConnectionError("the scorer at http://secret.example is down")
        if self._latency or self._per_pair:
            time.sleep(self._latency + self._per_pair * len(pairs))
        return [overlap(query.text, item.full_text) for query, item in pairs]


quick = Overlap()
gpu = Overlap(0.010, 0.00005)
sleeper = Overlap(1.0)
hanging = Overlap(25.0)


def true_best(items: Sequence[anncur.Item], query: str, k: int) -> list[str]:
    """The ids of the truly best items."""
    ranked = sorted(items, key=lambda item: -overlap(query, item.full_text))
    return [item.id for item in ranked[:k]]


def build_index(path: Path, n_items: int = 120) -> Path:
    """An index of the corpus on disk."""
    anncur.Index.build(corpus(n_items), quick, queries(), path=path, retrievers=["bm25"], progress=False).close()
    return path


def client_of(folder: Path, scorer: ScorerLike, *, token: str | None = WRITE, **settings: Any) -> TestClient:
    """A client of an application over the index of a folder, with these settings."""
    settings.setdefault("tokens", AccessTokens(READ.encode(), WRITE.encode()))
    indexes = ServedIndexes([ServedIndex.open("things", folder, scorer, refresh_seconds=0.0)])
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    app = make_app(indexes, ServiceSettings(**settings))
    return TestClient(app, headers=headers, raise_server_exceptions=False)


@dataclass
class RunningService:
    """A service in a process of its own."""

    process: subprocess.Popen[bytes]
    port: int
    log: Path
    headers: dict[str, str] = field(default_factory=lambda: {"Authorization": f"Bearer {WRITE}"})

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def client(self, **options: Any) -> httpx.Client:
        return httpx.Client(base_url=self.url, timeout=60, headers=self.headers, **options)

    def resident_mb(self) -> float:
        pages = int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / 2**20

    def forget_peak_mb(self) -> float:
        """Begin to watch the most memory that it has; what it has now."""
        Path(f"/proc/{self.process.pid}/clear_refs").write_text("5")
        return self.resident_mb()

    def peak_mb(self) -> float:
        """The most memory that it had since then."""
        (line,) = re.findall(r"VmHWM:\s*(\d+) kB", Path(f"/proc/{self.process.pid}/status").read_text())
        return int(line) / 1024

    def log_lines(self) -> list[dict[str, Any]]:
        lines = self.log.read_text(errors="replace").splitlines()
        return [json.loads(line) for line in lines if line.startswith("{")]

    def raw(self, content: bytes, *, seconds: float = 10.0) -> bytes:
        """Whatever comes back for these bytes, until the connection is closed or nothing more comes."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=seconds) as connection:
            with contextlib.suppress(ConnectionError):
                connection.sendall(content)
            return read_answer(connection)


def read_answer(connection: socket.socket) -> bytes:
    """One answer, by its length, or all until the end."""
    found = b""
    with contextlib.suppress(TimeoutError, ConnectionError):
        while part := connection.recv(65536):
            found += part
            head, separator, body = found.partition(b"\r\n\r\n")
            length = re.search(rb"content-length: (\d+)", head.lower())
            if separator and length is not None and len(body) >= int(length[1]):
                break
    return found


@contextlib.contextmanager
def running(
    index: Path, log: Path, *options: str, scorer: str = "service_worlds:quick", port: int | None = None
) -> Iterator[RunningService]:
    """`anncur serve` until the end of the block."""
    found = start(index, log, *options, scorer=scorer, port=port)
    try:
        yield found
    finally:
        if found.process.poll() is None:
            found.process.terminate()
        found.process.wait(timeout=30)


def start(
    index: Path, log: Path, *options: str, scorer: str = "service_worlds:quick", port: int | None = None
) -> RunningService:
    """Start it, and wait until it is ready."""
    port = port or free_port()
    command = [sys.executable, "-c", "from anncur.cli.main import main; main()", "serve", str(index)]
    command += ["--port", str(port), "--scorer", scorer, *options]
    tokens = {"ANNCUR_READ_TOKEN": READ, "ANNCUR_WRITE_TOKEN": WRITE}
    paths = os.pathsep.join([str(TESTS), *filter(None, sys.path)])
    environment = {**os.environ, "PYTHONPATH": paths, **tokens}
    with log.open("ab") as output:
        process = subprocess.Popen(command, env=environment, stdout=output, stderr=output)
    found = RunningService(process, port, log)
    while process.poll() is None:
        with contextlib.suppress(httpx.HTTPError):
            httpx.get(f"{found.url}/readyz", timeout=5).raise_for_status()
            return found
        time.sleep(0.05)
    raise AssertionError(f"the service ended with {process.returncode}: {log.read_text()}")


@contextlib.contextmanager
def serving_in_thread(*indexes: ServedIndex, **settings: Any) -> Iterator[str]:
    """A service in a thread of this process until the end of the block; its address."""
    app, port = make_app(ServedIndexes(indexes), ServiceSettings(**settings)), free_port()
    config = uvicorn.Config(app, port=port, http=PatientProtocol, ws="none", log_config=None, access_log=False)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        while not server.started:
            assert thread.is_alive(), "the service didn't start"
            time.sleep(0.01)
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        thread.join()


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port
