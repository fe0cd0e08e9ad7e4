"""How anchors are chosen."""

from __future__ import annotations

import numpy as np
import pytest

from anncur import anchors
from anncur.anchors import (
    ANCHOR_METHODS,
    choose_anchors,
    choose_medoids,
    choose_pivots,
    order_anchors,
    sample_positions,
)
from anncur.errors import InputError
from anncur.factors.cur import approximate, link_matrix, relative_error
from worlds import low_rank_scores


@pytest.mark.parametrize("method", ANCHOR_METHODS)
def test_every_method_orders_all_columns_once(method: str) -> None:
    scores = low_rank_scores(10, 80, rank=4, noise=0.1)
    rng = np.random.default_rng(0)
    chosen = choose_anchors(scores, n_anchors=20, method=method, rng=rng)
    order = order_anchors(chosen, 80, rng)
    assert len(chosen) <= 20
    assert order[: len(chosen)].tolist() == chosen.tolist()
    assert sorted(order.tolist()) == list(range(80))


@pytest.mark.parametrize("method", ANCHOR_METHODS)
def test_every_method_takes_more_anchors_than_columns_and_a_single_column(method: str) -> None:
    for n_items in (1, 3):
        scores = low_rank_scores(6, n_items, rank=1)
        chosen = choose_anchors(scores, n_anchors=50, method=method, rng=np.random.default_rng(0))
        assert len(set(chosen.tolist())) == len(chosen) <= n_items
        assert chosen.max() < n_items


@pytest.mark.parametrize("method", ANCHOR_METHODS)
def test_the_same_seed_gives_the_same_order(method: str) -> None:
    scores = low_rank_scores(10, 80, rank=4, noise=0.1)
    first, second = (
        choose_anchors(scores, n_anchors=20, method=method, rng=np.random.default_rng(5)) for _ in range(2)
    )
    np.testing.assert_array_equal(first, second)


@pytest.mark.parametrize("method", ANCHOR_METHODS)
def test_duplicate_and_empty_columns_do_no_harm(method: str) -> None:
    scores = np.hstack([np.zeros((5, 10)), np.tile(low_rank_scores(5, 1, rank=1), 10)])
    chosen = choose_anchors(scores, n_anchors=8, method=method, rng=np.random.default_rng(0))
    assert len(set(chosen.tolist())) == len(chosen) <= 8


def test_anchor_queries_are_chosen_on_the_transpose() -> None:
    scores = low_rank_scores(30, 8, rank=3)
    chosen = choose_anchors(scores.T, n_anchors=3, rng=np.random.default_rng(0))
    assert np.linalg.matrix_rank(scores[chosen], tol=1e-3) == 3
    assert chosen[0] == np.argmax(np.linalg.norm(scores, axis=1))


def test_pivots_span_the_matrix_with_as_many_columns_as_its_rank() -> None:
    scores = low_rank_scores(20, 200, rank=6).astype(np.float64)
    pivots = choose_pivots(scores, 6, np.random.default_rng(0))
    link = link_matrix(scores[:, pivots], cutoff=1e-6)
    assert relative_error(scores, approximate(scores[:, pivots], link, scores)) < 1e-4


def test_pivots_stop_at_the_rank() -> None:
    scores = low_rank_scores(20, 200, rank=6).astype(np.float64)
    assert len(choose_pivots(scores, 15, np.random.default_rng(0), floor=1e-5)) == 6


def test_each_pivot_is_the_column_farthest_from_the_span_of_those_before() -> None:
    scores = low_rank_scores(12, 40, rank=12, seed=2).astype(np.float64)
    pivots = choose_pivots(scores, 8, np.random.default_rng(0))
    for count in range(8):
        basis, _ = np.linalg.qr(scores[:, pivots[:count]])
        residuals = np.linalg.norm(scores - basis @ (basis.T @ scores), axis=0)
        assert residuals[pivots[count]] == pytest.approx(residuals.max())


def test_medoids_find_one_column_in_every_cluster() -> None:
    rng = np.random.default_rng(0)
    centres = 10 * np.eye(4)
    columns = np.repeat(centres, 25, axis=1) + 0.1 * rng.normal(size=(4, 100))
    medoids = choose_medoids(columns, 40, rng)
    assert set((medoids // 25).tolist()) == {0, 1, 2, 3}


def test_kmeans_takes_the_largest_cluster_first() -> None:
    rng = np.random.default_rng(0)
    columns = np.hstack([np.full((3, 2), 9.0), np.full((3, 50), -9.0)]) + 0.01 * rng.normal(size=(3, 52))
    for seed in range(10):
        chosen = choose_anchors(columns, n_anchors=2, method="kmeans", rng=np.random.default_rng(seed))
        assert chosen[0] >= 2


def test_of_very_many_items_a_sample_is_considered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(anchors, "MOST_CONSIDERED", 10)
    sample = sample_positions(1000, np.random.default_rng(0))
    assert len(set(sample.tolist())) == 10
    assert sample.tolist() == sorted(sample.tolist())
    assert sample_positions(7, np.random.default_rng(0)).tolist() == list(range(7))


def test_leverage_prefers_columns_that_nothing_else_explains() -> None:
    scores = np.zeros((4, 100))
    scores[0] = 1.0
    scores[1, 7] = 10.0
    drawn = [choose_anchors(scores, n_anchors=2, method="leverage", rng=np.random.default_rng(n)) for n in range(20)]
    assert sum(7 in pair for pair in drawn) >= 10, "by chance it would be in one pair of fifty"


def test_an_unknown_method_is_refused_with_those_there_are() -> None:
    with pytest.raises(InputError, match="pivoted_qr, random, leverage, kmeans"):
        choose_anchors(np.zeros((2, 2)), n_anchors=1, method="best", rng=np.random.default_rng(0))
