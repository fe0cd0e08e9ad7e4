"""An index whose items are ranked by a database: versions and processes share what was uploaded."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any, Self

import pytest

import anncur
from anncur.arrays import FloatMatrix
from anncur.engines.base import Job
from anncur.index.folder import FolderBackend
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


class Elsewhere:
    """An engine that does nothing."""

    name = "elsewhere"
    is_elsewhere = True

    def run(self, job: Job[Any, Any]) -> None:
        raise AssertionError("it must not come to this")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None: ...


def tables(postgres: PostgresServer, prefix: str) -> list[str]:
    with postgres.connect() as connection:
        found = connection.execute("SELECT tablename FROM pg_tables").fetchall()
    return sorted(name for (name,) in found if name.startswith(prefix))


def with_prefix(postgres: PostgresServer, prefix: str) -> str:
    separator = "&" if "?" in postgres.location else "?"
    return f"{postgres.location}{separator}prefix={prefix}"


def test_an_index_in_memory_leaves_one_table_while_it_is_used_and_none_behind(
    world: World, postgres: PostgresServer
) -> None:
    index = anncur.Index.build(
        world.items[:4800], world.scorer, world.queries[:6], retrievers=(), vectors=with_prefix(postgres, "mem")
    )
    for start in range(4800, 4950, 50):
        index.search(world.queries[10], 5, 50)
        gc.collect()
        assert len(tables(postgres, "mem_")) == 2
        index.add(world.items[start : start + 50])
    index.close()
    gc.collect()
    assert tables(postgres, "mem_") == ["mem_spaces"]


def test_vectors_of_a_feedback_model_are_dropped_when_the_index_is_closed(
    world: World, postgres: PostgresServer, tmp_path: Path
) -> None:
    index = anncur.Index.build(
        world.items,
        world.scorer,
        world.queries[:6],
        path=tmp_path / "index",
        retrievers=(),
        vectors=with_prefix(postgres, "learnt"),
        log_queries=1000,
    )
    for query in world.queries[6:16]:
        index.search(query, 5, 100)
    stored = tables(postgres, "learnt_")
    assert len(stored) == 2
    index.learn()
    index.search(world.queries[10], 5, 50)
    assert len(tables(postgres, "learnt_")) == 3
    index.close()
    gc.collect()
    assert tables(postgres, "learnt_") == stored


def test_rows_are_deleted_from_the_database_of_an_index_that_was_opened_with_another_engine(
    world: World, postgres: PostgresServer, tmp_path: Path
) -> None:
    location = with_prefix(postgres, "gone")
    index = anncur.Index.build(
        world.items, world.scorer, world.queries[:4], path=tmp_path / "index", retrievers=(), vectors=location
    )
    index.search(world.queries[10], 5, 50)
    (table,) = tables(postgres, "gone_")[:1]
    index.close()
    exact = anncur.Index.open(tmp_path / "index", world.scorer, vectors="exact")
    exact.remove([f"i{number}" for number in range(30)])
    exact.compact()
    with postgres.connect() as connection:
        assert connection.execute(f"SELECT count(*) FROM {table}").fetchone() == (N_ITEMS - 30,)


def test_a_table_that_cannot_be_deleted_from_is_named(
    world: World, postgres: PostgresServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    location = with_prefix(postgres, "kept")
    index = anncur.Index.build(
        world.items, world.scorer, world.queries[:4], path=tmp_path / "index", retrievers=(), vectors=location
    )
    index.search(world.queries[10], 5, 50)
    (table,) = tables(postgres, "kept_")[:1]

    def fail(*_: object) -> None:
        raise anncur.DatabaseError("it is down")

    monkeypatch.setattr(PgvectorTable, "forget", fail)
    index.remove(["i3"])
    with pytest.warns(anncur.AnncurWarning, match=f"are still in {table}: it is down"):
        index.compact()


def test_a_password_is_kept_after_a_build_and_not_sent_to_workers(
    world: World, postgres: PostgresServer, tmp_path: Path
) -> None:
    location = postgres.location.replace("postgres@", "postgres:hunter2@")
    index = anncur.Index.build(
        world.items[:50], world.scorer, world.queries[:4], path=tmp_path / "index", retrievers=(), vectors=location
    )
    assert isinstance(index._backend, FolderBackend)
    assert index._backend.engine is not None
    assert index._backend.engine.secrets.password == "hunter2"
    with pytest.raises(anncur.InputError, match=r"a password, which workers don't get; .* PGPASSWORD") as caught:
        index.search_many(world.queries[:2], 5, 10, engine=Elsewhere())
    assert "hunter2" not in str(caught.value)
