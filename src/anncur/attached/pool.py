"""Items that a search has fetched from a collection so far: positions for them, their embeddings, and their texts.

Positions are given in the order of fetching and never again, and what an earlier block of queries fetched is let go.
Reads a `Collection`, feeds `model.py` and scorers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NoReturn

import numpy as np

from anncur.arrays import NO_POSITIONS, FloatMatrix, Positions
from anncur.attached.base import COSINE, DISTANCE, Collection, FoundRows, RowId, Selection, check_rows
from anncur.errors import DatabaseError
from anncur.items import Item

LEAST_ROOM = 1024


class Pool:
    """The rows that were fetched for one block of queries."""

    def __init__(self, collection: Collection, selection: Selection, n_items: int) -> None:
        self._collection = collection
        self._selection = selection
        self.n_items = n_items  # that may be found
        self._first = 0
        self._clear()

    def _clear(self) -> None:
        self._ids: list[RowId] = []
        self._places: dict[RowId, int] = {}
        self._items: dict[int, Item] = {}
        self._rows: FloatMatrix = np.empty((0, self._collection.width), dtype=np.float32)

    def begin_block(self) -> None:
        """Let go of what other queries fetched."""
        self._first += len(self._ids)
        self._clear()

    def nearest(self, points: FloatMatrix, n_best: int, exclude: Sequence[Positions]) -> list[Positions]:
        """For each point the positions of the rows that the database puts first, best first."""
        seen = [[self._ids[place] for place in (row - self._first).tolist()] for row in exclude]
        wanted = [min(n_best, self.n_items - len(row)) for row in seen]
        found = self._collection.nearest(points, n_best, exclude=seen, selection=self._selection)
        for place, (rows, n_wanted) in enumerate(zip(found, wanted, strict=True)):
            if len(rows.ids) < n_wanted:
                found[place] = self._thorough(points[place : place + 1], n_best, seen[place], n_wanted)
        return [self._add(check_rows(self._collection, rows)) for rows in found]

    def embeddings(self, positions: Positions) -> FloatMatrix:
        """(…, width); of unit length where the collection compares directions."""
        return self._rows[positions - self._first]

    def items(self, positions: Positions) -> list[Item]:
        """With their texts, which are fetched once."""
        places = (positions - self._first).tolist()
        new = [place for place in dict.fromkeys(places) if place not in self._items]
        if new:
            fetched = self._collection.items([self._ids[place] for place in new])
            self._items.update(zip(new, fetched, strict=True))
        return [self._items[place] for place in places]

    def _thorough(self, point: FloatMatrix, n_best: int, seen: Sequence[RowId], n_wanted: int) -> FoundRows:
        """Ask again; an error where the database has lost items since they were counted."""
        (rows,) = self._collection.nearest(point, n_best, exclude=[seen], selection=self._selection, is_thorough=True)
        if len(rows.ids) < n_wanted:
            raise DatabaseError(
                f"{self._collection.name} gave {len(rows.ids)} items where there should be {n_wanted} more; if it is "
                "being changed, search again"
            )
        return rows

    def _add(self, rows: FoundRows) -> Positions:
        if not len(rows.ids):
            return NO_POSITIONS
        new = [place for place, row_id in enumerate(rows.ids) if row_id not in self._places]
        start, stop = len(self._ids), len(self._ids) + len(new)
        if stop > len(self._rows):
            more = np.empty((max(stop, 2 * len(self._rows), LEAST_ROOM), rows.embeddings.shape[1]), dtype=np.float32)
            more[:start] = self._rows[:start]
            self._rows = more
        self._rows[start:stop] = as_compared(rows.embeddings[new], self._collection.metric)
        for place in new:
            self._places[rows.ids[place]] = len(self._ids)
            self._ids.append(rows.ids[place])
        return np.array([self._first + self._places[row_id] for row_id in rows.ids], dtype=np.int64)


class PoolItems:
    """`Items` of a pool, for scorers."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    def __len__(self) -> int:
        return self._pool.n_items

    def __getitem__(self, position: int) -> Item:
        return self._pool.items(np.array([position]))[0]

    def take(self, positions: Positions) -> list[Item]:
        return self._pool.items(positions)

    def __iter__(self) -> Iterator[Item]:
        return _not_listed()

    def position(self, item_id: str) -> int:
        return _not_listed()

    def positions(self, item_ids: Iterable[str]) -> Positions:
        return _not_listed()


def as_compared(embeddings: FloatMatrix, metric: str) -> FloatMatrix:
    """Of unit length where directions are compared, else as they are."""
    if metric != COSINE:
        return embeddings
    lengths = np.linalg.norm(embeddings, axis=-1, keepdims=True)
    scaled: FloatMatrix = embeddings / np.where(lengths > 0, lengths, 1.0)
    return scaled


def compared(rows: FloatMatrix, queries: FloatMatrix, metric: str) -> FloatMatrix:
    """Products, or squared distances below zero, of rows (n_queries or 1, n, width); (n_queries, n)."""
    products: FloatMatrix = (rows @ queries[..., None])[..., 0]
    if metric != DISTANCE:
        return products
    distances: FloatMatrix = 2 * products - np.square(rows).sum(axis=-1) - np.square(queries).sum(axis=1, keepdims=True)
    return distances


def _not_listed() -> NoReturn:
    raise AssertionError("a collection is never listed")
