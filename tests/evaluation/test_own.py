"""Scored worlds from a user's own data: what is drawn, what is paid for, and what the sample holds."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import anncur
from anncur.errors import InputError
from anncur.evaluation import own
from anncur.evaluation.own import (
    Cost,
    OwnData,
    draw_affordable,
    draw_items,
    draw_queries,
    fit_sizes,
    own_world,
    read_own,
    sample_world,
    timed_once,
)
from anncur.evaluation.study import QUICK
from anncur.evaluation.worlds import ScoredWorld, split_by_group
from anncur.planning import pilot
from anncur.planning.pilot import RequestTime
from anncur.scorers.guard import GuardedScorer
from anncur.scorers.loading import load_scorer
from worlds import CountingScorer, World, low_rank_scores


def make_data(n_queries: int = 20, n_items: int = 50) -> tuple[OwnData, CountingScorer]:
    world = World(low_rank_scores(n_queries, n_items, rank=3))
    queries = [anncur.Query(text, f"q{number}") for number, text in enumerate(world.queries)]
    return OwnData("toy", world.items, queries, [f"d{number % 4}" for number in range(n_queries)]), world.scorer


def make(data: OwnData, scorer: CountingScorer, folder: Path, costs: list[Cost]) -> ScoredWorld:
    return own_world(data, load_scorer(scorer), folder, scorer_name="toy", on_cost=costs.append)


def test_every_pair_is_paid_for_once_and_its_cost_is_known_before(tmp_path: Path) -> None:
    data, scorer = make_data()
    costs: list[Cost] = []
    world = make(data, scorer, tmp_path, costs)
    assert world.exact_scores.shape == (20, 50)
    assert world.exact_scores[3, 7] == pytest.approx(scorer.score(data.queries[3], [data.items[7]])[0])
    n_pairs = len(scorer.pairs)
    assert n_pairs <= 20 * 50 + 101, "and a few to measure the pace"
    again = make(data, scorer, tmp_path, costs)
    assert len(scorer.pairs) == n_pairs
    np.testing.assert_array_equal(again.exact_scores, world.exact_scores)
    assert [cost.n_missing for cost in costs] == [20 * 50, 0]
    assert costs[0].seconds > costs[1].seconds == 0


def test_other_queries_are_kept_apart(tmp_path: Path) -> None:
    data, scorer = make_data()
    costs: list[Cost] = []
    for n_queries in (20, 15, 20):
        make(replace(data, queries=data.queries[:n_queries], groups=data.groups[:n_queries]), scorer, tmp_path, costs)
    assert [cost.n_missing for cost in costs] == [1000, 750, 0]


def test_queries_are_drawn_with_their_documents_and_none_twice() -> None:
    data, _ = make_data()
    doubled = replace(data, queries=[*data.queries, *data.queries], groups=[*data.groups, *data.groups])
    drawn = draw_queries(doubled, 15, seed=1)
    assert len({query.text for query in drawn.queries}) == len(drawn.queries) == 15
    of_query = dict(zip([query.id for query in data.queries], data.groups, strict=True))
    assert [of_query[query.id] for query in drawn.queries] == drawn.groups


def test_too_few_queries_are_refused() -> None:
    data, _ = make_data(n_queries=11)
    with pytest.raises(InputError, match="at least 12 different queries, got 11"):
        draw_queries(data, 15, seed=0)


@pytest.mark.parametrize(("size", "n_anchors"), [(2, 150), (4, 147), (9, 142)])
def test_where_documents_do_not_add_up_to_the_tests_there_are_as_few_anchors_less_as_it_takes(
    size: int, n_anchors: int
) -> None:
    groups = [f"d{number // size}" for number in range(200)]
    sizes = fit_sizes(QUICK, groups, 2000, by_document=True)
    assert sizes.n_anchor_queries == n_anchors
    for seed in range(sizes.n_seeds):
        assert len(split_by_group(groups, n_anchors=n_anchors, n_tests=50, seed=seed).tests) >= 50
    assert fit_sizes(QUICK, groups, 2000, by_document=False).n_anchor_queries == 150


def test_one_document_cannot_be_on_both_sides() -> None:
    with pytest.raises(InputError, match="200 queries in 1 groups don't give"):
        fit_sizes(QUICK, ["the only one"] * 200, 2000, by_document=True)


def test_items_that_answer_a_query_are_among_those_drawn() -> None:
    data, _ = make_data()
    judged = replace(data, qrels={"q3": {"i40": 1, "i41": 0}, "unasked": {"i42": 1}})
    for seed in range(10):
        ids = [item.id for item in draw_items(judged, 5, seed=seed).items]
        assert len(ids) == 5
        assert "i40" in ids
    assert [item.id for item in draw_items(data, 50, seed=0).items] == [item.id for item in data.items]


def many(n_queries: int, n_items: int) -> OwnData:
    queries = [anncur.Query(f"query {number}") for number in range(n_queries)]
    items = [anncur.Item(f"i{number}", f"text {number}") for number in range(n_items)]
    return OwnData("many", items, queries, [f"d{number}" for number in range(n_queries)])


@pytest.mark.parametrize(
    ("n_pairs", "n_queries", "n_items"),
    [(10**9, 200, 5000), (800_000, 200, 4000), (200_000, 100, 2000), (60_000, 60, 1000), (10, 60, 200)],
)
def test_what_can_be_scored_in_time_is_drawn_items_first(n_pairs: int, n_queries: int, n_items: int) -> None:
    drawn = draw_affordable(many(200, 5000), n_pairs, seed=0)
    assert (len(drawn.queries), len(drawn.items)) == (n_queries, n_items)
    assert drawn.n_corpus_items == (None if n_items == 5000 else 5000)


def test_a_scorer_is_timed_once_so_that_the_same_is_drawn_again(tmp_path: Path) -> None:
    data, scorer = make_data()
    first = timed_once(load_scorer(scorer), data, tmp_path)
    n_pairs = len(scorer.pairs)
    assert 0 < n_pairs <= 100
    assert timed_once(load_scorer(scorer), data, tmp_path) == first
    assert len(scorer.pairs) == n_pairs


class Clock:
    """Seconds that pass only while a scorer works: a request takes `latency`, and each pair in it `of_pair`."""

    def __init__(self, latency: float, of_pair: float, *, slow: Collection[int] = ()) -> None:
        self.now, self._latency, self._of_pair = 0.0, latency, of_pair
        self._slow, self._n_requests = slow, 0

    def perf_counter(self) -> float:
        return self.now

    def score(self, pairs: list[tuple[str, str]]) -> list[float]:
        self._n_requests += 1
        self.now += self._latency + self._of_pair * len(pairs) + 5.0 * (self._n_requests in self._slow)
        return [float(len(query) + len(item)) for query, item in pairs]


def on_clock(monkeypatch: pytest.MonkeyPatch, clock: Clock) -> GuardedScorer:
    monkeypatch.setattr(pilot, "time", clock)
    monkeypatch.setattr(own, "time", clock)
    return load_scorer(clock.score, fingerprint="by the clock")


@pytest.mark.parametrize("slow", range(1, 8))
def test_one_slow_request_does_not_count_in_the_time_of_requests(monkeypatch: pytest.MonkeyPatch, slow: int) -> None:
    data, _ = make_data()
    scorer = on_clock(monkeypatch, Clock(0.02, 0.001, slow=[slow]))
    timed = pilot.time_requests(scorer, data.items, data.queries[0])
    assert (timed.latency, timed.seconds_per_pair) == pytest.approx((0.02, 0.001))


def test_no_scorer_is_taken_for_one_whose_pairs_take_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    data, _ = make_data()
    scorer = on_clock(monkeypatch, Clock(0.0, 0.001, slow=[2, 3, 4]))
    timed = pilot.time_requests(scorer, data.items, data.queries[0])
    assert timed.latency > 4, "all requests of one pair were slow"
    assert timed.seconds_per_pair == pytest.approx(0.0001)


def test_the_pace_of_all_pairs_bounds_the_seconds_of_a_pair_also_when_none_are_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, _ = make_data()
    scorer = on_clock(monkeypatch, Clock(0.0, 0.001))
    for timed in (RequestTime(5.0, 0.0), RequestTime(5.0, 0.5)):
        for _ in range(2):
            world = own_world(data, scorer, tmp_path, scorer_name="toy", on_cost=lambda _: None, request_time=timed)
            assert world.request_time is not None
            wanted = 0.0005 if timed.seconds_per_pair == 0 else 0.001
            assert world.request_time.seconds_per_pair == pytest.approx(wanted)


def test_a_measured_time_that_agrees_with_the_pace_is_kept() -> None:
    assert RequestTime(0.2, 0.002).within(0.0035) == RequestTime(0.2, 0.002)


def test_a_file_of_items_brings_no_queries(tmp_path: Path) -> None:
    corpus = tmp_path / "corpus.jsonl"
    corpus.write_text('{"id": "a", "text": "one"}\n')
    with pytest.raises(InputError, match="--queries must name a file of queries"):
        read_own(corpus)
    (tmp_path / "queries.jsonl").write_text('{"text": "two"}\n')
    assert [query.text for query in read_own(tmp_path).queries] == ["two"]


def test_the_sample_has_the_scores_of_all_its_queries_and_their_documents() -> None:
    world = sample_world()
    assert world.exact_scores.shape == (200, 2000)
    assert np.isfinite(world.exact_scores).all()
    anchors, tests = set(world.groups[:150]), set(world.groups[150:])
    assert not anchors & tests
    assert all(query.id.startswith(group) for query, group in zip(world.queries, world.groups, strict=True))
