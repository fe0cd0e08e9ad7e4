"""Item vectors from rows that were scored in part."""

from __future__ import annotations

import numpy as np
import pytest

from anncur.arrays import FloatMatrix, Positions
from anncur.factors.partial import PartialFit, PartialRows, fit_partial, rank_for
from worlds import low_rank_scores

NO_FULL_ROWS = np.empty((80, 0))


def partial_rows(exact_scores: FloatMatrix, items: list[Positions], features: FloatMatrix | None = None) -> PartialRows:
    """Features are (n_queries, n_items, n_features)."""
    none = np.empty((*exact_scores.shape, 0)) if features is None else features
    return PartialRows.of(
        items,
        [row[some].astype(np.float64) for row, some in zip(exact_scores, items, strict=True)],
        [of_query[some] for of_query, some in zip(none, items, strict=True)],
    )


def fit(rows: PartialRows, full_scores: FloatMatrix = NO_FULL_ROWS, *, rank: int = 3) -> PartialFit:
    return fit_partial(rows, full_scores, rank=rank, rng=np.random.default_rng(0))


def guesses(found: PartialFit, n_items: int, items: Positions, exact_scores: FloatMatrix) -> FloatMatrix:
    """All scores of a query, from those of some items."""
    item_rows = np.tile(found.prior_mean, (n_items, 1))
    item_rows[found.items] = found.posterior_means
    offsets, vectors = item_rows[:, 0], item_rows[:, 1:]
    squares = vectors[items].T @ vectors[items] + found.noise * np.eye(vectors.shape[1])
    return offsets + vectors @ np.linalg.solve(squares, vectors[items].T @ (exact_scores[items] - offsets[items]))


def test_the_other_scores_are_predicted_from_a_third_of_them() -> None:
    exact_scores = low_rank_scores(120, 80, rank=3) + np.linspace(-5, 5, 80)
    rng = np.random.default_rng(0)
    items = [rng.choice(80, 27, replace=False) for _ in range(100)]
    found = fit(partial_rows(exact_scores[:100], items))
    for query in exact_scores[100:]:
        wrong = guesses(found, 80, np.arange(0, 80, 4), query) - query
        assert np.square(wrong).mean() < 0.02 * query.var()


def test_offsets_are_not_raised_by_looking_only_where_scores_are_high() -> None:
    """Every search looks at a few items at random and then at those that resemble the best of them."""
    rng = np.random.default_rng(1)
    sides = np.repeat([1.0, -1.0], 40)
    exact_scores = rng.normal(size=(200, 1)) * sides + 0.1 * rng.normal(size=(200, 80))
    items = []
    for row in exact_scores:
        first = rng.choice(80, 4, replace=False)
        best_side = sides[first[np.argmax(row[first])]]
        items.append(np.union1d(first, rng.choice(np.flatnonzero(sides == best_side), 20, replace=False)))
    rows = partial_rows(exact_scores, items)
    averages = np.bincount(rows.items, weights=rows.scores) / np.bincount(rows.items)
    found = fit(rows, rank=1)
    assert averages.mean() > 0.5
    assert abs(found.posterior_means[:, 0].mean()) < 0.1


def test_an_item_that_was_never_scored_has_the_prior_mean() -> None:
    exact_scores = low_rank_scores(60, 80, rank=2) + 7
    found = fit(partial_rows(exact_scores, [np.arange(0, 40)] * 60))
    np.testing.assert_array_equal(found.items, np.arange(40))
    assert found.prior_mean[0] == pytest.approx(7, abs=0.5)


def test_full_rows_count_as_well() -> None:
    exact_scores = low_rank_scores(60, 80, rank=3)
    items = [np.arange(start, start + 10) for start in range(30)]
    found = fit(partial_rows(exact_scores[:30], items), exact_scores[30:50].T)
    assert sorted(found.items) == list(range(80))
    for query in exact_scores[50:]:
        assert np.square(guesses(found, 80, np.arange(0, 80, 4), query) - query).mean() < 0.05 * query.var()


def test_coefficients_of_retrievers_are_fitted_along_with_items_and_queries() -> None:
    rng = np.random.default_rng(2)
    features = rng.normal(size=(100, 80, 1))
    exact_scores = low_rank_scores(100, 80, rank=2) + 3 * features[..., 0]
    items = [rng.choice(80, 30, replace=False) for _ in range(100)]
    assert fit(partial_rows(exact_scores, items, features)).coefficients == pytest.approx([3], abs=0.2)


@pytest.mark.parametrize("exact_scores", [np.zeros((5, 80)), np.ones((5, 80)), low_rank_scores(5, 80, rank=1)])
def test_it_stays_finite_where_there_is_little_to_learn(exact_scores: FloatMatrix) -> None:
    found = fit(partial_rows(exact_scores, [np.array([3]), np.array([3, 4]), *[np.arange(80)] * 3]))
    assert np.isfinite(found.posterior_means).all()
    assert np.isfinite(found.prior_mean).all()
    assert found.noise > 0


def test_the_rank_grows_with_the_number_of_queries() -> None:
    assert [rank_for(n_queries) for n_queries in (1, 16, 80, 10_000)] == [1, 2, 10, 32]
