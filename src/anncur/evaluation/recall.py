"""Top-k recall against the scorer itself. Reads hits or guesses, feeds protocols and reports.

Everywhere an item tied with the k-th exact score counts as found."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from anncur.arrays import FloatMatrix, FloatVector
from anncur.errors import InputError
from anncur.ranking import Hits, top_k


def top_k_recall(found: Hits, truth: Hits, *, k: int) -> float:
    """The share of the true top k that was found; an item tied with the k-th exact score counts as found."""
    if len(truth) < k:
        raise InputError(f"the true ranking must hold at least k = {k} items, got {len(truth)}")
    true_ids = set(truth[:k].ids)
    kth_score = truth[k - 1].score
    return sum(hit.id in true_ids or hit.score == kth_score for hit in found[:k]) / k


def mean_recall(found: Sequence[Hits], truth: Sequence[Hits], *, k: int) -> float:
    """The mean of `top_k_recall` over queries."""
    shares = [top_k_recall(hits, true, k=k) for hits, true in zip(found, truth, strict=True)]
    return sum(shares) / len(shares)


def recalls(answers: Sequence[Hits], exact_scores: FloatMatrix, k: int) -> FloatVector:
    """The share of the best k that each query found; `exact_scores` are those of all items, (n_queries, n_items)."""
    least = kth_best(exact_scores, k)
    found = [sum(hit.score >= enough for hit in hits[:k]) for hits, enough in zip(answers, least, strict=True)]
    return np.array(found) / k


def recall_curve(
    guesses: FloatMatrix, exact_scores: FloatMatrix, ks: Sequence[int], depths: Sequence[int]
) -> dict[tuple[int, int], FloatVector]:
    """The share of each query's best k among its so many best guesses, by k and depth.

    Both matrices are (n_queries, n_items): the paper's Top-k-Recall@k_r, where the depth is k_r."""
    best = np.stack([top_k(row, max(depths)) for row in guesses])
    retrieved = np.take_along_axis(exact_scores, best, axis=1)  # (n_queries, deepest), best guess first
    curve: dict[tuple[int, int], FloatVector] = {}
    for k in ks:
        found = np.cumsum(retrieved >= kth_best(exact_scores, k)[:, None], axis=1)
        curve |= {(k, depth): np.minimum(found[:, min(depth, best.shape[1]) - 1], k) / k for depth in depths}
    return curve


def kth_best(exact_scores: FloatMatrix, k: int) -> FloatVector:
    """What an item must score to be among the best k of its query. (n_queries,)"""
    least: FloatVector = np.partition(exact_scores, -k, axis=1)[:, -k]
    return least
