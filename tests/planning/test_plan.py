"""A pilot shows what a build will cost and bring."""

from __future__ import annotations

import time

import numpy as np
import pytest

from anncur.errors import InputError
from anncur.planning.plan import BuildPlan, plan
from worlds import World, low_rank_scores


def plan_for(world: World) -> BuildPlan:
    return plan(iter(world.items), world.scorer, world.queries)


def test_a_plan_counts_pairs_and_scales_time_and_disk_with_them() -> None:
    made = plan_for(World(low_rank_scores(20, 300, rank=3)))
    assert made.n_pairs == 20 * 300
    assert made.seconds == pytest.approx(made.n_pairs * made.seconds_per_pair)
    assert made.disk_bytes > 4 * made.n_pairs


def test_a_pilot_scores_as_many_pairs_as_it_reports() -> None:
    world = World(low_rank_scores(20, 300, rank=3))
    made = plan_for(world)
    assert len(world.scorer.pairs) == made.pilot_calls


def test_a_slow_scorer_gets_a_small_pilot_and_its_pace_is_measured() -> None:
    n_pairs = 0

    def slow(pairs: list[tuple[str, str]]) -> list[float]:
        nonlocal n_pairs
        n_pairs += len(pairs)
        time.sleep(0.001 * len(pairs))
        return [float(len(item)) for _, item in pairs]

    queries = [f"query {number}" for number in range(40)]
    made = plan((f"item {number}" for number in range(2000)), slow, queries, seconds=0.5)
    assert made.n_items == 2000
    assert n_pairs == made.pilot_calls < 2000
    assert made.seconds_per_pair >= 0.001


def test_where_scores_are_of_low_rank_adaptive_search_is_ahead_and_is_advised() -> None:
    made = plan_for(World(low_rank_scores(40, 800, rank=4)))
    recalls = {(recall.method, recall.share): recall.recall for recall in made.recalls}
    assert recalls["posterior", 0.1] > recalls["rerank", 0.1] + 0.3
    assert recalls["posterior", 0.1] >= recalls["anncur", 0.1]
    assert any("posterior finds" in line for line in made.advice)
    assert any("half the anchor queries did as well" in line for line in made.advice)


def test_where_words_decide_plain_re_ranking_is_advised() -> None:
    rng = np.random.default_rng(0)

    def some_words(count: int) -> str:
        return " ".join(f"w{number}" for number in rng.integers(0, 400, count))

    def overlap(pairs: list[tuple[str, str]]) -> list[float]:
        return [len(set(query.split()) & set(item.split())) + len(item) / 1000 for query, item in pairs]

    queries = [some_words(5) for _ in range(40)]
    made = plan([some_words(8) for _ in range(1500)], overlap, queries)
    assert any("plain re-ranking serves you better" in line for line in made.advice)


def test_few_items_need_no_index() -> None:
    assert any("scoring them all" in line for line in plan_for(World(low_rank_scores(20, 100, rank=3))).advice)


def test_too_few_queries_or_no_items_are_refused() -> None:
    with pytest.raises(InputError, match="at least 12 queries"):
        plan_for(World(low_rank_scores(5, 100, rank=3)))
    with pytest.raises(InputError, match="at least one item"):
        plan([], lambda _: [], ["q"] * 20)
