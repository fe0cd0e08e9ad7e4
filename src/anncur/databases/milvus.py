"""A client of Milvus (extra `milvus`): a server, or a folder of milvus-lite.

Reads a `Location`, feeds `vectors/milvus.py` and `attached/milvus.py`. Passwords come from the location, else from the
environment variable ANNCUR_MILVUS_TOKEN: a token, or user:password."""

from __future__ import annotations

import importlib
import logging
import os
import time
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, NoReturn, TypeVar
from urllib.parse import unquote, urlsplit

from anncur.caching import Cache
from anncur.databases.location import Location
from anncur.errors import AnncurError, DatabaseError, InputError

if TYPE_CHECKING:
    from pymilvus import MilvusClient

TOKEN = "ANNCUR_MILVUS_TOKEN"  # the name of a variable
CONNECT_SECONDS = 5.0
RETRIES, FIRST_PAUSE = 4, 0.2  # of reads and of writes that may be done twice; pauses double, three seconds in all
FULL = ("quota", "memory", "disk", "no space", "rate limit")
LOST = ("connect", "not ready", "deadline", "timeout", "closed", "node offline", "available")

T = TypeVar("T")


class Milvus:
    """A database and its client. Thread-safe; another process connects by itself."""

    def __init__(self, location: Location, *, timeout: float = 30.0) -> None:
        check_driver()
        self.location = location if location.secret else replace(location, secret=os.environ.get(TOKEN, ""))
        self.timeout = timeout
        self._clients: Cache[MilvusClient] = Cache()

    @property
    def is_server(self) -> bool:
        """Whether it is another process, not a folder of this one."""
        return bool(urlsplit(self.location.url).scheme)

    def run(self, work: Callable[[MilvusClient], T]) -> T:
        """What some requests give. Where the server is lost they are sent again: they must be such that this does no
        harm."""
        for attempt in range(RETRIES + 1):
            try:
                return work(self._clients.get(os.getpid(), self._connect))
            except AnncurError:
                raise
            except _errors() as error:
                is_lost = _is_lost(error)
                if is_lost:
                    self._clients.clear()
                if attempt == RETRIES or not is_lost:
                    self._raise(error)
                time.sleep(FIRST_PAUSE * 2**attempt)
        raise AssertionError("the last attempt returns or raises")

    def _connect(self) -> MilvusClient:
        from pymilvus import MilvusClient

        parts = urlsplit(self.location.url)
        user = unquote(parts.username or "")
        secret = self.location.secret
        token = f"{user}:{secret}" if user and secret else secret
        uri = parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()
        return MilvusClient(uri=uri, token=token, timeout=min(self.timeout, CONNECT_SECONDS))

    def _raise(self, error: Exception) -> NoReturn:
        """As an error of ours; the driver's own is its cause unless it has the password in it."""
        message = self.location.without_secrets(error)
        cause = error if message == " ".join(str(error).split()) else None
        raise DatabaseError(f"the database {self.location} {_what_happened(error)}: {message}") from cause

    def __reduce__(self) -> NoReturn:
        raise InputError("connections to a database can't be pickled; open the index again in the other process")


def check_driver() -> None:
    """Refuse to begin where the package is missing."""
    try:
        importlib.import_module("pymilvus")
    except ImportError as error:
        raise InputError(
            f"Milvus needs pymilvus, which can't be imported ({error}); run pip install 'anncur[milvus]'"
        ) from error
    logging.getLogger("pymilvus").setLevel(logging.CRITICAL)  # it logs every error that it raises as well


def _errors() -> tuple[type[Exception], ...]:
    import grpc
    from pymilvus.exceptions import MilvusException

    return MilvusException, grpc.RpcError, grpc.FutureTimeoutError, ValueError


def _is_lost(error: Exception) -> bool:
    text = str(error).lower()
    return not isinstance(error, ValueError) and any(word in text for word in LOST)


def _what_happened(error: Exception) -> str:
    text = str(error).lower()
    if any(word in text for word in FULL):
        return "is full or overloaded"
    if "deadline" in text or "timeout" in text:
        return "took longer than it may; raise timeout=… in its name, in seconds"
    return "can't be reached; is it running?" if _is_lost(error) else "refused"
