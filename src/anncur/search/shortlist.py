"""The items that a search re-ranks between two rankings of all items.

A few more exact scores change the order of the best guesses, but hardly who is near the top: so all items are ranked
only when many more have been scored, and in the rounds between those that were best then. Feeds `posterior.py`."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from anncur.arrays import Positions

RANK_AGAIN = 3.0  # times as many exact scores as at the last ranking of all items
LEAST_SIZE = 1000
PER_PAIR = 4  # further items for each pair that may be scored before all items are ranked again
WORTH = 4.0  # times the size of a shortlist: with fewer items than this, all of them are ranked in every round


@dataclass(frozen=True, eq=False)
class Shortlist:
    """For each query the items with the best guesses when all were ranked, without those that were scored since."""

    positions: Positions  # (n_queries, n), each row in ascending order
    n_scored: int  # when all items were ranked

    def serves(self, n_best: int, n_scored: int) -> bool:
        """Whether it holds the best guesses still, as far as one can know."""
        return n_scored < RANK_AGAIN * self.n_scored and PER_PAIR * n_best <= self.positions.shape[1]

    def without(self, scored: Positions) -> Shortlist:
        """The same without items that it holds, the same number for each query; (n_queries, n_scored)."""
        is_left = np.stack([~np.isin(row, gone) for row, gone in zip(self.positions, scored, strict=True)])
        n_left = self.positions.shape[1] - scored.shape[1]
        return replace(self, positions=self.positions[is_left].reshape(-1, n_left))

    def keep(self, rows: Positions) -> Shortlist:
        """That of some of the queries only."""
        return replace(self, positions=self.positions[rows])


def shortlist_size(n_best: int, n_scored: int, n_items: int) -> int | None:
    """How many items to keep for the rounds to come, if that is worth it with so many items."""
    size = max(LEAST_SIZE, round(PER_PAIR * (n_best + RANK_AGAIN * n_scored)))
    return size if WORTH * size <= n_items else None
