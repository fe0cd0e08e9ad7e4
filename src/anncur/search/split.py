"""How ANNCUR divides a budget between anchors and best guesses, and how much of the anchor block it trusts.

Both are chosen by the recall that they give on held-out anchor queries, never on the queries that are searched. Reads
the exact anchor scores; one table answers for every k and budget."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from anncur.anchors import order_anchors
from anncur.arrays import FloatMatrix, FloatVector, Positions
from anncur.factors.cur import CurFactors, estimate_queries
from anncur.progress import Progress, silent
from anncur.ranking import top_k

ANCHOR_COUNTS = (0, 1, 2, 3, 5, 8, 12, 18, 25, 35, 50, 70, 100, 140, 200, 280, 400, 560)
CUTOFFS = (1e-1, 3e-2, 1e-2, 3e-3, 1e-3, 1e-4, 1e-6)
MOST_HELD_OUT = 64  # queries in all folds together
N_FOLDS = 8
LEAST_K = 10  # fewer true items per held-out query tell more of chance than of the split
DEPTH = 100  # true best items followed per held-out query, so the largest k that the table knows
DEEPEST_RANK = 2000  # guesses considered, so about the largest budget that the table knows
UNTESTED_CUTOFF = 1e-2  # with too few anchor queries to hold any out


@dataclass(frozen=True)
class Split:
    """How many calls go to anchors, and the cutoff for their block."""

    n_anchor_items: int
    cutoff: float


class SplitTable:
    """For every split tried, where the truly best items of held-out queries came in the order of the guesses.

    `ranks` is (n_splits, n_held_out, depth): how many guesses stood above the item; below zero for an anchor item,
    which is found in any case. An item is found when its rank is below the calls left after the anchors."""

    def __init__(self, splits: list[Split], ranks: NDArray[np.int32]) -> None:
        self._splits = splits
        self._ranks = ranks
        self._chosen: dict[tuple[int, int, int | None], Split] = {}

    def best(self, *, k: int, budget: int, n_anchor_items: int | None = None) -> Split:
        """The split with the highest expected recall; with `n_anchor_items` given, only its cutoff is chosen."""
        key = (k, budget, n_anchor_items)
        if key not in self._chosen:  # two threads may both compute it; they get the same
            self._chosen[key] = self._choose(k, budget, n_anchor_items)
        return self._chosen[key]

    def highest_recall(self, *, k: int, budget: int) -> float | None:
        """The mean recall of held-out queries with the best split, where the table knows it."""
        if not self._splits or k > DEPTH or budget > DEEPEST_RANK:
            return None
        return self.expected_recall(self.best(k=k, budget=budget), k=k, budget=budget)

    def expected_recall(self, split: Split, *, k: int, budget: int) -> float:
        """The mean recall of held-out queries, for a split of the table."""
        ranks = self._ranks[self._splits.index(split), :, :k]
        return float((ranks < budget - split.n_anchor_items).mean())

    def _choose(self, k: int, budget: int, n_anchor_items: int | None) -> Split:
        if n_anchor_items is None:
            usable = [split for split in self._splits if split.n_anchor_items < budget]
        else:  # the nearest number of anchors that was tried tells which cutoff to use
            nearest = min((abs(split.n_anchor_items - n_anchor_items) for split in self._splits), default=0)
            usable = [split for split in self._splits if abs(split.n_anchor_items - n_anchor_items) == nearest]
        if not usable:
            return Split(budget // 2 if n_anchor_items is None else n_anchor_items, UNTESTED_CUTOFF)
        k, budget = min(max(k, LEAST_K), DEPTH), min(budget, DEEPEST_RANK)
        best = max(usable, key=lambda split: self.expected_recall(split, k=k, budget=budget))
        return best if n_anchor_items is None else Split(n_anchor_items, best.cutoff)


def tune_splits(
    item_vectors: FloatMatrix, *, anchors: str, rng: np.random.Generator, progress: Progress = silent
) -> SplitTable:
    """Try all splits on held-out anchor queries. `item_vectors` is (n_items, n_anchor_queries)."""
    n_items, n_queries = item_vectors.shape
    n_folds = min(N_FOLDS, n_queries // 2)
    if n_folds < 2:
        return SplitTable([], np.empty((0, 0, 0), dtype=np.int32))
    folds = np.array_split(rng.permutation(n_queries)[:MOST_HELD_OUT], n_folds)
    counts = [count for count in ANCHOR_COUNTS if count < n_items]
    ranks: dict[Split, list[NDArray[np.int32]]] = {}
    for number, held_out in enumerate(folds):
        progress("tuning on held-out anchor queries", number, len(folds))
        for split, fold_ranks in _fold_ranks(item_vectors, held_out, counts=counts, anchors=anchors, rng=rng):
            ranks.setdefault(split, []).append(fold_ranks)
    progress("tuning on held-out anchor queries", len(folds), len(folds))
    return SplitTable(list(ranks), np.stack([np.concatenate(of_split) for of_split in ranks.values()]))


def _fold_ranks(
    item_vectors: FloatMatrix, held_out: Positions, *, counts: list[int], anchors: str, rng: np.random.Generator
) -> Iterator[tuple[Split, NDArray[np.int32]]]:
    """Every split with the ranks, (n_held_out, depth), that it gives to the truly best items of held-out queries."""
    kept = np.setdiff1d(np.arange(item_vectors.shape[1]), held_out)
    kept_vectors = np.ascontiguousarray(item_vectors[:, kept])  # (n_items, n_kept)
    truth = np.ascontiguousarray(item_vectors[:, held_out].T)  # (n_held_out, n_items)
    best_items = [top_k(row, DEPTH) for row in truth]
    factors = CurFactors(kept_vectors, order_anchors(kept_vectors.T, n_anchors=counts[-1], method=anchors, rng=rng))
    for count in counts:
        anchor_items, block = factors.anchor_order[:count], factors.anchor_block(count)
        ranks_by_kept: dict[int, NDArray[np.int32]] = {}  # cutoffs that keep as much give the same guesses
        for cutoff in CUTOFFS:
            kept_rank = block.kept_rank(cutoff)
            if kept_rank not in ranks_by_kept:
                query_vectors = estimate_queries(truth[:, anchor_items], block.link_matrix(cutoff))
                guesses = query_vectors.astype(np.float32) @ kept_vectors.T  # (n_held_out, n_items)
                guesses[:, anchor_items] = np.inf
                ranks = [_ranks(row, best, count) for row, best in zip(guesses, best_items, strict=True)]
                ranks_by_kept[kept_rank] = np.stack(ranks)
            yield Split(count, cutoff), ranks_by_kept[kept_rank]


def _ranks(guesses: FloatVector, best_items: Positions, n_anchor_items: int) -> NDArray[np.int32]:
    """How many guesses stand above each of the truly best items, up to `DEEPEST_RANK`.

    The guesses for anchor items are infinite, so their own ranks come out below zero: they are found in any case."""
    deepest = min(len(guesses), DEEPEST_RANK + n_anchor_items)
    highest = np.sort(np.partition(guesses, len(guesses) - deepest)[len(guesses) - deepest :])
    n_above = deepest - np.searchsorted(highest, guesses[best_items], side="right")
    return (n_above - n_anchor_items).astype(np.int32)
