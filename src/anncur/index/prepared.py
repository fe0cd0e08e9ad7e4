"""What a scorer makes of items once, such as their tokens, so that neither building nor searching does it again.

Kept apart from the items, because it is derived: whoever asks an index for items gets them without it, and only the
scorer that made it is ever given it. Reads items, feeds scorers."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from anncur.arrays import Positions
from anncur.errors import DamagedError
from anncur.index.item_store import Store
from anncur.index.tables import Table, insert, new_table
from anncur.items import Item
from anncur.scorers.guard import GuardedScorer

TABLE, COLUMNS = "prepared", "value BLOB"
ITEMS_AT_ONCE = 2048  # enough for a tokeniser to use its threads well


def prepare(items: Sequence[Item], scorer: GuardedScorer) -> list[bytes]:
    """What a scorer makes of items; empty where it makes nothing."""
    starts = range(0, len(items), ITEMS_AT_ONCE)
    return [value for start in starts for value in scorer.prepare(items[start : start + ITEMS_AT_ONCE])]


def with_prepared(items: Sequence[Item], values: Sequence[bytes]) -> list[Item]:
    """The same items as their scorer gets them; whatever another one made of them is gone."""
    return [
        item if item.prepared == value else replace(item, prepared=value)
        for item, value in zip(items, values, strict=True)
    ]


def write_prepared(path: Path, items: Store, scorer: GuardedScorer) -> None:
    """Keep what a scorer makes of items. A scorer that makes nothing of the first ones leaves no file."""
    batches = _prepare_batches(items, scorer)
    first = next(batches)
    if any(first):
        values = itertools.chain(first, itertools.chain.from_iterable(batches))
        with new_table(path, TABLE, COLUMNS) as connection:
            for row, value in enumerate(values):
                insert(connection, TABLE, row, value)


def is_whole(path: Path, n_items: int) -> bool:
    """Whether a file holds a value for each of so many items, every one as it was written."""
    try:
        table = Table(path, TABLE)
        n_whole = sum(
            len(table.where("row >= ? AND row < ?", (start, start + ITEMS_AT_ONCE)))
            for start in range(0, n_items, ITEMS_AT_ONCE)
        )
    except DamagedError:
        return False
    return n_whole == n_items


class PreparedStore:
    """The items of a store as their scorer gets them: each with what it made of it. Thread-safe."""

    def __init__(self, items: Store, path: Path) -> None:
        self._items = items
        self._values = Table(path, TABLE)

    def __len__(self) -> int:
        return len(self._items)

    def take(self, rows: Positions) -> list[Item]:
        return with_prepared(self._items.take(rows), [value for (value,) in self._values.take(rows)])

    def between(self, start: int, stop: int) -> list[Item]:
        return self.take(np.arange(start, min(stop, len(self))))

    def row(self, item_id: str) -> int | None:
        return self._items.row(item_id)


def _prepare_batches(items: Store, scorer: GuardedScorer) -> Iterator[list[bytes]]:
    for start in range(0, len(items), ITEMS_AT_ONCE):
        yield scorer.prepare(items.between(start, start + ITEMS_AT_ONCE))
