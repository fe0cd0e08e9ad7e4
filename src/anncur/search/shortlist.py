"""The items that a search re-ranks between two rankings of all items.

A few more exact scores change the order of the best guesses, but mostly not who is near the top: so a query re-ranks
the items that were best when all were ranked. When some of its best guesses come from far down this list, others may
come from beyond it, and all items are ranked again. Feeds `posterior.py`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

import numpy as np
from numpy.typing import NDArray

from anncur.arrays import FloatMatrix, Positions
from anncur.vectors.exact import ExactVectors

LEAST, MOST, SHARE = 1000, 5000, 0.02  # items of a shortlist: a share of all, within bounds
PER_ITEM = 4  # at least this many for each of the best guesses that are wanted
DEEP = 0.25  # of the list: best guesses from below this tell that it is out of date
MOST_BYTES = 2**28  # of the vectors of a block's shortlists that are kept
WORTH = 4  # times the size of a shortlist: with fewer items than this, all of them are ranked in every round


def shortlist_size(n_best: int, n_items: int) -> int | None:
    """How many items to keep for the rounds to come; None where ranking all of them is as good."""
    size = max(min(max(LEAST, round(SHARE * n_items)), MOST), PER_ITEM * n_best)
    return size if WORTH * size <= n_items else None


@dataclass(frozen=True, eq=False)
class Shortlist:
    """For each query the items with the best guesses when all were ranked; those that were scored since are marked.

    `vectors` are theirs, so that no round picks them out again; None where they would take too much memory."""

    positions: Positions  # (n_queries, n), each row in ascending order
    ranks: Positions  # of these when all items were ranked
    is_scored: NDArray[np.bool_]
    vectors: FloatMatrix | None = None  # (n_queries, n, width)

    @classmethod
    def of(cls, ranked: Positions, vectors: ExactVectors | None = None) -> Self:
        """From the best of all items, best first, (n_queries, n), and the vectors of all items."""
        order = np.argsort(ranked, axis=1)
        positions = np.take_along_axis(ranked, order, axis=1)
        taken = None
        if vectors is not None and 4 * ranked.size * vectors.width <= MOST_BYTES:
            taken = np.stack([vectors.take(row) for row in positions])
        return cls(positions, order, np.zeros(positions.shape, dtype=np.bool_), taken)

    def __len__(self) -> int:
        """The number of items for each query, scored ones included."""
        return int(self.positions.shape[1])

    def holds(self, n_best: int) -> bool:
        """Whether enough are left."""
        return int(self.n_left.min()) >= max(LEAST // 2, PER_ITEM * n_best)

    @property
    def n_left(self) -> Positions:
        """The number of items of each query that weren't scored. (n_queries,)"""
        left: Positions = len(self) - self.is_scored.sum(axis=1)
        return left

    def products(self, query_vectors: FloatMatrix, vectors: ExactVectors) -> FloatMatrix:
        """Of all its items with each query's vector, (n_queries, n); -inf for those that were scored."""
        queries = query_vectors.astype(np.float32)
        each = (vectors.take(row) for row in self.positions) if self.vectors is None else self.vectors
        found = np.stack([rows @ query for rows, query in zip(each, queries, strict=True)])
        found[self.is_scored] = -np.inf
        return found

    def are_stale(self, best: Positions) -> NDArray[np.bool_]:
        """Which queries want all items ranked again, given the places of their best guesses in it, (n_queries, n)."""
        deepest: Positions = np.take_along_axis(self.ranks, best, axis=1).max(axis=1, initial=0)
        return deepest >= DEEP * self.n_left

    def without(self, scored: Positions) -> Shortlist | None:
        """The same with some items of each query marked, (n_queries, n_scored); None where it doesn't hold all of
        them."""
        places = np.stack([np.searchsorted(row, new) for row, new in zip(self.positions, scored, strict=True)])
        places = np.minimum(places, len(self) - 1)
        if (np.take_along_axis(self.positions, places, axis=1) != scored).any():
            return None
        is_scored = self.is_scored.copy()
        np.put_along_axis(is_scored, places, True, axis=1)
        return replace(self, is_scored=is_scored)

    def replaced(self, rows: Positions, other: Shortlist) -> Shortlist:
        """The same with the items of another one for some of the queries."""
        positions, ranks, is_scored = self.positions.copy(), self.ranks.copy(), self.is_scored.copy()
        positions[rows], ranks[rows], is_scored[rows] = other.positions, other.ranks, other.is_scored
        if self.vectors is not None and other.vectors is not None:
            self.vectors[rows] = other.vectors  # in place: nobody has the list that was before
        return Shortlist(positions, ranks, is_scored, self.vectors)

    def keep(self, rows: Positions) -> Shortlist:
        """That of some of the queries only."""
        vectors = None if self.vectors is None else self.vectors[rows]
        return Shortlist(self.positions[rows], self.ranks[rows], self.is_scored[rows], vectors)
