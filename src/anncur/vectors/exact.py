"""All items, every time: a matrix product, block by block, that keeps only the top.

Memory stays the same for any number of items or queries. The vectors are arrays in single or half precision, which may
be mapped from files: then all processes that search them share their pages."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from anncur.arrays import FloatMatrix, Positions, Selector
from anncur.candidates import Candidates
from anncur.ranking import RunningTop
from anncur.threads import blas_threads_for
from anncur.vectors.base import Means, Ranked
from anncur.vectors.half import ROWS_IN_CACHE, single

PRODUCTS_AT_ONCE = 2**21  # 8 MB: small enough to stay in cache, large enough for BLAS


@dataclass(frozen=True, eq=False)
class Part:
    """Vectors in rows, and the rows of the items that are left, in ascending order; None where all are."""

    array: FloatMatrix  # (n_rows, width)
    rows: Positions | None = None

    def __len__(self) -> int:
        return len(self.array) if self.rows is None else len(self.rows)

    def take(self, items: Positions) -> FloatMatrix:
        """The vectors of some items."""
        return _widened(self.array[items if self.rows is None else self.rows[items]])

    def products(self, queries: FloatMatrix, start: int, stop: int) -> FloatMatrix:
        """Of neighbouring items, (n_queries, stop - start): also of the rows between them, which costs less than to
        pick them out, unless they are many."""
        if self.rows is None:
            return product(queries, self.array[start:stop])
        first, last = self.rows[start], self.rows[stop - 1]
        if last + 1 - first > 2 * (stop - start):
            return product(queries, self.array[self.rows[start:stop]])
        products = product(queries, self.array[first : last + 1])
        return products if last + 1 - first == stop - start else products[:, self.rows[start:stop] - first]

    def without(self, items: Positions) -> Part:
        """The same without some items."""
        rows = np.arange(len(self.array)) if self.rows is None else self.rows
        return Part(self.array, np.delete(rows, items))


class ExactVectors:
    """Ranks by parts that follow one another."""

    recall = 1.0

    def __init__(self, *parts: FloatMatrix | Part) -> None:
        self.parts = tuple(part if isinstance(part, Part) else Part(part) for part in parts)
        self._starts = np.concatenate([[0], np.cumsum([len(part) for part in self.parts])]).astype(np.int64)

    @property
    def width(self) -> int:
        return int(self.parts[0].array.shape[1])

    def __len__(self) -> int:
        return int(self._starts[-1])

    def top(
        self,
        query_vectors: FloatMatrix,
        n_best: int,
        *,
        exclude: Sequence[Positions],
        among: Candidates,
        means: Means | None = None,
    ) -> list[Ranked]:
        """As of any vector index; with `means`, these are added to the products."""
        queries = query_vectors.astype(self._precision)  # (n_queries, width)
        tops = [RunningTop(n_best, np.sort(excluded)) for excluded in exclude]
        is_begun = bool(queries.any())  # in a first round nothing is known of a query
        with blas_threads_for(queries.size * len(among)):
            self._rank(queries if is_begun else None, among, tops, means)
        return [Ranked(top.positions, top.scores) for top in tops]

    def _rank(
        self, queries: FloatMatrix | None, among: Candidates, tops: Sequence[RunningTop], means: Means | None
    ) -> None:
        """Let `tops` have all candidates, block by block; without `queries`, by their means alone."""
        for block in among.blocks(self._n_at_once(len(tops))):
            if queries is None:
                products: FloatMatrix = np.zeros((len(tops), len(block)), dtype=self._precision)
            else:
                products = self._products(queries, block.items)
            if means is not None:
                products += means.of_items(block.items)
            if block.is_hidden is not None:
                products[:, block.is_hidden] = -np.inf
            for top, row in zip(tops, products, strict=True):
                top.add(row, block.items)

    def take(self, positions: Positions) -> FloatMatrix:
        if len(self.parts) == 1:
            return self.parts[0].take(positions)
        found = np.empty((*positions.shape, self.width), dtype=self._precision)
        homes = np.searchsorted(self._starts, positions, side="right") - 1
        for home in np.unique(homes).tolist():
            is_here = homes == home
            found[is_here] = self.parts[home].take(positions[is_here] - self._starts[home])
        return found

    def add(self, vectors: FloatMatrix) -> ExactVectors:
        return ExactVectors(*self.parts, vectors)

    def remove(self, positions: Positions) -> ExactVectors:
        gone = np.sort(positions)
        parts = [
            part.without(gone[(gone >= start) & (gone < start + len(part))] - start)
            for part, start in zip(self.parts, self._starts.tolist(), strict=False)
        ]
        return ExactVectors(*(part for part in parts if len(part)))

    @property
    def is_half(self) -> bool:
        """Whether all are in half precision."""
        return all(part.array.dtype == np.float16 for part in self.parts)

    def all(self) -> FloatMatrix:
        """All vectors in one array; that of the only part where it has no other rows."""
        only = self.parts[0]
        return only.array if len(self.parts) == 1 and only.rows is None else self.take(np.arange(len(self)))

    @property
    def _precision(self) -> np.dtype[Any]:
        return np.result_type(np.float32, *(part.array.dtype for part in self.parts))

    def _n_at_once(self, n_queries: int) -> int:
        is_half = any(part.array.dtype == np.float16 for part in self.parts)
        return ROWS_IN_CACHE if is_half else max(1, PRODUCTS_AT_ONCE // max(n_queries, 16))

    def _products(self, queries: FloatMatrix, items: Selector) -> FloatMatrix:
        """(n_queries, n)"""
        if not isinstance(items, slice):
            return product(queries, self.take(items))
        found = [self.parts[home].products(queries, *between) for home, *between in self._between(items)]
        return found[0] if len(found) == 1 else np.concatenate(found, axis=1)

    def _between(self, items: slice) -> Iterator[tuple[int, int, int]]:
        """The parts that hold neighbouring items, and the first and last + 1 of these there."""
        for home, start in enumerate(self._starts[:-1].tolist()):
            first, last = max(items.start, start), min(items.stop, int(self._starts[home + 1]))
            if first < last:
                yield home, first - start, last - start


def product(queries: FloatMatrix, rows: FloatMatrix) -> FloatMatrix:
    """(n_queries, n_rows); turned round, because BLAS is faster with the long side first."""
    with np.errstate(invalid="ignore"):  # some processors' BLAS raises this flag by numbers that it leaves out
        return np.ascontiguousarray((_widened(rows) @ queries.T).T)


def _widened(rows: FloatMatrix) -> FloatMatrix:
    """Half precision as single; others as they are."""
    return single(rows) if rows.dtype == np.float16 else rows
