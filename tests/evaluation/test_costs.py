"""What searches cost: seconds of cost models, pairs for a recall, and the queries from which a build pays off."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from anncur.evaluation.costs import (
    ENDPOINT,
    EVERYTHING,
    GPU,
    CostModel,
    Line,
    Offer,
    Point,
    break_even,
    cheapest_stages,
    cost_lines,
    in_dollars,
    in_pairs,
    in_seconds,
    make_offers,
    reach,
    show_dollars,
    show_seconds,
)
from anncur.evaluation.rows import Row
from cost_lines import N_ITEMS, make_line, make_rows, without

LOW, HIGH = Point(100, 0.8, 4, 0.01), Point(400, 1.0, 8, 0.03)


def offer(build: float, per_query: float, method: str = "posterior") -> Offer:
    return Offer(make_line(LOW, method=method), LOW, build, per_query)


def test_seconds_are_rounds_times_latency_and_pairs_and_the_methods_own() -> None:
    assert ENDPOINT.seconds(LOW) == pytest.approx(4 * 0.2 + 100 * 0.002 + 0.01)
    assert GPU.seconds(LOW) == pytest.approx(4 * 0.01 + 100 * 0.00005 + 0.01)


def test_rounds_that_nobody_counted_cost_nothing_without_latency_and_are_unknown_with_it() -> None:
    uncounted = replace(LOW, rounds=math.nan)
    assert CostModel("local", 0.0, 0.001).seconds(uncounted) == pytest.approx(0.11)
    assert math.isnan(ENDPOINT.seconds(uncounted))


def test_a_build_waits_for_every_request() -> None:
    assert ENDPOINT.build_seconds(1000) == pytest.approx(10 * 0.2 + 1000 * 0.002)
    assert ENDPOINT.build_seconds(0) == 0


def test_a_recall_between_two_budgets_takes_pairs_between_them() -> None:
    found = reach([LOW, HIGH], 0.9)
    assert found is not None
    assert found.pairs == pytest.approx(200), "half the way by the logarithm"
    assert (found.recall, found.rounds, found.own_seconds) == pytest.approx((0.9, 6, 0.02))


def test_a_recall_that_the_smallest_budget_has_takes_that_budget() -> None:
    assert reach([LOW, HIGH], 0.5) == LOW


def test_a_recall_that_is_not_reached_is_not_guessed() -> None:
    assert reach([LOW], 0.81) is None


def test_more_pairs_never_count_as_finding_less() -> None:
    dipping = [LOW, Point(200, 0.7, 5, 0), HIGH]
    reached = [reach(dipping, recall / 100) for recall in range(80, 101)]
    pairs = [point.pairs for point in reached if point is not None]
    assert len(pairs) == 21
    assert pairs == sorted(pairs)
    assert pairs[1] > 200, "what was found with 100 pairs is all that was found with 200"


def test_of_several_limits_of_rounds_the_cheapest_counts() -> None:
    few = [Point(150, 0.8, 3), Point(500, 1.0, 3)]
    line = Line("posterior", 0, 0, [[LOW, HIGH], few])
    in_time, by_pairs = line.need(0.9, in_seconds(ENDPOINT)), line.need(0.9, in_pairs())
    assert in_time is not None
    assert by_pairs is not None
    assert in_time.rounds == 3, "with latency, three rounds with more pairs are faster"
    assert by_pairs.pairs == pytest.approx(200)


def test_a_line_whose_rounds_are_unknown_has_no_seconds_with_latency() -> None:
    line = make_line(replace(LOW, rounds=math.nan))
    assert line.need(0.8, in_seconds(GPU)) is None
    assert line.need(0.8, in_dollars(2.0)) is not None


def test_dollars_are_the_price_of_all_pairs() -> None:
    unit = in_dollars(2.0)
    assert unit.of_query(LOW) == pytest.approx(0.2)
    assert unit.of_build(50_000) == pytest.approx(100)


def test_a_build_pays_off_when_what_it_saved_is_what_it_cost() -> None:
    built, plain = offer(1000, 1), offer(0, 3)
    number = break_even(built, plain)
    assert number == 500
    assert built.total(number) == plain.total(number)
    assert built.total(number + 1) < plain.total(number + 1)


@pytest.mark.parametrize("per_query", [3, 4])
def test_a_build_that_saves_nothing_never_pays_off(per_query: float) -> None:
    assert break_even(offer(1000, per_query), offer(0, 3)) is None


def test_what_is_cheaper_in_both_is_so_from_the_first_query_on() -> None:
    assert break_even(offer(0, 1), offer(10, 3)) == 0


def test_stages_are_the_cheapest_for_every_number_of_queries() -> None:
    offers = [offer(0, 10), offer(100, 5), offer(5000, 4.9), offer(1000, 1), offer(400, 6)]
    stages = cheapest_stages(offers)
    assert [stage.offer for stage in stages] == [offers[0], offers[1], offers[3]]
    for n_queries in (1, 19, 21, 224, 226, 10**6):
        now = [stage for stage in stages if stage.n_queries <= n_queries][-1].offer
        assert now.total(n_queries) == pytest.approx(min(each.total(n_queries) for each in offers))


def test_nothing_has_no_stages() -> None:
    assert cheapest_stages([]) == []


def test_lines_are_methods_by_their_anchor_queries_and_everything_comes_last() -> None:
    lines = cost_lines(
        make_rows({"rerank bm25": {50: 0.5}, "posterior": {50: 0.9}, "posterior, 10 anchor queries": {50: 0.8}}), k=10
    )
    named = {line.name: line.build_pairs for line in lines}
    assert named == {
        "rerank bm25": 0,
        "posterior, 100 anchor queries": 100 * N_ITEMS,
        "posterior, 10 anchor queries": 10 * N_ITEMS,
        EVERYTHING: 0,
    }
    (everything,) = make_offers(lines[-1:], 0.95, in_pairs())
    assert everything.per_query == N_ITEMS


def test_reranking_beside_several_numbers_of_anchor_queries_is_one_line() -> None:
    rows = make_rows({"rerank bm25": {50: 0.5, 100: 0.6}, "posterior": {50: 0.7, 100: 0.9}})
    beside_few = make_rows({"rerank bm25": {20: 0.4, 50: 0.5, 100: 0.6}, "posterior": {50: 0.7, 100: 0.9}})
    few = [Row(replace(row.cell, n_anchor_queries=10), row.values) for row in without(beside_few, "build_calls")]
    lines = cost_lines([*few, *without(rows, "build_calls")], k=10)
    assert [point.pairs for point in lines[0].curves[0]] == [20, 50, 100], "also what was measured beside few alone"
    assert [line.name for line in lines] == [
        "rerank bm25",
        "posterior, 10 anchor queries",
        "posterior, 100 anchor queries",
        EVERYTHING,
    ]


def test_rows_of_earlier_versions_are_reckoned_with_what_is_known_of_their_methods() -> None:
    rows = make_rows({"rerank bm25": {50: 0.5}, "ANNCUR": {50: 0.6}, "posterior": {50: 0.9}})
    lines = {line.method: line for line in cost_lines(without(rows, "rounds", "build_calls"), k=10)}
    assert [lines[name].curves[0][0].rounds for name in ("rerank bm25", "ANNCUR")] == [1, 2]
    assert math.isnan(lines["posterior"].curves[0][0].rounds)
    assert [lines[name].build_pairs for name in ("rerank bm25", "posterior")] == [0, 100 * N_ITEMS]


def test_rows_with_own_seconds_are_reckoned_with_these() -> None:
    (line, _) = cost_lines(make_rows({"GAR": {50: 0.5}}, seconds=9.0, own_seconds=0.25, build_calls=0), k=10)
    assert line.name == "GAR"
    assert line.curves[0][0].own_seconds == 0.25


def test_other_limits_of_rounds_are_curves_of_the_same_line() -> None:
    rows = make_rows({"posterior": {50: 0.9}})
    limited = [Row(replace(row.cell, part="3 rounds"), row.values) for row in rows[1:]]
    line, _ = cost_lines([*rows, *limited], k=10)
    assert len(line.curves) == 2
    assert len(line.rows) == 1, "intervals are those without a limit"


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(0.0123, "12.3 ms"), (2.345, "2.3 s"), (75, "1 min 15 s"), (7200, "2 h 0 min"), (864000, "10 days")],
)
def test_times_are_shown_for_people(seconds: float, shown: str) -> None:
    assert show_seconds(seconds) == shown


@pytest.mark.parametrize(("dollars", "shown"), [(0.00042, "$0.00042"), (0.5, "$0.50"), (12345.6, "$12,346")])
def test_money_is_shown_for_people(dollars: float, shown: str) -> None:
    assert show_dollars(dollars) == shown


def test_a_model_is_called_by_its_numbers() -> None:
    assert str(ENDPOINT) == "an endpoint, 200 ms + 2 ms per pair"
    assert str(CostModel("local", 0.0, 0.0019)) == "local, 1.9 ms per pair"
