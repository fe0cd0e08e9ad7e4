"""One suite for every method: the budget is never exceeded, and enough of it gives the truth."""

from __future__ import annotations

import functools
import gc
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import anncur
from anncur import Adacur, Anncur, Axn, Rerank
from anncur.rivals.bagel import Bagel
from anncur.rivals.cascade import Cascade
from anncur.rivals.gar import Gar
from anncur.rivals.refit import Refit
from anncur.search.base import Method
from anncur.search.methods import METHODS
from worlds import HashedVectors, World, low_rank_scores

VARIANTS: dict[str, str | Method] = {
    **{name: name for name in METHODS},
    "anncur, paper": Anncur(n_anchor_items=3, cutoff=1e-15),
    "anncur, no anchors": Anncur(n_anchor_items=0),
    "rerank, tfidf": Rerank("tfidf"),
    "adacur, from random": Adacur(retriever="random", n_rounds=3),
    "adacur, drawn": Adacur(sampling="softmax", temperature=0.5),
    "axn, without vectors": Axn(retriever="tfidf", n_scored=5),
    "axn, inductive": Axn(kind="inductive", n_rounds=3),
    "gar": Gar(),
    "gar, small rounds": Gar(n_neighbours=3, batch_size=2, retriever="hashed"),
    "refit": Refit(),
    "refit, several times": Refit(n_rounds=4, n_steps=5, temperature=0.3),
    "bagel": Bagel(),
    "bagel, few considered": Bagel(n_rounds=3, exploration=2, n_considered=1),
    "cascade": Cascade(lambda _, positions: np.sin(positions), cost=0.1),
}
RETRIEVERS = ("bm25", "tfidf", HashedVectors())


@pytest.fixture(params=list(VARIANTS))
def method(request: pytest.FixtureRequest) -> str | Method:
    return VARIANTS[request.param]


@functools.cache
def indexed(n_queries: int, n_items: int, n_anchors: int, shuffle: bool = False) -> tuple[World, anncur.Index]:
    """A world and its index, made once for all methods: none of them changes it."""
    world = World(low_rank_scores(n_queries, n_items, rank=5, noise=0.1))
    if shuffle:
        order = np.random.default_rng(1).permutation(n_items)
        world.items = [world.items[position] for position in order]
    return world, world.index(n_anchors, retrievers=RETRIEVERS)


@st.composite
def worlds(draw: st.DrawFn) -> World:
    """Small worlds, some of them with nothing but ties."""
    n_queries, n_items = draw(st.integers(2, 12)), draw(st.integers(1, 40))
    rank, seed = draw(st.integers(1, 6)), draw(st.integers(0, 1000))
    scores = low_rank_scores(n_queries, n_items, rank=rank, seed=seed)
    return World(np.round(scores, draw(st.integers(-1, 2))))


def check_budgets(world: World, k: int, budget: int, n_anchors: int) -> None:
    """Search with every method in turn."""
    index = world.index(n_anchors, retrievers=RETRIEVERS)
    for method in VARIANTS.values():
        world.scorer.pairs.clear()
        check_budget(world, index, method, k, budget)


def check_budget(world: World, index: anncur.Index, method: str | Method, k: int, budget: int) -> None:
    query = world.queries[-1]
    if isinstance(method, Anncur) and (method.n_anchor_items or 0) > budget:
        budget = method.n_anchor_items or budget  # less would be refused
    hits = index.search(query, k=k, budget=budget, method=method)
    asked = world.scorer.asked_for(query)
    assert len(asked) == len(set(asked)) == hits.calls <= min(budget, len(world.items))
    assert len(hits) == min(k, hits.calls)
    assert hits.scores == sorted(hits.scores, reverse=True)
    if budget >= len(world.items):
        assert hits.ids == world.brute_force(len(world.queries) - 1, k)
        assert not hits.is_partial


@pytest.mark.filterwarnings("ignore:.*all pairs the same score:anncur.AnncurWarning")  # some worlds are of zeros
@given(world=worlds(), k=st.integers(1, 50), budget=st.integers(1, 50), data=st.data())
@settings(max_examples=15, deadline=None)
def test_no_method_exceeds_its_budget_and_all_pairs_are_counted(
    world: World, k: int, budget: int, data: st.DataObject
) -> None:
    check_budgets(world, k, budget, data.draw(st.integers(1, len(world.queries) - 1)))


@pytest.mark.filterwarnings("ignore:.*all pairs the same score:anncur.AnncurWarning")  # some worlds are of zeros
@pytest.mark.slow
@given(world=worlds(), k=st.integers(1, 50), budget=st.integers(1, 50), data=st.data())
@settings(max_examples=500, deadline=None)
def test_no_method_exceeds_its_budget_in_5000_cases(world: World, k: int, budget: int, data: st.DataObject) -> None:
    """500 worlds, and more than ten methods in each."""
    check_budgets(world, k, budget, data.draw(st.integers(1, len(world.queries) - 1)))


def test_ranking_is_brute_force_when_the_budget_covers_every_item(method: str | Method) -> None:
    world, index = indexed(20, 150, 16)
    for query in range(16, 20):
        hits = index.search(world.queries[query], k=150, budget=150, method=method)
        assert hits.ids == world.brute_force(query, 150)
        np.testing.assert_array_equal(hits.scores, np.sort(world.exact_scores[query])[::-1])


def test_ties_come_in_the_order_of_positions(method: str | Method) -> None:
    world = World(np.tile(np.repeat([1.0, 3.0, 2.0], 10), (6, 1)))
    hits = world.index(4, retrievers=RETRIEVERS).search(world.queries[5], k=30, budget=30, method=method)
    assert hits.ids == [f"i{n}" for n in [*range(10, 20), *range(20, 30), *range(10)]]


def test_many_queries_get_the_same_answers_as_one_by_one(method: str | Method) -> None:
    world, index = indexed(90, 80, 15)
    queries = world.queries[15:]  # more than one block of them
    together = index.search_many(queries, k=5, budget=20, method=method)
    assert together == [index.search(query, k=5, budget=20, method=method) for query in queries]


def test_permuting_the_items_permutes_the_answer(method: str | Method) -> None:
    """ANNCUR with a budget below the number of anchor queries, so that the scores alone choose its anchor items."""
    budget = 20 if method == "anncur" or isinstance(method, Anncur) else 80
    before, after = (
        index.search_many(world.queries[30:], k=10, budget=budget, method=method)
        for world, index in (indexed(40, 80, 30), indexed(40, 80, 30, shuffle=True))
    )
    assert [hits.ids for hits in before] == [hits.ids for hits in after]


def test_the_trace_has_every_pair_and_every_guess(method: str | Method) -> None:
    world, index = indexed(20, 80, 15)
    world.scorer.pairs.clear()
    hits = index.search(world.queries[19], k=5, budget=30, method=method)
    if method == "exhaustive":
        assert hits.trace == ()  # it would be of no use, and as large as the corpus
        return
    positions = np.concatenate([step.positions for step in hits.trace])
    assert [f"i{position}" for position in positions] == world.scorer.asked_for(world.queries[19])
    for step in hits.trace:
        np.testing.assert_array_equal(step.exact_scores, world.exact_scores[19, step.positions])
        assert step.guesses is None or len(step.guesses) == len(step.positions)
    begins_by_guessing = hits.method == "posterior" or method == VARIANTS["anncur, no anchors"]
    assert (hits.trace[0].guesses is None) != begins_by_guessing


@pytest.fixture(scope="module")
def wide() -> tuple[World, anncur.Index]:
    """Many queries and items, indexed once for all methods."""
    world = World(low_rank_scores(520, 1200, rank=2))
    return world, world.index(8, retrievers=RETRIEVERS)


@pytest.mark.slow
def test_working_memory_does_not_grow_with_the_number_of_queries(
    wide: tuple[World, anncur.Index], method: str | Method
) -> None:
    world, index = wide

    def working_memory(n_queries: int) -> int:
        world.scorer.pairs.clear()
        gc.collect()
        tracemalloc.start()
        answers = index.search_many(world.queries[8 : 8 + n_queries], k=5, budget=20, method=method)
        kept, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert len(answers) == n_queries
        return peak - kept

    working_memory(64)
    per_query = (working_memory(512) - working_memory(64)) / (512 - 64)
    assert per_query < len(world.items)  # a byte for each item: less than any row of numbers, more than a query itself
