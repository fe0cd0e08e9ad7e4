"""Rounds that fit the scorer: few where each waits long, as many as a method wants where none does."""

from __future__ import annotations

import time
from collections.abc import Sequence

import pytest

import anncur
from anncur.errors import InputError
from anncur.search.schedule import Schedule
from anncur.search.settings import PosteriorSettings
from worlds import World, low_rank_scores

pytestmark = pytest.mark.slow  # the whole of it takes seconds

SETTINGS = PosteriorSettings(n_initial=10)


def sizes(schedule: Schedule, budget: int = 100) -> list[int]:
    return list(SETTINGS.round_sizes(budget, schedule))


def test_where_nothing_is_known_of_the_scorer_a_method_has_the_rounds_that_it_wants() -> None:
    assert sizes(Schedule()) == list(SETTINGS.round_sizes(100))


def test_a_scorer_without_latency_leaves_all_rounds() -> None:
    assert sizes(Schedule(round_seconds=lambda n_pairs: 0.002 * n_pairs)) == list(SETTINGS.round_sizes(100))


def test_latency_leaves_three_rounds() -> None:
    assert sizes(Schedule(round_seconds=lambda _: 0.2)) == [34, 33, 33]


def test_latency_that_is_small_beside_the_pairs_leaves_more() -> None:
    found = sizes(Schedule(round_seconds=lambda n_pairs: 0.1 + 0.005 * n_pairs))
    assert 3 < len(found) < len(list(SETTINGS.round_sizes(100)))
    assert sum(found) == 100


def test_negligible_latency_leaves_all_rounds() -> None:
    assert sizes(Schedule(round_seconds=lambda _: 0.001)) == list(SETTINGS.round_sizes(100))


@pytest.mark.parametrize("latency", [None, 0.2])
@pytest.mark.parametrize("most", [1, 2, 5])
def test_the_user_has_the_last_word(most: int, latency: float | None) -> None:
    found = sizes(Schedule(max_rounds=most, round_seconds=lambda _: latency))
    assert len(found) == most
    assert sum(found) == 100


def test_a_deadline_leaves_as_many_rounds_as_there_is_time_for() -> None:
    schedule = Schedule(round_seconds=lambda _: 0.2, seconds_left=lambda: 0.45)
    assert sizes(schedule)[0] == 50


def test_what_is_measured_of_the_scorer_counts_from_the_next_round_on() -> None:
    known: list[float] = []
    found = []
    for size in SETTINGS.round_sizes(100, Schedule(round_seconds=lambda _: known[0] if known else None)):
        found.append(size)
        known[:] = [0.2]
    assert found == [10, 45, 45]


class Waiting:
    """A world's scorer behind an endpoint."""

    fingerprint = "waiting"
    batch_size = 20

    def __init__(self, world: World, seconds: float) -> None:
        self._world, self._seconds = world, seconds

    def score(self, query: anncur.Query, items: Sequence[anncur.Item]) -> list[float]:
        time.sleep(self._seconds)
        answer: list[float] = self._world.scorer.score(query, items).tolist()
        return answer


@pytest.fixture(scope="module")
def world() -> World:
    return World(low_rank_scores(30, 200, rank=4, noise=0.3))


def test_a_search_with_an_endpoint_takes_few_rounds_and_tells(world: World) -> None:
    scorer = anncur.load_scorer(Waiting(world, 0.05), concurrency=8)
    index = anncur.Index.build(world.items, scorer)
    index.search(world.queries[0], k=5, budget=100)  # which measures how long the scorer takes
    hits = index.search(world.queries[1], k=5, budget=100)
    assert (hits.calls, hits.n_rounds) == (100, 3)
    assert hits.n_requests == 6
    assert hits.to_dict()["n_requests"] == 6


@pytest.mark.parametrize("method", ["posterior", "adacur", "axn", "anncur", "rerank"])
def test_every_method_keeps_to_the_most_rounds(world: World, method: str) -> None:
    index = world.index(10)
    hits = index.search(world.queries[20], k=5, budget=60, method=method, max_rounds=2)
    assert hits.n_rounds <= 2
    assert hits.calls == 60


def test_anncur_in_one_round_is_refused(world: World) -> None:
    with pytest.raises(InputError, match="anncur needs two rounds"):
        world.index(10).search(world.queries[20], budget=60, method="anncur", max_rounds=1)


@pytest.mark.parametrize("most", [0, 1.5, "3"])
def test_a_number_of_rounds_that_makes_no_sense_is_refused(world: World, most: object) -> None:
    with pytest.raises(InputError, match="max_rounds must be"):
        world.index(10).search("q", max_rounds=most)  # type: ignore[arg-type]


@pytest.mark.parametrize("method", ["rerank", "posterior"])
def test_a_deadline_of_a_second_is_time_for_a_hundred_pairs_of_an_endpoint(world: World, method: str) -> None:
    """150 ms a request, 20 pairs at most: five requests take 0.75 s, if the machine has nothing else to do."""
    index = anncur.Index.build(world.items, Waiting(world, 0.15))
    index.search(world.queries[0], k=5, budget=50)
    started = time.perf_counter()
    hits = index.search(world.queries[1], k=5, budget=100, method=method, deadline_ms=1000)
    assert time.perf_counter() - started < 1.5
    assert hits.calls >= 60


def test_what_an_index_makes_on_first_use_takes_no_time_from_the_deadline(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = world.index(10, retrievers=("bm25",))
    model = index._current().knowledge.posterior
    make = type(model).item_model

    def slow(self: object, *arguments: object) -> object:
        time.sleep(1.0)
        return make(self, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(type(model), "item_model", slow)
    hits = index.search(world.queries[20], k=5, budget=60, deadline_ms=900)
    assert (hits.calls, hits.is_partial) == (60, False)


def test_an_answer_that_a_deadline_cut_has_an_estimate_of_its_recall(world: World) -> None:
    scorer = Waiting(world, 0.0)
    index = anncur.Index.build(world.items, scorer, world.queries[:20])
    scorer._seconds = 0.05
    index.search(world.queries[20], k=5, budget=20)
    hits = index.search(world.queries[21], k=5, budget=200, deadline_ms=250)
    assert hits.is_partial
    assert hits.estimated_recall is not None
    assert 0 < hits.estimated_recall < 1
