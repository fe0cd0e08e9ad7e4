"""Where queries are logged, random items are scored with what a method leaves of its budget: none of it is lost."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import anncur
from anncur.candidates import Candidates
from anncur.items import Corpus, Query
from anncur.scorers.meter import Meter
from anncur.scorers.payment import Payments
from anncur.search.loop import Run, explore, n_explored
from anncur.waiting import run
from worlds import World, low_rank_scores

BUDGETS = range(1, 61)


@pytest.fixture
def logging() -> Callable[[int, float], tuple[World, anncur.Index]]:
    def make(n_items: int, share: float) -> tuple[World, anncur.Index]:
        world = World(low_rank_scores(12, n_items, rank=5, noise=0.3))
        return world, world.index(6, retrievers=["bm25"], log_queries=100, explore=share)

    return make


@pytest.mark.parametrize("share", [0.05, 0.5])
@pytest.mark.parametrize("method", ["posterior", "rerank", "anncur"])
def test_a_method_that_spends_its_budget_leaves_none_of_it(
    logging: Callable[[int, float], tuple[World, anncur.Index]], method: str, share: float
) -> None:
    world, index = logging(60, share)
    calls = [index.search(world.queries[10], k=5, budget=budget, method=method).calls for budget in BUDGETS]
    assert calls == list(BUDGETS)


@pytest.mark.parametrize("n_items", [1, 2, 7, 10, 29, 30, 31, 50, 60])
def test_a_budget_for_all_items_gives_the_brute_force_ranking(
    logging: Callable[[int, float], tuple[World, anncur.Index]], n_items: int
) -> None:
    world, index = logging(n_items, 0.05)
    hits = index.search(world.queries[10], k=n_items, budget=n_items)
    assert hits.calls == n_items
    assert hits.ids == world.brute_force(10, n_items)


@pytest.mark.slow
def test_a_search_for_a_target_spends_all_that_it_may_before_it_is_partial() -> None:
    world = World(low_rank_scores(30, 600, rank=60, noise=1.0))
    index = world.index(24, log_queries=100)
    hits = index.search(world.queries[29], k=10, target_recall=0.98, max_budget=30)
    assert hits.calls == 30
    assert hits.is_partial


@pytest.mark.parametrize("share", [0.05, 0.1, 0.3, 0.5, 0.9])
def test_exploring_takes_all_that_a_spent_method_left(share: float) -> None:
    for budget in BUDGETS:
        assert explored(budget, share, n_taken=budget - n_explored(budget, share)) == n_explored(budget, share)


def test_exploring_takes_its_share_after_a_method_that_stopped_early() -> None:
    assert explored(50, 0.2, n_taken=8) == 2
    assert explored(50, 0.2, n_taken=0) == 0


def explored(budget: int, share: float, *, n_taken: int) -> int:
    """How many pairs are scored at random after a method took some."""
    corpus = Corpus([f"item {number}" for number in range(60)])
    payments = Payments(anncur.load_scorer(lambda pairs: [0.0] * len(pairs)))
    meter = Meter(Query("q"), corpus, budget=budget)
    run(payments.pay([(meter, np.arange(n_taken))]))
    run(explore([Run(meter)], payments, among=Candidates(60), share=share, seed=0))
    return meter.calls - n_taken
