"""How methods are measured: splits by document, recall against the exact scores, and intervals."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import anncur
from anncur.errors import InputError, UnknownIdError
from anncur.evaluation.intervals import clustered_interval
from anncur.evaluation.protocol import build, measure, points
from anncur.evaluation.worlds import QuerySplit, ScoredWorld, split_by_group
from anncur.retrievers.lexical import BM25
from anncur.retrievers.stored import StoredRetriever
from worlds import low_rank_scores

GROUPS = [f"document {number % 9}" for number in range(60)]


def make_world(*, noise: float = 0.1) -> ScoredWorld:
    exact_scores = low_rank_scores(60, 150, rank=4, noise=noise)
    queries = [anncur.Query(f"query {number}") for number in range(60)]
    items = [anncur.Item(str(number), f"text {number}") for number in range(150)]
    return ScoredWorld("toy", queries, GROUPS, items, exact_scores)


@pytest.mark.parametrize("seed", range(5))
def test_no_document_is_on_both_sides_of_a_split(seed: int) -> None:
    split = split_by_group(GROUPS, n_anchors=30, n_tests=20, seed=seed)
    assert len(split.anchors) == 30
    assert len(split.tests) >= 20
    of_anchors, of_tests = ({GROUPS[place] for place in some.tolist()} for some in (split.anchors, split.tests))
    assert not of_anchors & of_tests


def test_a_test_document_is_tested_with_all_of_its_queries() -> None:
    split = split_by_group(GROUPS, n_anchors=30, n_tests=20, seed=0)
    tested = {GROUPS[place] for place in split.tests.tolist()}
    assert sum(group in tested for group in GROUPS) == len(split.tests)


def test_seeds_give_other_splits_and_the_same_seed_the_same() -> None:
    splits = [split_by_group(GROUPS, n_anchors=30, n_tests=20, seed=seed) for seed in (0, 0, 1)]
    assert splits[0].tests.tolist() == splits[1].tests.tolist() != splits[2].tests.tolist()
    assert splits[0].anchors.tolist() == splits[1].anchors.tolist()


def test_fewer_anchors_leave_the_tests_as_they_are_and_are_among_more_of_them() -> None:
    split = split_by_group(GROUPS, n_anchors=30, n_tests=20, seed=0)
    few, many, all_of_them = (split.fewer(n_anchors, seed=3) for n_anchors in (5, 15, 30))
    assert few.tests.tolist() == many.tests.tolist() == split.tests.tolist()
    assert set(few.anchors) < set(many.anchors) < set(split.anchors)
    assert few.anchors.tolist() == sorted(few.anchors.tolist())
    assert len(few.anchors) == 5
    assert all_of_them.anchors.tolist() == split.anchors.tolist()
    assert split.fewer(5, seed=4).anchors.tolist() != few.anchors.tolist()


def test_a_split_that_cannot_be_made_is_refused() -> None:
    with pytest.raises(InputError, match="don't give 50 test queries"):
        split_by_group(GROUPS, n_anchors=30, n_tests=50, seed=0)


def test_every_query_is_measured_at_every_point_and_a_budget_is_never_exceeded() -> None:
    world = make_world()
    split = split_by_group(GROUPS, n_anchors=30, n_tests=20, seed=0)
    index = build(world, split, [BM25()])
    for method in (anncur.Posterior(), anncur.Anncur()):
        outcomes = measure(index, world, split, method, ks=(1, 5), budgets=(4, 40))
        assert [(outcome.k, outcome.budget) for outcome in outcomes] == [(1, 4), (1, 40), (5, 40)]
        assert all(len(outcome.recalls) == len(split.tests) for outcome in outcomes)
        assert all((outcome.calls <= outcome.budget).all() for outcome in outcomes)


def test_a_search_of_everything_finds_everything_and_one_of_the_worst_nothing() -> None:
    world = make_world()
    split = QuerySplit(np.arange(10), np.arange(40, 60))
    best = StoredRetriever(BM25(), world.queries, world.items)
    best._scores = world.exact_scores
    worst = StoredRetriever(BM25(), world.queries, world.items)
    worst.name, worst._scores = "worst", -world.exact_scores
    index = build(world, split, [best, worst])
    (found,) = measure(index, world, split, anncur.Rerank("bm25"), ks=(5,), budgets=(6,))
    (missed,) = measure(index, world, split, anncur.Rerank("worst"), ks=(5,), budgets=(6,))
    assert found.recalls.tolist() == [1.0] * 20
    assert missed.recalls.tolist() == [0.0] * 20


@pytest.mark.filterwarnings("ignore:.*all pairs the same score:anncur.AnncurWarning")
def test_an_item_tied_with_the_kth_best_counts_as_found() -> None:
    world = make_world()
    tied = ScoredWorld("tied", world.queries, GROUPS, world.items, np.zeros_like(world.exact_scores))
    split = QuerySplit(np.arange(3), np.arange(40, 60))
    (outcome,) = measure(build(tied, split, [BM25()]), tied, split, anncur.Rerank(), ks=(5,), budgets=(6,))
    assert outcome.recalls.tolist() == [1.0] * 20


def test_points_are_pairs_whose_budget_is_above_k() -> None:
    assert points((1, 50), (50, 100)) == [(1, 50), (1, 100), (50, 100)]


def test_a_world_whose_parts_do_not_fit_is_refused() -> None:
    world = make_world()
    with pytest.raises(InputError, match="a group for each query"):
        ScoredWorld("toy", world.queries, GROUPS[:-1], world.items, world.exact_scores)


def test_two_scorers_on_one_world_have_different_fingerprints() -> None:
    world = make_world()
    fingerprints = {replace(world, scorer_name=name).scorer().fingerprint for name in ("", "cls", "emb")}
    assert len(fingerprints) == 3


def test_a_stored_retriever_answers_as_the_one_it_was_made_from() -> None:
    world = make_world()
    own = BM25()
    own.fit(world.items)
    stored = StoredRetriever(BM25(), world.queries, world.items)
    assert stored.scores(world.queries[5:9]).tolist() == own.scores(world.queries[5:9]).tolist()
    with pytest.raises(UnknownIdError, match="no stored score"):
        stored.scores([anncur.Query("another one")])


def test_queries_that_are_counted_five_times_do_not_make_an_interval_narrower() -> None:
    values = np.random.default_rng(0).normal(size=80)
    groups = np.arange(80)
    once = clustered_interval(values, groups.tolist())
    five_times = clustered_interval(np.tile(values, 5), np.tile(groups, 5).tolist())
    assert five_times.low == pytest.approx(once.low)
    assert five_times.high == pytest.approx(once.high)


def test_an_interval_holds_the_true_mean_as_often_as_it_says() -> None:
    rng = np.random.default_rng(1)
    groups = np.repeat(np.arange(15), 6).tolist()
    held = []
    for _ in range(600):
        values = np.repeat(rng.normal(size=15), 6) + 0.5 * rng.normal(size=90)
        interval = clustered_interval(values, groups)
        held.append(interval.low <= 0 <= interval.high)
    assert 0.92 <= np.mean(held) <= 0.98


def test_with_one_document_the_interval_is_infinite() -> None:
    interval = clustered_interval(np.ones(4), ["a"] * 4)
    assert (interval.mean, interval.low, interval.high) == (1.0, -np.inf, np.inf)
