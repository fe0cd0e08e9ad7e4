"""A search with `target_recall` finds on average what it was asked for, for any k, and is refused where it can't."""

from __future__ import annotations

import numpy as np
import pytest

import anncur
from worlds import World, low_rank_scores

TARGET = 0.95
N_ANCHORS, N_TESTS, N_ITEMS = 40, 60, 600
N_WORLDS = 5  # the 40 anchor queries of one world may all be easy
KS = (1, 2, 5, 10, 20, 50, 100)
KS_BETWEEN = (4, 12, 25, 66, 130)  # for which nothing was calibrated


def reached(k: int, indexes: list[tuple[World, anncur.Index]]) -> tuple[float, int]:
    """The mean recall over all test queries, and the fewest pairs that one of them took."""
    recalls: list[float] = []
    least_calls = 10**9
    for world, index in indexes:
        answers = index.search_many(world.queries[N_ANCHORS:], k, target_recall=TARGET)
        least_calls = min(least_calls, *(hits.calls for hits in answers))
        truth = (set(world.brute_force(N_ANCHORS + number, k)) for number in range(N_TESTS))
        recalls.extend(len(true & set(hits.ids)) / k for true, hits in zip(truth, answers, strict=True))
    return float(np.mean(recalls)), least_calls


def make_indexes(rank: int, noise: float, retrievers: tuple[str, ...]) -> list[tuple[World, anncur.Index]]:
    shape = (N_ANCHORS + N_TESTS, N_ITEMS)
    worlds = [World(low_rank_scores(*shape, rank=rank, noise=noise, seed=seed)) for seed in range(N_WORLDS)]
    return [(world, world.index(N_ANCHORS, retrievers=retrievers)) for world in worlds]


@pytest.mark.parametrize(
    ("rank", "noise", "retrievers", "ks"),
    [
        pytest.param(3, 0.0, ("bm25",), KS + KS_BETWEEN, marks=pytest.mark.slow),
        pytest.param(3, 0.0, (), KS + KS_BETWEEN, marks=pytest.mark.slow),
        pytest.param(12, 0.2, ("bm25",), KS + KS_BETWEEN, marks=pytest.mark.slow),
        pytest.param(12, 0.2, (), KS + KS_BETWEEN, marks=pytest.mark.slow),
    ],
)
def test_the_mean_recall_reaches_the_target_for_any_k(
    rank: int, noise: float, retrievers: tuple[str, ...], ks: tuple[int, ...]
) -> None:
    indexes = make_indexes(rank, noise, retrievers)
    for k in ks:
        recall, least_calls = reached(k, indexes)
        assert recall >= TARGET - 0.02, f"k = {k}: {recall:.3f}"
        assert least_calls >= k, "fewer pairs can't hold the top k"


@pytest.mark.slow
@pytest.mark.parametrize("retrievers", [(), ("bm25",)], ids=["no retriever", "bm25"])
def test_the_mean_recall_reaches_the_target_for_a_scorer_of_full_rank(retrievers: tuple[str, ...]) -> None:
    indexes = make_indexes(150, 1.0, retrievers)
    for k in KS:
        assert reached(k, indexes)[0] >= TARGET - 0.02


@pytest.mark.parametrize("method", ["anncur", "adacur", "axn", "rerank", "exhaustive", anncur.Anncur(n_anchor_items=5)])
def test_a_method_that_does_not_estimate_its_recall_refuses_a_target(method: str | anncur.Method) -> None:
    world = World(low_rank_scores(14, 60, rank=3))
    index = world.index(12)
    with pytest.raises(anncur.InputError, match="target_recall needs a method that estimates its recall"):
        index.search(world.queries[13], k=3, method=method, target_recall=0.9)
    assert not world.scorer.pairs, "refused before anything is paid for"


@pytest.mark.slow
def test_an_answer_that_ran_out_of_budget_before_its_target_is_marked_as_partial() -> None:
    world = World(low_rank_scores(30, 600, rank=60, noise=1.0))
    index = world.index(24)
    hits = index.search(world.queries[29], k=10, target_recall=0.98, max_budget=20)
    assert hits.calls == 20
    assert hits.is_partial
    assert not index.search(world.queries[29], k=10, budget=20).is_partial, "a budget is no promise of recall"


@pytest.mark.slow
def test_a_target_that_nothing_can_promise_ends_with_the_budget_alone() -> None:
    world = World(low_rank_scores(30, 600, rank=3))
    index = world.index(24)
    easy, all_of_it = (index.search(world.queries[29], k=10, target_recall=target) for target in (0.95, 1.0))
    assert all_of_it.calls > easy.calls
    assert all_of_it.is_partial, "not every item was scored"
