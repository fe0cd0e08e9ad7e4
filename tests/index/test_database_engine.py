"""An index whose items are ranked by a database: versions and processes share what was uploaded."""

from __future__ import annotations

from pathlib import Path

import pytest

import anncur
from anncur.arrays import FloatMatrix
from anncur.vectors.database import Keys
from anncur.vectors.pgvector import PgvectorTable
from servers import PostgresServer
from worlds import World, low_rank_scores

pytestmark = pytest.mark.processes
N_ITEMS, N_ANCHORS = 5000, 6


@pytest.fixture(scope="module")
def world() -> World:
    return World(low_rank_scores(16, N_ITEMS, rank=4, noise=0.1))


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> list[Keys]:
    """The keys of rows that are uploaded, each time."""
    found: list[Keys] = []
    original = PgvectorTable.write

    def counted(table: PgvectorTable, keys: Keys, rows: FloatMatrix) -> None:
        found.append(keys)
        original(table, keys, rows)

    monkeypatch.setattr(PgvectorTable, "write", counted)
    return found


def test_a_new_version_and_another_process_upload_only_what_is_new(
    world: World, postgres: PostgresServer, tmp_path: Path, written: list[Keys], monkeypatch: pytest.MonkeyPatch
) -> None:
    index = anncur.Index.build(
        world.items[:4900],
        world.scorer,
        world.queries[:N_ANCHORS],
        path=tmp_path / "index",
        retrievers=(),
        vectors=postgres.location,
    )
    exact = anncur.Index.open(tmp_path / "index", world.scorer, vectors="exact")
    query = world.queries[10]
    assert len(set(index.search(query, 10, 100).ids) & set(exact.search(query, 10, 100).ids)) >= 9
    assert sum(map(len, written)) == 4900
    written.clear()
    other = anncur.Index.open(tmp_path / "index", world.scorer)
    other.search(query, 10, 100)
    assert not written
    index.add(world.items[4900:])
    index.remove(["i17"])
    assert index.search(query, 10, 100).calls == 100
    assert sum(map(len, written)) == 100
    written.clear()
    index.compact()
    other.refresh()
    assert other.search(query, 10, 100).calls == 100
    assert not written


def test_rows_that_no_version_needs_are_deleted_with_their_files(
    world: World, postgres: PostgresServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    forgotten: list[int] = []
    original = PgvectorTable.forget

    def counted(table: PgvectorTable, keys: Keys) -> None:
        forgotten.append(len(keys))
        original(table, keys)

    monkeypatch.setattr(PgvectorTable, "forget", counted)
    index = anncur.Index.build(
        world.items, world.scorer, world.queries[:4], path=tmp_path / "index", retrievers=(), vectors=postgres.location
    )
    index.search(world.queries[10], 10, 50)
    index.remove([f"i{number}" for number in range(30)])
    index.compact()
    assert forgotten == [30]
    assert index.search(world.queries[10], 10, 50).calls == 50
