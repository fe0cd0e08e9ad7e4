"""How ANNCUR divides a budget between anchors and best guesses, and how much of the anchor block it trusts.

Both are chosen by the recall that they give on held-out anchor queries, never on the queries that are searched. Reads
the exact anchor scores; one table answers for every k and budget."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from anncur.anchors import choose_anchors, order_anchors
from anncur.arrays import FloatMatrix, Positions
from anncur.factors.cur import CurFactors, estimate_queries
from anncur.progress import Progress, silent
from anncur.search.sample import DEPTH, ItemScores, Sample, take_sample

ANCHOR_COUNTS = (0, 1, 2, 3, 5, 8, 12, 18, 25, 35, 50, 70, 100, 140, 200, 280, 400, 560)
CUTOFFS = (1e-1, 3e-2, 1e-2, 3e-3, 1e-3, 1e-4, 1e-6)
MOST_HELD_OUT = 64  # queries in all folds together
N_FOLDS = 8
LEAST_K = 10  # fewer true items per held-out query tell more of chance than of the split
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

    def __init__(self, splits: list[Split], ranks: NDArray[np.int16]) -> None:
        self.splits = splits
        self.ranks = ranks
        self._chosen: dict[tuple[int, int, int | None], Split] = {}

    def best(self, *, k: int, budget: int, n_anchor_items: int | None = None) -> Split:
        """The split with the highest expected recall; with `n_anchor_items` given, only its cutoff is chosen."""
        key = (k, budget, n_anchor_items)
        if key not in self._chosen:  # two threads may both compute it; they get the same
            self._chosen[key] = self._choose(k, budget, n_anchor_items)
        return self._chosen[key]

    def highest_recall(self, *, k: int, budget: int) -> float | None:
        """The mean recall of held-out queries with the best split, where the table knows it."""
        if not self.splits or k > DEPTH or budget > DEEPEST_RANK:
            return None
        return self.expected_recall(self.best(k=k, budget=budget), k=k, budget=budget)

    def expected_recall(self, split: Split, *, k: int, budget: int) -> float:
        """The mean recall of held-out queries, for a split of the table."""
        ranks = self.ranks[self.splits.index(split), :, :k]
        return float((ranks < budget - split.n_anchor_items).mean())

    def _choose(self, k: int, budget: int, n_anchor_items: int | None) -> Split:
        if n_anchor_items is None:
            usable = [split for split in self.splits if split.n_anchor_items < budget]
        else:  # the nearest number of anchors that was tried tells which cutoff to use
            nearest = min((abs(split.n_anchor_items - n_anchor_items) for split in self.splits), default=0)
            usable = [split for split in self.splits if abs(split.n_anchor_items - n_anchor_items) == nearest]
        if not usable:
            return Split(budget // 2 if n_anchor_items is None else n_anchor_items, UNTESTED_CUTOFF)
        k, budget = min(max(k, LEAST_K), DEPTH), min(budget, DEEPEST_RANK)
        best = max(usable, key=lambda split: self.expected_recall(split, k=k, budget=budget))
        return best if n_anchor_items is None else Split(n_anchor_items, best.cutoff)


def tune_splits(
    scores: ItemScores, *, anchors: str, rng: np.random.Generator, progress: Progress = silent
) -> SplitTable:
    """Try all splits on held-out anchor queries.

    Looks at the truly best items of the held-out queries and, when there are very many, at a sample of the others, so
    that memory and time don't grow with the number of items; ranks are scaled accordingly."""
    n_queries = scores.n_anchor_queries
    n_folds = min(N_FOLDS, n_queries // 2)
    if n_folds < 2:
        return SplitTable([], np.empty((0, 0, 0), dtype=np.int16))
    held_out = rng.permutation(n_queries)[:MOST_HELD_OUT]
    sample = take_sample(scores, held_out, rng)
    ranks: dict[Split, list[NDArray[np.int16]]] = {}
    for number, fold in enumerate(np.array_split(held_out, n_folds)):
        progress(STAGE, number, n_folds)
        for split, fold_ranks in _fold_ranks(sample, fold, anchors=anchors, rng=rng):
            ranks.setdefault(split, []).append(fold_ranks)
    progress(STAGE, n_folds, n_folds)
    return SplitTable(list(ranks), np.stack([np.concatenate(of_split) for of_split in ranks.values()]))


STAGE = "tuning anncur"


def _fold_ranks(
    sample: Sample, held_out: Positions, *, anchors: str, rng: np.random.Generator
) -> Iterator[tuple[Split, NDArray[np.int16]]]:
    """Every split with the ranks, (n_held_out, depth), that it gives to the truly best items of held-out queries."""
    kept = np.setdiff1d(np.arange(sample.vectors.shape[1]), held_out)
    kept_vectors = np.ascontiguousarray(sample.vectors[:, kept])  # (n_considered, n_kept)
    truth = np.ascontiguousarray(sample.vectors[:, held_out].T)  # (n_held_out, n_considered)
    counts = [count for count in ANCHOR_COUNTS if count < len(kept_vectors)]
    chosen = choose_anchors(kept_vectors.T, n_anchors=counts[-1], method=anchors, rng=rng)
    factors = CurFactors(kept_vectors, order_anchors(chosen, len(kept_vectors), rng))
    for count in counts:
        anchor_items, block = factors.anchor_order[:count], factors.anchor_block(count)
        ranks_by_kept: dict[int, NDArray[np.int16]] = {}  # cutoffs that keep as much give the same guesses
        for cutoff in CUTOFFS:
            kept_rank = block.kept_rank(cutoff)
            if kept_rank not in ranks_by_kept:
                query_vectors = estimate_queries(truth[:, anchor_items], block.link_matrix(cutoff))
                guesses = query_vectors.astype(np.float32) @ kept_vectors.T  # (n_held_out, n_considered)
                ranks_by_kept[kept_rank] = _ranks(guesses, sample, held_out, anchor_items)
            yield Split(count, cutoff), ranks_by_kept[kept_rank]


def _ranks(guesses: FloatMatrix, sample: Sample, held_out: Positions, anchor_items: Positions) -> NDArray[np.int16]:
    """How many guesses stand above each of the truly best items, up to `DEEPEST_RANK`; -1 for anchor items."""
    is_rival = np.ones(len(sample.vectors), dtype=np.bool_)
    is_rival[anchor_items] = False
    rivals = np.flatnonzero(is_rival)
    n_deep = min(len(rivals), DEEPEST_RANK)
    ranks = []
    for query, row in zip(held_out.tolist(), guesses, strict=True):
        highest = rivals[np.argpartition(row[rivals], len(rivals) - n_deep)[len(rivals) - n_deep :]]
        highest = highest[np.argsort(-row[highest], kind="stable")]
        standing = np.concatenate([[0.0], np.cumsum(sample.weights[highest])])
        n_above = standing[np.searchsorted(-row[highest], -row[sample.best[query]], side="left")]
        ranks.append(np.where(np.isin(sample.best[query], anchor_items), -1, np.minimum(n_above, DEEPEST_RANK)))
    return np.stack(ranks).astype(np.int16)
