"""The split of a budget is chosen on held-out anchor queries."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from anncur import OneShot
from anncur.errors import InputError
from anncur.search.split import CUTOFFS, Split, SplitTable, tune_splits
from worlds import World, low_rank_scores

MakeWorld = Callable[..., World]


def table(ranks: dict[Split, list[list[int]]]) -> SplitTable:
    return SplitTable(list(ranks), np.array(list(ranks.values()), dtype=np.int32))


def test_an_item_is_found_when_its_rank_is_below_the_calls_left_after_the_anchors() -> None:
    split = Split(10, 1e-2)
    splits = table({split: [[-1, 0, 4, 5]]})
    assert splits.expected_recall(split, k=4, budget=15) == 0.75
    assert splits.expected_recall(split, k=4, budget=16) == 1.0
    assert splits.expected_recall(split, k=1, budget=10) == 1.0


def test_the_split_of_highest_recall_is_chosen_for_each_budget() -> None:
    few, many = Split(5, 1e-2), Split(50, 1e-3)
    splits = table({few: [[0, 10, 30, 90]], many: [[0, 0, 0, 0]]})
    assert splits.best(k=4, budget=20) == few
    assert splits.best(k=4, budget=60) == many


def test_a_given_number_of_anchors_takes_the_cutoff_of_the_nearest_one_tried() -> None:
    splits = table({Split(5, 1e-2): [[7]], Split(5, 1e-1): [[1]], Split(50, 1e-3): [[0]]})
    assert splits.best(k=1, budget=10, n_anchor_items=8) == Split(8, 1e-1)
    assert splits.best(k=1, budget=60, n_anchor_items=40) == Split(40, 1e-3)


def test_too_few_anchor_queries_to_hold_any_out_still_give_a_split() -> None:
    splits = tune_splits(low_rank_scores(3, 40, rank=2).T, anchors="random", rng=np.random.default_rng(0))
    assert splits.best(k=5, budget=20).n_anchor_items == 10


def test_expected_recall_is_what_searching_for_held_out_queries_gives() -> None:
    """One held-out fold, searched for real by an index of the others, as the table says."""
    world = World(low_rank_scores(40, 300, rank=12, noise=0.5, seed=4))
    index = world.index(36, retrievers=(), anchors="random")
    found = [index.search(query, k=10, budget=60, method=OneShot(20, CUTOFFS[2])) for query in world.queries[36:]]
    true = [set(world.brute_force(query, 10)) for query in range(36, 40)]
    measured = np.mean([len(set(hits.ids) & ids) / 10 for hits, ids in zip(found, true, strict=True)])
    splits = tune_splits(world.exact_scores.T.copy(), anchors="random", rng=np.random.default_rng(0))
    nearest = splits.best(k=10, budget=60, n_anchor_items=18)
    expected = splits.expected_recall(Split(18, nearest.cutoff), k=10, budget=60)
    assert expected == pytest.approx(measured, abs=0.15)


def test_anchor_scores_of_a_held_out_query_are_not_used_to_guess_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Were they used, noise that nothing predicts would be guessed perfectly."""
    noise = np.random.default_rng(0).normal(size=(400, 40)).astype(np.float32)
    splits = tune_splits(noise, anchors="random", rng=np.random.default_rng(0))
    best = splits.best(k=10, budget=50)
    assert splits.expected_recall(best, k=10, budget=50) < 0.25


@pytest.mark.parametrize("n_anchor_items", [-1, 21])
def test_anchors_beyond_the_budget_are_refused(make_world: MakeWorld, n_anchor_items: int) -> None:
    world = make_world()
    with pytest.raises(InputError, match="between 0 and the budget of 20"):
        world.index(10).search(world.queries[20], budget=20, method=OneShot(n_anchor_items))


def test_more_anchor_queries_than_items_do_no_harm() -> None:
    world = World(low_rank_scores(60, 7, rank=3))
    assert world.index(59).search(world.queries[59], k=3, budget=4).calls == 4
