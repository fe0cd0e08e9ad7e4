"""Recall of the scorer's own top k."""

from __future__ import annotations

import pytest

from anncur.errors import InputError
from anncur.evaluation.recall import mean_recall, top_k_recall
from anncur.items import Item, Query
from anncur.ranking import Hit, Hits


def make_hits(**scores: float) -> Hits:
    hits = tuple(Hit(item_id, score, Item(item_id, "text")) for item_id, score in scores.items())
    return Hits(hits, Query("q"), method="anncur", calls=len(hits), seconds=0.0, is_partial=False)


TRUTH = make_hits(a=5.0, b=4.0, c=3.0, d=3.0, e=1.0)


def test_recall_is_the_share_of_the_true_top_k_that_was_found() -> None:
    assert top_k_recall(make_hits(a=5.0, c=3.0), TRUTH, k=2) == 0.5
    assert top_k_recall(make_hits(b=4.0, e=1.0), TRUTH, k=3) == pytest.approx(1 / 3)
    assert top_k_recall(TRUTH, TRUTH, k=5) == 1.0


def test_an_item_tied_with_the_kth_counts_as_found() -> None:
    assert top_k_recall(make_hits(a=5.0, b=4.0, d=3.0), TRUTH, k=3) == 1.0


def test_only_the_first_k_hits_count() -> None:
    assert top_k_recall(make_hits(a=5.0, b=4.0, c=3.0, d=3.0), TRUTH, k=3) == 1.0


def test_a_true_ranking_that_is_too_short_is_refused() -> None:
    with pytest.raises(InputError, match="at least k = 6"):
        top_k_recall(TRUTH, TRUTH, k=6)


def test_the_mean_is_over_queries() -> None:
    found = [make_hits(a=5.0), make_hits(e=1.0)]
    assert mean_recall(found, [TRUTH, TRUTH], k=1) == 0.5
