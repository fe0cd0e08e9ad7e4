"""The posterior is Gaussian regression, whatever the rounds that its observations come in."""

from __future__ import annotations

import numpy as np
import pytest

from anncur.arrays import FloatMatrix
from anncur.factors.items import MOST_COMPONENTS, ItemModel, centred_items, gram, item_model
from anncur.factors.posterior import QueryPosterior
from worlds import low_rank_scores


def vectors_of(model: ItemModel) -> FloatMatrix:
    return model.vectors.take(np.arange(len(model.vectors)))


def by_hand(vectors: FloatMatrix, noise: float, scored: FloatMatrix, residuals: FloatMatrix) -> FloatMatrix:
    """The textbook's posterior mean of a query vector, solved from scratch."""
    seen = vectors[scored].astype(np.float64)
    precision = seen.T @ seen + noise * np.eye(vectors.shape[1])
    return np.linalg.solve(precision, seen.T @ residuals)


@pytest.mark.parametrize(("noise_share", "precision"), [(0.1, 1e-5), (1e-5, 1e-8)])  # products in float32, float64
@pytest.mark.parametrize("rounds", [[12], [1] * 12, [5, 3, 4], [2, 40]])
def test_rounds_give_what_solving_at_once_gives(rounds: list[int], noise_share: float, precision: float) -> None:
    rng = np.random.default_rng(0)
    model = item_model(*centred_items(low_rank_scores(9, 60, rank=4, noise=0.3).T), noise_share=noise_share)
    posterior = QueryPosterior(2, model)
    orders = np.stack([rng.permutation(60) for _ in range(2)])[:, : sum(rounds)]
    residuals = rng.normal(size=orders.shape)
    done = 0
    for size in rounds:
        part = slice(done, done + size)
        posterior.observe(orders[:, part], residuals[:, part])
        done += size
    for row in range(2):
        expected = by_hand(vectors_of(model), model.noise, orders[row], residuals[row])
        error = np.linalg.norm(posterior.query_vectors[row] - expected)
        assert error < precision * np.linalg.norm(expected)


def test_covariance_is_that_of_the_prior_less_what_scores_explain() -> None:
    model = item_model(*centred_items(low_rank_scores(9, 60, rank=4, noise=0.3).T), noise_share=0.1)
    posterior = QueryPosterior(1, model)
    scored, others = np.arange(20)[None], np.arange(30, 36)[None]
    posterior.observe(scored, np.ones((1, 20)))
    seen, unseen = vectors_of(model)[scored[0]].astype(float), vectors_of(model)[others[0]].astype(float)
    left = np.linalg.inv(np.eye(model.width) + seen.T @ seen / model.noise)
    expected = unseen @ left @ unseen.T + model.noise * np.eye(6)
    np.testing.assert_allclose(posterior.covariance(others)[0], expected, atol=1e-5)


def test_a_query_whose_scores_misfit_the_model_is_less_certain() -> None:
    model = item_model(*centred_items(low_rank_scores(9, 60, rank=4, noise=0.3).T), noise_share=0.1)
    posterior = QueryPosterior(2, model)
    posterior.observe(np.tile(np.arange(20), (2, 1)), np.stack([np.zeros(20), np.full(20, 50.0)]))
    as_expected, far_off = posterior.misfit()
    assert as_expected < 1 < far_off


def test_keeping_some_queries_leaves_their_posterior_as_it_was() -> None:
    model = item_model(*centred_items(low_rank_scores(9, 60, rank=4).T), noise_share=0.1)
    whole, part = QueryPosterior(3, model), QueryPosterior(3, model)
    rng = np.random.default_rng(1)
    first, second = rng.integers(0, 30, (3, 4)), rng.integers(30, 60, (3, 4))
    residuals = rng.normal(size=(3, 8))
    for posterior in (whole, part):
        posterior.observe(first, residuals[:, :4])
    part.keep(np.array([0, 2]))
    part.observe(second[[0, 2]], residuals[[0, 2], 4:])
    whole.observe(second, residuals[:, 4:])
    np.testing.assert_allclose(part.query_vectors, whole.query_vectors[[0, 2]], rtol=1e-5)


def test_anchor_queries_themselves_have_a_standard_normal_vector() -> None:
    """Item vectors are scaled so: the products of items are their covariance over the anchor queries."""
    scores = low_rank_scores(30, 12, rank=5, noise=0.5)
    model = item_model(*centred_items(scores.T), noise_share=0.1)
    vectors = vectors_of(model)[:, :-1]
    np.testing.assert_allclose(vectors @ vectors.T, np.cov(scores.T), atol=1e-5)
    np.testing.assert_allclose(model.offsets, scores.mean(axis=0), atol=1e-6)


def test_how_far_a_query_follows_the_offsets_is_learnt_from_its_scores() -> None:
    rng = np.random.default_rng(0)
    offsets = 3 * rng.normal(size=(60, 1))
    model = item_model(*centred_items(offsets + 0.1 * rng.normal(size=(60, 5))), noise_share=0.1)
    scored, others = np.arange(30)[None], np.arange(30, 60)
    against = QueryPosterior(1, model)
    against.observe(scored, -0.5 * offsets[:30].T - model.offsets[scored])
    guesses = model.offsets[others] + vectors_of(model)[others] @ against.query_vectors[0]
    assert np.corrcoef(guesses, offsets[others, 0])[0, 1] < -0.9


def test_the_part_that_retrievers_predict_is_in_no_vector() -> None:
    scores = low_rank_scores(10, 40, rank=3).T
    model = item_model(*centred_items(scores, scores - 7.0), noise_share=0.1)
    np.testing.assert_allclose(model.offsets, 7.0, atol=1e-5)
    np.testing.assert_allclose(vectors_of(model), 0.0, atol=1e-5)


def test_embeddings_take_their_share_and_the_variance_stays() -> None:
    scores = low_rank_scores(10, 40, rank=3).T
    embeddings = np.random.default_rng(0).normal(size=(40, 6)).astype(np.float32)
    alone = item_model(*centred_items(scores), noise_share=0.1)
    joined = item_model(*centred_items(scores), noise_share=0.1, embeddings=embeddings, embedding_share=0.3)
    assert joined.width == 17
    assert joined.noise == pytest.approx(alone.noise)
    of_scores = np.square(vectors_of(alone)[:, :-1]).sum()
    assert np.square(vectors_of(joined)[:, 10:-1]).sum() == pytest.approx(0.3 * of_scores, rel=1e-4)
    assert np.square(vectors_of(joined)).sum() == pytest.approx(np.square(vectors_of(alone)).sum(), rel=1e-4)


def test_very_many_anchor_queries_are_reduced_to_their_first_principal_components() -> None:
    scores = low_rank_scores(MOST_COMPONENTS + 40, 300, rank=20, noise=0.01)
    model = item_model(*centred_items(scores.T), noise_share=0.1)
    vectors = vectors_of(model)[:, :-1]
    assert vectors.shape[1] == MOST_COMPONENTS
    np.testing.assert_allclose(vectors @ vectors.T, np.cov(scores.T), atol=1e-2)


@pytest.mark.parametrize("scores", [np.zeros((20, 5)), np.ones((20, 1)), np.empty((20, 0))])
def test_scores_without_spread_stay_finite(scores: FloatMatrix) -> None:
    model = item_model(*centred_items(scores.astype(np.float32)), noise_share=0.0)
    posterior = QueryPosterior(1, model)
    posterior.observe(np.array([[0, 1, 2]]), np.array([[1.0, 2.0, 3.0]]))
    assert model.noise > 0
    assert np.isfinite(posterior.query_vectors).all()


def test_the_gram_matrix_is_summed_over_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("anncur.factors.items.ITEMS_AT_ONCE", 7)
    vectors = low_rank_scores(40, 6, rank=3)
    np.testing.assert_allclose(gram(vectors), vectors.astype(float).T @ vectors.astype(float), atol=1e-5)
