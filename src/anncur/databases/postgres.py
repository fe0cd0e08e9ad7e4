"""Connections to PostgreSQL (extra `postgres`): a few of them, shared by threads, made again when they are lost.

Reads a `Location`, feeds `vectors/pgvector.py` and `attached/pgvector.py`. Passwords come from the location, else as
libpq finds them: PGPASSWORD or a password file."""

from __future__ import annotations

import importlib
import os
import socket
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from anncur.databases.location import Location
from anncur.databases.retrying import (
    CONNECT_SECONDS,
    REFUSED,
    SLOW,
    UNREACHABLE,
    Failure,
    Retries,
    refuse_pickling,
)
from anncur.errors import DatabaseError, InputError

if TYPE_CHECKING:
    import psycopg

MOST_CONNECTIONS = 8
LEAST_VERSION = (0, 8)  # of pgvector: half precision, and scans that continue until enough rows have passed
FULL = "53"  # the class of errors for disk, memory and connections that are used up
CANCELED = "57014"
LOST = ("08", "40", "57P")  # those for connections, transactions that met another one, and servers that stop or start
NOT_NOW = ("the database system is", "too many", "remaining connection slots", "terminating connection")  # texts
GRACE = 3.0  # seconds after which a server that ends no statement is looked after
LOOK_SECONDS = 30.0  # between two looks, where a statement may take as long as it takes
MOST_LOOKS = 10  # of a server that takes connections: a block of queries is many statements
KEEPALIVE = {  # a lost network is noticed in half a minute; the address may say otherwise
    "connect_timeout": CONNECT_SECONDS,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 30_000,
    "fallback_application_name": "anncur",
}

T = TypeVar("T")


class Postgres:
    """A database and its connections. Thread-safe; another process begins with none."""

    def __init__(self, location: Location, *, is_read_only: bool = False, timeout: float = 30.0) -> None:
        check_driver()
        self.location = location
        self._is_read_only = is_read_only
        self._timeout = timeout
        self._retries = Retries(location, _all_errors(), _failure_of)
        self._begin()

    def _begin(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._permits = threading.Semaphore(MOST_CONNECTIONS)
        self._idle: list[psycopg.Connection[Any]] = []
        weakref.finalize(self, _close, self._idle, self._pid)

    @property
    def n_lost(self) -> int:
        """How often a connection was lost."""
        return self._retries.n_lost

    def run(self, work: Callable[[psycopg.Connection[Any]], T], *, timeout: float | None = None) -> T:
        """What some statements give, in one transaction. Where the connection is lost they are run again: they must be
        such that this does no harm. `timeout` is for each of them, in seconds, and 0 for as long as it takes."""
        seconds = self._timeout if timeout is None else timeout

        def attempt() -> T:
            with self._connection(seconds) as connection:
                return work(connection)

        return self._retries.run(attempt)

    @contextmanager
    def holding(self, lock: str) -> Iterator[None]:
        """While nobody else holds a lock of this name; it is let go when the connection is lost, so that what is done
        under it must do no harm when two do it at once."""
        try:
            with self._connect() as connection:
                with self._watched(connection, 0):
                    connection.execute("SELECT pg_advisory_lock(hashtextextended(%s, 0))", [lock])
                yield
        except _all_errors() as error:
            self._retries.fail(error)

    @contextmanager
    def _connection(self, timeout: float) -> Iterator[psycopg.Connection[Any]]:
        if self._pid != os.getpid():  # connections belong to the process that forked
            self._begin()
        with self._permits:
            with self._lock:
                connection = self._idle.pop() if self._idle else None
            connection = connection or self._connect()
            try:
                with self._watched(connection, timeout), connection.transaction():
                    connection.execute(f"SET LOCAL statement_timeout = {round(1000 * timeout)}")
                    yield connection
            except BaseException:
                with suppress(*_all_errors()):
                    connection.close()
                raise
            with self._lock:
                self._idle.append(connection)

    @contextmanager
    def _watched(self, connection: psycopg.Connection[Any], timeout: float) -> Iterator[None]:
        """End the connection where the server hangs: it doesn't keep its own limits then."""
        ours = socket.fromfd(connection.fileno(), socket.AF_INET, socket.SOCK_STREAM)  # another number of the same one
        done, given_up = threading.Event(), threading.Event()

        def watch() -> None:
            n_looks = 0
            while not done.wait(timeout + GRACE if timeout else LOOK_SECONDS):
                n_looks += 1
                if not self._answers() or (timeout and n_looks > MOST_LOOKS):
                    given_up.set()
                    with suppress(OSError):
                        ours.shutdown(socket.SHUT_RDWR)
                    return

        with suppress(RuntimeError):  # no thread can be started when the process ends
            threading.Thread(target=watch, name="anncur-postgres", daemon=True).start()
        try:
            yield
        except _all_errors():
            if given_up.is_set():
                raise DatabaseError(f"the database {self.location} hangs; look into its log, or restart it") from None
            raise
        finally:
            done.set()
            ours.close()

    def _answers(self) -> bool:
        """Whether the server takes connections, or says why it doesn't."""
        try:
            self._open().close()
        except _all_errors() as error:
            return _is_answer(error)
        return True

    def _open(self) -> psycopg.Connection[Any]:
        import psycopg
        from psycopg.conninfo import conninfo_to_dict

        secrets = {"password": self.location.secrets.password, "sslpassword": self.location.secrets.key_password}
        given = {name: secret for name, secret in secrets.items() if secret}
        settings: dict[str, Any] = {**KEEPALIVE, **conninfo_to_dict(self.location.url), **given}
        return psycopg.connect("", autocommit=True, **settings)

    def _connect(self) -> psycopg.Connection[Any]:
        from pgvector.psycopg import register_vector

        connection = self._open()
        try:
            connection.read_only = self._is_read_only
            with self._watched(connection, self._timeout):
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

    def __reduce__(self) -> NoReturn:
        refuse_pickling()


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


def _all_errors() -> tuple[type[Exception], ...]:
    import psycopg

    return (psycopg.Error,)


def _failure_of(error: Exception) -> Failure:
    import psycopg

    state = getattr(error, "sqlstate", None)
    if state:
        return _failure_with(state)
    if isinstance(error, psycopg.errors.ConnectionTimeout):
        return Failure(UNREACHABLE)  # it hangs, or the network drops what is sent: that takes longer than a restart
    if not isinstance(error, psycopg.OperationalError | psycopg.InterfaceError):
        return Failure(REFUSED)
    if _is_answer(error) and not any(reason in str(error) for reason in NOT_NOW):
        return Failure("takes no connection; check its name, the user and the password")
    return Failure(UNREACHABLE, may_pass=True)


def _failure_with(state: str) -> Failure:
    """That of a code; errors of connections that can't be made have none."""
    if state == CANCELED:
        return Failure(SLOW)
    if state.startswith(FULL):
        return Failure("is full or has no room for another connection")
    return Failure(UNREACHABLE if state.startswith(("08", "57P")) else REFUSED, may_pass=state.startswith(LOST))


def _is_answer(error: Exception) -> bool:
    """Whether a connection failed because the server, or libpq before it asked, refused it."""
    return any(sign in str(error) for sign in ("FATAL", "no password supplied"))
