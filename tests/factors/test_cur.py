"""The CUR decomposition: exact where it can be, stable where the paper's setting is not."""

from __future__ import annotations

import numpy as np
import pytest

from anncur.arrays import FloatMatrix
from anncur.factors.cur import (
    PAPER_CUTOFF,
    Oracle,
    approximate,
    link_matrix,
    numerical_rank,
    relative_error,
    variance_rank,
)
from anncur.search.anncur import Anncur
from worlds import World, low_rank_scores


def decaying_scores(n_queries: int, n_items: int, *, seed: int = 0) -> FloatMatrix:
    """Scores whose singular values fall slowly, like a cross-encoder's: anchors never explain all of them."""
    rng = np.random.default_rng(seed)
    left, _ = np.linalg.qr(rng.normal(size=(n_queries, n_queries)))
    right, _ = np.linalg.qr(rng.normal(size=(n_items, n_queries)))
    scores: FloatMatrix = (left * np.arange(1, n_queries + 1) ** -1.0 @ right.T * n_items).astype(np.float32)
    return scores


def test_the_approximation_is_exact_when_the_anchors_span_the_rank() -> None:
    exact_scores = low_rank_scores(60, 500, rank=12)
    anchor_scores, test_scores = exact_scores[:30], exact_scores[30:]
    anchor_items = np.arange(20)
    link = link_matrix(anchor_scores[:, anchor_items], cutoff=1e-5)
    approx_scores = approximate(test_scores[:, anchor_items], link, anchor_scores)
    np.testing.assert_allclose(approx_scores, test_scores, atol=1e-4 * np.abs(test_scores).max())


def test_every_cutoff_is_the_pseudo_inverse_with_that_cutoff() -> None:
    block = decaying_scores(40, 60)[:, :25]
    for cutoff in (PAPER_CUTOFF, 1e-3, 0.05, 0.5):
        expected = np.linalg.pinv(block.astype(np.float64), rcond=cutoff)
        np.testing.assert_allclose(link_matrix(block, cutoff=cutoff), expected, rtol=1e-6, atol=1e-9)


@pytest.mark.slow
def test_search_with_the_papers_cutoff_guesses_what_numpys_pinv_gives() -> None:
    exact_scores = low_rank_scores(101, 2000, rank=100, seed=3)
    world = World(exact_scores)
    index = world.index(100)
    n_anchor_items, budget = 50, 400
    hits = index.search(world.queries[100], k=10, budget=budget, method=Anncur(n_anchor_items, PAPER_CUTOFF))
    anchors, best = hits.trace
    anchor_scores = exact_scores[:100].astype(np.float64)
    formula = anchors.exact_scores @ np.linalg.pinv(anchor_scores[:, anchors.positions]) @ anchor_scores
    assert len(anchors.positions) == n_anchor_items
    assert len(best.positions) == budget - n_anchor_items
    scale = np.abs(formula).max()
    np.testing.assert_allclose(best.guesses / scale, formula[best.positions] / scale, atol=1e-5)
    others = np.setdiff1d(np.arange(2000), np.concatenate([anchors.positions, best.positions]))
    assert formula[others].max() <= formula[best.positions].min() + 1e-5 * scale


@pytest.mark.slow
def test_the_papers_setting_collapses_at_equal_anchors_and_ours_does_not() -> None:
    n_anchors = 100
    exact_scores = decaying_scores(200, 1500)
    noisy = exact_scores + np.random.default_rng(1).normal(scale=0.02, size=exact_scores.shape).astype(np.float32)
    world = World(noisy)
    index = world.index(n_anchors, retrievers=(), anchor_method="random")
    test_queries = world.queries[n_anchors:]

    def recall(method: Anncur) -> float:
        found = index.search_many(test_queries, k=10, budget=200, method=method)
        return float(
            np.mean(
                [len(set(hits.ids) & set(world.brute_force(n_anchors + n, 10))) / 10 for n, hits in enumerate(found)]
            )
        )

    paper = recall(Anncur(n_anchors, PAPER_CUTOFF))
    ours = recall(Anncur(n_anchors))
    half_as_many = recall(Anncur(n_anchors // 2, PAPER_CUTOFF))
    assert paper < half_as_many - 0.1, "the paper's setting should collapse here"
    assert ours > paper + 0.2
    assert ours >= half_as_many - 0.02


def test_the_oracle_cures_the_collapse_and_is_never_worse() -> None:
    exact_scores = decaying_scores(150, 600)
    anchor_queries, anchor_items = np.arange(60), np.arange(60)
    anchor_scores, anchor_columns = exact_scores[anchor_queries], exact_scores[:, anchor_items]
    skeleton = link_matrix(anchor_scores[:, anchor_items], cutoff=PAPER_CUTOFF)
    oracle = Oracle(exact_scores, cutoff=PAPER_CUTOFF).link_matrix(anchor_queries, anchor_items)
    skeleton_error = relative_error(exact_scores, approximate(anchor_columns, skeleton, anchor_scores))
    oracle_error = relative_error(exact_scores, approximate(anchor_columns, oracle, anchor_scores))
    assert oracle_error < 0.5 < skeleton_error


def test_duplicate_anchors_stay_finite() -> None:
    exact_scores = low_rank_scores(30, 100, rank=10)
    duplicated = np.repeat(exact_scores[:, :5], 4, axis=1)
    link = link_matrix(np.vstack([duplicated, duplicated]), cutoff=1e-5)
    assert np.isfinite(link).all()
    assert np.abs(link).max() < 1e3


def test_a_block_of_zeros_gives_zeros() -> None:
    assert not link_matrix(np.zeros((4, 3)), cutoff=1e-5).any()


def test_relative_error_is_zero_for_itself_and_one_for_nothing() -> None:
    exact_scores = low_rank_scores(5, 9, rank=3)
    assert relative_error(exact_scores, exact_scores.astype(np.float64)) == 0.0
    assert relative_error(exact_scores, np.zeros_like(exact_scores)) == pytest.approx(1.0)


def test_rank_comes_with_its_tolerance_and_the_type_of_the_scores_matters() -> None:
    rng = np.random.default_rng(0)
    exact_scores = low_rank_scores(80, 300, rank=20).astype(np.float64) + 1e-6 * rng.normal(size=(80, 300))
    in_double = numerical_rank(exact_scores)
    in_single = numerical_rank(exact_scores.astype(np.float32))
    assert (in_double.rank, in_single.rank) == (80, 20)
    assert in_double.tolerance == pytest.approx(300 * 2.2e-16, rel=0.01)
    assert in_single.tolerance == pytest.approx(300 * 1.19e-7, rel=0.01)
    assert numerical_rank(exact_scores, tolerance=1e-4) == (20, 1e-4)


def test_the_variance_rank_is_the_fewest_components_that_explain_the_share() -> None:
    rng = np.random.default_rng(0)
    left, _ = np.linalg.qr(rng.normal(size=(20, 3)))
    right, _ = np.linalg.qr(rng.normal(size=(50, 3)))
    exact_scores = left * [3.0, 2.0, 1.0] @ right.T  # squares of 9, 4 and 1 of 14
    shares = [0.5, 9.5 / 14, 0.9, 13.5 / 14]
    assert [variance_rank(exact_scores, share) for share in shares] == [1, 2, 2, 3]


@pytest.mark.parametrize("share", [0.5, 0.9, 0.99])
def test_the_best_approximation_of_the_variance_rank_explains_the_share_and_one_less_does_not(share: float) -> None:
    exact_scores = decaying_scores(40, 100)
    left, values, right = np.linalg.svd(exact_scores.astype(np.float64), full_matrices=False)

    def explained(rank: int) -> float:
        return 1 - relative_error(exact_scores, left[:, :rank] * values[:rank] @ right[:rank]) ** 2

    rank = variance_rank(exact_scores, share)
    assert explained(rank) >= share > explained(rank - 1)
    assert variance_rank(exact_scores.T, share) == variance_rank(1000 * exact_scores, share) == rank


def test_scores_of_zero_have_no_variance() -> None:
    assert variance_rank(np.zeros((4, 3), dtype=np.float32), 0.9) == 0


def test_all_of_the_variance_never_needs_more_components_than_there_are() -> None:
    for seed in range(20):
        assert variance_rank(low_rank_scores(12, 30, rank=12, noise=0.1, seed=seed), 1.0) <= 12
