"""Thresholds: only items above a score, and an early end where no other is likely to be left."""

from __future__ import annotations

import numpy as np
import pytest

import anncur
from anncur.errors import InputError
from worlds import World, low_rank_scores


@pytest.fixture(scope="module")
def world() -> World:
    return World(low_rank_scores(60, 300, rank=4, noise=0.2))


@pytest.fixture(scope="module")
def index(world: World) -> anncur.Index:
    return world.index(20, retrievers=("bm25",))


def threshold(world: World, query: int, n_above: int) -> float:
    best = np.sort(world.exact_scores[query])[::-1]
    return float((best[n_above - 1] + best[n_above]) / 2)


@pytest.mark.parametrize("method", ["posterior", "rerank", "exhaustive"])
def test_items_below_the_score_are_not_returned(world: World, index: anncur.Index, method: str) -> None:
    least = threshold(world, 50, 4)
    hits = index.search(world.queries[50], k=10, budget=300, method=method, min_score=least)
    assert all(score >= least for score in hits.scores)
    assert len(hits) <= 4
    assert hits.is_partial is False


@pytest.mark.slow
def test_the_search_ends_when_no_other_is_likely_to_be_left(world: World, index: anncur.Index) -> None:
    found, above, calls = 0, 0, []
    for query in range(20, 60):
        least = threshold(world, query, 5)
        hits = index.search(world.queries[query], k=10, budget=200, min_score=least)
        found += len(hits)
        above += 5
        calls.append(hits.calls)
    assert found / above > 0.95
    assert np.mean(calls) < 100


def test_a_score_that_nothing_reaches_ends_early_with_no_hits(world: World, index: anncur.Index) -> None:
    hits = index.search(world.queries[50], k=10, budget=200, min_score=1e6)
    assert len(hits) == 0
    assert hits.calls < 50


def test_a_score_that_everything_reaches_changes_nothing(world: World, index: anncur.Index) -> None:
    plain = index.search(world.queries[50], k=10, budget=60)
    assert index.search(world.queries[50], k=10, budget=60, min_score=-1e6) == plain


def test_where_lower_is_better_it_is_the_highest_score(world: World) -> None:
    scorer = anncur.load_scorer(lambda pairs: [float(len(item)) for _, item in pairs], higher_is_better=False)
    index = anncur.Index.build(["a" * n for n in range(1, 41)], scorer)
    hits = index.search("q", k=10, budget=40, min_score=3)
    assert hits.scores == [1.0, 2.0, 3.0]


def test_queries_of_a_block_end_each_for_itself(world: World, index: anncur.Index) -> None:
    least = threshold(world, 50, 3)
    together = index.search_many(world.queries[45:55], k=10, budget=120, min_score=least)
    alone = [index.search(query, k=10, budget=120, min_score=least) for query in world.queries[45:55]]
    assert [hits.ids for hits in together] == [hits.ids for hits in alone]
    assert len({hits.calls for hits in together}) > 1


@pytest.mark.parametrize("least", [float("nan"), "high"])
def test_a_score_that_is_no_number_is_refused(index: anncur.Index, least: object) -> None:
    with pytest.raises(InputError, match="min_score must be a number"):
        index.search("q", min_score=least)  # type: ignore[arg-type]
