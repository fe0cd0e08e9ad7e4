"""The items that a search re-ranks between two rankings of all items.

A few more exact scores change the order of the best guesses, but mostly not who is near the top: so a query re-ranks
the items that were best when all were ranked. When some of its best guesses come from far down this list, others may
come from beyond it, and all items are ranked again. Feeds `posterior.py`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from anncur.arrays import Positions

LEAST, MOST, SHARE = 1000, 5000, 0.02  # items of a shortlist: a share of all, within bounds
PER_ITEM = 4  # at least this many for each of the best guesses that are wanted
DEEP = 0.25  # of the list: best guesses from below this tell that it is out of date
WORTH = 4  # times the size of a shortlist: with fewer items than this, all of them are ranked in every round


def shortlist_size(n_best: int, n_items: int) -> int | None:
    """How many items to keep for the rounds to come; None where ranking all of them is as good."""
    size = max(min(max(LEAST, round(SHARE * n_items)), MOST), PER_ITEM * n_best)
    return size if WORTH * size <= n_items else None


@dataclass(frozen=True, eq=False)
class Shortlist:
    """For each query the items with the best guesses when all were ranked, without those that were scored since."""

    positions: Positions  # (n_queries, n), each row in ascending order
    ranks: Positions  # of these when all items were ranked

    @classmethod
    def of(cls, ranked: Positions) -> Self:
        """From the best of all items, best first, (n_queries, n)."""
        order = np.argsort(ranked, axis=1)
        return cls(np.take_along_axis(ranked, order, axis=1), order)

    def __len__(self) -> int:
        """The number of items for each query."""
        return int(self.positions.shape[1])

    def holds(self, n_best: int) -> bool:
        """Whether it is long enough."""
        return len(self) >= max(LEAST // 2, PER_ITEM * n_best)

    def are_stale(self, best: Positions) -> NDArray[np.bool_]:
        """Which queries want all items ranked again, given the places of their best guesses in it, (n_queries, n)."""
        deepest: Positions = np.take_along_axis(self.ranks, best, axis=1).max(axis=1, initial=0)
        return deepest >= DEEP * len(self)

    def without(self, scored: Positions) -> Shortlist | None:
        """The same without some items of each query, (n_queries, n_scored); None where it doesn't hold all of them."""
        is_left = np.stack([~np.isin(row, gone) for row, gone in zip(self.positions, scored, strict=True)])
        n_left = len(self) - scored.shape[1]
        if (is_left.sum(axis=1) != n_left).any():
            return None
        left = (values[is_left].reshape(-1, n_left) for values in (self.positions, self.ranks))
        return Shortlist(*left)

    def replaced(self, rows: Positions, other: Shortlist) -> Shortlist:
        """The same with the items of another one for some of the queries."""
        positions, ranks = self.positions.copy(), self.ranks.copy()
        positions[rows], ranks[rows] = other.positions, other.ranks
        return Shortlist(positions, ranks)

    def keep(self, rows: Positions) -> Shortlist:
        """That of some of the queries only."""
        return Shortlist(self.positions[rows], self.ranks[rows])
