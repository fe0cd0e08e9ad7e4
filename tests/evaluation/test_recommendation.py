"""One sentence: it names what costs the least, and nothing that is not clearly better than what is simpler."""

from __future__ import annotations

import pytest

from anncur.evaluation.recommendation import Reckoning, Terms, reasons, reckon, recommend
from cost_lines import N_ITEMS, make_rows, pace_row, without

pytest.importorskip("scipy")

POOR = {50: 0.3, 200: 0.5, 500: 0.6}
FAIR = {50: 0.6, 200: 0.8, 500: 0.95}
GOOD = {50: 0.7, 200: 0.9, 500: 0.98}
BEST = {50: 0.9, 200: 0.97, 500: 1.0}


def reckoned(found: dict[str, dict[int, float]], terms: Terms | None = None) -> Reckoning:
    made = reckon([*make_rows(found), pace_row(0.0, 0.001)], terms or Terms())
    assert made is not None
    return made


def test_where_nothing_is_clearly_better_re_ranking_is_kept() -> None:
    found = reckoned({"rerank bm25": GOOD, "posterior, no anchor queries": GOOD, "posterior": GOOD})
    assert recommend(found) == (
        "Keep re-ranking: re-rank bm25 with a budget of 200 pairs to find 90% of the scorer's top 10; nothing else "
        "does it for clearly less."
    )
    assert any("Anchor queries gain nothing" in reason for reason in reasons(found))


def test_a_gain_within_chance_is_not_worth_another_method() -> None:
    slightly = {budget: recall + 0.01 for budget, recall in GOOD.items()}
    found = reckoned({"rerank bm25": GOOD, "posterior, no anchor queries": slightly})
    assert "Keep re-ranking" in recommend(found)


def test_the_default_method_is_recommended_where_it_is_clearly_better() -> None:
    found = reckoned({"rerank bm25": POOR, "posterior, no anchor queries": GOOD, "posterior": GOOD})
    assert recommend(found) == (
        "Search with posterior, no anchor queries and a budget of 200 pairs to find 90% of the scorer's top 10."
    )
    assert any("Re-ranking bm25, the best retriever here, finds 60% with 500 pairs" in each for each in reasons(found))
    assert any(
        "Scoring all 1,000 items takes" in reason and "5.0 times the cost" in reason for reason in reasons(found)
    )


def test_anchor_queries_are_recommended_from_the_number_of_queries_on_where_they_have_paid_off() -> None:
    found = reckoned({"posterior, no anchor queries": GOOD, "posterior, 10 anchor queries": BEST})
    n_queries = 10 * N_ITEMS / (200 - 50)
    assert [stage.n_queries for stage in found.stages] == [1, pytest.approx(n_queries, abs=1)]
    assert recommend(found) == (
        "Search with posterior, 10 anchor queries and a budget of 50 pairs to find 90% of the scorer's top 10, if you "
        "will serve more than 67 queries; with fewer, take no anchor queries."
    )
    shown = list(reasons(found))
    assert shown[0].startswith("For up to 67 queries, **posterior, no anchor queries** costs the least: 200 pairs")
    assert shown[1].startswith("From 67 queries on, **posterior, 10 anchor queries** costs the least: 50 pairs")


@pytest.mark.parametrize(("n_queries", "wanted"), [(10, "no anchor queries"), (1000, "10 anchor queries")])
def test_the_number_of_queries_that_will_be_served_decides(n_queries: int, wanted: str) -> None:
    offered = {"posterior, no anchor queries": GOOD, "posterior, 10 anchor queries": BEST}
    sentence = recommend(reckoned(offered, Terms(n_queries=n_queries)))
    assert wanted in sentence
    assert f"for the {n_queries:,} queries that you will serve" in sentence
    assert "with fewer" not in sentence


def test_a_build_that_pays_off_only_after_very_many_queries_is_not_what_is_recommended() -> None:
    barely = {50: 0.73, 200: 0.93, 500: 0.98}
    found = reckoned({"posterior, no anchor queries": GOOD, "posterior": barely})
    assert found.stages[-1].n_queries > 1000
    served = reckoned({"posterior, no anchor queries": GOOD, "posterior": barely}, Terms(n_queries=1000))
    assert served.chosen.line.n_anchor_queries == 0


def test_with_fewer_queries_the_same_method_takes_fewer_anchor_queries() -> None:
    better = {50: 0.8, 200: 0.94, 500: 0.98}
    some = {"posterior, 10 anchor queries": better, "posterior": BEST}
    assert "; with fewer, take 10 anchor queries." in recommend(reckoned(some))
    assert "; with fewer, take fewer anchor queries, or none." in recommend(
        reckoned({"posterior, no anchor queries": GOOD, **some})
    )


def test_with_fewer_queries_re_ranking_serves_where_it_is_cheaper_then() -> None:
    found = reckoned({"rerank bm25": GOOD, "posterior, 10 anchor queries": BEST})
    assert recommend(found).endswith("queries; with fewer, re-rank bm25 with a budget of 200 pairs.")


def test_where_no_method_finds_much_everything_is_scored() -> None:
    found = reckoned({"rerank bm25": {50: 0.1}, "posterior": {50: 0.2}})
    assert recommend(found).startswith("Score all 1,000 items for each query")


def test_a_recall_that_no_method_reaches_is_replaced_by_a_lower_one() -> None:
    found = reckoned({"rerank bm25": POOR, "posterior, no anchor queries": {50: 0.5, 500: 0.85}})
    assert found.recall == 0.8
    assert "80% of the scorer's top 10" in recommend(found)


def test_other_methods_are_recommended_where_they_are_clearly_better() -> None:
    found = reckoned({"rerank bm25": POOR, "posterior": FAIR, "ADACUR from bm25": BEST})
    assert found.chosen.line.name == "ADACUR from bm25, 100 anchor queries"


def test_costs_are_dollars_with_a_price_else_seconds_where_they_are_known_else_pairs() -> None:
    rows = make_rows({"rerank bm25": POOR, "posterior": GOOD})
    units = [
        made.unit.name
        for made in (
            reckon([*rows, pace_row(0.1, 0.001)], Terms(price_per_1000=2.0)),
            reckon([*rows, pace_row(0.1, 0.001)]),
            reckon(rows),
            reckon(without([*rows, pace_row(0.1, 0.001)], "rounds")),
        )
        if made is not None
    ]
    assert units == ["dollars", "seconds", "pairs scored", "pairs scored"]


def test_a_scorer_that_was_given_takes_the_place_of_the_one_that_was_measured() -> None:
    rows = [*make_rows({"posterior": GOOD}), pace_row(0.1, 0.001)]
    given = reckon(rows, Terms(latency=0.2, seconds_per_pair=0.002))
    measured = reckon(rows)
    assert given is not None
    assert measured is not None
    assert (given.model and given.model.latency, measured.model and measured.model.latency) == (0.2, 0.1)


def test_reasons_name_seconds_and_dollars() -> None:
    found = reckoned({"posterior, 10 anchor queries": GOOD}, Terms(price_per_1000=5.0))
    shown = " ".join(reasons(found))
    assert "200 pairs (200 ms, $1.00) a query, after a build of 10,000 pairs (10 s, $50.00)" in shown


def test_a_reckoning_on_drawn_items_says_so() -> None:
    made = reckon([*make_rows({"posterior": GOOD}), pace_row(0.0, 0.001, n_corpus_items=70_000)])
    assert made is not None
    assert any("1,000 of your 70,000 items" in reason for reason in reasons(made))


def test_nothing_measured_recommends_nothing() -> None:
    assert reckon(make_rows({})) is None


def test_of_methods_that_cost_the_same_the_one_that_finds_more_is_recommended() -> None:
    found = reckoned({"ADACUR from bm25": {50: 0.92}, "posterior": {50: 0.97}, "ANNCUR": {50: 0.91}})
    assert found.chosen.line.method == "posterior"
