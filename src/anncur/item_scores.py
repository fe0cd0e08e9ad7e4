"""The exact scores of items under the anchor queries, as others read them: some rows, part by part, or all.

Items in rows, anchor queries in columns, higher is better. A `ScoreMatrix` reads in the same way."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

import numpy as np

from anncur.arrays import FloatMatrix, Positions
from anncur.caching import Cache


class ItemScores(Protocol):
    """Exact scores that may be too many for memory."""

    @property
    def n_items(self) -> int: ...

    @property
    def n_anchor_queries(self) -> int: ...

    def parts(self) -> Iterator[tuple[int, FloatMatrix]]:
        """All of them in their order, each part with the position of its first item."""
        ...

    def rows(self, positions: Positions, /) -> FloatMatrix:
        """Those of some items, (n_positions, n_anchor_queries)."""
        ...

    def all(self) -> FloatMatrix:
        """The whole matrix in memory, (n_items, n_anchor_queries)."""
        ...


class HeldScores:
    """Exact scores in memory; `values` is (n_items, n_anchor_queries)."""

    def __init__(self, values: FloatMatrix) -> None:
        self._values = values
        self.n_items, self.n_anchor_queries = values.shape

    def parts(self) -> Iterator[tuple[int, FloatMatrix]]:
        yield 0, self._values

    def rows(self, positions: Positions) -> FloatMatrix:
        return self._values[positions]

    def all(self) -> FloatMatrix:
        return self._values


class ChunkedScores:
    """Exact scores in chunks of rows, which may be mapped from files: copied into memory where they are asked for.

    `live` are the rows of the items, counted through all chunks, in ascending order."""

    def __init__(self, chunks: Sequence[FloatMatrix], live: Positions, n_anchor_queries: int) -> None:
        self.n_items, self.n_anchor_queries = len(live), n_anchor_queries
        self._chunks, self._live = chunks, live
        self._starts = np.concatenate([[0], np.cumsum([len(chunk) for chunk in chunks])]).astype(np.int64)
        self._whole: Cache[FloatMatrix] = Cache()

    def parts(self) -> Iterator[tuple[int, FloatMatrix]]:
        bounds = np.searchsorted(self._live, self._starts)
        for chunk, row, start, stop in zip(self._chunks, self._starts, bounds, bounds[1:], strict=False):
            if start < stop:
                yield int(start), chunk[self._live[start:stop] - row].astype(np.float32, copy=False)

    def rows(self, positions: Positions) -> FloatMatrix:
        found = np.empty((len(positions), self.n_anchor_queries), dtype=np.float32)
        wanted = self._live[positions]
        homes = np.searchsorted(self._starts, wanted, side="right") - 1
        order = np.argsort(homes, kind="stable")
        there, firsts = np.unique(homes[order], return_index=True)
        for home, places in zip(there.tolist(), np.split(order, firsts[1:]), strict=False):
            if self.n_anchor_queries:
                found[places] = self._chunks[home][wanted[places] - self._starts[home]]
        return found

    def all(self) -> FloatMatrix:
        return self._whole.get(None, self._copied)

    def _copied(self) -> FloatMatrix:
        whole = np.empty((self.n_items, self.n_anchor_queries), dtype=np.float32)
        for start, part in self.parts():
            whole[start : start + len(part)] = part
        return whole
