"""How the method anncur divides a budget between anchor items and best guesses, and the cutoff for its anchor block.

Both are chosen by the recall that they gave on held-out anchor queries; one table answers for every k and budget.
Filled by `tuning/splits.py`, feeds `search/anncur.py`."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from anncur.caching import Cache

DEPTH = 100  # true best items followed per held-out query, so the largest k that tuning knows
LEAST_K = 10  # fewer true items per held-out query tell more of chance than of the split
DEEPEST_RANK = 2000  # guesses considered, so about the largest budget that the table knows
UNTESTED_CUTOFF = 1e-2  # with too few anchor queries to hold any out
MOST_CHOSEN = 1024  # k and budgets whose split is remembered


@dataclass(frozen=True)
class BudgetSplit:
    """How many pairs go to anchor items, and the cutoff for their block."""

    n_anchor_items: int
    cutoff: float


class SplitTable:
    """For every split tried, where the truly best items of held-out queries came in the order of the guesses.

    `ranks` is (n_splits, n_held_out, depth): how many guesses stood above the item; below zero for an anchor item,
    which is found in any case. An item is found when its rank is below the pairs left after the anchors."""

    def __init__(self, splits: list[BudgetSplit], ranks: NDArray[np.int16]) -> None:
        self.splits = splits
        self.ranks = ranks
        self._chosen: Cache[BudgetSplit] = Cache(MOST_CHOSEN)

    def best(self, *, k: int, budget: int, n_anchor_items: int | None = None) -> BudgetSplit:
        """The split with the highest expected recall; with `n_anchor_items` given, only its cutoff is chosen."""
        return self._chosen.get((k, budget, n_anchor_items), lambda: self._choose(k, budget, n_anchor_items))

    def highest_recall(self, *, k: int, budget: int) -> float | None:
        """The mean recall of held-out queries with the best split, where the table knows it."""
        if not self.splits or k > DEPTH or budget > DEEPEST_RANK:
            return None
        return self.expected_recall(self.best(k=k, budget=budget), k=k, budget=budget)

    def expected_recall(self, split: BudgetSplit, *, k: int, budget: int) -> float:
        """The mean recall of held-out queries, for a split of the table."""
        ranks = self.ranks[self.splits.index(split), :, :k]
        return float((ranks < budget - split.n_anchor_items).mean())

    def _choose(self, k: int, budget: int, n_anchor_items: int | None) -> BudgetSplit:
        if n_anchor_items is None:
            usable = [split for split in self.splits if split.n_anchor_items < budget]
        else:  # the nearest number of anchors that was tried tells which cutoff to use
            nearest = min((abs(split.n_anchor_items - n_anchor_items) for split in self.splits), default=0)
            usable = [split for split in self.splits if abs(split.n_anchor_items - n_anchor_items) == nearest]
        if not usable:
            return BudgetSplit(budget // 2 if n_anchor_items is None else n_anchor_items, UNTESTED_CUTOFF)
        k, budget = min(max(k, LEAST_K), DEPTH), min(budget, DEEPEST_RANK)
        best = max(usable, key=lambda split: self.expected_recall(split, k=k, budget=budget))
        return best if n_anchor_items is None else BudgetSplit(n_anchor_items, best.cutoff)
