"""Searches with a filter: only what passes is scored, paid for and returned."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import anncur
from anncur.errors import InputError
from anncur.search.base import Knowledge, Proposal, QueryBlock, Rounds
from worlds import World, low_rank_scores

N_ITEMS, N_ANCHORS = 120, 12
METHODS = ["posterior", "anncur", "adacur", "axn", "rerank", "exhaustive", anncur.Adacur(sampling="softmax")]
FEW = {"colour": "red", "size": {"<": 20}}  # a tenth
MANY = {"not": {"colour": "red"}}  # most


@pytest.fixture(scope="module")
def world() -> World:
    world = World(low_rank_scores(20, N_ITEMS, rank=3, noise=0.1))
    colours = ["red", "green", "blue", "grey"]
    world.items = [
        replace(item, metadata={"colour": colours[place % 4], "size": place % 50})
        for place, item in enumerate(world.items)
    ]
    return world


@pytest.fixture(scope="module", params=["memory", "folder", "reopened"])
def index(request: pytest.FixtureRequest, world: World, tmp_path_factory: pytest.TempPathFactory) -> anncur.Index:
    path = None if request.param == "memory" else tmp_path_factory.mktemp("filter") / "index"
    index = world.index(N_ANCHORS, path=path, retrievers=("bm25",))
    return anncur.Index.open(path, world.scorer) if request.param == "reopened" and path is not None else index


def passing(world: World, few: bool) -> list[str]:
    red = [item for item in world.items if item.metadata["colour"] == "red"]
    if few:
        return [item.id for item in red if item.metadata["size"] < 20]
    return [item.id for item in world.items if item not in red]


def best_of(world: World, query: int, ids: Sequence[str], k: int) -> list[str]:
    allowed = set(ids)
    return [item_id for item_id in world.brute_force(query, N_ITEMS) if item_id in allowed][:k]


@pytest.mark.parametrize("few", [True, False])
@pytest.mark.parametrize("method", METHODS, ids=str)
def test_a_budget_that_covers_what_passes_gives_its_brute_force_ranking(
    world: World, index: anncur.Index, method: Any, few: bool
) -> None:
    allowed = passing(world, few)
    hits = index.search(world.queries[15], k=5, budget=N_ITEMS, method=method, filter=FEW if few else MANY)
    assert hits.ids == best_of(world, 15, allowed, 5)
    assert hits.calls == len(allowed)
    assert not hits.is_partial


@pytest.mark.parametrize("method", METHODS, ids=str)
def test_nothing_is_paid_for_that_does_not_pass(world: World, index: anncur.Index, method: Any) -> None:
    world.scorer.pairs.clear()
    hits = index.search_many(world.queries[15:18], k=3, budget=10, method=method, filter=MANY)
    allowed = set(passing(world, few=False))
    assert {item_id for _, item_id in world.scorer.pairs} <= allowed
    assert all(set(one.ids) <= allowed and one.calls == 10 for one in hits)


def test_ids_and_a_mask_are_filters_too(world: World, index: anncur.Index) -> None:
    allowed = passing(world, few=True)
    mask = np.array([item.id in allowed for item in index.items])
    by_ids = index.search(world.queries[15], k=5, budget=N_ITEMS, filter=allowed)
    assert by_ids.ids == index.search(world.queries[15], k=5, budget=N_ITEMS, filter=mask).ids
    assert by_ids.ids == best_of(world, 15, allowed, 5)


def test_ids_that_no_item_has_pass_nothing(world: World, index: anncur.Index) -> None:
    hits = index.search(world.queries[15], filter=["i3", "gone", "i3"])
    assert hits.ids == ["i3"]


@pytest.mark.parametrize("nothing", [{"size": {">": 1000}}, [], {"colour": []}])
def test_a_filter_that_nothing_passes_gives_an_empty_answer_without_a_call(
    world: World, index: anncur.Index, nothing: Any
) -> None:
    world.scorer.pairs.clear()
    hits = index.search(world.queries[15], filter=nothing)
    assert len(hits) == hits.calls == 0
    assert not hits.is_partial
    assert not world.scorer.pairs


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"color": "red"}, "colour"),
        ({"size": "large"}, "number"),
        ({"size": {"~": 3}}, "~"),
        ("red", "list of ids"),
        ([3], "strings"),
        (np.ones(7, dtype=bool), "120 items"),
        (7, "conditions"),
    ],
)
def test_what_is_no_filter_is_refused_before_anything_is_paid(
    world: World, index: anncur.Index, wrong: Any, message: str
) -> None:
    world.scorer.pairs.clear()
    with pytest.raises(InputError, match=message):
        index.search(world.queries[15], filter=wrong)
    assert not world.scorer.pairs


def test_filters_know_of_items_that_were_added_and_removed(world: World, tmp_path: Path) -> None:
    index = anncur.Index.build(world.items[:100], world.scorer, world.queries[:4], path=tmp_path / "index")
    index.remove(["i0", "i4"])
    index.add(world.items[100:])
    hits = index.search(world.queries[15], k=N_ITEMS, budget=N_ITEMS, filter={"colour": "red"})
    assert set(hits.ids) == {f"i{place}" for place in range(8, N_ITEMS, 4)}


def test_damaged_columns_are_noticed_and_made_again(world: World, tmp_path: Path) -> None:
    index = anncur.Index.build(world.items, world.scorer, world.queries[:4], path=tmp_path / "index")
    (columns,) = tmp_path.rglob("metadata.npz")
    whole = columns.read_bytes()
    columns.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    assert any("metadata.npz" in problem for problem in index.verify())
    with pytest.raises(anncur.DamagedError):
        anncur.Index.open(tmp_path / "index", world.scorer)
    assert index.verify(repair=True) == []
    assert columns.read_bytes() == whole


def test_an_index_without_columns_is_filtered_by_its_items(world: World, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr("anncur.storage.segments.write_metadata", lambda *_: None)
    index = anncur.Index.build(world.items, world.scorer, world.queries[:4], path=tmp_path / "index")
    assert not list(tmp_path.rglob("metadata.npz"))
    hits = index.search(world.queries[15], k=5, budget=N_ITEMS, filter=FEW)
    assert hits.ids == best_of(world, 15, passing(world, few=True), 5)


def test_random_items_for_the_query_log_pass_too(world: World) -> None:
    index = world.index(4, log_queries=10, explore=0.5)
    index.search(world.queries[15], k=2, budget=20, filter={"colour": "red"})
    assert len(world.scorer.pairs) == 20
    assert all(int(item_id[1:]) % 4 == 0 for _, item_id in world.scorer.pairs)


class Stubborn:
    """A method that takes no notice of filters."""

    name = "stubborn"
    is_exact = False

    def rounds(self, block: QueryBlock, knowledge: Knowledge) -> Rounds:
        yield [Proposal(np.arange(block.budget))] * len(block.queries)
        return None


def test_a_method_that_takes_no_notice_of_filters_is_refused_before_it_costs_anything(
    world: World, index: anncur.Index
) -> None:
    world.scorer.pairs.clear()
    with pytest.raises(InputError, match="stubborn"):
        index.search(world.queries[15], budget=5, method=Stubborn(), filter={"colour": "green"})
    assert not world.scorer.pairs


def test_an_estimate_is_of_the_items_that_pass_also_where_they_are_fewer_than_k() -> None:
    world = World(low_rank_scores(60, 400, rank=6, noise=0.3))
    index = world.index(40, retrievers=())
    mask = np.arange(400) < 60
    found = index.search_many(world.queries[40:], k=100, budget=20, filter=mask, progress=False)
    estimates = [hits.estimated_recall for hits in found if hits.estimated_recall is not None]
    assert len(estimates) == 20
    assert np.mean(estimates) < 0.5  # a third of what passes was scored
