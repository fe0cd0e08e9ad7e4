"""Connections to PostgreSQL (extra `postgres`): a few of them, shared by threads, made again when they are lost.

Reads a `Location`, feeds `vectors/pgvector.py` and `attached/pgvector.py`. Passwords come from the location, else as
libpq finds them: PGPASSWORD or a password file."""

from __future__ import annotations

import importlib
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from anncur.databases.location import Location
from anncur.errors import DatabaseError, InputError

if TYPE_CHECKING:
    import psycopg

MOST_CONNECTIONS = 8
CONNECT_SECONDS = 5
RETRIES, FIRST_PAUSE = 4, 0.2  # of reads and of writes that may be done twice; pauses double, three seconds in all
LEAST_VERSION = (0, 8)  # of pgvector: half precision, and scans that continue until enough rows have passed
FULL = "53"  # the class of errors for disk, memory and connections that are used up

T = TypeVar("T")


class Postgres:
    """A database and its connections. Thread-safe; another process begins with none."""

    def __init__(self, location: Location, *, is_read_only: bool = False, timeout: float = 30.0) -> None:
        check_driver()
        self.location = location
        self._is_read_only = is_read_only
        self._timeout = timeout
        self._begin()

    def _begin(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._permits = threading.Semaphore(MOST_CONNECTIONS)
        self._idle: list[psycopg.Connection[Any]] = []
        weakref.finalize(self, _close, self._idle, self._pid)

    def run(self, work: Callable[[psycopg.Connection[Any]], T], *, timeout: float | None = None) -> T:
        """What some statements give, in one transaction. Where the connection is lost they are run again: they must be
        such that this does no harm. `timeout` is for each of them, in seconds, and 0 for as long as it takes."""
        for attempt in range(RETRIES + 1):
            try:
                with self._connection(self._timeout if timeout is None else timeout) as connection:
                    return work(connection)
            except _lost_errors() as error:
                if attempt == RETRIES or _is_final(error):
                    self._raise(error)
                time.sleep(FIRST_PAUSE * 2**attempt)
            except _all_errors() as error:
                self._raise(error)
        raise AssertionError("the last attempt returns or raises")

    @contextmanager
    def holding(self, lock: str) -> Iterator[None]:
        """While nobody else holds a lock of this name; it is let go when the connection is lost, so that what is done
        under it must do no harm when two do it at once."""
        try:
            with self._connect() as connection:
                connection.execute("SELECT pg_advisory_lock(hashtextextended(%s, 0))", [lock])
                yield
        except _all_errors() as error:
            self._raise(error)

    @contextmanager
    def _connection(self, timeout: float) -> Iterator[psycopg.Connection[Any]]:
        if self._pid != os.getpid():  # connections belong to the process that forked
            self._begin()
        with self._permits:
            with self._lock:
                connection = self._idle.pop() if self._idle else None
            connection = connection or self._connect()
            try:
                with connection.transaction():
                    connection.execute(f"SET LOCAL statement_timeout = {round(1000 * timeout)}")
                    yield connection
            except BaseException:
                with suppress(_all_errors()):
                    connection.close()
                raise
            with self._lock:
                self._idle.append(connection)

    def _connect(self) -> psycopg.Connection[Any]:
        import psycopg
        from pgvector.psycopg import register_vector

        connection = psycopg.connect(
            self.location.url,
            password=self.location.secret or None,
            connect_timeout=CONNECT_SECONDS,
            autocommit=True,
            fallback_application_name="anncur",
        )
        try:
            connection.read_only = self._is_read_only
            self._check_extension(connection)
            register_vector(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    def _check_extension(self, connection: psycopg.Connection[Any]) -> None:
        find = "SELECT extversion FROM pg_extension WHERE extname = 'vector'"
        found = connection.execute(find).fetchone()
        if found is None:
            raise InputError(
                f"the database {self.location} must have the extension vector; run CREATE EXTENSION vector there, with "
                "the rights that it needs"
            )
        if tuple(int(part) for part in found[0].split(".")[:2]) < LEAST_VERSION:
            raise InputError(
                f"the database {self.location} must have pgvector {'.'.join(map(str, LEAST_VERSION))} or newer, got "
                f"{found[0]}; install it, and run ALTER EXTENSION vector UPDATE"
            )

    def _raise(self, error: Exception) -> NoReturn:
        """As an error of ours; the driver's own is its cause unless it has the password in it."""
        message = self.location.without_secrets(error)
        cause = error if message == " ".join(str(error).split()) else None
        raise DatabaseError(f"the database {self.location} {_what_happened(error)}: {message}") from cause

    def __reduce__(self) -> NoReturn:
        raise InputError("connections to a database can't be pickled; open the index again in the other process")


def check_driver() -> None:
    """Refuse to begin where a package is missing."""
    try:
        importlib.import_module("psycopg")
        importlib.import_module("pgvector.psycopg")
    except ImportError as error:
        raise InputError(
            f"PostgreSQL needs psycopg and pgvector, which can't be imported ({error}); run pip install "
            "'anncur[postgres]'"
        ) from error


def _close(connections: list[psycopg.Connection[Any]], pid: int) -> None:
    """Close connections of this process; those of the one that forked it are not its own."""
    while connections:
        connection = connections.pop()
        if pid == os.getpid():
            connection.close()


def _all_errors() -> type[Exception]:
    import psycopg

    return psycopg.Error


def _lost_errors() -> tuple[type[Exception], ...]:
    """A server that is down, restarts, or closed the connection."""
    import psycopg

    return psycopg.OperationalError, psycopg.InterfaceError, psycopg.errors.SerializationFailure


def _is_final(error: Exception) -> bool:
    """Whether the server answered, with an error that trying again doesn't cure."""
    state = getattr(error, "sqlstate", None) or ""
    return bool(state) and not state.startswith(("08", "40", "57P"))


def _what_happened(error: Exception) -> str:
    import psycopg

    state = getattr(error, "sqlstate", None) or ""
    if isinstance(error, psycopg.errors.QueryCanceled):
        return "took longer than it may; raise timeout=… in its name, in seconds"
    if state.startswith(FULL):
        return "is full or has no room for another connection"
    if isinstance(error, psycopg.OperationalError) and (not state or state.startswith(("08", "57P"))):
        return "can't be reached; is it running?"
    return "refused"
