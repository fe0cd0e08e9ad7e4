"""ADACUR: least squares on raw anchor scores, in rounds."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from anncur import Adacur, AnncurError
from anncur.search.adacur import GumbelNoise
from anncur.search.regression import even_rounds
from worlds import World, low_rank_scores

pytestmark = pytest.mark.slow  # the whole of it takes seconds

MakeWorld = Callable[..., World]


def test_guesses_are_exact_on_a_low_rank_matrix_once_as_many_items_are_scored() -> None:
    """And so the rounds by best guesses find the truly best items."""
    world = World(50 + low_rank_scores(40, 300, rank=6))  # rank 7
    index = world.index(20, retrievers=("bm25",))
    for method in (Adacur(), Adacur(retriever="random"), Adacur(sampling="softmax")):
        for query in range(20, 40):
            hits = index.search(world.queries[query], k=10, budget=60, method=method)
            for step in hits.trace[2:]:  # twelve items were scored before
                assert step.guesses is not None
                np.testing.assert_allclose(step.guesses, step.exact_scores, atol=1e-2)
            if method.sampling == "top":
                assert hits.ids == world.brute_force(query, 10)


def test_equal_seeds_give_equal_answers_and_others_differ(make_world: MakeWorld) -> None:
    world = make_world(n_queries=20, n_items=400, noise=1.0)
    index = world.index(15)
    for method in (Adacur(retriever="random", n_rounds=2), Adacur(sampling="softmax")):
        asked = [
            index.search(world.queries[19], k=5, budget=30, method=method, seed=seed).trace[1].positions.tolist()
            for seed in (1, 1, 2)
        ]
        assert asked[0] == asked[1] != asked[2]


def test_an_index_without_retriever_begins_at_random(make_world: MakeWorld) -> None:
    world = make_world(n_queries=20, n_items=400)
    index = world.index(15, retrievers=())
    first = [index.search(query, budget=40, method="adacur").trace[0].positions for query in world.queries[18:]]
    assert len(first[0]) == len(np.unique(first[0])) == 4
    assert sorted(first[0]) != sorted(first[1])  # every query draws for itself


def test_a_draw_without_temperature_is_the_best(make_world: MakeWorld) -> None:
    world = make_world(n_queries=20, n_items=200)
    index = world.index(15)
    cold, best = (
        index.search(world.queries[19], budget=50, method=method)
        for method in (Adacur(sampling="softmax", temperature=0), Adacur())
    )
    assert cold == best


def test_draws_follow_the_softmax_of_guesses() -> None:
    guesses = np.log([0.5, 0.3, 0.2]) * 2
    noise = GumbelNoise([np.random.default_rng(number) for number in range(4000)], 2.0)
    chosen = np.argmax(guesses + noise.of_items(slice(0, 3)), axis=1)
    np.testing.assert_allclose(np.bincount(chosen) / 4000, [0.5, 0.3, 0.2], atol=0.03)


@given(budget=st.integers(1, 500), n_rounds=st.integers(1, 30))
def test_rounds_are_even_and_spend_the_budget(budget: int, n_rounds: int) -> None:
    sizes = even_rounds(budget, n_rounds)
    assert sum(sizes) == budget
    assert len(sizes) <= n_rounds
    assert 1 <= min(sizes) <= max(sizes) <= min(sizes) + 1


def test_adacur_needs_anchor_queries(make_world: MakeWorld) -> None:
    world = make_world()
    with pytest.raises(AnncurError, match="adacur needs anchor queries"):
        world.index(0).search(world.queries[0], method="adacur")


def test_adacur_names_the_retrievers_that_there_are(make_world: MakeWorld) -> None:
    world = make_world()
    with pytest.raises(AnncurError, match="has the retrievers: bm25; build it with"):
        world.index(5).search(world.queries[9], method=Adacur(retriever="tfidf"))


@pytest.mark.parametrize(
    "setting", [{"n_rounds": 0}, {"sampling": "best"}, {"temperature": -1}, {"cutoff": 0}, {"cutoff": "small"}]
)
def test_adacur_refuses_settings_that_make_no_sense(setting: dict[str, object]) -> None:
    with pytest.raises(AnncurError, match=next(iter(setting))):
        Adacur(**setting)  # type: ignore[arg-type]
