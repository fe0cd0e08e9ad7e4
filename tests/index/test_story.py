"""Searches that tell their story, maps of items, and first guesses."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import anncur
from anncur.story import LABEL_LENGTH, label
from worlds import World

pytestmark = pytest.mark.slow

METHODS = ["posterior", "anncur", "adacur", "axn", "rerank"]


@pytest.fixture
def world(make_world: Callable[..., World]) -> World:
    return make_world(n_queries=24, n_items=200)


@pytest.mark.parametrize("method", METHODS)
def test_a_story_has_every_pair_once_with_its_exact_score(world: World, method: str) -> None:
    index = world.index(16)
    hits = index.search(world.queries[20], k=5, budget=60, method=method, explain=True)
    assert hits.story is not None
    told = [each for step in hits.story.rounds for each in step.items]
    assert len(told) == hits.calls == len({each.item.id for each in told})
    for each in told:
        assert each.score == world.exact_scores[20, int(each.item.id[1:])]


def test_a_search_finds_the_same_with_and_without_its_story(world: World) -> None:
    index = world.index(16)
    for query in world.queries[16:]:
        plain = index.search(query, k=5, budget=60, max_rounds=8)
        assert plain == index.search(query, k=5, budget=60, max_rounds=8, explain=True)
        assert plain.story is None


def test_spreads_tell_how_far_scores_are_from_their_posterior_means(make_world: Callable[..., World]) -> None:
    world = make_world(n_queries=60, n_items=400, noise=0.3)
    index = world.index(40)
    z_scores = []
    for query in world.queries[40:]:
        story = index.search(query, k=10, budget=100, explain=True).story
        assert story is not None
        for each in (each for step in story.rounds[1:] for each in step.items):
            assert each.posterior_mean is not None
            assert each.spread is not None
            z_scores.append((each.score - each.posterior_mean) / each.spread)
    assert 0.5 < np.std(z_scores) < 1.6  # 1 if the posterior were perfect


def test_posterior_means_are_nearer_to_the_scores_than_prior_means(world: World) -> None:
    index = world.index(16)
    errors: dict[str, list[float]] = {"prior": [], "posterior": []}
    for query in world.queries[16:]:
        story = index.search(query, k=5, budget=60, explain=True).story
        assert story is not None
        for each in (each for step in story.rounds[3:] for each in step.items):
            assert each.prior_mean is not None
            assert each.posterior_mean is not None
            errors["prior"].append(abs(each.score - each.prior_mean))
            errors["posterior"].append(abs(each.score - each.posterior_mean))
    assert np.mean(errors["posterior"]) < 0.8 * np.mean(errors["prior"])


def test_the_recall_after_the_last_round_is_that_of_the_answer(world: World) -> None:
    hits = world.index(16).search(world.queries[20], k=5, budget=60, explain=True)
    assert hits.story is not None
    assert hits.estimated_recall is not None
    assert hits.story.rounds[-1].estimated_recall == hits.estimated_recall
    assert all(step.estimated_recall is not None for step in hits.story.rounds)


def test_without_anchor_queries_the_first_round_knows_no_scale(world: World) -> None:
    story = world.index(0).search(world.queries[20], k=5, budget=40, explain=True).story
    assert story is not None
    first, second, *_ = story.rounds
    assert {each.posterior_mean for each in first.items} == {None}
    assert all(each.spread is not None and each.posterior_mean is not None for each in second.items)


def test_stories_speak_in_the_scorers_own_terms(world: World) -> None:
    """Where lower is better, means and scores are on one scale all the same."""

    def distance(pairs: list[tuple[str, str]]) -> list[float]:
        rows = [int(query.split()[1]) for query, _ in pairs]
        columns = [int(item.split()[1]) for _, item in pairs]
        return (50 - world.exact_scores[rows, columns]).tolist()  # type: ignore[no-any-return]

    scorer = anncur.load_scorer(distance, higher_is_better=False)
    index = anncur.Index.build(world.items, scorer, world.queries[:16])
    story = index.search(world.queries[20], k=5, budget=60, explain=True).story
    assert story is not None
    for each in story.rounds[-1].items:
        assert each.posterior_mean is not None
        assert each.prior_mean is not None
        assert abs(each.posterior_mean - each.score) < 25
        assert abs(each.prior_mean - each.score) < 25


def test_places_of_a_story_are_those_of_the_map(world: World) -> None:
    index = world.index(16)
    story = index.search(world.queries[20], k=5, budget=60, explain=True).story
    assert story is not None
    places = {each.item.id: (each.x, each.y) for each in index.map_items().items}
    for each in (each for step in story.rounds for each in step.items):
        assert each.place == pytest.approx(places[each.item.id])


def test_axes_of_the_map_show_the_most_variance_that_two_can(world: World) -> None:
    index = world.index(16)
    found = index.map_items()
    places = np.array([(each.x, each.y) for each in found.items])
    assert np.allclose(places.mean(axis=0), 0, atol=1e-6)
    assert abs(np.corrcoef(places.T)[0, 1]) < 1e-6
    first, second = found.shares
    assert 1 >= first >= second > 0
    assert places[:, 0].var() / places[:, 1].var() == pytest.approx(first / second)


def test_a_map_has_no_more_items_than_asked_for(world: World) -> None:
    index = world.index(16)
    assert len(index.map_items(7).items) == 7
    assert len(index.map_items(10_000).items) == len(index)


def test_items_without_vectors_are_all_at_one_place(world: World) -> None:
    index = anncur.Index.build(world.items, world.scorer, retrievers=())
    found = index.map_items()
    assert found.shares == (0.0, 0.0)
    assert {(each.x, each.y) for each in found.items} == {(0.0, 0.0)}


def test_first_guesses_are_what_a_search_scores_first_and_cost_nothing(world: World) -> None:
    index = world.index(16)
    guesses = index.first_guesses(world.queries[20], 5)
    assert not world.scorer.pairs
    story = index.search(world.queries[20], k=5, budget=60, explain=True).story
    assert story is not None
    assert {item.id for item in guesses} == {each.item.id for each in story.rounds[0].items}


def test_first_guesses_are_as_many_as_asked_for_and_pass_the_filter(world: World) -> None:
    index = world.index(16)
    wanted = [item.id for item in world.items[:8]]
    assert len(index.first_guesses(world.queries[20], 50)) == 50
    assert {item.id for item in index.first_guesses(world.queries[20], 50, filter=wanted)} == set(wanted)
    assert index.first_guesses(world.queries[20], 5, filter=["nobody"]) == []


def test_a_label_is_one_short_line() -> None:
    assert label(anncur.Item("a", "two\nlines")) == "two lines"
    assert label(anncur.Item("a", "text", title="title")) == "title"
    long = label(anncur.Item("a", "word " * 100))
    assert len(long) <= LABEL_LENGTH
    assert long.endswith("…")
