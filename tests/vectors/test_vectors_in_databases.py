"""Vectors in a database: uploaded once, shared by versions and processes, and never a reason for a wrong answer."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
import time
import uuid
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import anncur
from anncur.arrays import NO_POSITIONS, FloatMatrix, Positions
from anncur.candidates import Candidates
from anncur.databases.location import Location
from anncur.errors import AnncurWarning, DatabaseError, InputError
from anncur.ranking import top_k
from anncur.vectors import database
from anncur.vectors import milvus as milvus_vectors
from anncur.vectors.database import DatabaseVectors, Keys
from anncur.vectors.engines import VectorEngine
from anncur.vectors.exact import ExactVectors
from anncur.vectors.naming import OPTIONS
from anncur.vectors.pgvector import PgvectorTable
from servers import LiteFolder, MilvusServer, PostgresServer
from worlds import HashedVectors, World, low_rank_scores

RECOVERY_SECONDS = 180.0  # of a Milvus server after a kill
N_ITEMS, WIDTH = 5000, 16
Database = PostgresServer | MilvusServer | LiteFolder
Server = PostgresServer | MilvusServer
DATABASES = [
    pytest.param("milvus_lite", marks=pytest.mark.slow),
    *(pytest.param(name, marks=pytest.mark.processes) for name in ("postgres", "milvus")),
]
SERVERS = [pytest.param(name, marks=pytest.mark.processes) for name in ("postgres", "milvus")]


@pytest.fixture(params=DATABASES)
def db(request: pytest.FixtureRequest) -> Database:
    found: Database = request.getfixturevalue(request.param)
    return found


@pytest.fixture(params=SERVERS)
def server(request: pytest.FixtureRequest) -> Server:
    found: Server = request.getfixturevalue(request.param)
    return found


@pytest.fixture(scope="module")
def vectors() -> FloatMatrix:
    rng = np.random.default_rng(0)
    centres = rng.normal(size=(40, WIDTH))
    around = centres[rng.integers(40, size=N_ITEMS)] + 0.4 * rng.normal(size=(N_ITEMS, WIDTH))
    return (rng.uniform(0.5, 2.0, size=(N_ITEMS, 1)) * around).astype(np.float32)


@pytest.fixture
def space() -> str:
    return uuid.uuid4().hex


def keys_of(n_items: int, segment: int = 7) -> Keys:
    return (segment << 32) + np.arange(n_items, dtype=np.int64)


def separator(db: Database) -> str:
    """What comes before another option of its name."""
    return "&" if "?" in db.location else "?"


def tables(db: Database, prefix: str) -> list[str]:
    """Those whose names begin so."""
    if isinstance(db, PostgresServer):
        with db.connect() as connection:
            found = connection.execute("SELECT tablename FROM pg_tables").fetchall()
        return sorted(name for (name,) in found if name.startswith(prefix))
    return sorted(name for name in milvus_client(db).list_collections() if name.startswith(prefix))


def drop_by_hand(db: Database, table: str) -> None:
    if isinstance(db, PostgresServer):
        with db.connect() as connection:
            connection.execute(f"DROP TABLE {table}")
    else:
        milvus_client(db).drop_collection(table)


def milvus_client(db: MilvusServer | LiteFolder) -> Any:
    from pymilvus import MilvusClient

    return MilvusClient(db.location.removeprefix("milvus:"))


def connected(db: Database, vectors: FloatMatrix, keys: Keys, space: str, **options: Any) -> DatabaseVectors:
    """An index in a database; one that was restarted a moment ago is asked again until it has recovered."""
    until = time.monotonic() + RECOVERY_SECONDS
    while True:
        try:
            found = VectorEngine(db.location).index(ExactVectors(vectors), space=space, keys=keys, **options)
        except DatabaseError as error:
            if "took longer than it may" not in str(error) or time.monotonic() > until:
                raise
        else:
            assert isinstance(found, DatabaseVectors)
            return found


def top(index: Any, query: FloatMatrix, n_best: int = 20, n_items: int = N_ITEMS) -> Positions:
    (ranked,) = index.top(query[None], n_best, exclude=[NO_POSITIONS], among=Candidates(n_items))
    positions: Positions = ranked.positions
    return positions


def recall(index: Any, vectors: FloatMatrix, n_queries: int = 10) -> float:
    queries = np.random.default_rng(1).normal(size=(n_queries, WIDTH)).astype(np.float32)
    both = [(top_k(vectors @ query, 20), top(index, query, n_items=len(vectors))) for query in queries]
    return float(np.mean([np.isin(true, found).mean() for true, found in both]))


def test_what_is_there_is_not_uploaded_again(db: Database, vectors: FloatMatrix, space: str) -> None:
    uploaded: list[tuple[int, int]] = []

    def progress(stage: str, done: int, total: int) -> None:
        uploaded.append((done, total))

    connected(db, vectors, keys_of(N_ITEMS), space, progress=progress)
    assert uploaded[0] == (0, N_ITEMS)
    assert uploaded[-1] == (N_ITEMS, N_ITEMS)
    uploaded.clear()
    again = connected(db, vectors, keys_of(N_ITEMS), space, progress=progress)
    assert uploaded == []
    assert recall(again, vectors) >= 0.95


def test_a_later_version_uploads_just_its_new_rows_and_an_earlier_one_continues(
    db: Database, vectors: FloatMatrix, space: str
) -> None:
    earlier = connected(db, vectors, keys_of(N_ITEMS), space)
    kept, new = np.arange(1000, N_ITEMS), 1.5 * vectors[:500]
    later_keys = np.concatenate([keys_of(N_ITEMS)[kept], keys_of(500, segment=9)])
    later_vectors = np.concatenate([vectors[kept], new])
    uploaded: list[tuple[int, int]] = []
    later = connected(db, later_vectors, later_keys, space, progress=lambda *progress: uploaded.append(progress[1:]))
    assert uploaded == [(0, 500), (500, 500)]
    assert recall(later, later_vectors) >= 0.95
    assert recall(earlier, vectors) >= 0.95


def test_items_that_are_longer_than_all_that_came_before_are_found(
    db: Database, vectors: FloatMatrix, space: str
) -> None:
    connected(db, vectors, keys_of(N_ITEMS), space)
    everything = np.concatenate([vectors, 5 * vectors[:50]])
    later = connected(db, everything, np.concatenate([keys_of(N_ITEMS), keys_of(50, segment=8)]), space)
    assert len(later.too_long) > 10
    query = vectors[3]
    assert top(later, query, 5, n_items=len(everything)).tolist() == top_k(everything @ query, 5).tolist()


def test_vectors_that_are_lost_are_uploaded_again_when_an_index_is_opened(
    db: Database, vectors: FloatMatrix, space: str
) -> None:
    index = connected(db, vectors, keys_of(N_ITEMS), space)
    index.table.forget(keys_of(N_ITEMS)[1000:3000])
    assert len(index.table.missing(keys_of(N_ITEMS))) == 2000
    uploaded: list[int] = []
    again = connected(db, vectors, keys_of(N_ITEMS), space, progress=lambda *progress: uploaded.append(progress[2]))
    assert uploaded[0] == 2000
    assert recall(again, vectors) >= 0.95


def test_most_vectors_lost_is_no_wrong_answer_even_while_it_is_open(
    db: Database, vectors: FloatMatrix, space: str
) -> None:
    index = connected(db, vectors, keys_of(N_ITEMS), space)
    index.table.forget(keys_of(N_ITEMS)[:-10])
    time.sleep(0.5)
    query = vectors[3]
    found = top(index, query, 30)
    assert len(found) == 30
    scores = vectors[found] @ query
    assert (np.diff(scores) <= 0).all()


def test_vectors_that_are_lost_while_an_index_is_open_are_noticed_and_uploaded_again(
    db: Database, vectors: FloatMatrix, space: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "CHECK_SECONDS", 0.0)
    monkeypatch.setattr(database, "CHECK_SHARE", 1e9)
    index = connected(db, vectors, keys_of(N_ITEMS), space)
    index.table.forget(keys_of(N_ITEMS)[::2])
    with pytest.warns(AnncurWarning, match="had lost 2,500 of 5,000 vectors, which were uploaded again"):
        top(index, vectors[3])
    assert len(index.table.missing(keys_of(N_ITEMS))) == 0
    assert recall(index, vectors) >= 0.95


def test_rows_are_counted_once_in_a_while_alone(db: Database, vectors: FloatMatrix, space: str) -> None:
    index = connected(db, vectors, keys_of(N_ITEMS), space)
    index.table.forget(keys_of(N_ITEMS)[:1])
    for _ in range(3):
        top(index, vectors[3])
    assert len(index.table.missing(keys_of(N_ITEMS))) == 1


def test_a_check_that_takes_long_is_rare() -> None:
    health = database.Health()
    health.pass_check(0, seconds=3.0)
    assert health.check_after - time.monotonic() > 290
    assert not health.needs_check(0)
    assert health.needs_check(1)


def test_rows_of_removed_items_do_not_hide_that_others_are_lost(
    db: Database, vectors: FloatMatrix, space: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(milvus_vectors, "MOST_FOUND", 1000)  # keys are listed in several requests
    index, keys = connected(db, vectors, keys_of(N_ITEMS), space), keys_of(N_ITEMS)
    later = np.delete(keys, np.arange(2000, 2100))
    assert len(index.table.missing(later)) == 0
    index.table.forget(keys[1000:1100])
    assert index.table.missing(later).tolist() == keys[1000:1100].tolist()
    assert len(index.table.missing(keys[[0, 3000, 4000]])) == 0
    assert len(index.table.missing(np.concatenate([keys[:1100], keys[-1:] + 10**6]))) == 101


def test_a_table_that_was_dropped_by_hand_is_made_again(
    db: Database, vectors: FloatMatrix, space: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "PAUSE", 0.0)
    index = connected(db, vectors, keys_of(N_ITEMS), space)
    drop_by_hand(db, VectorEngine(db.location).table_of(space))
    with pytest.warns(AnncurWarning, match="until it answers again, all items are ranked here"):
        assert top(index, vectors[3]).tolist() == top_k(vectors @ vectors[3], 20).tolist()
    with pytest.warns(AnncurWarning, match="had lost 5,000 of 5,000 vectors"):
        top(index, vectors[3])
    assert recall(index, vectors) >= 0.95
    again = connected(db, vectors, keys_of(N_ITEMS), space)
    assert again.transform.scale == index.transform.scale
    assert again.transform.longest == pytest.approx(index.transform.longest)


def test_a_space_that_was_forgotten_is_not_made_again_by_who_has_it_open(
    db: Database, vectors: FloatMatrix, space: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "PAUSE", 0.0)
    index = connected(db, vectors, keys_of(N_ITEMS), space)
    VectorEngine(db.location).forget(space)
    for _ in range(2):
        with pytest.warns(AnncurWarning, match="all items are ranked here"):
            assert top(index, vectors[3]).tolist() == top_k(vectors @ vectors[3], 20).tolist()
    assert index.table.is_dropped()


def test_vectors_without_a_name_are_dropped_when_nobody_uses_them(db: Database, vectors: FloatMatrix) -> None:
    prefix = f"own_{uuid.uuid4().hex[:8]}"
    engine = VectorEngine(f"{db.location}{separator(db)}prefix={prefix}")
    first = engine.index(ExactVectors(vectors))
    later = first.remove(np.arange(10))
    assert len(tables(db, prefix)) == 2
    del first
    assert len(tables(db, prefix)) == 2
    assert len(top(later, vectors[3], n_items=N_ITEMS - 10)) == 20
    del later
    gc.collect()
    assert tables(db, prefix) == [f"{prefix}_spaces"]


def test_vectors_without_a_name_are_dropped_when_the_process_ends(server: Server) -> None:
    prefix = f"own_{uuid.uuid4().hex[:8]}"
    program = (
        "import sys, numpy as np\n"
        "from anncur.vectors.engines import VectorEngine\n"
        "from anncur.vectors.exact import ExactVectors\n"
        "vectors = np.random.default_rng(0).normal(size=(3000, 8)).astype(np.float32)\n"
        "kept = VectorEngine(sys.argv[1]).index(ExactVectors(vectors))\n"
        "print(kept.table.n_rows)\n"
    )
    location = f"{server.location}{separator(server)}prefix={prefix}"
    done = subprocess.run([sys.executable, "-c", program, location], check=True, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("3000\n", "")
    assert tables(server, prefix) == [f"{prefix}_spaces"]


@pytest.mark.processes
def test_a_restart_between_two_searches_is_noticed(postgres: PostgresServer, vectors: FloatMatrix, space: str) -> None:
    index = connected(postgres, vectors, keys_of(N_ITEMS), space)
    top(index, vectors[3])
    with postgres.connect() as other:
        other.execute(f"DELETE FROM {VectorEngine(postgres.location).table_of(space)} WHERE key % 2 = 0")
        other.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'anncur'")
    with pytest.warns(AnncurWarning, match="had lost 2,500 of 5,000 vectors"):
        found = top(index, vectors[3])
    assert np.isin(top_k(vectors @ vectors[3], 20), found).mean() >= 0.95


@pytest.mark.processes
def test_readers_are_not_blocked_while_a_larger_index_is_made(
    postgres: PostgresServer, vectors: FloatMatrix, space: str
) -> None:
    connected(postgres, vectors[:2000], keys_of(2000), space)
    table = VectorEngine(postgres.location).table_of(space)
    grown = np.concatenate([vectors, vectors])
    thread = threading.Thread(target=connected, args=[postgres, grown, keys_of(len(grown)), space])
    waiting = "SELECT 1 FROM pg_locks WHERE relation = to_regclass(%s) AND NOT granted"
    with postgres.connect() as writer, postgres.connect() as reader:
        with writer.transaction():  # an index is made when those who write have ended
            writer.execute(f"LOCK TABLE {table} IN ROW EXCLUSIVE MODE")
            thread.start()
            until = time.monotonic() + 60
            while reader.execute(waiting, [table]).fetchone() is None and time.monotonic() < until:
                time.sleep(0.05)
            reader.execute("SET statement_timeout = 2000")
            assert reader.execute(f"SELECT count(*) FROM {table}").fetchone() == (len(grown),)
        thread.join()
        made = reader.execute("SELECT indexname FROM pg_indexes WHERE tablename = %s", [table]).fetchall()
    assert sum("_ivf" in name for (name,) in made) == 1
    assert recall(connected(postgres, grown, keys_of(len(grown)), space), grown) >= 0.95


def test_a_table_of_another_width_is_refused(db: Database, vectors: FloatMatrix, space: str) -> None:
    connected(db, vectors, keys_of(N_ITEMS), space)
    with pytest.raises(InputError, match=f"holds vectors of {WIDTH} numbers, got {WIDTH - 1}"):
        connected(db, vectors[:, 1:], keys_of(N_ITEMS), space)


def test_a_space_that_is_forgotten_is_gone(db: Database, vectors: FloatMatrix, space: str) -> None:
    index = connected(db, vectors, keys_of(N_ITEMS), space)
    VectorEngine(db.location).forget(space, keys_of(100))
    assert len(index.table.missing(keys_of(N_ITEMS))) == 100
    VectorEngine(db.location).forget(space)
    uploaded: list[int] = []
    connected(db, vectors, keys_of(N_ITEMS), space, progress=lambda *progress: uploaded.append(progress[2]))
    assert uploaded[0] == N_ITEMS


def test_fifteen_rounds_find_what_an_exact_ranking_finds(db: Database, tmp_path: Path) -> None:
    world = World(low_rank_scores(40, N_ITEMS, rank=8, noise=0.3))
    index = world.index(20, path=tmp_path / "index", retrievers=(HashedVectors(),))
    by_database = anncur.Index.open(tmp_path / "index", world.scorer, retrievers=[HashedVectors()], vectors=db.location)
    method = anncur.Posterior(n_initial=20, min_round_size=20, growth=0.0)
    ours, theirs = (
        one.search_many(world.queries[20:], 10, 300, method, progress=False) for one in (by_database, index)
    )
    assert {hits.n_rounds for hits in ours} == {15}
    found = [
        np.mean([len(set(hits.ids) & set(world.brute_force(20 + number, 10))) / 10 for number, hits in enumerate(one)])
        for one in (ours, theirs)
    ]
    assert found[0] >= found[1] - 0.02
    assert by_database.engine_recall() >= 0.9


def test_a_server_that_is_killed_and_restarted_in_the_middle_of_searches_costs_no_answer(
    server: Server, vectors: FloatMatrix, space: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "PAUSE", 0.2)
    index = connected(server, vectors, keys_of(N_ITEMS), space)
    query = vectors[3]
    expected = top_k(vectors @ query, 20)
    server.kill()
    try:
        with pytest.warns(AnncurWarning, match="until it answers again, all items are ranked here"):
            assert top(index, query).tolist() == expected.tolist()
    finally:
        server.start()
    until = time.monotonic() + 60
    while index.health.needs_check(index.table.n_lost) and time.monotonic() < until:
        time.sleep(0.5)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", AnncurWarning)
            found = top(index, query)
        assert np.isin(expected, found).mean() >= 0.9
    assert not index.health.needs_check(index.table.n_lost)
    assert recall(index, vectors) >= 0.95


def test_an_upload_that_a_kill_interrupts_resumes_where_it_was(
    server: Server, vectors: FloatMatrix, space: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "ROWS_AT_ONCE", 500)
    killed: list[int] = []

    def kill_half_way(stage: str, done: int, total: int) -> None:
        if done >= 2000 and not killed:
            killed.append(done)
            server.kill()

    try:
        with pytest.raises(DatabaseError, match="can't be reached"):
            connected(server, vectors, keys_of(N_ITEMS), space, progress=kill_half_way)
    finally:
        server.start()
    uploaded: list[int] = []
    index = connected(server, vectors, keys_of(N_ITEMS), space, progress=lambda *progress: uploaded.append(progress[2]))
    assert uploaded[0] <= N_ITEMS - killed[0]
    assert len(index.table.missing(keys_of(N_ITEMS))) == 0
    assert recall(index, vectors) >= 0.95


@pytest.mark.processes
def test_an_upload_by_a_process_that_is_killed_is_completed_by_another(
    postgres: PostgresServer, vectors: FloatMatrix, space: str, tmp_path: Path
) -> None:
    np.save(tmp_path / "vectors.npy", vectors)
    program = (
        "import sys, os, numpy as np\n"
        "from anncur.vectors import database\n"
        "from anncur.vectors.engines import VectorEngine\n"
        "from anncur.vectors.exact import ExactVectors\n"
        "database.ROWS_AT_ONCE = 500\n"
        "vectors = np.load(sys.argv[1])\n"
        "keys = (7 << 32) + np.arange(len(vectors), dtype=np.int64)\n"
        "def end(stage, done, total):\n"
        "    if done >= 1500: os.kill(os.getpid(), 9)\n"
        "VectorEngine(sys.argv[2]).index(ExactVectors(vectors), space=sys.argv[3], keys=keys, progress=end)\n"
    )
    arguments = [str(tmp_path / "vectors.npy"), postgres.location, space]
    assert subprocess.run([sys.executable, "-c", program, *arguments], check=False).returncode == -9
    uploaded: list[int] = []
    connected(postgres, vectors, keys_of(N_ITEMS), space, progress=lambda *progress: uploaded.append(progress[2]))
    assert uploaded[0] == N_ITEMS - 1500


@pytest.mark.processes
def test_two_who_upload_at_once_upload_each_row_once(
    postgres: PostgresServer, vectors: FloatMatrix, space: str
) -> None:
    totals: list[int] = []

    def one() -> None:
        connected(postgres, vectors, keys_of(N_ITEMS), space, progress=lambda *progress: totals.append(progress[1]))

    threads = [threading.Thread(target=one) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert max(totals) == N_ITEMS
    assert sum(done == N_ITEMS for done in totals) == 1


@pytest.mark.processes
def test_a_database_that_is_too_slow_is_a_warning_and_all_is_ranked_here(
    postgres: PostgresServer, vectors: FloatMatrix, space: str
) -> None:
    engine = VectorEngine(f"{postgres.location}{separator(postgres)}timeout=0.3")
    index = engine.index(ExactVectors(vectors), space=space, keys=keys_of(N_ITEMS))
    table = PgvectorTable.open(Location.parse(engine.name, options=OPTIONS), space)._plain_name
    with postgres.connect() as other, other.transaction():
        other.execute(f"LOCK TABLE {table} IN ACCESS EXCLUSIVE MODE")
        with pytest.warns(AnncurWarning, match="took longer than it may; raise timeout=…"):
            found = top(index, vectors[3])
    assert found.tolist() == top_k(vectors @ vectors[3], 20).tolist()


def test_a_server_that_hangs_is_given_up_and_all_is_ranked_here(
    server: Server, vectors: FloatMatrix, space: str
) -> None:
    keys = keys_of(N_ITEMS)
    index = VectorEngine(f"{server.location}{separator(server)}timeout=1").index(
        ExactVectors(vectors), space=space, keys=keys
    )
    start = time.monotonic()
    try:
        with server.hanging(), pytest.warns(AnncurWarning, match=r"(hangs|took longer than it may|can't be reached)"):
            found = top(index, vectors[3])
    finally:
        if isinstance(server, MilvusServer):  # it has lost touch with itself meanwhile
            server.kill()
            server.start()
    assert found.tolist() == top_k(vectors @ vectors[3], 20).tolist()
    assert isinstance(server, MilvusServer) or time.monotonic() - start < 30


@pytest.mark.processes
def test_a_server_whose_quota_is_used_up_is_an_error_and_what_it_has_is_searched(
    milvus: MilvusServer, vectors: FloatMatrix, space: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pymilvus import MilvusClient
    from pymilvus.exceptions import MilvusException

    index = connected(milvus, vectors, keys_of(N_ITEMS), space)
    refusal = MilvusException(9, "quota exceeded[reason=disk quota exceeded, please allocate more resources]")

    def refuse(*_: Any, **__: Any) -> None:
        raise refusal

    monkeypatch.setattr(MilvusClient, "upsert", refuse)
    more = np.concatenate([vectors, vectors[:100]])
    with pytest.raises(DatabaseError, match="is full or overloaded"):
        connected(milvus, more, np.concatenate([keys_of(N_ITEMS), keys_of(100, segment=8)]), space)
    assert recall(index, vectors) >= 0.95


@pytest.mark.processes
def test_a_database_that_is_full_is_an_error_that_says_so(
    postgres: PostgresServer, vectors: FloatMatrix, space: str
) -> None:
    index = connected(postgres, vectors, keys_of(N_ITEMS), space)
    assert isinstance(index.table, PgvectorTable)
    name = index.table._plain_name
    with postgres.connect() as other:
        other.execute(
            "CREATE OR REPLACE FUNCTION full_disk() RETURNS trigger LANGUAGE plpgsql AS "
            "$$ BEGIN RAISE EXCEPTION 'No space left on device' USING ERRCODE = '53100'; END $$"
        )
        other.execute(f"CREATE TRIGGER full_disk BEFORE INSERT ON {name} EXECUTE FUNCTION full_disk()")
    more = np.concatenate([vectors, vectors[:100]])
    with pytest.raises(DatabaseError, match="is full or has no room"):
        connected(postgres, more, np.concatenate([keys_of(N_ITEMS), keys_of(100, segment=8)]), space)
    assert recall(index, vectors) >= 0.95


def test_a_database_that_is_down_is_an_error_when_an_index_is_made(vectors: FloatMatrix) -> None:
    pytest.importorskip("psycopg", reason="PostgreSQL can't be asked: the package psycopg is missing")
    engine = VectorEngine("pgvector:postgresql://me:hunter2@127.0.0.1:9/shop")
    with pytest.raises(DatabaseError, match=r"can't be reached; is it running\?") as caught:
        engine.index(ExactVectors(vectors))
    assert "hunter2" not in str(caught.value)


@pytest.mark.processes
def test_passwords_are_in_no_file_of_an_index_and_in_no_message(postgres: PostgresServer, tmp_path: Path) -> None:
    world = World(low_rank_scores(30, 4500, rank=5, noise=0.2))
    secret = "hunter2-secret"
    location = postgres.location.replace("postgres@", f"postgres:{secret}@")
    index = world.index(20, path=tmp_path / "index", retrievers=(HashedVectors(),), vectors=location)
    hits = index.search(world.queries[25], 5, 60)
    assert len(hits) == 5
    shown = f"{index!r} {index.info} {index.info.to_dict()} {index.__reduce__()}"
    assert secret not in shown
    for file in (tmp_path / "index").rglob("*"):
        assert not file.is_file() or secret.encode() not in file.read_bytes(), file
    assert index.info.vectors == postgres.location
    with pytest.raises(DatabaseError) as caught:
        VectorEngine(location.replace("/postgres?", "/nowhere?")).index(ExactVectors(np.eye(3, dtype=np.float32)))
    assert "nowhere" in str(caught.value)
    assert secret not in f"{caught.value}"
