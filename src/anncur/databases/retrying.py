"""What clients of all databases share: work that is done again where a connection was lost, and errors in our words.

Feeds `postgres.py` and `milvus.py`. Opens no connection itself."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import NoReturn, TypeVar

from anncur.databases.location import Location
from anncur.errors import DatabaseError, InputError

CONNECT_SECONDS = 5
PAUSES = (0.2, 0.4, 0.8, 1.6)  # seconds before each retry: three in all, which a restart may take

UNREACHABLE = "can't be reached; is it running?"
SLOW = "took longer than it may; raise timeout=… in its name, in seconds"
FULL = "is full or overloaded"
REFUSED = "refused"

T = TypeVar("T")


@dataclass(frozen=True)
class Failure:
    """What went wrong, in our words; one that `may_pass` is worth another attempt."""

    what: str
    may_pass: bool = False


class Retries:
    """Attempts to work with one database. Thread-safe.

    `n_lost` counts the attempts that a lost connection ended: whoever relies on what the server holds then looks
    whether it is still there."""

    def __init__(
        self, location: Location, errors: tuple[type[Exception], ...], failure_of: Callable[[Exception], Failure]
    ) -> None:
        self.n_lost = 0
        self._location = location
        self._errors = errors
        self._failure_of = failure_of

    def run(self, work: Callable[[], T]) -> T:
        """What some work gives. It is done again where the connection is lost: that must do no harm."""
        for pause in (*PAUSES, None):
            try:
                return work()
            except self._errors as error:
                failure = self._failure_of(error)
                if failure.may_pass:
                    self.n_lost += 1
                if pause is None or not failure.may_pass:
                    self.fail(error, failure)
                time.sleep(pause)
        raise AssertionError("the last attempt returns or raises")

    def fail(self, error: Exception, failure: Failure | None = None) -> NoReturn:
        """Raise an error of a driver as one of ours; the driver's own is its cause unless it has a password in it."""
        message = self._location.without_secrets(error)
        cause = error if message == " ".join(str(error).split()) else None
        what = (failure or self._failure_of(error)).what
        raise DatabaseError(f"the database {self._location} {what}: {message}") from cause


def refuse_pickling() -> NoReturn:
    """Connections belong to the process that made them."""
    raise InputError("connections to a database can't be pickled; open the index again in the other process")
