"""Queries unlike the anchor queries are known by how surprising or how low their scores are."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

import anncur
from anncur.factors.items import ItemModel
from anncur.search.drift import LEAST_QUERIES, MOST_QUERIES, DriftReference, DriftSummary, DriftWatch
from anncur.search.posterior_search import PosteriorSearch
from anncur.search.prior import QueryPrior
from worlds import World

N_ANCHORS, N_LIKE, N_UNLIKE, N_ITEMS = 40, 100, 60, 200
RANK = 6


def make_world(seed: int = 0) -> World:
    """Anchor queries and queries like them share principal components; the last ones have others, as strong."""
    rng = np.random.default_rng(seed)
    n_like = N_ANCHORS + N_LIKE
    like = rng.normal(size=(n_like, RANK)) @ rng.normal(size=(RANK, N_ITEMS))
    unlike = rng.normal(size=(N_UNLIKE, RANK)) @ rng.normal(size=(RANK, N_ITEMS))
    scores = np.concatenate([like, unlike])
    return World((scores + 0.5 * rng.normal(size=scores.shape)).astype(np.float32))


@pytest.fixture(scope="module")
def world() -> World:
    return make_world()


@pytest.fixture(scope="module")
def index(world: World) -> anncur.Index:
    return world.index(N_ANCHORS, retrievers=())


def poor_world() -> World:
    """The last queries are like the others, but no item fits them well: scores have a third of the spread."""
    scores = make_world().exact_scores.copy()
    scores[-N_UNLIKE:] = 0.3 * scores[-2 * N_UNLIKE : -N_UNLIKE]
    return World(scores)


def reference_of(surprises: Sequence[float], best_scores: Sequence[float] = ()) -> DriftReference:
    """Queries with these, after ten pairs."""
    return DriftReference((10,), (tuple(surprises),), (tuple(best_scores),) if best_scores else ())


def like(world: World) -> list[str]:
    return world.queries[N_ANCHORS : N_ANCHORS + N_LIKE]


def unlike(world: World) -> list[str]:
    return world.queries[-N_UNLIKE:]


def drifts(index: anncur.Index, queries: list[str], budget: int = 60) -> list[float]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", anncur.DriftWarning)
        found = [hits.drift for hits in index.search_many(queries, k=5, budget=budget)]
    assert None not in found
    return [drift for drift in found if drift is not None]


@pytest.mark.slow
def test_queries_like_the_anchor_queries_are_flagged_at_about_the_set_rate() -> None:
    shares = []
    for seed in range(4):
        other = make_world(seed)
        shares.append(np.mean(np.array(drifts(other.index(N_ANCHORS, retrievers=()), like(other))) >= 0.95))
    assert np.mean(shares) <= 0.1


def test_queries_of_another_distribution_are_flagged_much_more_often(index: anncur.Index, world: World) -> None:
    flagged = np.array(drifts(index, unlike(world))) >= 0.95
    assert flagged.mean() > 0.8


@pytest.mark.parametrize("budget", [10, 35, 60, 150])
def test_the_drift_of_like_queries_is_spread_evenly_at_any_budget(
    index: anncur.Index, world: World, budget: int
) -> None:
    found = np.array(drifts(index, like(world), budget))
    assert 0.35 < found.mean() < 0.62
    assert found.min() >= 0
    assert found.max() < 1


def test_queries_that_no_item_fits_are_flagged_although_they_are_no_surprise() -> None:
    world = poor_world()
    index = world.index(N_ANCHORS, retrievers=())
    assert min(drifts(index, unlike(world))) >= 0.95


def test_low_scores_do_not_count_where_a_filter_keeps_the_best_items_out() -> None:
    world = poor_world()
    half = [item.id for item in world.items[::2]]
    found = world.index(N_ANCHORS, retrievers=()).search_many(unlike(world), k=5, budget=60, filter=half)
    assert not any(hits.is_unlike_anchors for hits in found)


def test_low_scores_do_not_count_where_all_pairs_were_chosen_before_any_was_scored(world: World) -> None:
    index = world.index(N_ANCHORS, retrievers=())
    found = index.search_many(like(world), k=5, budget=60, max_rounds=1)  # warnings are errors here
    assert np.mean([hits.is_unlike_anchors for hits in found]) <= 0.06


@pytest.mark.parametrize("top", [0.6, 0.8])  # stored as float32, both are a little larger
def test_queries_whose_best_scores_are_all_equal_are_not_lower_than_each_other(world: World, top: float) -> None:
    def score(pairs: Sequence[tuple[str, str]]) -> list[float]:
        places = [(int(query.split()[1]), int(item.split()[1])) for query, item in pairs]
        return [top if world.exact_scores[place] > 1.0 else 0.2 for place in places]

    index = anncur.Index.build(world.items, score, world.queries[:N_ANCHORS], retrievers=())
    assert np.mean(np.array(drifts(index, like(world))) >= 0.95) <= 0.1


def test_the_best_scores_are_the_mean_of_the_ten_highest_of_the_first_pairs() -> None:
    offsets, vectors = np.zeros(50, dtype=np.float32), np.zeros((50, 2), dtype=np.float32)
    search = PosteriorSearch(ItemModel.of(offsets, vectors, noise=1.0), QueryPrior(offsets), 1)
    search.observe(np.arange(30)[None], np.arange(30.0)[None])
    assert [search.best_scores(n_first)[0] for n_first in (5, 20, 30)] == [2.0, 14.5, 24.5]


def test_a_hit_is_unlike_the_anchor_queries_from_a_drift_of_95_percent(index: anncur.Index, world: World) -> None:
    with pytest.warns(anncur.DriftWarning):
        found = world.index(N_ANCHORS, retrievers=()).search_many(unlike(world), k=5, budget=60)
    assert [hits.is_unlike_anchors for hits in found] == [(hits.drift or 0) >= 0.95 for hits in found]
    written = found[0].to_dict()
    assert (written["drift"], written["is_unlike_anchors"]) == (found[0].drift, found[0].is_unlike_anchors)


def test_too_few_pairs_tell_nothing(index: anncur.Index, world: World) -> None:
    hits = index.search(world.queries[-1], k=5, budget=9)
    assert (hits.drift, hits.is_unlike_anchors) == (None, False)


def test_an_index_without_anchor_queries_knows_no_drift(world: World) -> None:
    index = world.index(0, retrievers=())
    assert {hits.drift for hits in index.search_many(unlike(world), k=5, budget=60)} == {None}
    assert index.info.drift is None


def test_other_methods_and_other_settings_know_no_drift(index: anncur.Index, world: World) -> None:
    for method in ("anncur", "adacur", "exhaustive", anncur.Posterior(noise_share=0.9)):
        assert index.search(world.queries[-1], k=5, budget=60, method=method).drift is None


def test_a_search_that_stops_at_a_target_knows_its_drift(index: anncur.Index, world: World) -> None:
    found = index.search_many(like(world)[:10], k=5, target_recall=0.9)
    assert all(hits.drift is not None for hits in found)


def test_the_order_of_items_makes_no_difference(world: World) -> None:
    order = np.random.default_rng(1).permutation(N_ITEMS)
    other = World(world.exact_scores[:, order])
    same = [
        drifts(each.index(N_ANCHORS, retrievers=()), [*like(world)[:10], *unlike(world)[:10]])
        for each in (world, other)
    ]
    assert np.abs(np.array(same[0]) - np.array(same[1])).max() < 2.5 / (N_ANCHORS + 1), "but for rounding"


def test_a_query_has_the_same_drift_alone_and_among_others(index: anncur.Index, world: World) -> None:
    together = drifts(index, like(world)[:8])
    assert [index.search(query, k=5, budget=60).drift for query in like(world)[:8]] == pytest.approx(together)


def test_saved_and_opened_it_is_the_same(index: anncur.Index, world: World, tmp_path: Path) -> None:
    index.save(tmp_path / "copy")
    opened = anncur.Index.open(tmp_path / "copy", world.scorer)
    queries = [*like(world)[:10], *unlike(world)[:10]]
    assert drifts(opened, queries) == drifts(index, queries)


def test_an_index_that_was_calibrated_compares_with_those_queries(world: World) -> None:
    index = world.index(N_ANCHORS, retrievers=())
    assert np.mean(drifts(index, unlike(world)[30:])) > 0.8
    index.calibrate(unlike(world)[:30])
    assert 0.3 < np.mean(drifts(index, unlike(world)[30:])) < 0.7


def test_after_learning_nothing_is_compared_until_it_is_calibrated(world: World) -> None:
    index = world.index(N_ANCHORS, retrievers=(), log_queries=100)
    drifts(index, unlike(world)[:30])
    before = index.info.drift
    assert before is not None
    assert before.is_drifting
    index.learn()
    assert index.search(unlike(world)[40], k=5, budget=60).drift is None
    assert index.info.drift is None
    index.calibrate(unlike(world)[30:40])
    assert index.search(unlike(world)[41], k=5, budget=60).drift is not None


def test_an_index_warns_once_when_its_latest_queries_are_unlike_the_anchor_queries(world: World) -> None:
    index = world.index(N_ANCHORS, retrievers=())
    for query in unlike(world)[: LEAST_QUERIES - 1]:
        index.search(query, k=5, budget=60)  # warnings are errors here
    with pytest.warns(anncur.DriftWarning, match="unlike the anchor queries.*anncur learn"):
        index.search(unlike(world)[LEAST_QUERIES], k=5, budget=60)
    index.search_many(unlike(world)[LEAST_QUERIES + 1 :], k=5, budget=60)


def test_one_query_that_comes_again_and_again_is_no_reason_to_warn(world: World) -> None:
    index = world.index(N_ANCHORS, retrievers=())
    for _ in range(LEAST_QUERIES + 1):
        index.search(unlike(world)[0], k=5, budget=60)
    found = index.info.drift
    assert found is not None
    assert (found.n_queries, found.is_drifting) == (1, False)


def test_queries_like_the_anchor_queries_are_no_reason_to_warn(index: anncur.Index, world: World) -> None:
    fresh = world.index(N_ANCHORS, retrievers=())
    fresh.search_many(like(world), k=5, budget=60)  # warnings are errors here
    found = fresh.info.drift
    assert found is not None
    assert (found.n_queries, found.is_drifting, found.advice) == (N_LIKE, False, "")


@pytest.mark.parametrize("is_on_disk", [False, True])
def test_info_has_the_drift_of_the_query_log(world: World, tmp_path: Path, is_on_disk: bool) -> None:
    path = tmp_path / "index" if is_on_disk else None
    index = world.index(N_ANCHORS, retrievers=(), path=path, log_queries=1000)
    drifts(index, unlike(world))
    read = anncur.Index.open(path, world.scorer) if path else index
    found = read.info.drift
    assert found is not None
    assert (found.n_queries, found.is_drifting) == (N_UNLIKE, True)
    assert "anncur learn" in found.text
    assert read.info.to_dict()["drift"]["share_unlike"] == found.share_unlike


def test_drifts_of_another_reference_do_not_count(world: World) -> None:
    index = world.index(N_ANCHORS, retrievers=(), log_queries=1000)
    drifts(index, unlike(world)[:30])
    index.calibrate(unlike(world)[30:])
    assert index.info.drift is None


def test_a_rank_counts_the_query_itself() -> None:
    reference = reference_of([3.0, 1.0, 2.0, 4.0])
    assert reference.drifts(np.array([0.5, 1.0, 2.5, 9.0]), n_compared=10).tolist() == [0.0, 0.0, 0.4, 0.8]


def test_the_higher_rank_counts_and_low_scores_are_the_unusual_ones() -> None:
    reference = reference_of([1.0, 2.0, 3.0, 4.0], [40.0, 30.0, 20.0, 10.0])
    surprises, best_scores = np.array([0.5, 9.0, 0.5, 2.5, 9.0]), np.array([50.0, 50.0, 5.0, 25.0, 5.0])
    both = reference.drifts(surprises, best_scores, n_compared=10)
    assert both.tolist() == [0.0, 0.6, 0.6, 0.4, 0.8], "the last of the others is unusual in both"
    assert reference.drifts(surprises, n_compared=10).tolist() == [0.0, 0.8, 0.0, 0.4, 0.8]


def test_among_queries_of_equal_rank_the_other_rank_decides() -> None:
    reference = reference_of([1.0, 2.0, 3.0], [30.0, 20.0, 10.0])
    surprises, best_scores = np.array([9.0, 9.0]), np.array([40.0, 5.0])  # the last of the others has one rank less
    assert reference.drifts(surprises, best_scores, n_compared=10).tolist() == [0.5, 0.75]


def test_scores_that_differ_by_their_rounding_alone_are_equal() -> None:
    reference = reference_of([1.0, 2.0, 3.0, 4.0], [float(np.float32(0.8))] * 4)
    assert reference.drifts(np.array([0.5]), np.array([0.8]), n_compared=10).tolist() == [0.0]


def test_two_ranks_flag_no_more_queries_of_the_same_kind_than_one() -> None:
    rng, shares = np.random.default_rng(0), []
    for _ in range(200):
        surprises, best_scores = rng.normal(size=(2, 39 + 50))
        reference = reference_of(surprises[:39], best_scores[:39].tolist())
        shares.append((reference.drifts(surprises[39:], best_scores[39:], n_compared=10) >= 0.95).mean())
    assert 0.03 < np.mean(shares) <= 0.055


def test_the_first_pairs_are_compared_that_there_are_enough_of() -> None:
    reference = DriftReference.of(np.ones((3, 5)), np.ones((3, 5)))
    assert [reference.n_compared(n_scored) for n_scored in (9, 10, 49, 50, 5000)] == [0, 10, 20, 50, 50]


def test_few_queries_are_never_called_drifting() -> None:
    assert not DriftSummary.of([0.99] * (LEAST_QUERIES - 1), n_reference=96).is_drifting
    assert DriftSummary.of([0.99] * LEAST_QUERIES, n_reference=96).is_drifting


def test_a_watch_remembers_the_latest_queries_only() -> None:
    watch, reference = DriftWatch(), reference_of(np.arange(50.0).tolist())
    watch.observe({f"old {number}": 0.9 for number in range(MOST_QUERIES)}, reference)
    watch.observe({f"new {number}": 0.1 for number in range(MOST_QUERIES)}, reference)
    found = watch.summary(reference)
    assert found is not None
    assert found.n_queries == MOST_QUERIES
    assert found.mean_drift == pytest.approx(0.1)


def test_a_watch_warns_once_although_many_threads_search() -> None:
    watch, reference = DriftWatch(), reference_of(np.arange(50.0).tolist())

    def search(thread: int) -> None:
        for number in range(50):
            watch.observe({f"{thread} {number}": 0.98}, reference)

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        threads = [threading.Thread(target=search, args=(thread,)) for thread in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert [warning.category for warning in caught] == [anncur.DriftWarning]
