"""A client of Milvus (extra `milvus`): a server, or a folder of milvus-lite.

Reads a `Location`, feeds `vectors/milvus.py` and `attached/milvus.py`. Passwords come from the location, else from the
environment variable ANNCUR_MILVUS_TOKEN: a token, or user:password."""

from __future__ import annotations

import importlib
import logging
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar
from urllib.parse import unquote, urlsplit

from anncur.databases.location import MILVUS_DATABASE, Location, Secrets, read_options
from anncur.databases.retrying import (
    CONNECT_SECONDS,
    FULL,
    REFUSED,
    SLOW,
    UNREACHABLE,
    Failure,
    Retries,
    refuse_pickling,
)
from anncur.errors import InputError

if TYPE_CHECKING:
    from pymilvus import MilvusClient

TOKEN = "ANNCUR_MILVUS_TOKEN"  # the name of a variable
MOST_FOUND = 16_384  # rows that Milvus gives, whether of a search or of a query
STRONG, BOUNDED = "Strong", "Bounded"  # all that was written, and what was written some seconds ago

# Codes of errors: of Milvus, and of gRPC by name. Those of any kind tell nothing, so that their text must do.
FULL_CODES = {3, 4, 7, 8, 9, "RESOURCE_EXHAUSTED"}  # memory, requests, disk, rates and quotas
LOST_CODES = {2, 401, 503, 901, 902, "UNAVAILABLE", "CANCELLED", "ABORTED"}  # a server, a replica, a channel or a node
SLOW_CODES = {"DEADLINE_EXCEEDED"}
ANY_CODES = {1, 5, 65535, "UNKNOWN", "INTERNAL"}
FULL_WORDS = ("quota", "memory", "disk", "no space", "rate limit")
SLOW_WORDS = ("deadline", "timeout")
LOST_WORDS = ("connect", "not ready", "closed", "node offline", "available")
OF_FILTERS = ("expression", "expr")  # a text with one of these may repeat a filter, whose words tell nothing
CLOSED = "closed channel"  # of an error of Python's own: another thread has closed the client

T = TypeVar("T")

_is_ours: ContextVar[bool] = ContextVar("anncur_asks_milvus", default=False)


class Milvus:
    """A database and its client. Thread-safe; another process connects by itself."""

    def __init__(self, location: Location, *, timeout: float = 30.0) -> None:
        check_driver()
        from_environment = Secrets(os.environ.get(TOKEN, ""))
        self.location = location if location.secrets.password else replace(location, secrets=from_environment)
        self.timeout = timeout
        self._retries = Retries(self.location, _errors(), _failure_of)
        self._client: tuple[int, MilvusClient] | None = None  # with the process that it belongs to
        self._connecting = threading.Lock()

    @property
    def is_server(self) -> bool:
        """Whether it is another process, not a folder of this one."""
        return bool(urlsplit(self.location.url).scheme)

    @property
    def n_lost(self) -> int:
        """How often the server was lost."""
        return self._retries.n_lost

    def run(self, work: Callable[[MilvusClient], T]) -> T:
        """What some requests give. Where the server is lost they are sent again: they must be such that this does no
        harm."""
        with _without_log():
            return self._retries.run(lambda: self._attempt(work))

    def _attempt(self, work: Callable[[MilvusClient], T]) -> T:
        client = self._connected()
        try:
            return work(client)
        except _errors() as error:
            if _failure_of(error).may_pass:
                self._let_go(client)
            raise
        except ValueError as error:
            if CLOSED not in str(error):
                raise
            self._let_go(client)
            raise _closed_error() from error

    def _connected(self) -> MilvusClient:
        with self._connecting:
            if self._client is None or self._client[0] != os.getpid():
                self._client = os.getpid(), self._connect()
            return self._client[1]

    def _let_go(self, client: MilvusClient) -> None:
        """Close a client that lost its server; threads that use it too get another one."""
        with self._connecting:
            if self._client is not None and self._client[1] is client:
                self._client = None
        with suppress(*_errors()):
            client.close()

    def _connect(self) -> MilvusClient:
        from pymilvus import MilvusClient

        parts = urlsplit(self.location.url)
        user = unquote(parts.username or "")
        secret = self.location.secrets.password
        try:
            return MilvusClient(
                uri=parts._replace(netloc=parts.netloc.rpartition("@")[2], query="").geturl(),
                token=f"{user}:{secret}" if user and secret else secret,
                db_name=dict(read_options(parts.query)).get(MILVUS_DATABASE, ""),
                timeout=min(self.timeout, CONNECT_SECONDS),
            )
        except ValueError as error:
            self._retries.fail(error, Failure(REFUSED))

    def __reduce__(self) -> NoReturn:
        refuse_pickling()


def check_driver() -> None:
    """Refuse to begin where the package is missing."""
    try:
        importlib.import_module("pymilvus")
    except ImportError as error:
        raise InputError(
            f"Milvus needs pymilvus, which can't be imported ({error}); run pip install 'anncur[milvus]'"
        ) from error


@contextmanager
def _without_log() -> Iterator[None]:
    """Meanwhile pymilvus doesn't log the errors that it raises; it does for others who use it."""
    logging.getLogger("pymilvus.decorators").addFilter(_is_for_others)
    before = _is_ours.set(True)
    try:
        yield
    finally:
        _is_ours.reset(before)


def _is_for_others(_: logging.LogRecord) -> bool:
    return not _is_ours.get()


def _errors() -> tuple[type[Exception], ...]:
    import grpc
    from pymilvus.exceptions import MilvusException

    return MilvusException, grpc.RpcError, grpc.FutureTimeoutError


def _closed_error() -> Exception:
    from pymilvus.exceptions import ConnectionNotExistException

    closed: Exception = ConnectionNotExistException(message="the connection was closed")
    return closed


def _failure_of(error: Exception) -> Failure:
    from pymilvus.exceptions import ParamError

    code, text = _code_of(error), str(error).lower()
    repeats_filter = isinstance(error, ParamError) or any(word in text for word in OF_FILTERS)
    words = text if code in ANY_CODES and not repeats_filter else ""
    if code in FULL_CODES or any(word in words for word in FULL_WORDS):
        return Failure(FULL)
    if code in SLOW_CODES or any(word in words for word in SLOW_WORDS):
        return Failure(SLOW)
    if code in LOST_CODES or any(word in words for word in LOST_WORDS):
        return Failure(UNREACHABLE, may_pass=True)
    return Failure(REFUSED)


def _code_of(error: Exception) -> int | str:
    """Of Milvus a number, of gRPC a name."""
    code: Any = getattr(error, "code", None)
    found = code() if callable(code) else code
    if found is None:
        return "DEADLINE_EXCEEDED"  # of a connection that isn't ready in time
    return str(found.name) if hasattr(found, "name") and not isinstance(found, int) else int(found)
