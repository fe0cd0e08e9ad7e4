"""Tables of PostgreSQL and collections of Milvus that somebody else filled, searched as they are."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import anncur
from anncur.attached.base import Names, Selection
from anncur.attached.pgvector import PgvectorCollection
from anncur.databases.location import Location
from anncur.databases.postgres import Postgres
from anncur.errors import DatabaseError, InputError
from anncur.filters import parse_filter
from embedded_worlds import WIDTH, ArrayCollection, EmbeddedWorld
from servers import LiteFolder, MilvusServer, PostgresServer

Fill = Callable[[EmbeddedWorld], str]  # the location of a collection with the items of a world
FILTERS: list[Any] = [
    {"lang": "en"},
    {"lang": ["en", "fr"], "year": {">=": 2010, "<": 2020}},
    {"not": {"lang": "en"}},
    {"or": [{"year": 2003}, {"year": {">": 2027.5}}]},
    {"year": {"!=": 2001}, "lang": {"not in": ["de"]}},
    {"lang": {"exists": True}},
    {"lang": {">=": "e"}},
    {"not": {"or": [{"lang": "en"}, {"year": {"<=": 2014}}]}},
]
NAMES: dict[str, Any] = {"title": "title"}


def with_option(location: str, option: str) -> str:
    return f"{location}{'&' if '?' in location else '?'}{option}"


def fill_postgres(server: PostgresServer, world: EmbeddedWorld) -> str:
    from pgvector.psycopg import register_vector

    with server.connect() as connection:
        register_vector(connection)
        connection.execute("DROP TABLE IF EXISTS docs CASCADE")
        connection.execute(
            f"CREATE TABLE docs (id text PRIMARY KEY, text text, title text, lang varchar, year int, about jsonb, "
            f"embedding vector({WIDTH}))"
        )
        with connection.cursor() as cursor, cursor.copy("COPY docs FROM STDIN (FORMAT binary)") as copy:
            copy.set_types(["text", "text", "text", "varchar", "int4", "jsonb", "vector"])
            for item, embedding in zip(world.items, world.embeddings, strict=True):
                from psycopg.types.json import Jsonb

                about = Jsonb(dict(item.metadata))
                row = (item.id, item.text, item.title, item.metadata["lang"], item.metadata["year"], about, embedding)
                copy.write_row(row)
        operators = {"ip": "vector_ip_ops", "cosine": "vector_cosine_ops", "l2": "vector_l2_ops"}[world.metric]
        connection.execute(f"CREATE INDEX ON docs USING hnsw (embedding {operators})")
        connection.execute("ANALYZE docs")
    return with_option(server.location, "table=docs")


def fill_milvus(database: MilvusServer | LiteFolder, world: EmbeddedWorld) -> str:
    from pymilvus import DataType, MilvusClient

    uri = str(database.path) if isinstance(database, LiteFolder) else database.url
    client = MilvusClient(uri)
    if client.has_collection("docs"):
        client.drop_collection("docs")
    schema = client.create_schema(auto_id=False, enable_dynamic_field=False)
    schema.add_field("id", DataType.VARCHAR, is_primary=True, max_length=64)
    for name in ("text", "title", "lang"):
        schema.add_field(name, DataType.VARCHAR, max_length=256)
    schema.add_field("year", DataType.INT64)
    schema.add_field("embedding", DataType.FLOAT_VECTOR, dim=WIDTH)
    index = client.prepare_index_params()
    index.add_index("embedding", index_type="FLAT", metric_type=world.metric.upper())
    client.create_collection("docs", schema=schema, index_params=index, consistency_level="Strong")
    rows = [
        {"id": item.id, "text": item.text, "title": item.title, **item.metadata, "embedding": embedding}
        for item, embedding in zip(world.items, world.embeddings, strict=True)
    ]
    client.insert("docs", rows)
    client.flush("docs")
    client.load_collection("docs")
    client.query("docs", filter='id >= ""', output_fields=["count(*)"], consistency_level="Strong")
    return with_option(database.location, "collection=docs")


@pytest.fixture(
    params=[
        pytest.param("milvus_lite", marks=pytest.mark.slow),
        pytest.param("postgres", marks=pytest.mark.processes),
        pytest.param("milvus", marks=pytest.mark.processes),
    ]
)
def fill(request: pytest.FixtureRequest) -> Fill:
    database = request.getfixturevalue(request.param)
    if isinstance(database, PostgresServer):
        return lambda world: fill_postgres(database, world)
    return lambda world: fill_milvus(database, world)


@pytest.mark.parametrize("metric", ["ip", "cosine", "l2"])
def test_a_collection_is_searched_like_an_array_of_its_items(fill: Fill, metric: str) -> None:
    world = EmbeddedWorld(metric)
    found = anncur.attach(fill(world), world.scorer, embed_queries=world.embed, **NAMES)
    array = ArrayCollection(world.items, world.embeddings, metric)
    twin = anncur.attach(array, world.scorer, embed_queries=world.embed)
    assert found.collection.metric == metric
    for method in ("posterior", "rerank"):
        ours = found.search_many(world.queries, 10, 80, method, progress=False)
        theirs = twin.search_many(world.queries, 10, 80, method, progress=False)
        assert abs(world.recall(ours) - world.recall(theirs)) <= 0.03
    hit = ours[0][0]
    assert hit.item == world.items[int(hit.id[1:])]


def test_a_filter_passes_in_a_database_what_it_passes_here(fill: Fill) -> None:
    world = EmbeddedWorld(n_items=300)
    found = anncur.attach(fill(world), world.scorer, embed_queries=world.embed, **NAMES).collection
    array = ArrayCollection(world.items, world.embeddings)
    point = world.rough[:1]
    for conditions in FILTERS:
        selection = Selection(parse_filter(conditions))
        (ours,), (theirs,) = (
            one.nearest(point, 300, exclude=[[]], selection=selection, is_thorough=True) for one in (found, array)
        )
        assert sorted(ours.ids) == sorted(theirs.ids), conditions
        assert found.count(selection, most=1000) == len(theirs.ids)
        assert found.count(selection, most=5) == min(5, len(theirs.ids))


def test_items_that_were_seen_are_excluded_for_one_query_and_for_several(fill: Fill) -> None:
    world = EmbeddedWorld(n_items=300)
    found = anncur.attach(fill(world), world.scorer, embed_queries=world.embed, **NAMES).collection
    for points in (world.rough[:1], world.rough[:3]):
        first = found.nearest(points, 20, exclude=[[]] * len(points), selection=Selection())
        second = found.nearest(points, 20, exclude=[rows.ids for rows in first], selection=Selection())
        for before, after in zip(first, second, strict=True):
            assert not set(before.ids) & set(after.ids)
            assert len(before.ids) == len(after.ids) == 20


def test_what_a_collection_lacks_is_refused(fill: Fill) -> None:
    world = EmbeddedWorld(n_items=50)
    location = fill(world)
    for options, message in (
        ({"text": "body"}, "has no (column|field) 'body'"),
        ({"embedding": "title"}, "must (hold embeddings|be a FLOAT_VECTOR)"),
    ):
        with pytest.raises(InputError, match=message):
            anncur.attach(location, world.scorer, embed_queries=world.embed, **options)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="there is no"):
        anncur.attach(location.replace("=docs", "=nothing"), world.scorer, embed_queries=world.embed)
    found = anncur.attach(location, world.scorer, embed_queries=world.embed, **NAMES)
    with pytest.raises(InputError, match="no item has the metadata field 'colour'"):
        found.search(world.queries[0], filter={"colour": "red"})
    with pytest.raises(InputError, match="'year' holds numbers, got the string"):
        found.search(world.queries[0], filter={"year": "2001"})


@pytest.mark.processes
def test_metadata_may_be_a_column_of_json_and_the_table_a_view(postgres: PostgresServer) -> None:
    world = EmbeddedWorld(n_items=300)
    location = fill_postgres(postgres, world)
    with postgres.connect() as connection:
        connection.execute("CREATE OR REPLACE VIEW seen AS SELECT id, text, about, embedding FROM docs")
    found = anncur.attach(
        location.replace("table=docs", "table=seen"), world.scorer, embed_queries=world.embed, metadata="about",
        metric="ip",
    )  # fmt: skip
    array = ArrayCollection(world.items, world.embeddings)
    for conditions in FILTERS:
        selection = Selection(parse_filter(conditions))
        (ours,), (theirs,) = (
            one.nearest(world.rough[:1], 300, exclude=[[]], selection=selection, is_thorough=True)
            for one in (found.collection, array)
        )
        assert sorted(ours.ids) == sorted(theirs.ids), conditions
    hits = found.search(world.queries[0], 5, 40, filter={"lang": "en"})
    assert all(hit.item.metadata == world.items[int(hit.id[1:])].metadata for hit in hits)


@pytest.mark.parametrize("place", ["json", "dynamic", "array"])
def test_lists_and_fields_that_only_some_items_have_are_filtered_in_milvus_as_here(
    any_milvus: MilvusServer | LiteFolder, place: str
) -> None:
    world = EmbeddedWorld(n_items=120)
    items = [replace(item, metadata=_with_lists(number)) for number, item in enumerate(world.items)]
    location = fill_milvus_lists(any_milvus, world, items, place)
    found = anncur.attach(
        location,
        world.scorer,
        embed_queries=world.embed,
        metadata="about" if place == "json" else None,
    ).collection
    array = ArrayCollection(items, world.embeddings)
    for conditions in LIST_FILTERS if place == "array" else [*LIST_FILTERS, *SPARSE_FILTERS]:
        selection = Selection(parse_filter(conditions))
        found.check(selection)
        (ours,), (theirs,) = (
            one.nearest(world.rough[:1], 120, exclude=[[]], selection=selection, is_thorough=True)
            for one in (found, array)
        )
        assert sorted(ours.ids) == sorted(theirs.ids), conditions
    assert {item.id: item.metadata["tags"] for item in found.items(["i0", "i5"])} == {
        "i0": items[0].metadata["tags"],
        "i5": items[5].metadata["tags"],
    }


def test_a_dynamic_field_may_be_called_like_a_word_of_milvus(any_milvus: MilvusServer | LiteFolder) -> None:
    world = EmbeddedWorld(n_items=30)
    metadata = [{"in": number % 3, "is": "odd" if number % 2 else "even"} for number in range(30)]
    items = [replace(item, metadata=one) for item, one in zip(world.items, metadata, strict=True)]
    location = fill_milvus_lists(any_milvus, world, items, "dynamic")
    found = anncur.attach(location, world.scorer, embed_queries=world.embed)
    hits = found.search(world.queries[0], 30, 30, filter={"in": 1, "not": {"is": "odd"}})
    assert sorted(hits.ids) == sorted(f"i{number}" for number in range(30) if number % 3 == 1 and not number % 2)


def test_a_field_that_is_no_metadata_is_not_filtered_by(any_milvus: MilvusServer | LiteFolder) -> None:
    world = EmbeddedWorld(n_items=30)
    location = fill_milvus_lists(any_milvus, world, world.items, "dynamic")
    found = anncur.attach(location, world.scorer, embed_queries=world.embed)
    for name in ("text", "embedding"):
        with pytest.raises(InputError, match=f"no item has the metadata field '{name}'"):
            found.search(world.queries[0], filter={name: "thing 5"})


LIST_FILTERS: list[Any] = [
    {"tags": "red"},
    {"tags": ["red", "blue"]},
    {"not": {"tags": "red"}},
    {"tags": "red", "number": {">=": 30}},
    {"or": [{"tags": "green"}, {"number": {"<": 5}}]},
    {"tags": "no such colour"},
]
SPARSE_FILTERS: list[Any] = [
    {"note": {"exists": True}},
    {"note": {"exists": False}},
    {"note": "third"},
    {"not": {"note": "third"}},
    {"price": {"<": 10.5}},
    {"or": [{"note": "third"}, {"price": {">=": 20}}]},
]


def _with_lists(number: int) -> dict[str, Any]:
    colours = ["red", "green", "blue"]
    found: dict[str, Any] = {"tags": colours[: 1 + number % 3][number % 2 :] or ["white"], "number": number}
    if number % 3 == 0:
        found["note"] = "third"
    if number % 4 == 0:
        found["price"] = number / 2
    return found


def fill_milvus_lists(
    database: MilvusServer | LiteFolder, world: EmbeddedWorld, items: list[anncur.Item], place: str
) -> str:
    """A collection with lists: in a field of JSON, in the dynamic field, or in one of arrays."""
    from pymilvus import DataType, MilvusClient

    client = MilvusClient(str(database.path) if isinstance(database, LiteFolder) else database.url)
    if client.has_collection("listed"):
        client.drop_collection("listed")
    schema = client.create_schema(auto_id=False, enable_dynamic_field=place == "dynamic")
    schema.add_field("id", DataType.VARCHAR, is_primary=True, max_length=64)
    schema.add_field("text", DataType.VARCHAR, max_length=256)
    if place == "json":
        schema.add_field("about", DataType.JSON)
    elif place == "array":
        schema.add_field("tags", DataType.ARRAY, element_type=DataType.VARCHAR, max_capacity=8, max_length=32)
        schema.add_field("number", DataType.INT64)
    schema.add_field("embedding", DataType.FLOAT_VECTOR, dim=WIDTH)
    index = client.prepare_index_params()
    index.add_index("embedding", index_type="FLAT", metric_type="IP")
    client.create_collection("listed", schema=schema, index_params=index, consistency_level="Strong")
    rows = []
    for item, embedding in zip(items, world.embeddings, strict=True):
        metadata = dict(item.metadata)
        if place == "array":
            metadata = {name: metadata[name] for name in ("tags", "number")}
        held = {"about": metadata} if place == "json" else metadata
        rows.append({"id": item.id, "text": item.text, **held, "embedding": embedding})
    client.insert("listed", rows)
    client.flush("listed")
    client.load_collection("listed")
    client.query("listed", filter='id >= ""', output_fields=["count(*)"], consistency_level="Strong")
    return with_option(database.location, "collection=listed")


@pytest.mark.processes
def test_attaching_can_not_write(postgres: PostgresServer) -> None:
    world = EmbeddedWorld(n_items=50)
    location = Location.parse(fill_postgres(postgres, world), options=("table",))
    database = Postgres(location, is_read_only=True)
    PgvectorCollection(database, "docs", Names())
    with pytest.raises(DatabaseError, match="read-only transaction"):
        database.run(lambda connection: connection.execute("DELETE FROM docs"))


@pytest.fixture(params=["postgres", "milvus"])
def server(request: pytest.FixtureRequest) -> PostgresServer | MilvusServer:
    found: PostgresServer | MilvusServer = request.getfixturevalue(request.param)
    return found


def fill_server(server: PostgresServer | MilvusServer, world: EmbeddedWorld) -> str:
    return fill_postgres(server, world) if isinstance(server, PostgresServer) else fill_milvus(server, world)


def start_again(server: PostgresServer | MilvusServer) -> None:
    """Until it answers: Milvus loads its collections by itself, when it no longer waits for the nodes that were killed.

    On a busy machine it may give up instead, and there is nothing to test then."""
    server.start()
    until = time.monotonic() + 120
    while isinstance(server, MilvusServer) and not answers(server):
        if time.monotonic() > until:
            server.kill()
            server.start()
            pytest.skip("the Milvus server hasn't loaded its collection again in two minutes")
        time.sleep(0.5)


def answers(server: MilvusServer) -> bool:
    from pymilvus import MilvusClient
    from pymilvus.exceptions import MilvusException

    try:
        found = MilvusClient(server.url).query("docs", filter='id >= ""', output_fields=["count(*)"], timeout=5)
    except MilvusException:
        return False
    return bool(found[0]["count(*)"])


@pytest.mark.processes
def test_a_server_that_is_restarted_in_the_middle_of_a_search_costs_a_pause(
    server: PostgresServer | MilvusServer,
) -> None:
    world = EmbeddedWorld(n_items=300)
    location = fill_server(server, world)
    n_asked = 0

    def score(pairs: list[tuple[str, str]]) -> list[float]:
        nonlocal n_asked
        n_asked += 1
        if n_asked == 3:
            server.kill()
            start_again(server)
        place = {query: number for number, query in enumerate(world.queries)}
        return [float(world.exact_scores[place[query], int(text.rsplit(" ", 1)[1])]) for query, text in pairs]

    found = anncur.attach(location, score, embed_queries=world.embed)
    expected = anncur.attach(location, world.scorer, embed_queries=world.embed).search(world.queries[0], 5, 60)
    assert found.search(world.queries[0], 5, 60).ids == expected.ids
    assert n_asked > 3


@pytest.mark.processes
def test_a_server_that_stays_down_is_an_error_that_keeps_what_was_paid_for(
    server: PostgresServer | MilvusServer,
) -> None:
    world = EmbeddedWorld(n_items=300)
    location = fill_server(server, world)

    class Killing:
        fingerprint = "killing"
        n_asked = 0

        def score(self, query: anncur.Query, items: list[anncur.Item]) -> np.ndarray:
            self.n_asked += 1
            if self.n_asked == 2:
                server.kill()
            row: np.ndarray = world.exact_scores[world.queries.index(query.text)]
            return row[[int(item.id[1:]) for item in items]]

    found = anncur.attach(location, Killing(), embed_queries=world.embed)
    try:
        with pytest.raises(DatabaseError, match="can't be reached") as caught:
            found.search(world.queries[0], 5, 60)
    finally:
        server.start()
    assert isinstance(caught.value.kept, anncur.Hits)
    assert len(caught.value.kept) == 5
    assert caught.value.kept.is_partial
