"""The split of a budget is chosen on held-out anchor queries."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from anncur import Anncur, anchors
from anncur.arrays import FloatMatrix
from anncur.errors import InputError
from anncur.item_scores import ChunkedScores
from anncur.search.splits import BudgetSplit, SplitTable
from anncur.tuning.splits import tune_splits
from worlds import World, low_rank_scores

pytestmark = pytest.mark.slow

MakeWorld = Callable[..., World]


def table(ranks: dict[BudgetSplit, list[list[int]]]) -> SplitTable:
    return SplitTable(list(ranks), np.array(list(ranks.values()), dtype=np.int16))


def in_chunks(item_vectors: FloatMatrix) -> ChunkedScores:
    """Scores in chunks of seven items."""
    n_items, n_queries = item_vectors.shape
    return ChunkedScores(np.split(item_vectors, range(7, n_items, 7)), np.arange(n_items), n_queries)


def tune(item_vectors: FloatMatrix) -> SplitTable:
    return tune_splits(in_chunks(item_vectors), anchor_method="random", rng=np.random.default_rng(0))


def test_an_item_is_found_when_its_rank_is_below_the_pairs_left_after_the_anchors() -> None:
    split = BudgetSplit(10, 1e-2)
    splits = table({split: [[-1, 0, 4, 5]]})
    assert splits.expected_recall(split, k=4, budget=15) == 0.75
    assert splits.expected_recall(split, k=4, budget=16) == 1.0
    assert splits.expected_recall(split, k=1, budget=10) == 1.0


def test_the_split_of_highest_recall_is_chosen_for_each_budget() -> None:
    few, many = BudgetSplit(5, 1e-2), BudgetSplit(50, 1e-3)
    splits = table({few: [[0, 10, 30, 90]], many: [[0, 0, 0, 0]]})
    assert splits.best(k=4, budget=20) == few
    assert splits.best(k=4, budget=60) == many


def test_a_given_number_of_anchors_takes_the_cutoff_of_the_nearest_one_tried() -> None:
    splits = table({BudgetSplit(5, 1e-2): [[7]], BudgetSplit(5, 1e-1): [[1]], BudgetSplit(50, 1e-3): [[0]]})
    assert splits.best(k=1, budget=10, n_anchor_items=8) == BudgetSplit(8, 1e-1)
    assert splits.best(k=1, budget=60, n_anchor_items=40) == BudgetSplit(40, 1e-3)


def test_too_few_anchor_queries_to_hold_any_out_still_give_a_split() -> None:
    splits = tune(low_rank_scores(3, 40, rank=2).T)
    assert splits.best(k=5, budget=20).n_anchor_items == 10


def test_expected_recall_is_what_other_queries_then_find() -> None:
    world = World(low_rank_scores(140, 600, rank=15, noise=1.0, seed=4))
    index = world.index(60, retrievers=())
    found = index.search_many(world.queries[60:], k=10, budget=60, method="anncur")
    true = [set(world.brute_force(query, 10)) for query in range(60, 140)]
    measured = np.mean([len(set(hits.ids) & ids) / 10 for hits, ids in zip(found, true, strict=True)])
    assert 0.3 < measured < 0.95, "too easy or too hard a world would prove nothing"
    splits = tune_splits(in_chunks(world.exact_scores[:60].T), anchor_method="pivoted_qr", rng=np.random.default_rng(0))
    assert splits.highest_recall(k=10, budget=60) == pytest.approx(measured, abs=0.08)


def test_a_small_k_is_tuned_by_more_items_than_it_asks_for() -> None:
    lucky, good = BudgetSplit(5, 1e-2), BudgetSplit(5, 1e-3)
    splits = table({lucky: [[0, *[99] * 9]], good: [[50, *[0] * 9]]})
    assert splits.best(k=1, budget=20) == good


def test_what_the_table_does_not_know_is_not_expected() -> None:
    splits = table({BudgetSplit(5, 1e-2): [[0] * 100]})
    assert splits.highest_recall(k=100, budget=50) == 1.0
    assert splits.highest_recall(k=101, budget=50) is None
    assert splits.highest_recall(k=10, budget=2001) is None
    assert SplitTable([], np.empty((0, 0, 0), dtype=np.int16)).highest_recall(k=10, budget=50) is None


@pytest.mark.parametrize("budget", [1, 5, 10])
def test_equal_guesses_are_ranked_by_position_as_in_a_search(budget: int) -> None:
    """All scores equal: whatever is scored belongs to the top 10, and no more than the budget is."""
    splits = tune(np.ones((50, 10), dtype=np.float32))
    assert splits.expected_recall(BudgetSplit(0, 1e-2), k=10, budget=budget) == pytest.approx(budget / 10)


def test_anchor_scores_of_a_held_out_query_are_not_used_to_guess_it() -> None:
    """Were they used, noise that nothing predicts would be guessed perfectly."""
    noise = np.random.default_rng(0).normal(size=(400, 40)).astype(np.float32)
    splits = tune(noise)
    best = splits.best(k=10, budget=50)
    assert splits.expected_recall(best, k=10, budget=50) < 0.25


def test_anchors_beyond_the_budget_are_refused(make_world: MakeWorld) -> None:
    world = make_world()
    with pytest.raises(InputError, match="at most the budget of 20, got 21"):
        world.index(10).search(world.queries[20], budget=20, method=Anncur(21))


def test_anchors_beyond_the_items_are_all_items(make_world: MakeWorld) -> None:
    world = make_world(n_items=20)
    assert world.index(10).search(world.queries[20], budget=200, method=Anncur(100)).calls == 20


def test_a_sample_of_the_items_gives_the_same_recall_as_all_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    vectors = low_rank_scores(60, 4000, rank=25, noise=3.0).T.copy()
    from_all = tune(vectors).highest_recall(k=10, budget=200)
    monkeypatch.setattr(anchors, "MOST_CONSIDERED", 1000)
    from_some = tune(vectors).highest_recall(k=10, budget=200)
    assert from_all is not None
    assert 0.3 < from_all < 0.95, "too easy or too hard a world would prove nothing"
    assert from_some == pytest.approx(from_all, abs=0.08)


@pytest.mark.parametrize("settings", [{"n_anchor_items": -1}, {"n_anchor_items": 2.5}, {"cutoff": 2}, {"cutoff": "x"}])
def test_settings_that_make_no_sense_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=f"{next(iter(settings))} must be"):
        Anncur(**settings)


def test_more_anchor_queries_than_items_do_no_harm() -> None:
    world = World(low_rank_scores(60, 7, rank=3))
    assert world.index(59).search(world.queries[59], k=3, budget=4).calls == 4
