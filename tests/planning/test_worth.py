"""Advice says which anchor queries are worth paying for, by differences that matter and are more than chance."""

from __future__ import annotations

import numpy as np

from anncur.planning.comparison import NOTHING_DERIVED, Comparison, Measured, posterior_name, shares_by_budget
from anncur.planning.worth import AnchorCost, advise_plan

N_TEST = 20


def measured(method: str, n_anchors: int, recall: float, *, spread: float = 0.1, seed: int = 0) -> Measured:
    """A method with exactly this mean, whose queries differ by `spread`."""
    by_query = np.random.default_rng(seed).normal(size=(N_TEST, 1))
    by_query -= by_query.mean()
    return Measured(method, n_anchors, np.repeat(recall + spread * by_query, 4, axis=1))


def adaptive(n_anchors: int, recall: float, *, spread: float = 0.1, seed: int = 0) -> Measured:
    return measured(posterior_name(n_anchors), n_anchors, recall, spread=spread, seed=seed)


def advice(
    *posterior: Measured,
    n_queries: int = 100,
    n_items: int = 2000,
    n_pilot_items: int = 1000,
    seconds_per_pair: float = 0.002,
    anncur: Measured | None = None,
    **reranked: float,
) -> list[str]:
    methods = {name: measured(f"rerank {name}", 0, recall) for name, recall in reranked.items()}
    found = Comparison(methods, posterior, anncur, NOTHING_DERIVED, N_TEST, shares_by_budget(n_pilot_items))
    counts = {0, n_queries, *(each.n_anchor_queries for each in posterior)}
    costs = {count: AnchorCost(count, count * n_items, count * n_items * seconds_per_pair, None) for count in counts}
    return list(advise_plan(found, costs, n_items=n_items, n_queries=n_queries))


def test_the_first_line_says_how_far_searches_get_without_anchor_queries() -> None:
    first, *_ = advice(adaptive(0, 0.61), bm25=0.30, minilm=0.52)
    assert first == (
        "begin without anchor queries: posterior finds 61% of the scorer's top 10 and re-ranking minilm, the best "
        "retriever, 52% (means over 2% to 20% of the items scored)"
    )


def test_means_are_over_the_shares_that_were_scored() -> None:
    assert "(means over 8% to 20% of the items scored)" in advice(adaptive(0, 0.61), n_pilot_items=120)[0]
    assert "(means over 100% of the items scored)" in advice(adaptive(0, 0.61), n_pilot_items=6)[0]


def test_more_anchor_queries_that_find_less_are_remarked() -> None:
    lines = advice(adaptive(0, 0.61), adaptive(10, 0.75), adaptive(40, 0.70), bm25=0.52)
    assert lines[2] == "40 anchor queries find less than 10 on the pilot, 70% against 75%"
    lines = advice(adaptive(0, 0.61), adaptive(10, 0.56, spread=0.4, seed=1), adaptive(40, 0.75), bm25=0.52)
    assert (
        "10 anchor queries find less than none on the pilot, 56% against 61%; 20 test queries can't tell it from chance"
        in lines
    )
    assert not [line for line in advice(adaptive(0, 0.61), adaptive(10, 0.60)) if "find less than" in line]


def test_what_anchor_queries_gain_is_told_with_their_bill() -> None:
    lines = advice(adaptive(0, 0.61), adaptive(10, 0.66), adaptive(40, 0.78), adaptive(80, 0.79), bm25=0.52)
    assert lines[1:] == [
        "10 anchor queries (20,000 pairs, about 40 s) raise this from 61% to 66%",
        "40 anchor queries (80,000 pairs, about 2 min 40 s) raise this from 66% to 78%",
        "more than 40 gain nothing that matters on the pilot: 80 (160,000 pairs, about 5 min 20 s) find 79%",
    ]


def test_small_gains_that_add_up_are_told_once_they_matter() -> None:
    lines = advice(adaptive(0, 0.61), adaptive(10, 0.625), adaptive(40, 0.64), bm25=0.52)
    assert [line for line in lines if "raise this" in line] == [
        "40 anchor queries (80,000 pairs, about 2 min 40 s) raise this from 61% to 64%"
    ]


def test_anchor_queries_that_gain_nothing_are_said_to() -> None:
    lines = advice(adaptive(0, 0.61), adaptive(10, 0.61), adaptive(40, 0.62), bm25=0.52)
    assert lines[1:] == [
        "anchor queries gain nothing that matters on the pilot: 40 (80,000 pairs, about 2 min 40 s) find 62%"
    ]


def test_a_gain_that_may_be_chance_is_not_sold_as_one() -> None:
    lines = advice(adaptive(0, 0.61), adaptive(40, 0.66, spread=0.4, seed=1), bm25=0.52)
    assert not [line for line in lines if "raise this" in line]
    assert "find 66%, but 20 test queries are too few to tell whether that is chance: pass more queries" in lines[1]


def test_a_rival_that_may_be_as_good_by_chance_is_not_called_the_same() -> None:
    first, *_ = advice(adaptive(0, 0.61, spread=0.4, seed=1), bm25=0.52)
    assert first.endswith("20 test queries are too few to tell them apart")
    first, *_ = advice(adaptive(0, 0.53), bm25=0.52)
    assert first.endswith("no difference that matters")


def test_where_re_ranking_is_ahead_anchor_queries_are_compared_with_it() -> None:
    lines = advice(adaptive(0, 0.40), adaptive(10, 0.50), adaptive(40, 0.60), bm25=0.52)
    assert lines[0].startswith("without anchor queries, plain re-ranking serves better: posterior finds 40%")
    assert lines[1:2] == ["40 anchor queries (80,000 pairs, about 2 min 40 s) raise this from 52% to 60%"]
    assert not [line for line in lines if "nothing beats" in line]


def test_where_nothing_beats_re_ranking_that_is_said() -> None:
    lines = advice(adaptive(0, 0.40), adaptive(40, 0.50), bm25=0.52)
    assert lines[-1] == (
        'nothing beats plain re-ranking with bm25 on the pilot: method=anncur.Rerank("bm25"), which needs no anchor '
        "queries"
    )


def test_fusion_has_to_be_among_the_retrievers_to_re_rank_with_it() -> None:
    *_, last = advice(adaptive(0, 0.40), adaptive(40, 0.50), bm25=0.52, minilm=0.53, rrf=0.6)
    assert 'method=anncur.Rerank("rrf") and "rrf" among the retrievers' in last


def test_the_method_anncur_is_named_where_it_is_ahead() -> None:
    ahead, behind = (measured("anncur", 40, recall) for recall in (0.9, 0.78))
    assert "which finds 90%" in advice(adaptive(0, 0.5), adaptive(40, 0.78), anncur=ahead)[-1]
    assert not [line for line in advice(adaptive(0, 0.5), adaptive(40, 0.78), anncur=behind) if "anncur" in line]


def test_a_build_of_more_than_a_day_is_advised_in_shards() -> None:
    slow = advice(adaptive(0, 0.5), adaptive(40, 0.78), n_items=2_000_000)
    assert "more than a day" in slow[-1]
    worthless = advice(adaptive(0, 0.5), adaptive(40, 0.5), n_items=2_000_000)
    assert not [line for line in worthless if "more than a day" in line]
