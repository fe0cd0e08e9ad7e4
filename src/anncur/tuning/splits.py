"""Tries how the method anncur should divide a budget, and which cutoff serves, on held-out anchor queries.

Never looks at the queries that are searched. Reads the exact anchor scores, feeds `search/splits.py`."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from anncur.anchors import choose_anchors, order_anchors
from anncur.arrays import FloatMatrix, Positions
from anncur.factors.cur import CurFactors, estimate_queries
from anncur.item_scores import HeldScores, ItemScores
from anncur.progress import Progress, silent
from anncur.ranking import top_k
from anncur.search.splits import DEEPEST_RANK, BudgetSplit, SplitTable
from anncur.tuning.held_out import Sample, take_sample

STAGE = "tuning anncur"
ANCHOR_COUNTS = (0, 1, 2, 3, 5, 8, 12, 18, 25, 35, 50, 70, 100, 140, 200, 280, 400, 560)
CUTOFFS = (1e-1, 3e-2, 1e-2, 3e-3, 1e-3, 1e-4, 1e-6)
MOST_HELD_OUT = 64  # queries in all folds together
N_FOLDS = 8


def tune_splits(
    scores: ItemScores, *, anchor_method: str, rng: np.random.Generator, progress: Progress = silent
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
    ranks: dict[BudgetSplit, list[NDArray[np.int16]]] = {}
    for number, fold in enumerate(np.array_split(held_out, n_folds)):
        progress(STAGE, number, n_folds)
        for split, fold_ranks in _fold_ranks(sample, fold, anchor_method=anchor_method, rng=rng):
            ranks.setdefault(split, []).append(fold_ranks)
    progress(STAGE, n_folds, n_folds)
    return SplitTable(list(ranks), np.stack([np.concatenate(of_split) for of_split in ranks.values()]))


def _fold_ranks(
    sample: Sample, held_out: Positions, *, anchor_method: str, rng: np.random.Generator
) -> Iterator[tuple[BudgetSplit, NDArray[np.int16]]]:
    """Every split with the ranks, (n_held_out, depth), that it gives to the truly best items of held-out queries."""
    kept = np.setdiff1d(np.arange(sample.vectors.shape[1]), held_out)
    kept_vectors = np.ascontiguousarray(sample.vectors[:, kept])  # (n_considered, n_kept)
    truth = np.ascontiguousarray(sample.vectors[:, held_out].T)  # (n_held_out, n_considered)
    counts = [count for count in ANCHOR_COUNTS if count < len(kept_vectors)]
    chosen = choose_anchors(kept_vectors.T, n_anchors=counts[-1], method=anchor_method, rng=rng)
    factors = CurFactors(HeldScores(kept_vectors), order_anchors(chosen, len(kept_vectors), rng))
    for count in counts:
        anchor_items = factors.anchor_order[:count]
        block = factors.anchor_block(anchor_items)
        ranks_by_kept: dict[int, NDArray[np.int16]] = {}  # cutoffs that keep as much give the same guesses
        for cutoff in CUTOFFS:
            kept_rank = block.kept_rank(cutoff)
            if kept_rank not in ranks_by_kept:
                query_vectors = estimate_queries(truth[:, anchor_items], block.link_matrix(cutoff))
                guesses = query_vectors.astype(np.float32) @ kept_vectors.T  # (n_held_out, n_considered)
                ranks_by_kept[kept_rank] = _ranks(guesses, sample, held_out, anchor_items)
            yield BudgetSplit(count, cutoff), ranks_by_kept[kept_rank]


def _ranks(guesses: FloatMatrix, sample: Sample, held_out: Positions, anchor_items: Positions) -> NDArray[np.int16]:
    """How many guesses stand above each of the truly best items, up to `DEEPEST_RANK`; -1 for anchor items.

    Equal guesses are ranked by position, as a search ranks them."""
    is_candidate = np.ones(len(sample.vectors), dtype=np.bool_)
    is_candidate[anchor_items] = False
    candidates = np.flatnonzero(is_candidate)
    n_above = np.empty(len(sample.vectors))
    rows = []
    for query, row in zip(held_out.tolist(), guesses, strict=True):
        highest = candidates[top_k(row[candidates], DEEPEST_RANK)]
        n_above[:] = DEEPEST_RANK
        n_above[highest] = np.minimum(np.cumsum(sample.weights[highest]) - sample.weights[highest], DEEPEST_RANK)
        n_above[anchor_items] = -1
        rivals = sample.rivals(query)
        rows.append(sample.best_found(query, rivals, n_above[rivals].astype(np.int16)))
    return np.stack(rows)
