"""Tables in SQLite files: written once, as a whole, and then only read.

Every row ends with a checksum of itself. Knows nothing of what the rows mean: `items.py` does."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import threading
import weakref
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from anncur.arrays import Positions
from anncur.errors import DamagedError, StorageError
from anncur.storage.files import STAGING, make_folder, storing, sync_file

ROWS_PER_SELECT = 500  # below SQLite's limit on parameters


@contextlib.contextmanager
def new_table(path: Path, name: str, columns: str) -> Iterator[sqlite3.Connection]:
    """A new file with one table, to be filled by `insert`. Until it is whole, the file has another name."""
    staged = path.with_name(path.name + STAGING)
    staged.unlink(missing_ok=True)
    with _writing(staged) as connection:
        connection.execute("PRAGMA journal_mode = OFF")
        connection.execute("PRAGMA synchronous = OFF")  # it is synced as a whole at the end
        connection.execute(f"CREATE TABLE {name} (row INTEGER PRIMARY KEY, {columns}, crc INTEGER)")
        yield connection
        connection.commit()
    sync_file(staged)
    with storing(path, 0):
        os.replace(staged, path)


def insert(connection: sqlite3.Connection, name: str, row: int, *values: Any) -> None:
    """Write a row and its checksum."""
    marks = ", ".join("?" * (len(values) + 2))
    connection.execute(f"INSERT INTO {name} VALUES ({marks})", (row, *values, _crc(row, *values)))


class SqliteTable:
    """A table of a file that is only read. Thread-safe.

    The checksum of each row is checked when it is read: the file may have been altered since it was hashed."""

    def __init__(self, path: Path, name: str) -> None:
        self.path = path
        self._name = name
        self._lock = threading.Lock()
        address = f"{path.absolute().as_uri()}?mode=ro&immutable=1"
        try:
            self._connection = sqlite3.connect(address, uri=True, check_same_thread=False)
        except sqlite3.OperationalError as error:
            raise DamagedError(f"{path} can't be opened: {error}") from error
        weakref.finalize(self, self._connection.close)  # versions come and go; handles must not pile up

    def count(self) -> int:
        """The number of rows; reads them all, unless the table has a unique column."""
        return int(self._fetch(f"SELECT COUNT(*) FROM {self._name}", ())[0][0])

    def take(self, rows: Positions) -> list[list[Any]]:
        """The values of these rows, in their order."""
        found: dict[int, list[Any]] = {}
        wanted = rows.tolist()
        for start in range(0, len(wanted), ROWS_PER_SELECT):
            some = wanted[start : start + ROWS_PER_SELECT]
            marks = ",".join("?" * len(some))
            found.update(self.where(f"row IN ({marks})", some))
        try:
            return [found[row] for row in wanted]
        except KeyError as missing:
            raise DamagedError(f"{self.path} has no row {missing}") from None

    def rows_of(self, column: str, values: Sequence[str]) -> Positions:
        """The rows that have one of these values in a unique column, in ascending order.

        Reads the index of the column and not the rows, so that nothing of them is checked."""
        found: list[int] = []
        for start in range(0, len(values), ROWS_PER_SELECT):
            some = values[start : start + ROWS_PER_SELECT]
            marks = ",".join("?" * len(some))
            query = f"SELECT row FROM {self._name} WHERE {column} IN ({marks})"
            found += [row for (row,) in self._fetch(query, some)]
        return np.unique(np.array(found, dtype=np.int64))

    def where(self, condition: str, parameters: Any) -> list[tuple[int, list[Any]]]:
        """The rows for which a condition holds, each with its values."""
        return [
            self._checked(*found) for found in self._fetch(f"SELECT * FROM {self._name} WHERE {condition}", parameters)
        ]

    def _checked(self, row: int, *found: Any) -> tuple[int, list[Any]]:
        *values, crc = found
        if _crc(row, *values) != crc:
            raise DamagedError(f"row {row} of {self.path} doesn't match its checksum")
        return row, values

    def _fetch(self, query: str, parameters: Any) -> list[Any]:
        try:
            with self._lock:
                return self._connection.execute(query, parameters).fetchall()
        except sqlite3.DatabaseError as error:
            raise DamagedError(f"{self.path} can't be read: {error}") from error


@contextlib.contextmanager
def _writing(path: Path) -> Iterator[sqlite3.Connection]:
    with storing(path, 0):
        make_folder(path.parent)
    try:
        with contextlib.closing(sqlite3.connect(path)) as connection:
            yield connection
    except sqlite3.OperationalError as error:
        size = path.stat().st_size if path.exists() else 0
        raise StorageError(
            f"can't store items in {path} (more than {size:,} bytes): {error}; make room and run the same again"
        ) from error


def _crc(*values: Any) -> int:
    return zlib.crc32(repr(values).encode())
