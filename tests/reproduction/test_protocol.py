"""The authors' protocol: their pseudo-inverse, their costs, and their choice of splits on test."""

from __future__ import annotations

import numpy as np
import pytest

from anncur.evaluation.rows import Cell, Row, select
from anncur.evaluation.scoreboard import ANNCUR
from anncur.factors.cur import link_matrix
from anncur.reproduction.curves import Guesses, recall_at_cost
from anncur.reproduction.matrix import choose_cutoff
from anncur.reproduction.protocol import (
    best_splits,
    paper_guesses,
    paper_link_matrix,
    random_split,
    recall_curve,
    recall_rows,
    splits_of,
)
from toy_studies import PAPER_SIZES, make_paper_study
from worlds import low_rank_scores


def test_recall_among_the_best_guesses_is_what_counting_by_hand_gives() -> None:
    rng = np.random.default_rng(0)
    guesses, exact = rng.normal(size=(2, 12, 40))
    curve = recall_curve(guesses, exact, [1, 5], [5, 17, 40])
    for (k, depth), shares in curve.items():
        for query, share in enumerate(shares):
            retrieved, wanted = np.argsort(-guesses[query])[:depth], np.argsort(-exact[query])[:k]
            assert share == len(set(retrieved) & set(wanted)) / k


def test_a_retrieved_item_tied_with_the_kth_best_counts_as_found_but_never_more_than_k() -> None:
    exact = np.array([[3.0, 1.0, 1.0, 1.0, 0.0]])
    guesses = np.array([[0.0, 1.0, 5.0, 4.0, 3.0]])
    curve = recall_curve(guesses, exact, [2], [1, 2, 5])
    assert [float(shares[0]) for shares in curve.values()] == [0.5, 1.0, 1.0]


def test_guesses_are_exact_where_there_are_as_many_anchors_as_directions() -> None:
    scores = low_rank_scores(40, 90, rank=3)
    guesses = paper_guesses(scores[:20], scores[20:], np.arange(3))
    np.testing.assert_allclose(guesses, scores[20:], atol=0.05)


def test_the_pseudo_inverse_is_that_of_float32_with_nothing_cut_off() -> None:
    block = low_rank_scores(30, 30, rank=3, noise=1e-3)
    kept = link_matrix(block, cutoff=1e-2)
    assert paper_link_matrix(block).dtype == np.float32
    assert np.abs(paper_link_matrix(block)).max() > 20 * np.abs(kept).max()


def test_recall_collapses_at_equal_anchors_and_a_chosen_cutoff_cures_it() -> None:
    scores = low_rank_scores(160, 300, rank=5, noise=0.3)
    anchors, tests, items = scores[:60], scores[60:], np.random.default_rng(0).permutation(300)
    theirs = recall_curve(paper_guesses(anchors, tests, items[:60]), tests, [10], [30])[10, 30].mean()
    cutoff = choose_cutoff(anchors, items[:60], (10, 30))
    guesses = tests[:, items[:60]] @ link_matrix(anchors[:, items[:60]], cutoff=cutoff) @ anchors
    assert recall_curve(guesses, tests, [10], [30])[10, 30].mean() > theirs + 0.3


def test_a_cost_is_split_in_tenths() -> None:
    assert splits_of(50) == [5, 10, 15, 20, 25, 30, 35, 40, 45]


def test_every_cost_is_anchor_items_and_items_re_ranked_together() -> None:
    (first, _) = recall_at_cost(make_paper_study())
    for cell in first.cells:
        assert cell.cost == (cell.n_anchor_items or 0) + (cell.n_rerank or 0)


def test_anchors_are_thrown_away_unless_they_are_guessed_to_be_good() -> None:
    """With two of two items anchors, and a depth of one, the better is missed where its guess is the lower one."""
    anchors = np.array([[1.0, 2.0], [2.0, 1.0]], dtype=np.float32)
    tests = np.array([[5.0, 4.0]], dtype=np.float32)
    cell = Cell("toy", "toy", ANNCUR, k=1, n_anchor_items=2, n_rerank=1, cost=3)

    def guess(method: str, n_anchor_items: int | None) -> np.ndarray:
        return -paper_guesses(anchors, tests, np.arange(n_anchor_items or 0))

    (row,) = recall_rows([cell], tests, guess)
    assert row["recall"] == 0.0
    assert row["calls"] == 3, "the anchors are charged although their scores are not used"


def test_the_best_split_is_chosen_on_test_for_each_cost_and_k() -> None:
    recalls = {(1, 5): 0.2, (1, 10): 0.6, (10, 5): 0.9, (10, 10): 0.1}
    rows = [
        Row(Cell("c", "toy", ANNCUR, k=k, cost=20, n_anchor_items=n, n_rerank=20 - n), {"recall": share})
        for (k, n), share in recalls.items()
    ]
    assert {(row.cell.k, row.cell.n_anchor_items) for row in best_splits(rows)} == {(1, 10), (10, 5)}


def test_test_queries_are_the_same_for_any_number_of_anchor_queries() -> None:
    few, many = (random_split(100, n_anchors=n, n_tests=30, seed=3) for n in (10, 70))
    assert few.tests.tolist() == many.tests.tolist()
    assert set(few.anchors) < set(many.anchors)
    assert not set(many.anchors) & set(many.tests)


def test_without_a_number_of_tests_all_that_are_no_anchors_are_tested() -> None:
    split = random_split(100, n_anchors=30, seed=0)
    assert sorted([*split.anchors, *split.tests]) == list(range(100))


def test_item_cur_takes_other_anchor_items_than_those_that_it_indexes_with() -> None:
    study = make_paper_study(noise=0.0)
    guesses = Guesses(study, random_split(60, n_anchors=30, seed=0))
    assert study.item_queries is not None
    altered = study.world.exact_scores.copy()
    altered[:, study.item_queries.items] = np.nan
    before = guesses("itemCUR", 8)
    guesses.exact_scores = altered[random_split(60, n_anchors=30, seed=0).tests]
    np.testing.assert_array_equal(guesses("itemCUR", 8), before)
    assert np.isnan(guesses("fixedITEM", None)).all()


@pytest.mark.parametrize("method", ["ANNCUR", "itemCUR"])
def test_with_as_many_anchor_items_as_directions_cur_finds_everything(method: str) -> None:
    study = make_paper_study(noise=0.0)
    guesses = Guesses(study, random_split(60, n_anchors=30, seed=0))
    shares = recall_curve(guesses(method, PAPER_SIZES.n_anchor_items[0]), guesses.exact_scores, [5], [20])[5, 20]
    assert shares.mean() > 0.99


def test_splits_are_measured_for_anncur_alone() -> None:
    (first, _) = recall_at_cost(make_paper_study())
    rows = [Row(cell, {}) for cell in first.cells]
    per_cost = {len(select(rows, method=method, k=1, cost=40)) for method in ("rerank hashed",)}
    assert per_cost == {1}
    assert len(select(rows, method=ANNCUR, k=1, cost=40)) == 9
