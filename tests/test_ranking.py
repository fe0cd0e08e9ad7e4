"""The one rule for order, and what an answer looks like."""

from __future__ import annotations

import json
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from anncur.items import Item, Query
from anncur.ranking import Hit, Hits, top_k
from worlds import World

few_values = st.lists(st.sampled_from([-1.0, 0.0, 0.5, 2.0]), max_size=40)


@given(scores=few_values, k=st.integers(0, 50))
def test_top_k_is_a_stable_sort_cut_off(scores: list[float], k: int) -> None:
    expected = sorted(range(len(scores)), key=lambda position: (-scores[position], position))[:k]
    assert top_k(np.array(scores), k).tolist() == expected


def make_hits() -> Hits:
    items = [Item(str(n), f"text {n}", metadata={"n": n}) for n in range(4)]
    hits = tuple(Hit(item.id, 1.0 - n, item) for n, item in enumerate(items))
    return Hits(hits, Query("q"), method="anncur", calls=7, seconds=0.1, is_partial=False)


def test_hits_are_a_sequence_and_a_slice_keeps_what_describes_the_answer() -> None:
    hits = make_hits()
    assert len(hits) == 4
    assert [hit.id for hit in hits] == hits.ids == ["0", "1", "2", "3"]
    assert isinstance(hits[:2], Hits)
    assert hits[:2].ids == ["0", "1"]
    assert hits[:2].calls == 7


def test_hits_turn_into_json() -> None:
    written = json.loads(json.dumps(make_hits().to_dict()))
    assert {"hits", "calls", "seconds", "estimated_recall"} <= written.keys()
    assert written["hits"][1] == {"id": "1", "score": 0.0, "title": "", "text": "text 1", "metadata": {"n": 1}}
    assert written["estimated_recall"] is None


@pytest.mark.parametrize("method", ["posterior", "anncur", "rerank"])
def test_a_hit_knows_the_round_in_which_it_was_scored(make_world: Callable[..., World], method: str) -> None:
    world = make_world(n_items=80)
    index = world.index(12, log_queries=10, explore=0.2)
    hits = index.search(world.queries[20], k=40, budget=40, method=method)
    positions = {item.id: position for position, item in enumerate(index)}
    steps = [step for step in hits.trace if not step.is_exploring]
    for hit in hits:
        scored = [number for number, step in enumerate(steps, 1) if positions[hit.id] in step.positions]
        assert scored == ([hit.round] if hit.round else [])
    assert {hit.round for hit in hits} == set(range(hits.n_rounds + 1))


def test_all_hits_of_an_exhaustive_search_are_of_one_round(make_world: Callable[..., World]) -> None:
    world = make_world()
    assert {hit.round for hit in world.index(8).search(world.queries[20], k=60, method="exhaustive")} == {1}
