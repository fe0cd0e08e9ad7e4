"""Scorers that answer differently to the same pair: the noise is estimated, and no single answer is trusted too far."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

import anncur
from anncur.errors import UnstableScorerWarning
from anncur.scorers.noise import Noise, agreement
from worlds import World, low_rank_scores

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::anncur.UnstableScorerWarning")]


class Noisy:
    """A world's scorer whose every answer is off by a new random number."""

    fingerprint = "noisy"

    def __init__(self, world: World, spread: float) -> None:
        self._world, self.spread, self._rng = world, spread, np.random.default_rng(0)
        self.n_pairs = 0

    def score(self, query: anncur.Query, items: Sequence[anncur.Item]) -> list[float]:
        self.n_pairs += len(items)
        exact_scores = np.asarray(self._world.scorer.score(query, items))
        answer: list[float] = (exact_scores + self.spread * self._rng.normal(size=len(items))).tolist()
        return answer


@pytest.fixture(scope="module")
def world() -> World:
    return World(low_rank_scores(100, 400, rank=6, noise=0.5))


def recall(world: World, answers: Sequence[anncur.Hits], first: int, k: int) -> float:
    true = [set(world.brute_force(first + place, k)) for place in range(len(answers))]
    return float(np.mean([len(set(hits.ids) & best) / k for hits, best in zip(answers, true, strict=True)]))


def test_the_noise_is_found_from_pairs_that_were_answered_again() -> None:
    rng, noise = np.random.default_rng(1), Noise()
    true = rng.normal(size=2000)
    first, again = (true + 0.3 * rng.normal(size=2000) for _ in range(2))
    noise.observe(first)
    noise.observe_again(first, again)
    assert noise.variance == pytest.approx(0.09, rel=0.1)
    assert noise.share == pytest.approx(0.09 / 1.09, rel=0.1)


def test_rounding_is_no_noise_and_neither_is_a_single_difference() -> None:
    scores, noise = np.linspace(0, 1, 50), Noise()
    noise.observe(scores)
    noise.observe_again(scores, scores + 1e-6)
    assert noise.variance == 0.0
    few = Noise()
    few.observe(scores)
    few.observe_again(scores[:1], scores[:1] + 0.5)
    assert few.variance == 0.0


def test_a_build_finds_the_noise_of_its_scorer(world: World) -> None:
    with pytest.warns(UnstableScorerWarning, match=r"repeats=3"):
        index = anncur.Index.build(world.items, Noisy(world, 0.5), world.queries[:20])
    found = index._scorer.load().noise.variance
    assert 0.05 < found < 1.0


def test_the_best_items_are_asked_for_again_within_the_budget(world: World) -> None:
    scorer = Noisy(world, 0.5)
    index = anncur.Index.build(world.items, anncur.load_scorer(scorer, repeats=3), retrievers=["bm25"])
    scorer.n_pairs = 0
    hits = index.search(world.queries[50], k=5, budget=100)
    assert hits.calls == scorer.n_pairs == 100
    assert hits.scores == sorted(hits.scores, reverse=True)


def test_a_scorer_without_noise_gives_the_same_scores_when_it_is_asked_again(world: World) -> None:
    index = anncur.Index.build(world.items, anncur.load_scorer(world.scorer, repeats=2), world.queries[:20])
    hits = index.search(world.queries[50], k=5, budget=100)
    exact = [world.exact_scores[50, int(hit.id[1:])] for hit in hits]
    np.testing.assert_allclose(hits.scores, exact)
    assert hits.calls == 100


def test_averaging_finds_more_of_the_true_best_than_trusting_every_answer(world: World) -> None:
    found = {}
    for repeats in (1, 3):
        scorer = anncur.load_scorer(Noisy(world, 1.5), repeats=repeats)
        index = anncur.Index.build(world.items, scorer, world.queries[:40])
        found[repeats] = recall(world, index.search_many(world.queries[40:], k=10, budget=150), 40, 10)
    assert found[3] > found[1] + 0.02


def test_noise_lowers_the_estimate_of_recall(world: World) -> None:
    noisy = Noisy(world, 0.0)
    index = anncur.Index.build(world.items, noisy, world.queries[:40])
    before = index.search(world.queries[50], k=10, budget=150).estimated_recall
    scorer = index._scorer.load()
    scorer.noise.observe_again(np.zeros(100), np.full(100, 2.0))
    after = index.search(world.queries[50], k=10, budget=150).estimated_recall
    assert before is not None
    assert after is not None
    assert after < before - 0.05


def test_agreement_is_one_without_noise_and_falls_with_it() -> None:
    scores = np.arange(50.0)
    found = [agreement(scores, np.full(50, variance), 10) for variance in (0.0, 1.0, 100.0)]
    assert found[0] == 1.0
    assert found[0] > found[1] > found[2] > 0.2
    assert agreement(scores, np.full(50, 9.0), 50) == 1.0


def test_what_rounding_in_storage_changes_is_no_noise(world: World) -> None:
    shifted = World(world.exact_scores + 1000.0)
    index = anncur.Index.build(shifted.items, shifted.scorer, shifted.queries[:20], dtype="float16")
    assert index._scorer.load().noise.variance == 0.0


def test_with_any_repeats_k_items_are_returned(world: World) -> None:
    index = anncur.Index.build(world.items, anncur.load_scorer(world.scorer, repeats=3))
    assert len(index.search(world.queries[50], k=10, budget=10)) == 10


def test_luck_in_the_first_answer_is_not_taken_for_noise(world: World) -> None:
    scorer = anncur.load_scorer(Noisy(world, 2.0), repeats=3)
    index = anncur.Index.build(world.items, scorer, retrievers=["bm25"])
    index.search_many(world.queries[50:90], k=10, budget=200)
    assert scorer.noise.variance == pytest.approx(4.0, rel=0.15)
