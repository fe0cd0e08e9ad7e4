"""ReFIT: the query's vector is fitted to the scorer's softmax, and retrieves again."""

from __future__ import annotations

import numpy as np
import pytest

from anncur import AnncurError, Rerank
from anncur.arrays import FloatMatrix
from anncur.rivals.refit import Refit, fit_queries
from worlds import HashedVectors, World


def drawn(n_queries: int = 4, n_scored: int = 12, width: int = 3) -> tuple[FloatMatrix, FloatMatrix, FloatMatrix]:
    rng = np.random.default_rng(0)
    vectors = rng.normal(size=(n_queries, n_scored, width))
    return rng.normal(size=(n_queries, width)), vectors, rng.normal(size=(n_queries, n_scored))


def divergence(queries: FloatMatrix, start: FloatMatrix, vectors: FloatMatrix, exact_scores: FloatMatrix) -> float:
    """From the scorer's softmax to that of the query vectors, in units of the spread at the start."""

    def log_softmax(rows: FloatMatrix) -> FloatMatrix:
        return np.asarray(rows - np.log(np.exp(rows).sum(axis=1, keepdims=True)))

    products, before = (np.einsum("qiw,qw->qi", vectors, some) for some in (queries, start))
    ours = log_softmax(products / before.std(axis=1, keepdims=True))
    target = log_softmax(exact_scores / exact_scores.std(axis=1, keepdims=True))
    return float((np.exp(target) * (target - ours)).sum())


def test_every_further_step_brings_the_softmax_nearer_to_the_scorers() -> None:
    start, vectors, exact_scores = drawn()
    found = [
        divergence(fit_queries(start, vectors, exact_scores, temperature=1.0, n_steps=n), start, vectors, exact_scores)
        for n in (0, 1, 2, 5, 20, 100, 500)
    ]
    assert found == sorted(found, reverse=True)
    assert found[-1] < found[0] / 2


def test_a_scorer_that_agrees_with_the_retriever_leaves_the_query_as_it_is() -> None:
    start, vectors, _ = drawn()
    agreeing = 7 * np.einsum("qiw,qw->qi", vectors, start) + 3
    np.testing.assert_allclose(fit_queries(start, vectors, agreeing, temperature=0.5, n_steps=50), start, atol=1e-9)


def test_the_scale_of_scores_and_embeddings_changes_nothing_but_the_scale() -> None:
    start, vectors, exact_scores = drawn()
    before = fit_queries(start, vectors, exact_scores, temperature=1.0, n_steps=30)
    after = fit_queries(10 * start, 5 * vectors, 100 * exact_scores - 7, temperature=1.0, n_steps=30)
    np.testing.assert_allclose(after, 10 * before, atol=1e-9)


def test_scores_without_spread_stay_finite() -> None:
    start, vectors, _ = drawn()
    same = np.repeat(vectors[:, :1], vectors.shape[1], axis=1)
    assert np.isfinite(fit_queries(start, same, np.ones(same.shape[:2]), temperature=1.0, n_steps=9)).all()


def linear_world() -> World:
    """A scorer that is linear in the item vectors, for another query vector than the retriever's."""
    vectors = HashedVectors()
    world = World(np.zeros((20, 300)))
    vectors.fit(world.items)
    queries = np.random.default_rng(5).normal(size=(20, 6))
    return World((queries @ vectors.item_vectors().T).astype(np.float32))


def recall(world: World, method: Refit | Rerank) -> float:
    answers = world.index(0, retrievers=(HashedVectors(),)).search_many(world.queries, k=5, budget=60, method=method)
    true = [set(world.brute_force(place, 5)) for place in range(len(world.queries))]
    return float(np.mean([len(best & set(hits.ids)) / 5 for best, hits in zip(true, answers, strict=True)]))


def test_a_fitted_query_finds_what_the_retriever_is_wrong_about() -> None:
    world = linear_world()
    assert recall(world, Refit()) > recall(world, Rerank()) + 0.2
    assert recall(world, Refit(n_rounds=5)) > recall(world, Refit()) + 0.05


def test_without_steps_refit_is_re_ranking() -> None:
    world = linear_world()
    index = world.index(0, retrievers=(HashedVectors(),))
    ours, theirs = (index.search_many(world.queries, k=9, budget=60, method=one) for one in (Refit(3, 0), Rerank()))
    assert [hits.ids for hits in ours] == [hits.ids for hits in theirs]


@pytest.mark.parametrize("setting", [{"n_rounds": 0}, {"n_steps": -1}, {"temperature": 0}])
def test_refit_refuses_settings_that_make_no_sense(setting: dict[str, int]) -> None:
    with pytest.raises(AnncurError, match=next(iter(setting))):
        Refit(**setting)  # type: ignore[arg-type]
