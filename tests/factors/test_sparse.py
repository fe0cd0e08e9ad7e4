"""Item vectors from sparse scores."""

from __future__ import annotations

import numpy as np
import pytest

from anncur.arrays import FloatMatrix
from anncur.factors.sparse import SparseScores, Start, factorise, singular_start, straight_line


def sparse_low_rank(*, rank: int, n_scored: int, seed: int = 0) -> tuple[SparseScores, Start, FloatMatrix]:
    """Some scores of a low-rank matrix of 60 queries and 50 items, its true factors, and the whole matrix."""
    rng = np.random.default_rng(seed)
    true = Start(rng.normal(size=(60, rank)), rng.normal(size=(50, rank)))
    exact_scores = true.queries @ true.items.T
    items = np.stack([rng.permutation(50)[:n_scored] for _ in range(60)])
    return SparseScores(items, np.take_along_axis(exact_scores, items, axis=1)), true, exact_scores


def error(items: FloatMatrix, exact_scores: FloatMatrix) -> float:
    """The share of the scores that no query vectors could give with these items."""
    items = items.astype(np.float64)
    missed = exact_scores.T - items @ np.linalg.lstsq(items, exact_scores.T, rcond=1e-6)[0]
    return float(np.linalg.norm(missed) / np.linalg.norm(exact_scores))


def test_what_is_left_out_of_a_low_rank_matrix_is_recovered() -> None:
    sparse, true, exact_scores = sparse_low_rank(rank=3, n_scored=25)
    near = Start(true.queries, true.items + 0.3 * np.random.default_rng(1).normal(size=true.items.shape))
    fitted = factorise(sparse, near, pull=1e-4, n_sweeps=100)
    assert error(fitted, exact_scores) < 0.01 < 10 * 0.01 < error(near.items, exact_scores)


def test_more_sweeps_fit_no_worse() -> None:
    sparse, true, exact_scores = sparse_low_rank(rank=4, n_scored=20)
    start = Start(np.zeros((60, 4)), true.items + 0.5 * np.random.default_rng(1).normal(size=true.items.shape))
    errors = [error(factorise(sparse, start, pull=1e-3, n_sweeps=n), exact_scores) for n in (0, 2, 20)]
    assert errors[0] > errors[1] > errors[2]


def test_a_strong_pull_keeps_the_start_and_items_without_scores_stay_there() -> None:
    sparse, true, _ = sparse_low_rank(rank=3, n_scored=10)
    only_even = SparseScores(2 * np.argsort(sparse.items % 25, axis=1), sparse.scores)
    start = Start(true.queries, true.items + 1)
    np.testing.assert_allclose(factorise(sparse, start, pull=1e9), start.items, atol=1e-5)
    np.testing.assert_array_equal(factorise(only_even, start, pull=1e-2)[1::2], start.items[1::2].astype(np.float32))
    assert not np.allclose(factorise(only_even, start, pull=1e-2)[::2], start.items[::2])


def test_the_units_of_a_retriever_do_not_matter() -> None:
    sparse, true, _ = sparse_low_rank(rank=3, n_scored=10)
    start = Start(true.queries + 0.5, true.items + 0.5)
    other = Start(start.queries / 1000, start.items * 1000)
    in_units, in_others = factorise(sparse, start, pull=1.0), factorise(sparse, other, pull=1.0)
    np.testing.assert_allclose(in_others, in_units * 1000, rtol=1e-4, atol=1e-2)


@pytest.mark.parametrize("n_scored", [7, 50])
def test_a_start_without_vectors_is_the_singular_value_decomposition(n_scored: int) -> None:
    sparse, *_ = sparse_low_rank(rank=5, n_scored=n_scored)
    dense = np.zeros((60, 50))
    np.put_along_axis(dense, sparse.items, sparse.scores, axis=1)
    left, values, right = np.linalg.svd(dense)
    start = singular_start(sparse, 50, width=4)
    np.testing.assert_allclose(start.queries @ start.items.T, (left[:, :4] * values[:4]) @ right[:4], atol=1e-8)
    np.testing.assert_allclose(np.linalg.norm(start.items, axis=0) ** 2, values[:4])


def test_a_start_is_no_wider_than_the_rank_and_leaves_unseen_items_at_zero() -> None:
    sparse, *_ = sparse_low_rank(rank=2, n_scored=50)
    start = singular_start(SparseScores(sparse.items + 3, sparse.scores), 60, width=30)
    assert start.items.shape == (60, 2)
    assert not start.items[:3].any()
    assert singular_start(SparseScores(sparse.items, 0 * sparse.scores), 50, width=30).items.shape == (50, 0)


def test_a_straight_line_is_found_and_never_falls() -> None:
    cheap = np.random.default_rng(0).normal(size=(5, 8))
    np.testing.assert_allclose(straight_line(cheap, 3 + 2 * cheap), (3, 2))
    assert straight_line(cheap, 3 - 2 * cheap)[1] == 0
    intercept, slope = straight_line(np.ones((5, 8)), cheap)
    assert intercept == pytest.approx(cheap.mean())
    assert slope == 0
