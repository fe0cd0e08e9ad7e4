"""Least squares that is brought up to date, against the pseudo-inverse."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anncur.factors.least_squares import LeastSquares, least_squares_items


@pytest.mark.parametrize("n_scored", [5, 20, 60, 150])  # of fewer and of more items than there are anchor queries
def test_updated_estimates_are_those_of_a_pseudo_inverse_from_scratch(n_scored: int) -> None:
    rng = np.random.default_rng(0)
    vectors = 7 + rng.normal(size=(300, 40))
    found = LeastSquares(3, least_squares_items(vectors, cutoff=1e-5))
    scored = np.stack([rng.permutation(300)[:n_scored] for _ in range(3)])
    exact_scores = 30 * rng.normal(size=(3, n_scored))  # of no low rank: least squares has residuals
    for start in range(0, n_scored, 13):
        new = slice(start, start + 13)
        found.observe(scored[:, new], exact_scores[:, new])
    for positions, of_query, vector in zip(scored, exact_scores, found.query_vectors, strict=True):
        expected = np.linalg.pinv(vectors[positions]) @ of_query
        np.testing.assert_allclose(vector, expected, rtol=0, atol=1e-7 * np.abs(expected).max())


@given(seed=st.integers(0, 50), scale=st.sampled_from([1e-20, 1.0, 1e6, 1e12]))
@settings(max_examples=20, deadline=None)
def test_duplicate_items_and_anchor_queries_and_outliers_stay_finite(seed: int, scale: float) -> None:
    rng = np.random.default_rng(seed)
    vectors = np.repeat(np.repeat(rng.normal(size=(4, 2)), 10, axis=0), 4, axis=1).astype(np.float32)
    vectors[0] *= scale
    found = LeastSquares(1, least_squares_items(vectors, cutoff=1e-6))
    for start in range(0, 40, 8):
        found.observe(np.arange(start, start + 8)[None], rng.normal(size=(1, 8)))
    assert np.isfinite(found.query_vectors).all()
