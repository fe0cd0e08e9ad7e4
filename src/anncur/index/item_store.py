"""Items in SQLite, one immutable file per segment.

Written once, streamed, and then only read. Reads `Item`s, feeds hits and scorers."""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
import threading
import weakref
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from anncur.arrays import Positions
from anncur.errors import DamagedError, StorageError
from anncur.index.files import STAGING, make_folder, storing, sync_file
from anncur.items import Item, ItemLike, TextDigest, as_item, check_items, duplicate_id, metadata_json

COLUMNS = "row, id, title, text, metadata, crc"
ITEMS_PER_SELECT = 500  # below SQLite's limit on parameters


def write_items(path: Path, items: Iterable[ItemLike]) -> tuple[int, str]:
    """Write items to a new file as they come; returns how many there are, and a digest of all that they hold.

    Until it is whole, the file has another name."""
    check_items(items)
    staged = path.with_name(path.name + STAGING)
    staged.unlink(missing_ok=True)
    digest, count = TextDigest(), 0
    with _writing(staged) as connection:
        connection.execute("PRAGMA journal_mode = OFF")
        connection.execute("PRAGMA synchronous = OFF")  # it is synced as a whole at the end
        connection.execute(
            "CREATE TABLE items "
            "(row INTEGER PRIMARY KEY, id TEXT UNIQUE, title TEXT, text TEXT, metadata TEXT, crc INTEGER)"
        )
        for count, item in enumerate(items, start=1):
            checked = as_item(item, position=count - 1)
            _insert(connection, count - 1, checked)
            digest.add_item(checked)
        connection.commit()
    sync_file(staged)
    with storing(path, 0):
        os.rename(staged, path)
    return count, str(digest)


class ItemStore:
    """The items of one file, by row. Thread-safe."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        address = f"{path.absolute().as_uri()}?mode=ro&immutable=1"
        try:
            self._connection = sqlite3.connect(address, uri=True, check_same_thread=False)
        except sqlite3.OperationalError as error:
            raise DamagedError(f"{path} can't be opened: {error}") from error
        weakref.finalize(self, self._connection.close)  # versions come and go; handles must not pile up
        self._n_rows: int = self._one("SELECT COUNT(*) FROM items", ())[0]

    def __len__(self) -> int:
        return self._n_rows

    def take(self, rows: Positions) -> list[Item]:
        """The items of these rows, in their order."""
        found: dict[int, Item] = {}
        wanted = rows.tolist()
        for start in range(0, len(wanted), ITEMS_PER_SELECT):
            some = wanted[start : start + ITEMS_PER_SELECT]
            marks = ",".join("?" * len(some))
            for row, *parts in self._all(f"SELECT {COLUMNS} FROM items WHERE row IN ({marks})", some):
                found[row] = self._item(row, *parts)
        try:
            return [found[row] for row in wanted]
        except KeyError as missing:
            raise DamagedError(f"{self._path} has no row {missing}") from None

    def between(self, start: int, stop: int) -> list[Item]:
        """The items from a row up to another."""
        query = f"SELECT {COLUMNS} FROM items WHERE row >= ? AND row < ? ORDER BY row"
        return [self._item(*parts) for parts in self._all(query, (start, stop))]

    def row(self, item_id: str) -> int | None:
        """The row of an id, if it is here."""
        found = self._one(f"SELECT {COLUMNS} FROM items WHERE id = ?", (item_id,))
        if found is None:
            return None
        self._item(*found)
        return int(found[0])

    def _item(self, row: int, *parts: Any) -> Item:
        """An item, if it is what was written: the file may have been altered since it was opened and hashed."""
        *values, crc = parts
        if _crc(row, *values) != crc:
            raise DamagedError(f"row {row} of {self._path} doesn't match its checksum")
        item_id, title, text, metadata = values
        return Item(item_id, text, title, json.loads(metadata))

    def _all(self, query: str, parameters: Any) -> list[Any]:
        try:
            with self._lock:
                return self._connection.execute(query, parameters).fetchall()
        except sqlite3.DatabaseError as error:
            raise DamagedError(f"{self._path} can't be read: {error}") from error

    def _one(self, query: str, parameters: Any) -> Any:
        rows = self._all(query, parameters)
        return rows[0] if rows else None


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


def _insert(connection: sqlite3.Connection, row: int, item: Item) -> None:
    values = (row, item.id, item.title, item.text, metadata_json(item))
    try:
        connection.execute("INSERT INTO items VALUES (?, ?, ?, ?, ?, ?)", (*values, _crc(*values)))
    except sqlite3.IntegrityError:
        first = connection.execute("SELECT row FROM items WHERE id = ?", (item.id,)).fetchone()[0]
        raise duplicate_id(item.id, first, row) from None


def _crc(*values: Any) -> int:
    return zlib.crc32(repr(values).encode())
