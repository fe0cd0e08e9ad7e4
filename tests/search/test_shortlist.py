"""Rounds that re-rank a shortlist find what rounds that rank everything find."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import anncur
from anncur.search.posterior_search import PosteriorSearch
from anncur.search.shortlist import Shortlist
from anncur.vectors.exact import ExactVectors
from worlds import World, low_rank_scores

N_ITEMS, N_ANCHORS = 6000, 25


@pytest.fixture(scope="module")
def world() -> World:
    return World(low_rank_scores(45, N_ITEMS, rank=10, noise=0.3, seed=4))


@pytest.fixture(scope="module")
def index(world: World) -> anncur.Index:
    return world.index(N_ANCHORS, retrievers=())


def searched(index: anncur.Index, world: World) -> list[set[str]]:
    return [set(hits.ids) for hits in index.search_many(world.queries[N_ANCHORS:], 50, 200, progress=False)]


@pytest.mark.slow
def test_it_finds_what_ranking_everything_finds(
    world: World, index: anncur.Index, monkeypatch: pytest.MonkeyPatch
) -> None:
    short = searched(index, world)
    monkeypatch.setattr("anncur.search.posterior_search.shortlist_size", lambda *_: None)
    assert np.mean([len(ours & theirs) for ours, theirs in zip(short, searched(index, world), strict=True)]) > 49.5


@pytest.mark.slow
def test_all_items_are_ranked_in_few_rounds(world: World, index: anncur.Index, monkeypatch: pytest.MonkeyPatch) -> None:
    ranked: list[int] = []
    rank_all = PosteriorSearch._rank_all

    def counted(self: PosteriorSearch, n_best: int, rows: Any, exclude: Any) -> Any:
        ranked.append(len(rows))
        return rank_all(self, n_best, rows, exclude)

    monkeypatch.setattr(PosteriorSearch, "_rank_all", counted)
    hits = index.search(world.queries[N_ANCHORS], 10, 200)
    assert hits.n_rounds == 20
    assert 1 <= len(ranked) <= 10


def test_queries_whose_best_come_from_far_down_want_all_items_ranked_again() -> None:
    ranked = np.array([[7, 3, 9, 1], [4, 8, 2, 6]])
    shortlist = Shortlist.of(ranked)
    assert shortlist.positions.tolist() == [[1, 3, 7, 9], [2, 4, 6, 8]]
    best = np.array([[2], [0]])  # 7, which was first, and 2, which was third
    assert shortlist.are_stale(best).tolist() == [False, True]


def test_what_was_scored_leaves_the_shortlist() -> None:
    left = Shortlist.of(np.array([[7, 3, 9, 1], [4, 8, 2, 6]])).without(np.array([[3, 1], [8, 4]]))
    assert left is not None
    assert left.positions[~left.is_scored].tolist() == [7, 9, 2, 6]
    assert left.n_left.tolist() == [2, 2]
    vectors = ExactVectors(np.arange(10, dtype=np.float32)[:, None])
    products = left.products(np.array([[1.0], [2.0]]), vectors)
    assert products.tolist() == [[-np.inf, -np.inf, 7.0, 9.0], [4.0, -np.inf, 12.0, -np.inf]]


def test_vectors_are_picked_out_once_where_memory_allows_it(monkeypatch: pytest.MonkeyPatch) -> None:
    ranked, vectors = np.array([[7, 3, 9, 1], [4, 8, 2, 6]]), ExactVectors(np.eye(10, dtype=np.float32))
    queries = np.random.default_rng(0).normal(size=(2, 10))
    kept = Shortlist.of(ranked, vectors)
    assert kept.vectors is not None
    monkeypatch.setattr("anncur.search.shortlist.MOST_BYTES", 0)
    assert Shortlist.of(ranked, vectors).vectors is None
    np.testing.assert_array_equal(
        kept.products(queries, vectors), Shortlist.of(ranked, vectors).products(queries, vectors)
    )


def test_a_query_that_is_ranked_again_has_other_items_and_their_vectors() -> None:
    vectors = ExactVectors(np.arange(10, dtype=np.float32)[:, None])
    before = Shortlist.of(np.array([[7, 3], [4, 8]]), vectors).without(np.array([[3], [8]]))
    assert before is not None
    after = before.replaced(np.array([1]), Shortlist.of(np.array([[6, 5]]), vectors))
    assert after.products(np.ones((2, 1)), vectors).tolist() == [[-np.inf, 7.0], [5.0, 6.0]]


def test_a_list_that_does_not_hold_what_was_scored_is_dropped() -> None:
    assert Shortlist.of(np.array([[7, 3, 9, 1], [4, 8, 2, 6]])).without(np.array([[3, 1], [8, 5]])) is None


@pytest.mark.slow
@pytest.mark.parametrize("settings", [{}, {"growth": 4.0}, {"growth": 0.0, "min_round_size": 100}])
@pytest.mark.parametrize("budget", [2500, N_ITEMS - 200, N_ITEMS])
def test_large_rounds_after_small_ones_spend_the_budget(
    world: World, index: anncur.Index, budget: int, settings: dict[str, float]
) -> None:
    hits = index.search(world.queries[N_ANCHORS], 10, budget, anncur.Posterior(**settings))  # type: ignore[arg-type]
    assert hits.calls == budget
    if budget == N_ITEMS:
        assert hits.ids == world.brute_force(N_ANCHORS, 10)
