"""Collections as others fill them: ids, embeddings, types and statistics that one doesn't expect."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

import anncur
from anncur.arrays import FloatMatrix
from anncur.attached import milvus as attached_milvus
from anncur.attached.base import EVERYTHING, FoundRows
from anncur.attached.milvus import MilvusItems
from anncur.attached.pool import as_compared
from anncur.errors import InputError
from embedded_worlds import ArrayCollection, EmbeddedWorld
from servers import LiteFolder, MilvusServer, PostgresServer

WIDTH = 4
Rows = Sequence[Sequence[Any]]


def score(pairs: list[tuple[str, str]]) -> list[float]:
    return [float(len(text)) for _, text in pairs]


def embed(queries: Sequence[anncur.Query]) -> FloatMatrix:
    return np.ones((len(queries), WIDTH), dtype=np.float32)


def embeddings(n: int, width: int = WIDTH) -> FloatMatrix:
    return np.random.default_rng(0).normal(size=(n, width)).astype(np.float32)


def attach(location: str, **options: Any) -> anncur.Attached:
    return anncur.attach(location, score, embed_queries=embed, **options)


def fill_table(server: PostgresServer, columns: str, rows: Rows, *, before: str = "", after: str = "") -> str:
    """A table `odd` whose last column has embeddings, or what is made of it."""
    from pgvector.psycopg import register_vector

    with server.connect() as connection:
        register_vector(connection)
        connection.execute("DROP TABLE IF EXISTS odd CASCADE")
        for statement in filter(None, before.split(";")):
            connection.execute(statement)
        connection.execute(f"CREATE TABLE odd ({columns})")
        places = ", ".join(["%s"] * len(rows[0]))
        with connection.cursor() as cursor:
            cursor.executemany(f"INSERT INTO odd VALUES ({places})", rows)
        for statement in filter(None, after.split(";")):
            connection.execute(statement)
    separator = "&" if "?" in server.location else "?"
    return f"{server.location}{separator}table=odd"


PLAIN = f"text text, embedding vector({WIDTH})"


def plain_rows(ids: Sequence[Any]) -> Rows:
    return [
        (one, f"thing {place}", row) for place, (one, row) in enumerate(zip(ids, embeddings(len(ids)), strict=True))
    ]


@pytest.mark.processes
def test_statistics_that_are_older_than_the_rows_cost_no_sample(postgres: PostgresServer) -> None:
    stale = "UPDATE pg_class SET reltuples = 100000 WHERE relname = 'odd'"
    location = fill_table(postgres, f"id int PRIMARY KEY, {PLAIN}", plain_rows(range(200)), after=stale)
    for seed in range(3):
        found = attach(location, seed=seed)
        assert len(found.collection.sample(150, seed=seed).ids) == 150
        assert len(found.search("q", 5, 20)) == 5


@pytest.mark.processes
def test_a_table_whose_ids_may_repeat_is_refused(postgres: PostgresServer) -> None:
    chunks = plain_rows([f"d{place // 3}" for place in range(60)])
    for columns in (
        f"id text, {PLAIN}",
        f"id text, {PLAIN}, UNIQUE (id, text)",
    ):
        with pytest.raises(InputError, match=r"'id' of .* must have a unique index"):
            attach(fill_table(postgres, columns, chunks))
    partial = "CREATE UNIQUE INDEX ON odd (id) WHERE text = 'thing 0'"
    with pytest.raises(InputError, match="must have a unique index"):
        attach(fill_table(postgres, f"id text, {PLAIN}", chunks, after=partial))


@pytest.mark.processes
def test_a_view_whose_ids_repeat_is_refused(postgres: PostgresServer) -> None:
    view = "CREATE VIEW odd_view AS SELECT * FROM odd"
    chunks = plain_rows([f"d{place // 3}" for place in range(60)])
    location = fill_table(postgres, f"id text, {PLAIN}", chunks, after=view)
    with pytest.raises(InputError, match=r"ids of .* must be unique, got 'd"):
        attach(location.replace("=odd", "=odd_view"))


def test_an_id_that_is_given_twice_is_refused_in_a_search_too() -> None:
    world = EmbeddedWorld(n_items=50)

    class Repeating(ArrayCollection):
        def nearest(self, *arguments: Any, **options: Any) -> list[FoundRows]:
            found = super().nearest(*arguments, **options)
            return [FoundRows([rows.ids[0], *rows.ids[:-1]], rows.embeddings) for rows in found]

    collection = Repeating(world.items, world.embeddings)
    with pytest.raises(InputError, match="ids of an array must be unique"):
        anncur.attach(collection, world.scorer, embed_queries=world.embed).search(world.queries[0], 5, 20)


@pytest.mark.processes
def test_rows_without_an_id_are_no_items(postgres: PostgresServer) -> None:
    ids = [None if place < 3 else f"d{place}" for place in range(30)]
    hits = attach(fill_table(postgres, f"id text UNIQUE, {PLAIN}", plain_rows(ids))).search("q", 30, 30)
    assert sorted(hits.ids) == sorted(filter(None, ids))


@pytest.mark.processes
def test_embeddings_of_several_widths_are_refused_by_the_id_of_one(postgres: PostgresServer) -> None:
    rows = [*plain_rows(["a", "b"]), ("c", "thing", embeddings(1, 3)[0])]
    with pytest.raises(InputError, match="must have 4 numbers each, got 3 for the item 'c'"):
        attach(fill_table(postgres, "id text PRIMARY KEY, text text, embedding vector", rows))


@pytest.mark.parametrize("is_sampled", [True, False])
def test_an_embedding_that_is_not_finite_is_refused_by_its_id(is_sampled: bool) -> None:
    world = EmbeddedWorld(n_items=50)
    world.embeddings[7] = np.nan

    class Sampled(ArrayCollection):
        def sample(self, n: int, *, seed: int) -> FoundRows:
            return self._rows(np.arange(50 if is_sampled else 5))

        def nearest(self, points: FloatMatrix, n_best: int, **options: Any) -> list[FoundRows]:
            return [self._rows(np.arange(n_best)) for _ in points]

    with pytest.raises(InputError, match="must be finite, got one that isn't for the item 'i7'"):
        anncur.attach(Sampled(world.items, world.embeddings), world.scorer, embed_queries=world.embed).search(
            world.queries[0], 5, 20
        )


def test_an_empty_collection_is_refused() -> None:
    world = EmbeddedWorld(n_items=50)
    with pytest.raises(InputError, match="an array must have at least one item with an embedding, got none"):
        anncur.attach(ArrayCollection([], world.embeddings[:0]), world.scorer, embed_queries=world.embed)


ODD_IDS = ["²", "--5", "007", "+7", " 7", "-0", "99999", "3000000000", str(-(2**63)), "9" * 30, "9" * 5000, "a\0b", ""]


@pytest.mark.processes
@pytest.mark.parametrize("kind", ["int2", "int4", "int8", "text", "uuid"])
def test_ids_that_postgres_can_not_have_are_passed_over(postgres: PostgresServer, kind: str) -> None:
    ids: list[Any] = list(range(10)) if kind.startswith("int") else [f"{place:032x}" for place in range(10)]
    found = attach(fill_table(postgres, f"id {kind} PRIMARY KEY, {PLAIN}", plain_rows(ids)))
    known = found.search("q", 2, 10).ids
    assert sorted(found.search("q", 9, 10, filter=[*ODD_IDS, *known]).ids) == sorted(known)
    assert not found.search("q", 9, 10, filter=ODD_IDS)


@pytest.mark.processes
def test_metadata_that_is_no_json_object_is_refused_by_its_id(postgres: PostgresServer) -> None:
    rows = [(f"d{place}", "thing", "[1, 2]", row) for place, row in enumerate(embeddings(5))]
    location = fill_table(postgres, f"id text PRIMARY KEY, text text, about jsonb, embedding vector({WIDTH})", rows)
    with pytest.raises(InputError, match=r"'about' of .* must hold JSON objects, got a list for the item 'd"):
        attach(location, metadata="about").search("q", 5, 5)


@pytest.mark.processes
def test_names_may_have_percent_signs_and_braces(postgres: PostgresServer) -> None:
    rows = [(f"d{place}", "thing", place, row) for place, row in enumerate(embeddings(10))]
    columns = f'"id%s" text PRIMARY KEY, text text, "a%b {{}}" int, "e%" vector({WIDTH})'
    location = fill_table(postgres, columns, rows)
    found = attach(location, id="id%s", embedding="e%")
    hits = found.search("q", 10, 10, filter={"a%b {}": {">=": 7}})
    assert sorted(hits.ids) == ["d7", "d8", "d9"]
    assert {hit.item.metadata["a%b {}"] for hit in hits} == {7, 8, 9}


@pytest.mark.processes
def test_columns_may_have_domains_and_types_with_capitals(postgres: PostgresServer) -> None:
    before = (
        'DROP SCHEMA IF EXISTS "My Types" CASCADE; CREATE SCHEMA "My Types";'
        "CREATE TYPE \"My Types\".\"Key\" AS ENUM ('k0', 'k1', 'k2');"
        'CREATE DOMAIN "My Types"."Year" AS int;'
        'CREATE DOMAIN "My Types"."Late" AS "My Types"."Year" CHECK (VALUE > 1999);'
        f'CREATE DOMAIN "My Types"."Embedding" AS vector({WIDTH})'
    )
    columns = 'id "My Types"."Key" PRIMARY KEY, text text, year "My Types"."Late", embedding "My Types"."Embedding"'
    rows = [(f"k{place}", "thing", 2000 + place, row) for place, row in enumerate(embeddings(3))]
    found = attach(fill_table(postgres, columns, rows, before=before))
    assert sorted(found.search("q", 3, 3).ids) == ["k0", "k1", "k2"]
    assert sorted(found.search("q", 3, 3, filter={"year": {">": 2000.5}}).ids) == ["k1", "k2"]


def fill_collection(database: MilvusServer | LiteFolder, ids: Sequence[int], metric: str = "IP") -> str:
    from pymilvus import DataType, MilvusClient

    client = MilvusClient(str(database.path) if isinstance(database, LiteFolder) else database.url)
    if client.has_collection("odd"):
        client.drop_collection("odd")
    schema = client.create_schema(auto_id=False, enable_dynamic_field=False)
    schema.add_field("id", DataType.INT64, is_primary=True)
    schema.add_field("text", DataType.VARCHAR, max_length=64)
    schema.add_field("embedding", DataType.FLOAT_VECTOR, dim=WIDTH)
    index = client.prepare_index_params()
    index.add_index("embedding", index_type="FLAT", metric_type=metric)
    client.create_collection("odd", schema=schema, index_params=index, consistency_level="Strong")
    client.insert("odd", [dict(zip(("id", "text", "embedding"), row, strict=True)) for row in plain_rows(ids)])
    client.flush("odd")
    client.load_collection("odd")
    client.query("odd", filter="id >= 0", output_fields=["count(*)"], consistency_level="Strong")
    separator = "&" if "?" in database.location else "?"
    return f"{database.location}{separator}collection=odd"


def test_ids_that_milvus_can_not_have_are_passed_over(any_milvus: MilvusServer | LiteFolder) -> None:
    found = attach(fill_collection(any_milvus, range(10)))
    assert sorted(found.search("q", 9, 10, filter=[*ODD_IDS, "3", "7"]).ids) == ["3", "7"]
    assert not found.search("q", 9, 10, filter=ODD_IDS)


def test_a_sample_is_large_where_ids_lie_close_together(any_milvus: MilvusServer | LiteFolder) -> None:
    clumps = [*range(1500), *range(2**40, 2**40 + 1500), 2**62]
    collection = attach(fill_collection(any_milvus, clumps)).collection
    ids = np.array(collection.sample(1000, seed=0).ids)
    assert len(set(ids.tolist())) == 1000
    assert (ids < 1500).sum() == pytest.approx(500, abs=5)
    assert ids[ids < 1500].max() > 1200
    assert sorted(collection.sample(5000, seed=0).ids) == clumps


@pytest.mark.parametrize("n_queries", [1, 3])
@pytest.mark.parametrize("method", ["rerank", "posterior"])
def test_a_budget_may_be_larger_than_what_milvus_gives_at_once(
    any_milvus: MilvusServer | LiteFolder, method: str, n_queries: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attached_milvus, "MOST_FOUND", 50)
    found = attach(fill_collection(any_milvus, range(200)))
    queries = [f"q{place}" for place in range(n_queries)]
    for hits in found.search_many(queries, 180, 180, method, progress=False):
        assert len(set(hits.ids)) == hits.calls == 180


@pytest.mark.parametrize("metric", ["IP", "COSINE", "L2"])
def test_what_a_search_of_milvus_misses_is_queried(
    any_milvus: MilvusServer | LiteFolder, metric: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    collection = attach(fill_collection(any_milvus, range(60), metric)).collection
    search = MilvusItems._search

    def missing_some(self: MilvusItems, *arguments: Any) -> Any:
        return [[hit for hit in hits if hit[0] % 3] for hits in search(self, *arguments)]

    monkeypatch.setattr(MilvusItems, "_search", missing_some)
    point = embeddings(70)[-1:]
    (rows,) = collection.nearest(point, 50, exclude=[[5, 6]], selection=EVERYTHING, is_thorough=True)
    stored = as_compared(embeddings(60), collection.metric)
    scores = -np.square(stored - point).sum(axis=1) if metric == "L2" else stored @ point[0]
    best = [place for place in np.argsort(-scores).tolist() if place not in (5, 6)]
    assert len(set(rows.ids)) == 50
    assert list(rows.ids) == best[:50]
