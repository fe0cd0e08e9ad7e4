"""Segments are merged without a pair, without another answer, and without harm to those who read older versions."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import anncur
from anncur.errors import AnncurWarning, DamagedError, InputError, ScorerError, StorageError
from anncur.index import folder, folder_changes
from anncur.index.folder_changes import LEAST_MERGED
from anncur.storage.files import copy_file
from anncur.storage.merging import merge_segments
from programs import PreparingScorer
from worlds import World, low_rank_scores

MakeWorld = Callable[..., World]
N_FIRST, N_ANCHORS = 40, 6


@pytest.fixture
def world() -> World:
    world = World(low_rank_scores(12, 100, rank=4, noise=0.1))
    world.scorer = PreparingScorer(world.scorer)
    world.items = [replace(item, metadata={"place": place % 5}) for place, item in enumerate(world.items)]
    return world


def build(world: World, path: Path | None, **options: Any) -> anncur.Index:
    index = anncur.Index.build(
        world.items[:N_FIRST], world.scorer, world.queries[:N_ANCHORS], path=path, items_per_chunk=8, **options
    )
    world.scorer.pairs.clear()
    return index


def changed(world: World, path: Path | None, **options: Any) -> anncur.Index:
    """An index of several segments, each with items that were removed."""
    index = build(world, path, **options)
    index.add(world.items[40:50])
    index.remove(["i3", "i41"])
    index.upsert([replace(world.items[7], metadata={"place": 9}), *world.items[50:55]])
    index.remove(["i51"])
    world.scorer.pairs.clear()
    return index


def answers(index: anncur.Index, world: World) -> list[Any]:
    found = []
    for method in ("posterior", "anncur", "rerank"):
        found += index.search_many(world.queries[N_ANCHORS:], k=5, budget=15, method=method)
    return [*found, index.search(world.queries[7], k=50, budget=30, filter={"place": [2, 9]})]


def embed(items: Sequence[anncur.Item]) -> Any:
    return [[float(len(item.text)), float(item.id[1:]), 1.0] for item in items]


def by_length(queries: Sequence[anncur.Query]) -> Any:
    return [[1.0, 0.1, float(len(query.text))] for query in queries]


@pytest.mark.parametrize("options", [{"retrievers": ["bm25", "tfidf", "rrf"]}, {"dtype": "float16"}, {"embed": True}])
def test_a_compacted_index_gives_the_same_answers_and_costs_nothing(
    world: World, tmp_path: Path, options: dict[str, Any]
) -> None:
    if options.pop("embed", False):
        options = {"embeddings": embed, "embed_queries": by_length}
    index = changed(world, tmp_path / "x", **options)
    digest, before = index.digest(), answers(index, world)
    world.scorer.pairs.clear()
    index.compact()
    assert world.scorer.pairs == []
    assert (index.info.n_segments, index.info.n_removed, index.info.n_items) == (1, 0, 52)
    functions = {name: options[name] for name in options if "embed" in name}
    opened = anncur.Index.open(tmp_path / "x", world.scorer, **functions)
    for one in (index, opened):
        assert one.digest() == digest
        assert answers(one, world) == before
        assert one.verify() == []
    world.scorer.pairs.clear()
    opened.add(world.items[60:62])
    assert len(world.scorer.pairs) == 2 * N_ANCHORS


def test_a_compacted_index_has_the_files_of_one_segment_and_no_older_ones(world: World, tmp_path: Path) -> None:
    index = changed(world, tmp_path / "x")
    index.compact()
    (segment,) = (tmp_path / "x" / "segments").iterdir()
    assert len(list((tmp_path / "x" / "manifests").glob("*.json"))) == 1
    assert len(list(segment.rglob("*.lengths.npy"))) == 1, "parts are joined"
    version = index.info.version
    index.compact()
    assert index.info.version == version, "there is nothing to merge"


def test_in_memory_there_is_nothing_to_compact(world: World) -> None:
    index = changed(world, None)
    digest = index.digest()
    index.compact()
    assert index.digest() == digest


def test_small_segments_are_merged_by_themselves_and_the_large_one_is_left_alone(world: World, tmp_path: Path) -> None:
    index, held = build(world, tmp_path / "x"), build(world, None)
    (first,) = (path.name for path in (tmp_path / "x" / "segments").iterdir())
    n_segments = []
    for item in world.items[40:56]:
        index.add([item])
        held.add([item])
        n_segments.append(index.info.n_segments)
        assert index.digest() == held.digest()
    assert max(n_segments) == LEAST_MERGED
    assert min(n_segments[LEAST_MERGED:]) == 2
    assert (tmp_path / "x" / "segments" / first).is_dir()
    assert index.verify() == []


@pytest.mark.slow
def test_segments_stay_few_however_many_are_added(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    merged = []

    def counted(version: Any, segments: Sequence[Any], *args: Any, **options: Any) -> Any:
        merged.append(sum(version.spec(segment).n_items for segment in segments))
        return merge_segments(version, segments, *args, **options)

    monkeypatch.setattr(folder_changes, "merge_segments", counted)
    index = build(world, tmp_path / "x")
    for item in world.items[40:]:
        index.add([item])
    assert index.info.n_segments < 2 * LEAST_MERGED
    assert sum(merged) < 6 * 100, "an item is copied a few times"
    assert list(index.items) == world.items


def test_a_segment_that_is_mostly_hidden_is_merged_with_small_ones(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folder_changes, "LEAST_MERGED", 3)
    index = build(world, tmp_path / "x")
    index.add([world.items[40]])
    index.remove([f"i{number}" for number in range(25)])
    assert index.info.n_removed == 25
    index.add([world.items[41]])
    assert (index.info.n_segments, index.info.n_removed) == (1, 0)
    assert list(index.items) == world.items[25:42]


def test_older_versions_do_not_pile_up_where_one_item_changes_again_and_again(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folder, "MOST_VERSIONS", 5)
    index = build(world, tmp_path / "x")
    for number in range(12):
        index.upsert([replace(world.items[3], metadata={"place": 100 + number})])
    assert index.info.version == 13
    assert len(list((tmp_path / "x" / "manifests").glob("*.json"))) <= 6
    assert len(list((tmp_path / "x" / "segments").iterdir())) <= 7
    assert world.scorer.pairs == []


def test_who_has_an_older_version_goes_on_answering_when_its_files_are_deleted(world: World, tmp_path: Path) -> None:
    index = changed(world, tmp_path / "x")
    before = answers(index, world)
    reader = anncur.Index.open(tmp_path / "x", world.scorer)  # fits no retriever, reads no item and no filter yet
    index.compact()
    index.remove(["i5"])
    index.compact()
    assert answers(reader, world) == before
    reader.refresh()
    assert "i5" not in reader


def test_who_has_an_older_version_without_columns_can_still_filter(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr("anncur.storage.segments.write_metadata", lambda *_: None)
        index = changed(world, tmp_path / "x")
    before = answers(index, world)
    reader = anncur.Index.open(tmp_path / "x", world.scorer)
    index.compact()
    assert answers(reader, world) == before
    assert list(tmp_path.rglob("metadata.npz"))


def test_a_merge_that_fails_does_not_take_the_change_with_it(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = build(world, tmp_path / "x")
    for item in world.items[40:47]:
        index.add([item])

    def full(*_: object, **__: object) -> None:
        raise StorageError("no space left")

    with monkeypatch.context() as patched:
        patched.setattr(folder_changes, "merge_segments", full)
        with pytest.warns(AnncurWarning, match="is changed, but its small segments couldn't be merged: no space left"):
            index.add([world.items[47]])
    assert len(index) == 48
    assert index.info.n_segments == 9
    index.compact()
    assert list(index.items) == world.items[:48]


def test_an_unfinished_merge_is_deleted_by_gc_and_never_taken_for_a_build(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index, path = changed(world, tmp_path / "x"), tmp_path / "x"
    digest = index.digest()

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(folder, "publish", interrupted)
        with pytest.raises(KeyboardInterrupt):
            index.compact()
    (left,) = (path / "segments").glob("merged-*")
    assert index.digest() == digest
    assert build(world, path).digest() == digest
    assert f"segments/{left.name}" in index.gc()
    index.compact()
    assert index.digest() == digest


def test_an_add_that_was_paid_for_in_part_outlives_merges(world: World, tmp_path: Path) -> None:
    path = tmp_path / "x"
    build(world, path)
    capped = anncur.Index.open(path, anncur.load_scorer(world.scorer, max_calls=30))
    with pytest.raises(ScorerError):
        capped.add(world.items[60:80])
    index = anncur.Index.open(path, world.scorer)
    for item in world.items[40:50]:
        index.add([item])
    index.compact()
    world.scorer.pairs.clear()
    index.add(world.items[60:80])
    assert len(world.scorer.pairs) == 20 * N_ANCHORS - 30


def test_building_again_at_the_same_place_is_still_nothing_to_do(world: World, tmp_path: Path) -> None:
    index = changed(world, tmp_path / "x")
    index.compact()
    index.add(world.items[60:62])
    index.compact()
    world.scorer.pairs.clear()
    assert build(world, tmp_path / "x").digest() == index.digest()
    assert world.scorer.pairs == []
    with pytest.raises(InputError, match="an index that was built with other items"):
        anncur.Index.build(world.items[:9], world.scorer, world.queries[:N_ANCHORS], path=tmp_path / "x")


def test_building_again_where_a_compacted_index_was_copied_to_is_nothing_to_do_either(
    world: World, tmp_path: Path
) -> None:
    index = changed(world, tmp_path / "x")
    index.compact()
    index.save(tmp_path / "copy")
    world.scorer.pairs.clear()
    assert build(world, tmp_path / "copy").digest() == index.digest()
    assert world.scorer.pairs == []


@pytest.mark.parametrize("n_compactions", [1, 2])
def test_a_copy_is_of_the_newest_version_where_files_are_deleted_meanwhile(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, n_compactions: int
) -> None:
    index = changed(world, tmp_path / "x")
    other, n_copied = anncur.Index.open(tmp_path / "x", world.scorer), 0

    def copy(source: Path, path: Path) -> None:
        nonlocal n_copied
        n_copied += 1
        if n_copied in {5 * (place + 1) for place in range(n_compactions)}:
            other.add(world.items[60 + n_copied :][:1])
            other.compact()
        copy_file(source, path)

    monkeypatch.setattr(folder, "copy_file", copy)
    index.save(tmp_path / "copy")
    copied = anncur.Index.open(tmp_path / "copy", world.scorer)
    assert copied.digest() == other.digest()
    files = {path for path in (tmp_path / "copy" / "segments").rglob("*") if path.is_file()}
    copied.gc(unpublished=True)
    assert copied.verify() == []
    assert all(file.exists() for file in files)


def test_a_copy_of_an_index_that_never_rests_is_given_up(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = changed(world, tmp_path / "x")
    numbers = itertools.count()
    monkeypatch.setattr(folder, "TRIES", 3)
    monkeypatch.setattr(folder, "versions", lambda where: [next(numbers)] * (where == tmp_path / "x"))

    def fail(source: Path, path: Path) -> None:
        raise DamagedError(f"{source} can't be read")

    monkeypatch.setattr(folder, "copy_file", fail)
    with pytest.raises(StorageError, match="changed 3 times while it was being read"):
        index.save(tmp_path / "copy")


def test_a_compacted_index_is_repaired_and_copied_like_any_other(world: World, tmp_path: Path) -> None:
    index = changed(world, tmp_path / "x")
    index.compact()
    digest = index.digest()
    for pattern in ("scores/c/0/0", "prepared.sqlite", "metadata.npz", "retrievers/words/*.items.npy"):
        (file,) = tmp_path.glob(f"x/segments/*/{pattern}")
        file.write_bytes(b"damaged")
    assert len(index.verify()) == 4
    assert index.verify(repair=True) == []
    assert anncur.Index.open(tmp_path / "x", world.scorer).digest() == digest
    index.save(tmp_path / "copy")
    assert anncur.Index.open(tmp_path / "copy", world.scorer).digest() == digest


def nearest(query: anncur.Query, items: Sequence[anncur.Item]) -> list[float]:
    return [float(len(item.text)) for item in items]


def test_a_retriever_of_ones_own_that_is_not_here_stands_in_no_merges_way(world: World, tmp_path: Path) -> None:
    index = changed(world, tmp_path / "x", retrievers=["bm25", nearest])
    digest = index.digest()
    anncur.Index.open(tmp_path / "x", check=False).compact()
    index.refresh()
    assert index.info.n_segments == 1
    assert index.digest() == digest


def test_what_items_were_prepared_as_is_copied(world: World, tmp_path: Path) -> None:
    index = changed(world, tmp_path / "x")
    index.compact()
    prepared = index._current().items_for(index.info.scorer)
    assert [item.prepared for item in prepared] == [item.full_text.encode() for item in index.items]


def test_metadata_keeps_its_types(world: World, tmp_path: Path) -> None:
    items = [anncur.Item(f"i{place}", "text", metadata={"x": value}) for place, value in enumerate([1, 2.5, "a", True])]
    index = anncur.Index.build(items[:1], lambda pairs: [0.0] * len(pairs), path=tmp_path / "x")
    for item in items[1:]:
        index.add([item])
    index.compact()
    assert [json.dumps(item.metadata) for item in index.items] == [json.dumps(item.metadata) for item in items]
    assert np.sort(index.search("q", filter={"x": [1, "a"]}).ids).tolist() == ["i0", "i2"]
