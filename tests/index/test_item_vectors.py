"""Vectors of items are made when a version is published: whoever opens it maps them and computes nothing."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import anncur
from anncur.arrays import FloatMatrix, Positions
from anncur.index import folder_vectors
from anncur.search.projection import Projected, projected_model
from anncur.storage import files
from worlds import HashedVectors, World, low_rank_scores

N_ITEMS, N_ANCHORS = 300, 6


@pytest.fixture(autouse=True)
def mapped(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small files are mapped too."""
    monkeypatch.setattr(files, "LEAST_MAPPED", 1)


@pytest.fixture
def world() -> World:
    return World(low_rank_scores(40, N_ITEMS, rank=6, noise=0.2))


def built(world: World, folder: Path, n_items: int = 250, **options: Any) -> anncur.Index:
    options = {"retrievers": ("bm25",), **options}
    return anncur.Index.build(world.items[:n_items], world.scorer, world.queries[:N_ANCHORS], path=folder, **options)


def projected(index: anncur.Index) -> Projected:
    found = index._current().knowledge.posterior.projected
    assert found is not None
    return found


def keys_by_id(index: anncur.Index) -> dict[str, int]:
    ids = [item.id for item in index.items]
    return dict(zip(ids, projected(index).identity.keys.tolist(), strict=True))


@pytest.fixture
def projects(monkeypatch: pytest.MonkeyPatch) -> list[Positions]:
    """The positions that are projected, each time."""
    found: list[Positions] = []
    original = vars(folder_vectors)["project"]

    def counted(projection: Any, source: Any, start: int, stop: int) -> Any:
        found.append(np.arange(start, stop))
        return original(projection, source, start, stop)

    monkeypatch.setattr(folder_vectors, "project", counted)
    return found


def forbid_projecting(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("anncur.search.model.fit_projection", "anncur.search.model.projected_model"):
        monkeypatch.setattr(name, None)


@pytest.mark.parametrize("n_anchors", [0, 3, N_ANCHORS])
def test_who_opens_an_index_projects_nothing_and_answers_as_in_memory(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, n_anchors: int
) -> None:
    in_memory = world.index(n_anchors, retrievers=("bm25",))
    in_memory.save(tmp_path / "index")
    expected = [in_memory.search(query, 10, 60).ids for query in world.queries[30:]]
    forbid_projecting(monkeypatch)
    opened = anncur.Index.open(tmp_path / "index", world.scorer)
    assert [opened.search(query, 10, 60).ids for query in world.queries[30:]] == expected


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="/proc/self/maps is missing: not Linux")
def test_vectors_and_scores_are_pages_of_files_that_processes_share(world: World, tmp_path: Path) -> None:
    built(world, tmp_path / "index")
    opened = anncur.Index.open(tmp_path / "index", world.scorer)
    opened.search(world.queries[30], 5, 20)
    maps = Path("/proc/self/maps").read_text()
    vectors = next((tmp_path / "index").glob("vectors/*/*.vectors.npy"))
    chunk = next((tmp_path / "index").glob("segments/*/scores/c/0/0"))
    assert str(vectors) in maps
    assert str(chunk) in maps
    assert not projected(opened).vectors.parts[0].array.flags.owndata


def test_only_new_items_are_projected(world: World, tmp_path: Path, projects: list[Positions]) -> None:
    index = built(world, tmp_path / "index")
    assert [positions.tolist() for positions in projects] == [list(range(250))]
    projects.clear()
    index.add(world.items[250:260])
    index.remove(["i3"])
    index.upsert([anncur.Item("i7", world.items[7].text, metadata={"colour": "red"})])
    assert [len(positions) for positions in projects] == [10, 1]
    assert len(index.search(world.queries[30], 10, 50)) == 10


def test_a_new_item_is_projected_as_if_it_had_been_there_before(world: World, tmp_path: Path) -> None:
    grown, whole = built(world, tmp_path / "grown"), built(world, tmp_path / "whole", 260)
    grown.add(world.items[250:260])
    ours, theirs = (projected(index).offsets[250:] for index in (grown, whole))
    assert np.corrcoef(ours, theirs)[0, 1] > 0.99


def test_keys_stay_with_their_items_and_are_never_given_twice(world: World, tmp_path: Path) -> None:
    index = built(world, tmp_path / "index", 200)
    given: dict[int, str] = {}
    known: dict[str, int] = {}
    rng, spare = np.random.default_rng(0), list(world.items[200:])
    for step in range(20):
        if spare and step % 2:
            index.add([spare.pop(), spare.pop()])
        else:
            gone = rng.choice([item.id for item in index.items], 3, replace=False).tolist()
            index.remove(gone)
            known = {item_id: key for item_id, key in known.items() if item_id not in gone}
        if step == 12:
            index.compact()
        now = keys_by_id(index)
        assert sorted(now.values()) == list(now.values())
        assert all(now[item_id] == key for item_id, key in known.items())
        assert all(given.setdefault(key, item_id) == item_id for item_id, key in now.items())
        known = now


def test_merging_copies_vectors_and_asks_no_retriever(world: World, tmp_path: Path, projects: list[Positions]) -> None:
    index = built(world, tmp_path / "index")
    index.add(world.items[250:255])
    index.remove(["i0", "i251"])
    before = projected(index)
    rows = before.vectors.take(np.arange(len(before.vectors)))
    projects.clear()
    index.compact()
    after = projected(index)
    assert not projects
    np.testing.assert_array_equal(after.vectors.take(np.arange(len(after.vectors))), rows)
    np.testing.assert_array_equal(after.offsets, before.offsets)
    np.testing.assert_array_equal(after.identity.keys, before.identity.keys)
    assert len(list((tmp_path / "index").glob("vectors/*/*.vectors.npy"))) == 1


def test_all_items_are_projected_again_when_their_number_has_doubled(
    world: World, tmp_path: Path, projects: list[Positions]
) -> None:
    index = built(world, tmp_path / "index", 100)
    space = projected(index).identity.space
    index.add(world.items[100:180])
    assert projected(index).identity.space == space
    projects.clear()
    index.add(world.items[180:260])
    assert projected(index).identity.space != space
    assert sum(map(len, projects)) == 260


def test_other_settings_are_another_space_and_the_old_one_is_deleted(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = built(world, tmp_path / "index")
    before = projected(index)
    monkeypatch.setattr("anncur.tuning.posterior.LEAST_TO_CHOOSE", N_ANCHORS)
    monkeypatch.setattr("anncur.tuning.posterior.TRIED", {"noise_share": (0.5,)})
    monkeypatch.setattr("anncur.tuning.posterior.LEAST_GAIN", -1.0)
    monkeypatch.setattr("anncur.tuning.posterior.LEAST_ERRORS", -1e9)
    index.tune()
    assert projected(index).identity.space != before.identity.space
    assert projected(index).projection.settings.noise_share == 0.5
    index.gc()
    assert [path.name for path in (tmp_path / "index" / "vectors").glob("*")] == [projected(index).identity.space]


def test_damaged_vectors_are_named_and_made_again_without_scoring(world: World, tmp_path: Path) -> None:
    index = built(world, tmp_path / "index")
    expected = index.search(world.queries[30], 10, 60).ids
    path = next((tmp_path / "index").glob("vectors/*/*.vectors.npy"))
    path.write_bytes(path.read_bytes()[:-8] + b"12345678")
    with pytest.raises(anncur.DamagedError, match="doesn't match its checksum"):
        anncur.Index.open(tmp_path / "index", world.scorer)
    damaged = anncur.Index.open(tmp_path / "index", world.scorer, check=False)
    assert [path.name in problem for problem in damaged.verify()] == [True]
    world.scorer.pairs.clear()
    assert damaged.verify(repair=True) == []
    assert not world.scorer.pairs
    assert anncur.Index.open(tmp_path / "index", world.scorer).search(world.queries[30], 10, 60).ids == expected


def test_items_can_be_added_where_a_retriever_can_not_be_asked(world: World, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    embeddings, of_queries = rng.normal(size=(N_ITEMS, 4)), rng.normal(size=(40, 4)).tolist()
    queries = [anncur.Query(text, embedding=row) for text, row in zip(world.queries, of_queries, strict=True)]
    anncur.Index.build(
        world.items[:250], world.scorer, queries[:N_ANCHORS], path=tmp_path / "index", embeddings=embeddings[:250]
    )
    index = anncur.Index.open(tmp_path / "index", world.scorer)
    index.add(world.items[250:], embeddings=embeddings[250:])
    assert len(index.search(queries[30], 5, 50)) == 5


def test_half_precision_is_stored_where_the_engine_has_it(world: World, tmp_path: Path) -> None:
    index = built(world, tmp_path / "index", vectors="exact:float16")
    assert projected(index).vectors.parts[0].array.dtype == np.float16
    assert projected(built(world, tmp_path / "single")).vectors.parts[0].array.dtype == np.float32


def test_vectors_that_half_precision_can_not_hold_are_stored_in_single(world: World, tmp_path: Path) -> None:
    large = World(1e6 * world.exact_scores)
    index = built(large, tmp_path / "index", vectors="exact:float16")
    assert projected(index).vectors.parts[0].array.dtype == np.float32
    assert len(index.search(large.queries[30], 5, 50)) == 5


def test_a_feedback_model_has_vectors_of_its_own(world: World, tmp_path: Path) -> None:
    built(world, tmp_path / "index")
    index = anncur.Index.open(tmp_path / "index", world.scorer, log_queries=100)
    index.search_many(world.queries[20:36], 5, 60, progress=False)
    index.learn()
    assert index._current().knowledge.posterior.projected is None
    assert len(index.search(world.queries[36], 5, 50)) == 5


def test_embeddings_of_users_and_their_own_retrievers_are_projected_too(world: World, tmp_path: Path) -> None:
    index = built(world, tmp_path / "index", retrievers=(HashedVectors(), "bm25"))
    opened = anncur.Index.open(tmp_path / "index", world.scorer, retrievers=[HashedVectors()])
    query = world.queries[30]
    assert opened.search(query, 10, 60).ids == index.search(query, 10, 60).ids
    assert projected(opened).projection.settings == opened._current().knowledge.posterior.own_settings().of_items


class Centred:
    """A retriever that fits its vectors to all items that there are: they differ from version to version."""

    name = "centred"

    def fit(self, items: Iterable[anncur.Item]) -> None:
        texts = [item.text for item in items]
        rows = np.random.default_rng(len(texts)).normal(size=(len(texts), 5 + len(texts) % 3))
        self._rows = rows.astype(np.float32)

    def scores(self, queries: Sequence[anncur.Query]) -> FloatMatrix:
        return np.ones((len(queries), len(self._rows)))

    def item_vectors(self) -> FloatMatrix:
        return self._rows


def test_vectors_of_a_retriever_that_is_fitted_to_all_items_are_projected_again(world: World, tmp_path: Path) -> None:
    index = built(world, tmp_path / "index", retrievers=(Centred(),))
    for start in (250, 255):
        index.add(world.items[start : start + 5])
        model, stored = index._current().knowledge.posterior, projected(index)
        assert stored.projection.settings.embeddings_of == "centred"
        again = projected_model(stored.projection, model.source())
        np.testing.assert_allclose(stored.vectors.take(np.arange(start + 5)), again.vectors.all(), atol=1e-4)


def test_a_copy_goes_on_with_keys_of_its_own(world: World, tmp_path: Path) -> None:
    original = built(world, tmp_path / "index")
    original.add(world.items[250:255])
    original.save(tmp_path / "copy")
    copy = anncur.Index.open(tmp_path / "copy", world.scorer)
    before = keys_by_id(copy)
    assert before == keys_by_id(original)
    copy.add(world.items[255:258])
    original.add(world.items[258:262])
    ours, theirs = keys_by_id(original), keys_by_id(copy)
    for after in (ours, theirs):
        assert sorted(after.values()) == list(after.values())
        assert len(set(after.values())) == len(after)
    assert not {ours[item.id] for item in world.items[258:262]} & {theirs[item.id] for item in world.items[255:258]}


def test_items_that_went_and_come_again_change_no_file_of_an_older_version(world: World, tmp_path: Path) -> None:
    index = built(world, tmp_path / "index")
    index.add(world.items[250:255])
    files_before = {path: path.read_bytes() for path in (tmp_path / "index" / "vectors").rglob("*.npy")}
    index.remove([item.id for item in world.items[250:255]])
    index.add(world.items[250:255])
    assert {path: path.read_bytes() for path in files_before} == files_before
    assert len(index.search(world.queries[30], 10, 50)) == 10


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="/proc/self/fd is missing: not Linux")
def test_maps_need_no_open_files(tmp_path: Path) -> None:
    paths = [tmp_path / str(number) for number in range(50)]
    records = [files.write_file(path, bytes([number]) * 5000) for number, path in enumerate(paths)]
    n_before = len(list(Path("/proc/self/fd").iterdir()))
    mapped = [files.map_checked(path, record) for path, record in zip(paths, records, strict=True)]
    assert len(list(Path("/proc/self/fd").iterdir())) <= n_before
    for path in paths:
        path.unlink()
    assert [bytes(view[:2]) for view in mapped] == [bytes([number]) * 2 for number in range(50)]


def test_repair_reports_what_is_lost_where_vectors_are_damaged_too(world: World, tmp_path: Path) -> None:
    built(world, tmp_path / "index")
    for pattern in ("vectors/*/*.vectors.npy", "queries-*"):
        path = next((tmp_path / "index").glob(pattern))
        path.write_bytes(path.read_bytes()[:-8] + b"12345678")
    problems = anncur.Index.open(tmp_path / "index", world.scorer, check=False).verify(repair=True)
    assert any("queries" in problem for problem in problems)
