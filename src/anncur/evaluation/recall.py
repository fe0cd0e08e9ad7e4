"""Top-k recall against the scorer itself. Reads hits, feeds protocols and reports.

Everywhere an item tied with the k-th exact score counts as found."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from anncur.arrays import FloatMatrix, FloatVector
from anncur.errors import InputError
from anncur.ranking import Hits


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


def kth_best(exact_scores: FloatMatrix, k: int) -> FloatVector:
    """The lowest score among the best k of each query. (n_queries,)"""
    least: FloatVector = np.partition(exact_scores, -k, axis=1)[:, -k]
    return least
