"""Items in SQLite, and what their scorer prepared of them, such as their tokens: immutable files of a segment.

Written once, streamed, and then only read. Prepared values are in a file of their own, because they are derived:
whoever asks an index for items gets them without, and only the scorer that made them is ever given them."""

from __future__ import annotations

import itertools
import json
import re
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from anncur.arrays import Positions
from anncur.errors import DamagedError
from anncur.items import Item, ItemLike, TextDigest, as_item, check_items, duplicate_id, metadata_json, unknown_id
from anncur.scorers.base import with_prepared
from anncur.scorers.guard import PREPARED_AT_ONCE, GuardedScorer
from anncur.storage.tables import SqliteTable, insert, new_table

TABLE, COLUMNS = "items", "id TEXT UNIQUE, title TEXT, text TEXT, metadata TEXT"
SURROGATE = re.compile("[\ud800-\udfff]")  # no item has an id with one, and SQLite can't be asked for it
PREPARED_TABLE, PREPARED_COLUMNS = "prepared", "value BLOB"


class ItemRows(Protocol):
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

    def rows(self, item_ids: Sequence[str], /) -> Positions:
        """The rows of those ids that are here, in ascending order."""
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
        self._table = SqliteTable(path, TABLE)
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

    def rows(self, item_ids: Sequence[str]) -> Positions:
        return self._table.rows_of("id", item_ids)


def write_prepared(path: Path, items: ItemRows, scorer: GuardedScorer) -> None:
    """Store what a scorer prepares of items. A scorer that prepares nothing of the first ones leaves no file."""
    starts = range(0, len(items), PREPARED_AT_ONCE)
    batches = (scorer.prepare(items.between(start, start + PREPARED_AT_ONCE)) for start in starts)
    first = next(batches)
    if any(first):
        write_values(path, itertools.chain(first, itertools.chain.from_iterable(batches)))


def is_whole(path: Path, n_items: int) -> bool:
    """Whether a file holds a value for each of `n_items` items, every one as it was written."""
    try:
        table = SqliteTable(path, PREPARED_TABLE)
        n_whole = sum(
            len(table.where("row >= ? AND row < ?", (start, start + PREPARED_AT_ONCE)))
            for start in range(0, n_items, PREPARED_AT_ONCE)
        )
    except DamagedError:
        return False
    return n_whole == n_items


def write_values(path: Path, values: Iterable[bytes]) -> None:
    """Store what a scorer prepared, a value for each item."""
    with new_table(path, PREPARED_TABLE, PREPARED_COLUMNS) as connection:
        for row, value in enumerate(values):
            insert(connection, PREPARED_TABLE, row, value)


class PreparedStore:
    """The items of a store as their scorer gets them: each with what it prepared. Thread-safe."""

    def __init__(self, items: ItemRows, path: Path) -> None:
        self._items = items
        self._values = SqliteTable(path, PREPARED_TABLE)

    def __len__(self) -> int:
        return len(self._items)

    def take(self, rows: Positions) -> list[Item]:
        return with_prepared(self._items.take(rows), [value for (value,) in self._values.take(rows)])

    def between(self, start: int, stop: int) -> list[Item]:
        return self.take(np.arange(start, min(stop, len(self))))

    def row(self, item_id: str) -> int | None:
        return self._items.row(item_id)

    def rows(self, item_ids: Sequence[str]) -> Positions:
        return self._items.rows(item_ids)


class StoredItems:
    """`Items` that are spread over stores, without those that were removed."""

    def __init__(self, stores: Sequence[ItemRows], rows: Sequence[Positions]) -> None:
        self._stores = stores
        self._rows = rows  # of each store, those that are there, in ascending order
        self._starts = np.concatenate([[0], np.cumsum([len(some) for some in rows])]).astype(np.int64)

    def __len__(self) -> int:
        return int(self._starts[-1])

    def __getitem__(self, position: int) -> Item:
        if not -len(self) <= position < len(self):
            raise IndexError(position)
        return self.take(np.array([position % len(self)]))[0]

    def __iter__(self) -> Iterator[Item]:
        for store, rows in zip(self._stores, self._rows, strict=True):
            for start in range(0, len(rows), 1000):
                yield from store.take(rows[start : start + 1000])

    def take(self, positions: Positions) -> list[Item]:
        homes = np.searchsorted(self._starts, positions, side="right") - 1
        found: dict[int, Item] = {}
        for home in np.unique(homes).tolist():
            wanted = positions[homes == home]
            items = self._stores[home].take(self._rows[home][wanted - self._starts[home]])
            found.update(zip(wanted.tolist(), items, strict=True))
        return [found[position] for position in positions.tolist()]

    def followed_by(self, store: ItemRows) -> StoredItems:
        """The same items, and behind them all of another store."""
        return StoredItems([*self._stores, store], [*self._rows, np.arange(len(store))])

    def without(self, positions: Positions) -> StoredItems:
        """The same items, but for those at these positions."""
        bounds = zip(self._starts[:-1].tolist(), self._rows, strict=True)
        kept = [rows[~np.isin(np.arange(start, start + len(rows)), positions)] for start, rows in bounds]
        return StoredItems(self._stores, kept)

    def position(self, item_id: str) -> int:
        home, row = self.row(item_id)
        return int(self._starts[home] + np.searchsorted(self._rows[home], row))

    def positions(self, item_ids: Iterable[str]) -> Positions:
        wanted = [item_id for item_id in item_ids if not SURROGATE.search(item_id)]
        found = [_places(rows, store.rows(wanted)) for store, rows in zip(self._stores, self._rows, strict=True)]
        return np.concatenate([start + places for start, places in zip(self._starts[:-1], found, strict=True)])

    def row(self, item_id: str) -> tuple[int, int]:
        """The store that holds an id, and its row there."""
        for home, (store, rows) in enumerate(zip(self._stores, self._rows, strict=True)):
            row = store.row(item_id)
            if row is not None:
                place = int(np.searchsorted(rows, row))
                if place < len(rows) and rows[place] == row:
                    return home, row
        raise unknown_id(item_id)


def _places(rows: Positions, wanted: Positions) -> Positions:
    """Where those of the wanted are that are among ascending rows."""
    places = np.searchsorted(rows, wanted)
    return places[places < np.searchsorted(rows, wanted, side="right")]


def _insert(connection: sqlite3.Connection, row: int, item: Item) -> None:
    try:
        insert(connection, TABLE, row, item.id, item.title, item.text, metadata_json(item))
    except sqlite3.IntegrityError:
        first = connection.execute(f"SELECT row FROM {TABLE} WHERE id = ?", (item.id,)).fetchone()[0]
        raise duplicate_id(item.id, first, row) from None


def _item(item_id: str, title: str, text: str, metadata: Any) -> Item:
    return Item(item_id, text, title, {} if metadata == "{}" else json.loads(metadata))  # most items have none
