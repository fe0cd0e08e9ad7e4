"""An index answers alike whoever ranks its items."""

from __future__ import annotations

import pickle
import sys
from pathlib import Path

import numpy as np
import pytest

import anncur
from anncur.errors import InputError
from anncur.vectors.engines import NAMES
from worlds import HashedVectors, World, low_rank_scores

pytestmark = pytest.mark.slow
N_ITEMS, N_ANCHORS = 4500, 30  # more than a shortlist holds


@pytest.fixture(scope="module")
def world() -> World:
    return World(low_rank_scores(50, N_ITEMS, rank=8, noise=0.3))


@pytest.fixture(scope="module")
def folder(world: World, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("engines") / "index"
    world.index(N_ANCHORS, path=folder, retrievers=(HashedVectors(),))
    return folder


def mean_recall(world: World, found: list[anncur.Hits], first: int) -> float:
    shares = [len(set(hits.ids) & set(world.brute_force(first + number, 10))) / 10 for number, hits in enumerate(found)]
    return float(np.mean(shares))


@pytest.mark.parametrize("method", ["posterior", "anncur"])
@pytest.mark.parametrize("engine", NAMES)
def test_all_engines_find_about_as_much(world: World, folder: Path, engine: str, method: str) -> None:
    index = anncur.Index.open(folder, world.scorer, retrievers=[HashedVectors()], vectors=engine)
    exact = anncur.Index.open(folder, world.scorer, retrievers=[HashedVectors()])
    queries = world.queries[N_ANCHORS:]
    ours, theirs = (
        mean_recall(world, one.search_many(queries, 10, 100, method, progress=False), N_ANCHORS)
        for one in (index, exact)
    )
    assert ours >= theirs - 0.02
    assert 0.9 <= index.engine_recall() <= 1.0


@pytest.mark.parametrize("engine", NAMES)
def test_a_filter_holds_with_every_engine(world: World, folder: Path, engine: str) -> None:
    index = anncur.Index.open(folder, world.scorer, retrievers=[HashedVectors()], vectors=engine)
    for mask in (np.arange(N_ITEMS) % 2 == 0, np.arange(N_ITEMS) % 50 == 0):
        hits = index.search(world.queries[40], 5, 60, filter=mask)
        assert all(mask[int(item_id[1:])] for item_id in hits.ids)
        assert hits.calls == 60


def test_an_index_remembers_its_engine(world: World, tmp_path: Path) -> None:
    built = anncur.Index.build(
        world.items[:40], world.scorer, world.queries[:2], path=tmp_path / "index", vectors="exact:float16"
    )
    assert built.info.vectors == "exact:float16"
    assert anncur.Index.open(tmp_path / "index", world.scorer).info.vectors == "exact:float16"


def test_a_pickled_index_keeps_the_engine_that_it_was_opened_with(folder: Path) -> None:
    index = anncur.Index.open(folder, "builtin", retrievers=[HashedVectors()], vectors="faiss", check=False)
    assert pickle.loads(pickle.dumps(index)).info.vectors == "faiss"


def test_an_unknown_engine_is_refused_with_those_that_there_are(world: World) -> None:
    with pytest.raises(InputError, match="faiss:hnsw, pgvector:URL, milvus:URL, got 'annoy'"):
        anncur.Index.build(world.items[:40], world.scorer, vectors="annoy")


def test_an_index_whose_engine_is_missing_is_ranked_exactly_with_a_warning(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "index"
    anncur.Index.build(world.items[:40], world.scorer, world.queries[:2], path=folder, vectors="faiss:ivf")
    monkeypatch.setitem(sys.modules, "faiss", None)
    with pytest.warns(anncur.AnncurWarning, match="'faiss:ivf' needs faiss"):
        index = anncur.Index.open(folder, world.scorer)
    assert len(index.search(world.queries[40], 5, 20)) == 5
    with pytest.raises(InputError, match=r"pip install 'anncur\[ann\]'"):
        anncur.Index.open(folder, world.scorer, vectors="faiss")


def test_another_engine_for_an_index_that_is_there_is_told(world: World, tmp_path: Path) -> None:
    anncur.Index.build(world.items[:40], world.scorer, world.queries[:2], path=tmp_path / "index")
    with pytest.warns(anncur.AnncurWarning, match="or open it with other vectors"):
        anncur.Index.build(world.items[:40], world.scorer, world.queries[:2], path=tmp_path / "index", vectors="faiss")
    assert anncur.Index.open(tmp_path / "index", world.scorer, vectors="faiss").info.vectors == "faiss"
