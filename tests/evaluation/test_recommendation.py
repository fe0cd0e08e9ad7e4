"""One sentence: it names what costs the least, and nothing that is not clearly better than what is simpler."""

from __future__ import annotations

import pytest

from anncur.errors import InputError
from anncur.evaluation.costs import rounded_up
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
        "does it at a clearly lower cost."
    )
    assert any("Anchor queries gain nothing" in reason for reason in reasons(found))


def test_a_gain_within_chance_is_not_worth_another_method() -> None:
    slightly = {budget: recall + 0.01 for budget, recall in GOOD.items()}
    found = reckoned({"rerank bm25": GOOD, "posterior, no anchor queries": slightly})
    assert "Keep re-ranking" in recommend(found)


def test_the_default_method_is_recommended_where_it_is_clearly_better() -> None:
    found = reckoned({"rerank bm25": POOR, "posterior, no anchor queries": GOOD, "posterior": GOOD})
    assert recommend(found) == (
        "Use adaptive search (`posterior`, the default) with no anchor queries and a budget of 200 pairs to find 90% "
        "of the scorer's top 10."
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
        "Use adaptive search (`posterior`, the default) with 10 anchor queries and a budget of 50 pairs to find 90% of "
        "the scorer's top 10, for 10,000 queries (assumed; the report lists what costs the least for fewer and for "
        "more)."
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
    assert "assumed" not in sentence


def test_a_build_that_pays_off_only_after_very_many_queries_is_not_what_is_recommended() -> None:
    barely = {50: 0.73, 200: 0.93, 500: 0.98}
    found = reckoned({"posterior, no anchor queries": GOOD, "posterior": barely})
    assert found.stages[-1].n_queries > 1000
    served = reckoned({"posterior, no anchor queries": GOOD, "posterior": barely}, Terms(n_queries=1000))
    assert served.chosen.line.n_anchor_queries == 0


def test_where_no_method_finds_much_everything_is_scored() -> None:
    found = reckoned({"rerank bm25": {50: 0.1}, "posterior": {50: 0.2}})
    assert recommend(found) == (
        "Score all 1,000 items for each query: no method finds 90% of the scorer's top 10 at a clearly lower cost."
    )


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


def test_what_is_not_given_of_a_scorer_is_as_it_was_measured() -> None:
    rows = [*make_rows({"posterior": GOOD}), pace_row(0.1, 0.001)]
    models = [
        made.model for terms in (Terms(latency=0.2), Terms(seconds_per_pair=0.0)) if (made := reckon(rows, terms))
    ]
    assert [(model.latency, model.seconds_per_pair) for model in models if model] == [(0.2, 0.001), (0.1, 0.0)]


@pytest.mark.parametrize("terms", [Terms(latency=0.2), Terms(seconds_per_pair=0.002)])
def test_half_a_scorer_is_refused_where_none_was_measured(terms: Terms) -> None:
    with pytest.raises(InputError, match="--latency-ms and --pair-ms go together"):
        reckon(make_rows({"posterior": GOOD}), terms)


def test_reasons_name_the_scorer_that_seconds_are_those_of() -> None:
    shown = list(reasons(reckoned({"posterior": GOOD})))
    assert "Methods are compared by time, with 0 ms a request and 1 ms a pair, your scorer as measured." in shown


def test_anchor_queries_that_find_more_and_cost_too_much_are_not_said_to_gain_nothing() -> None:
    rows = make_rows({"posterior, no anchor queries": GOOD}, seconds=0.001)
    slow = make_rows({"posterior": BEST}, seconds=0.5)[1:]
    found = reckon([*rows, *slow, pace_row(0.0, 0.001)])
    assert found is not None
    assert found.chosen.line.n_anchor_queries == 0
    shown = list(reasons(found))
    assert "Anchor queries find more with the same pairs, but cost more than they save." in shown
    assert not any("gain nothing" in reason for reason in shown)


BETWEEN = {50: 0.75, 100: 0.88, 200: 0.92}


def test_sentence_reasons_and_evidence_have_the_same_budget_and_the_promised_recall() -> None:
    found = reckoned({"posterior, no anchor queries": BETWEEN})
    assert "a budget of 150 pairs" in recommend(found), "141.4 in round numbers"
    shown = list(reasons(found))
    assert any("costs the least: 150 pairs" in reason for reason in shown)
    assert any(reason.startswith("With 200 pairs it found 92%") for reason in shown)


def test_evidence_is_that_of_the_next_larger_budget_not_of_the_nearest() -> None:
    found = reckoned({"posterior, no anchor queries": {50: 0.75, 100: 0.895, 200: 0.95}})
    assert found.chosen.need.pairs == 110
    assert any(reason.startswith("With 200 pairs it found 95%") for reason in reasons(found))


@pytest.mark.parametrize(
    ("number", "rounded"), [(141.4, 150), (200.0000000001, 200), (3218, 3300), (7.2, 8), (99.9, 100)]
)
def test_numbers_are_rounded_up_to_two_digits(number: float, rounded: int) -> None:
    assert rounded_up(number) == rounded


@pytest.mark.parametrize(
    ("offered", "retrievers"),
    [
        ({"rerank bm25": GOOD, "rerank tfidf": POOR}, ["bm25"]),
        ({"rerank bm25": POOR, "rerank rrf": GOOD}, ["rrf", "bm25"]),
        ({"rerank bm25": POOR, "rerank rrf": POOR, "rerank own@500": POOR, "posterior": BEST}, ["bm25"]),
        ({"rerank bm25": {50: 0.1}}, []),
    ],
)
def test_retrievers_are_those_of_what_is_recommended(
    offered: dict[str, dict[int, float]], retrievers: list[str]
) -> None:
    assert reckoned(offered).retrievers == retrievers


def test_reasons_name_seconds_and_dollars() -> None:
    found = reckoned({"posterior, 10 anchor queries": GOOD}, Terms(price_per_1000=5.0))
    shown = " ".join(reasons(found))
    assert "200 pairs in 5 rounds (200 ms, $1.00) a query, after a build of 10,000 pairs (10 s, $50.00)" in shown
    assert (
        "compared by price, $5 for 1,000 pairs; seconds are with 0 ms a request and 1 ms a pair, your scorer" in shown
    )


def test_a_reckoning_on_drawn_items_says_so() -> None:
    made = reckon([*make_rows({"posterior": GOOD}), pace_row(0.0, 0.001, n_corpus_items=70_000)])
    assert made is not None
    assert any("1,000 of your 70,000 items" in reason for reason in reasons(made))


def test_nothing_measured_recommends_nothing() -> None:
    assert reckon(make_rows({})) is None


def test_of_methods_that_cost_the_same_the_one_that_finds_more_is_recommended() -> None:
    found = reckoned({"ADACUR from bm25": {50: 0.92}, "posterior": {50: 0.97}, "ANNCUR": {50: 0.91}})
    assert found.chosen.line.method == "posterior"
