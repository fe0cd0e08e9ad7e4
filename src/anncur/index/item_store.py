"""Items in SQLite, one immutable file per segment.

Written once, streamed, and then only read. Reads `Item`s, feeds hits and scorers."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Protocol

from anncur.arrays import Positions
from anncur.index.tables import Table, insert, new_table
from anncur.items import Item, ItemLike, TextDigest, as_item, check_items, duplicate_id, metadata_json

TABLE = "items"
COLUMNS = "id TEXT UNIQUE, title TEXT, text TEXT, metadata TEXT"


class Store(Protocol):
    """The items of a segment, by row."""

    def __len__(self) -> int: ...

    def take(self, rows: Positions, /) -> list[Item]:
        """The items of these rows, in their order."""
        ...

    def between(self, start: int, stop: int, /) -> list[Item]:
        """The items from a row up to another."""
        ...

    def row(self, item_id: str, /) -> int | None:
        """The row of an id, if it is here."""
        ...


def write_items(path: Path, items: Iterable[ItemLike]) -> tuple[int, str]:
    """Write items to a new file as they come; returns how many there are, and a digest of all that they are."""
    check_items(items)
    digest, count = TextDigest(), 0
    with new_table(path, TABLE, COLUMNS) as connection:
        for count, item in enumerate(items, start=1):
            checked = as_item(item, position=count - 1)
            _insert(connection, count - 1, checked)
            digest.add_item(checked)
    return count, str(digest)


class ItemStore:
    """The items of one file, just as they came. Thread-safe."""

    def __init__(self, path: Path) -> None:
        self._table = Table(path, TABLE)
        self._n_items = self._table.count()

    def __len__(self) -> int:
        return self._n_items

    def take(self, rows: Positions) -> list[Item]:
        return [_item(*values) for values in self._table.take(rows)]

    def between(self, start: int, stop: int) -> list[Item]:
        found = self._table.where("row >= ? AND row < ? ORDER BY row", (start, stop))
        return [_item(*values) for _, values in found]

    def row(self, item_id: str) -> int | None:
        found = self._table.where("id = ?", (item_id,))
        return found[0][0] if found else None


def _insert(connection: sqlite3.Connection, row: int, item: Item) -> None:
    try:
        insert(connection, TABLE, row, item.id, item.title, item.text, metadata_json(item))
    except sqlite3.IntegrityError:
        first = connection.execute(f"SELECT row FROM {TABLE} WHERE id = ?", (item.id,)).fetchone()[0]
        raise duplicate_id(item.id, first, row) from None


def _item(item_id: str, title: str, text: str, metadata: Any) -> Item:
    return Item(item_id, text, title, {} if metadata == "{}" else json.loads(metadata))  # most items have none
