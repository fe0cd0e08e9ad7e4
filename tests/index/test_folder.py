"""An index on disk: what is special to it. Its reliability is tested in `tests/reliability`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import anncur
from anncur.errors import (
    DuplicateIdError,
    FingerprintError,
    InputError,
    LockedError,
    ResumeError,
    ScorerError,
    ScorerOutputError,
    UnknownIdError,
)
from anncur.index.folder import FolderBackend
from anncur.scores import ScoreMatrix, ScoreSpec
from anncur.storage.files import in_use
from worlds import World, low_rank_scores

MakeWorld = Callable[..., World]


def build(path: Path | None, world: World, n_items: int | None = None, **options: Any) -> anncur.Index:
    items = world.items[:n_items]
    return anncur.Index.build(items, world.scorer, world.queries[:10], path=path, items_per_chunk=16, **options)


def test_on_disk_and_in_memory_are_the_same_index(tmp_path: Path, make_world: MakeWorld) -> None:
    world = make_world()
    stored, held = build(tmp_path / "x.anncur", world), build(None, world)
    assert stored.digest() == held.digest()
    assert stored.search_many(world.queries, budget=20) == held.search_many(world.queries, budget=20)


def test_saved_and_opened_it_answers_the_same(tmp_path: Path, make_world: MakeWorld) -> None:
    world = make_world()
    built = build(tmp_path / "x.anncur", world)
    opened = anncur.Index.open(tmp_path / "x.anncur", world.scorer)
    assert opened.digest() == built.digest()
    assert opened.search_many(world.queries, budget=20) == built.search_many(world.queries, budget=20)


def test_adding_and_removing_is_like_building_with_what_remains(tmp_path: Path, make_world: MakeWorld) -> None:
    world = make_world()
    index = build(tmp_path / "x.anncur", world, 40)
    index.add(world.items[40:])
    index.remove(["i3", "i45"])
    left = [item for item in world.items if item.id not in ("i3", "i45")]
    for index_now in (index, anncur.Index.open(tmp_path / "x.anncur", world.scorer)):
        assert list(index_now.items) == left
        assert index_now.items[5] == left[5]
        assert index_now.items.position("i59") == 57
        hits = index_now.search(world.queries[12], k=58, budget=58)
        assert hits.ids == [item_id for item_id in world.brute_force(12, 60) if item_id not in ("i3", "i45")]


def test_adding_scores_only_the_new_items_and_removing_none(tmp_path: Path, make_world: MakeWorld) -> None:
    world = make_world()
    index = build(tmp_path / "x.anncur", world, 40)
    world.scorer.pairs.clear()
    index.add(world.items[40:])
    assert sorted(world.scorer.pairs) == sorted((q, item.id) for q in world.queries[:10] for item in world.items[40:])
    world.scorer.pairs.clear()
    index.remove(["i1"])
    index.tune(anchor_method="random", seed=5)
    assert world.scorer.pairs == []


@pytest.mark.parametrize("is_stored", [True, False])
def test_ids_that_do_not_fit_are_refused_and_nothing_changes(
    tmp_path: Path, make_world: MakeWorld, is_stored: bool
) -> None:
    world = make_world()
    index = build(tmp_path / "x.anncur" if is_stored else None, world, 40)
    before = index.digest()
    with pytest.raises(DuplicateIdError, match="'i3'"):
        index.add([world.items[50], world.items[3]])
    with pytest.raises(UnknownIdError, match="'i50'"):
        index.remove(["i3", "i50"])
    with pytest.raises(InputError, match="at least one item"):
        index.remove([item.id for item in world.items[:40]])
    with pytest.raises(InputError, match="must be a list of ids"):
        index.remove("i3")
    with pytest.raises(InputError, match="at least one item"):
        index.add([])
    assert index.digest() == before
    index.add([world.items[50]])
    assert len(index) == 41


def test_another_scorer_is_refused_at_opening(tmp_path: Path, make_world: MakeWorld) -> None:
    build(tmp_path / "x.anncur", make_world())
    with pytest.raises(FingerprintError, match="was built with the scorer stored, not with"):
        anncur.Index.open(tmp_path / "x.anncur", lambda pairs: [0.0] * len(pairs))


def test_an_index_remembers_the_name_of_its_scorer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_scorers.py").write_text("def far(pairs): return [float(len(i)) for q, i in pairs]")
    monkeypatch.syspath_prepend(tmp_path)
    scorer = anncur.load_scorer("own_scorers:far", higher_is_better=False)
    anncur.Index.build(["a", "bb"], scorer, ["q"], path=tmp_path / "x.anncur", scorer_name="own_scorers:far")
    assert anncur.Index.open(tmp_path / "x.anncur").search("q").ids == ["0", "1"]


def test_without_a_name_the_scorer_must_be_given_to_search(tmp_path: Path, make_world: MakeWorld) -> None:
    world = make_world()
    build(tmp_path / "x.anncur", world)
    index = anncur.Index.open(tmp_path / "x.anncur")
    assert list(index.items) == world.items
    with pytest.raises(InputError, match="a scorer that has no name"):
        index.search(world.queries[0])


def test_building_again_costs_nothing_and_building_something_else_is_refused(
    tmp_path: Path, make_world: MakeWorld
) -> None:
    world = make_world()
    first = build(tmp_path / "x.anncur", world)
    world.scorer.pairs.clear()
    assert build(tmp_path / "x.anncur", world).digest() == first.digest()
    assert world.scorer.pairs == []
    with pytest.raises(InputError, match=r"an index that was built with other items \(60 there, 30 given\); choose"):
        build(tmp_path / "x.anncur", world, 30)
    assert first.gc(unpublished=True) == []


def test_all_that_differs_from_the_index_that_is_there_is_named(tmp_path: Path, make_world: MakeWorld) -> None:
    world = make_world()
    anncur.Index.build(world.items, world.scorer, world.queries[:10], path=tmp_path / "x.anncur")
    with pytest.raises(InputError) as caught:
        anncur.Index.build(
            world.items[:30], world.scorer, world.queries[:4], path=tmp_path / "x.anncur", dtype="float16"
        )
    assert str(caught.value) == (
        f"{tmp_path / 'x.anncur'} holds an index that was built with other anchor queries (10 there, 4 given) and "
        "other items (60 there, 30 given) and another dtype (float32 there, float16 given); choose another path, or "
        "give the same again"
    )


def test_a_failed_build_is_resumed(tmp_path: Path, make_world: MakeWorld) -> None:
    world = make_world()
    with pytest.raises(ScorerError):
        build_capped(tmp_path / "x.anncur", world, max_calls=300)
    assert len(world.scorer.pairs) == 300
    index = build(tmp_path / "x.anncur", world)
    assert len(world.scorer.pairs) == 600 + 8
    assert index.digest() == build(None, world).digest()


def build_capped(path: Path, world: World, max_calls: int) -> anncur.Index:
    scorer = anncur.load_scorer(world.scorer, max_calls=max_calls)
    return anncur.Index.build(world.items, scorer, world.queries[:10], path=path, items_per_chunk=16)


def test_an_unfinished_build_is_not_resumed_with_other_items(tmp_path: Path, make_world: MakeWorld) -> None:
    world = make_world()
    with pytest.raises(ScorerError):
        build_capped(tmp_path / "x.anncur", world, max_calls=300)
    with pytest.raises(ResumeError, match=r"unfinished build .* with other items \(60 there, 30 given\); give"):
        build(tmp_path / "x.anncur", world, 30)


def test_half_precision_is_stored_on_request_and_checked(tmp_path: Path, make_world: MakeWorld) -> None:
    world = make_world()
    half = build(tmp_path / "half.anncur", world, dtype="float16")
    np.testing.assert_allclose(half._current().knowledge.factors.item_vectors, world.exact_scores[:10].T, rtol=1e-3)
    held = build(None, world, dtype="float16")
    assert held.digest() == half.digest()
    with pytest.raises(ScorerOutputError, match="too large for float16"):
        anncur.Index.build(["a"], lambda pairs: [1e5] * len(pairs), ["q"], path=tmp_path / "y", dtype="float16")
    with pytest.raises(InputError, match="one of float32, float16"):
        build(tmp_path / "z", world, dtype="float64")


def test_no_anchor_queries_make_an_index_for_re_ranking(tmp_path: Path, make_world: MakeWorld) -> None:
    world = make_world()
    anncur.Index.build(world.items, world.scorer, [], path=tmp_path / "x.anncur")
    opened = anncur.Index.open(tmp_path / "x.anncur", world.scorer)
    assert opened.search(world.queries[0], k=3, budget=60, method="rerank").ids == world.brute_force(0, 3)


def test_a_retriever_of_ones_own_is_given_again_at_opening(tmp_path: Path, make_world: MakeWorld) -> None:
    class First:
        name = "first"

        def fit(self, items: Any) -> None:
            self.n_items = len(items)

        def scores(self, queries: Any) -> Any:
            return np.tile(-np.arange(self.n_items), (len(queries), 1))

    world = make_world()
    build(tmp_path / "x.anncur", world, retrievers=[First()])
    opened = anncur.Index.open(tmp_path / "x.anncur", world.scorer, retrievers=[First()])
    hits = opened.search(world.queries[0], k=5, budget=5, method="rerank")
    assert set(hits.ids) == {f"i{n}" for n in range(5)}
    with pytest.raises(InputError, match="no retriever 'first'"):
        anncur.Index.open(tmp_path / "x.anncur", world.scorer)


def test_metadata_that_json_can_not_hold_is_refused(tmp_path: Path) -> None:
    item = anncur.Item("a", "text", metadata={"when": {1, 2}})
    with pytest.raises(InputError, match="metadata of item 'a' can't be stored"):
        anncur.Index.build([item], lambda pairs: [0.0] * len(pairs), ["q"], path=tmp_path / "x")


def test_a_matrix_is_kept_at_any_tensorstore_location() -> None:
    scores = low_rank_scores(4, 30, rank=2)
    world = World(scores)
    scorer = anncur.load_scorer(world.scorer)
    queries = [anncur.Query(text) for text in world.queries]
    spec = ScoreSpec.make(scorer, queries, items_digest="", n_items=30, items_per_chunk=7)
    matrix = ScoreMatrix.stored("memory://a-matrix/", spec)
    assert matrix.n_missing == 120
    matrix.fill(scorer, queries, lambda start, stop: world.items[start:stop], shard=(1, 2))
    assert matrix.n_missing == (7 + 7 + 2) * 4
    matrix.fill(scorer, queries, lambda start, stop: world.items[start:stop])
    np.testing.assert_array_equal(matrix.all(), scores.T)
    np.testing.assert_array_equal(matrix.rows(np.array([29, 0, 8])), scores.T[[29, 0, 8]])
    assert len(world.scorer.pairs) == 120


def test_a_lost_manifest_or_damaged_items_are_restored_by_building_again(tmp_path: Path, make_world: MakeWorld) -> None:
    world, path = make_world(), tmp_path / "x.anncur"
    before = build(path, world).digest()
    world.scorer.pairs.clear()
    for damaged in ("manifests/00000001.json", "segments/*/items.sqlite"):
        (file,) = path.glob(damaged)
        file.write_bytes(b"damaged")
        build(path, world)
        assert anncur.Index.open(path, world.scorer).digest() == before
    assert len(world.scorer.pairs) == 8  # the check of stability, when it was published again


def test_a_damaged_spec_of_an_unfinished_build_is_written_again(tmp_path: Path, make_world: MakeWorld) -> None:
    world, path = make_world(), tmp_path / "x.anncur"
    with pytest.raises(ScorerError):
        build_capped(path, world, max_calls=300)
    (spec,) = path.glob("segments/*/plan.json")
    spec.write_bytes(spec.read_bytes().replace(b"anchor", b"axchor"))
    build(path, world)
    assert anncur.Index.open(path, world.scorer).verify() == []


def test_a_failed_add_stands_in_nobodys_way_and_is_resumed(tmp_path: Path, make_world: MakeWorld) -> None:
    world, path = make_world(), tmp_path / "x.anncur"
    build(path, world, 20)
    capped = anncur.Index.open(path, anncur.load_scorer(world.scorer, max_calls=100))
    with pytest.raises(ScorerError):
        capped.add(world.items[20:40])
    index = anncur.Index.open(path, world.scorer)
    index.add(world.items[40:])
    world.scorer.pairs.clear()
    index.add(world.items[20:40])
    assert len(world.scorer.pairs) == 20 * 10 - 100
    assert len(index) == 60


def test_gc_touches_no_folder_that_is_not_ours(tmp_path: Path) -> None:
    (tmp_path / "segments" / "precious").mkdir(parents=True)
    with pytest.raises(InputError, match="no index at"):
        FolderBackend(tmp_path).gc(unpublished=True)
    assert [path.name for path in tmp_path.iterdir()] == ["segments"]


def test_gc_leaves_an_unpublished_segment_that_somebody_is_filling(tmp_path: Path, make_world: MakeWorld) -> None:
    world, path = make_world(), tmp_path / "x.anncur"
    with pytest.raises(ScorerError):
        build_capped(path, world, max_calls=300)
    (segment,) = path.glob("segments/*")
    with in_use(path, segment.name), pytest.raises(LockedError, match="being filled"):
        FolderBackend(path).gc(unpublished=True)
    assert len(FolderBackend(path).gc(unpublished=True)) == 1


def test_scores_in_memory_do_not_go_with_a_path(tmp_path: Path, make_world: MakeWorld) -> None:
    world = make_world()
    with pytest.raises(InputError, match="exact_scores go with an index in memory"):
        build(tmp_path / "x.anncur", world, exact_scores=build(None, world).exact_scores)
