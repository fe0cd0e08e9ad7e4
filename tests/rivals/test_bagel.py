"""BAGEL: the Gaussian process is the textbook's, and searches by its upper confidence bounds."""

from __future__ import annotations

import numpy as np
import pytest

from anncur import AnncurError, Rerank
from anncur.arrays import FloatMatrix
from anncur.rivals.bagel import Bagel, Process
from worlds import HashedVectors, World

SHARPNESS, NOISE = 0.7, 0.2


def unit(n: int, width: int = 4, seed: int = 0) -> FloatMatrix:
    rows = np.random.default_rng(seed).normal(size=(n, width))
    return np.asarray(rows / np.linalg.norm(rows, axis=1, keepdims=True), dtype=np.float32)


def kernel(left: FloatMatrix, right: FloatMatrix) -> FloatMatrix:
    distances = np.square(left[:, None].astype(np.float64) - right[None]).sum(axis=-1)
    return np.asarray(np.exp(-SHARPNESS * distances))


def test_rounds_of_updates_give_the_posterior_of_all_scores_at_once() -> None:
    vectors, query = unit(40), unit(1, seed=1)
    items, scores = np.arange(5, 35), np.random.default_rng(2).normal(3, 5, size=30)
    process = Process(vectors, items, query[0], sharpness=SHARPNESS, noise=NOISE)
    rounds = [np.array([3, 7, 1]), np.array([20]), np.array([9, 0, 29, 15])]
    for places in rounds:
        process.observe(places, scores[places])
    seen = np.concatenate(rounds)
    mean, spread = scores[seen].mean(), scores[seen].std()
    standardised = (scores[seen] - mean) / spread
    points = np.concatenate([query, vectors[items[seen]]])
    targets = np.concatenate([[standardised.max()], standardised])
    inverse = np.linalg.inv(kernel(points, points) + NOISE * np.eye(len(points)))
    cross = kernel(vectors[items], points)
    np.testing.assert_allclose(process.means(), cross @ inverse @ targets, atol=1e-4)
    variances = 1 - np.einsum("ip,pq,iq->i", cross, inverse, cross)
    for exploration in (0.0, 2.0):
        bounds = cross @ inverse @ targets + exploration * np.sqrt(variances)
        left = [place for place in np.argsort(-bounds).tolist() if place not in seen]
        assert process.best(5, exploration=exploration).tolist() == left[:5]


def test_the_query_counts_as_an_item_with_the_highest_score() -> None:
    """Of two items that are as far from what was scored, the one near the query has the higher mean."""
    vectors = np.array([[0, 0, 1], [1, 0, 0], [0, 1, 0]], dtype=np.float32)
    process = Process(vectors, np.arange(3), vectors[1], sharpness=SHARPNESS, noise=NOISE)
    process.observe(np.array([0]), np.array([4.0]))
    assert process.means()[1] >= process.means()[2]
    process = Process(vectors, np.arange(3), vectors[1], sharpness=SHARPNESS, noise=NOISE)
    process.observe(np.array([0, 2]), np.array([4.0, 8.0]))
    assert process.best(1, exploration=0.0).tolist() == [1]


def test_duplicates_of_an_item_stay_finite() -> None:
    vectors = np.repeat(unit(2), 10, axis=0)
    process = Process(vectors, np.arange(20), vectors[0], sharpness=SHARPNESS, noise=1e-3)
    process.observe(np.arange(15), np.repeat([1.0, 2.0], [10, 5]))
    assert np.isfinite(process.means()).all()


def smooth_world() -> World:
    """Scores are a smooth function of the item vectors that the retriever knows nothing of."""
    vectors = HashedVectors()
    world = World(np.zeros((20, 300)))
    vectors.fit(world.items)
    rows = vectors.item_vectors()
    centres = np.random.default_rng(5).normal(size=(20, rows.shape[1]))
    likeness = rows @ centres.T / np.linalg.norm(rows, axis=1, keepdims=True)
    return World(np.exp(likeness.T).astype(np.float32))


def recall(world: World, method: Bagel | Rerank) -> float:
    answers = world.index(0, retrievers=(HashedVectors(),)).search_many(world.queries, k=5, budget=60, method=method)
    true = [set(world.brute_force(place, 5)) for place in range(len(world.queries))]
    return float(np.mean([len(best & set(hits.ids)) / 5 for best, hits in zip(true, answers, strict=True)]))


def test_a_process_finds_what_the_retriever_is_wrong_about() -> None:
    world = smooth_world()
    assert recall(world, Bagel()) > recall(world, Rerank()) + 0.3


def test_only_the_retrievers_first_items_are_considered() -> None:
    world = smooth_world()
    index = world.index(0, retrievers=(HashedVectors(),))
    ours, theirs = (
        index.search(world.queries[0], k=60, budget=60, method=one) for one in (Bagel(n_considered=60), Rerank())
    )
    assert set(ours.ids) == set(theirs.ids)


@pytest.mark.parametrize("setting", [{"n_rounds": 0}, {"n_considered": 0}, {"exploration": -1}, {"noise": 0}])
def test_bagel_refuses_settings_that_make_no_sense(setting: dict[str, int]) -> None:
    with pytest.raises(AnncurError, match=next(iter(setting))):
        Bagel(**setting)  # type: ignore[arg-type]
