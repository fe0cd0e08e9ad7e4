"""Top-k recall against the scorer itself. Reads hits, feeds reports."""

from __future__ import annotations

from collections.abc import Sequence

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
    recalls = [top_k_recall(hits, true, k=k) for hits, true in zip(found, truth, strict=True)]
    return sum(recalls) / len(recalls)
