"""Databases pass what anncur's own filters pass, for random filters over random metadata."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import anncur
from anncur.attached.base import Collection, Selection
from anncur.columns import MetadataColumns
from anncur.filters import parse_filter
from servers import LiteFolder, MilvusServer, PostgresServer

N_ITEMS, N_FILTERS, WIDTH = 90, 250, 3
WHOLE: list[Any] = [-1, 0, 1, 2, 3, 2001, 2004]
FRACTIONS: list[Any] = [-0.5, 0.0, 0.1, 0.25, 3.0, 2004.5]
TEXTS: list[Any] = ["", "E", "de", "en", "ä", 'a"b', "x'y", "100%", "🙂"]
ODD_NUMBERS: list[Any] = [2**31, 2**53 + 1, 2**63 - 1, -(2**63), 10**30, -(10**30), 1e300, -1e300, 0.1 + 1e-12]
Make = Callable[[np.random.Generator], Any]  # a value of some item


def no_scores(pairs: list[tuple[str, str]]) -> list[float]:
    raise AssertionError("nothing is scored")


def one_of(values: list[Any]) -> Make:
    return lambda rng: values[rng.integers(len(values))]


def some_of(values: list[Any], *, least: int = 0) -> Make:
    return lambda rng: [values[place] for place in rng.integers(len(values), size=rng.integers(least, 4))]


def any_of(*makes: Make) -> Make:
    return lambda rng: makes[rng.integers(len(makes))](rng)


def rows_of(fields: dict[str, Make], rng: np.random.Generator, *, has_nulls: bool = True) -> list[dict[str, Any]]:
    """The metadata of all items; every field is null for some of them."""
    return [
        {name: None if has_nulls and rng.random() < 0.2 else make(rng) for name, make in fields.items()}
        for _ in range(N_ITEMS)
    ]


class RandomFilters:
    """Of the kinds of value that fields have."""

    def __init__(self, kinds: dict[str, str], rng: np.random.Generator, *, listed: tuple[str, ...] = ()) -> None:
        self._kinds, self._rng, self._listed = kinds, rng, listed  # fields of lists that can't be compared

    def filter(self, depth: int = 2) -> dict[str, Any]:
        choice = self._rng.random()
        if depth and choice < 0.2:
            return {"not": self.filter(depth - 1)}
        if depth and choice < 0.4:
            return {["and", "or"][self._rng.integers(2)]: [self.filter(depth - 1) for _ in range(2)]}
        name = list(self._kinds)[self._rng.integers(len(self._kinds))]
        return {name: self._asked(name)}

    def _asked(self, name: str) -> Any:
        kind, choice = self._kinds[name], self._rng.integers(6)
        if choice == 0:
            return {"exists": bool(self._rng.integers(2))}
        if choice == 1:
            return {"not in": [self._value(kind) for _ in range(2)]}
        if choice == 2:
            return [self._value(kind) for _ in range(self._rng.integers(4))]
        if choice == 3 or kind == "boolean" or name in self._listed:
            return self._value(kind)
        first, second = [["<", "<="], [">", ">="]][self._rng.integers(2)], [["<"], [">="]][self._rng.integers(2)]
        signs = [first[self._rng.integers(2)], *(second if choice == 5 else [])]
        held = "number" if kind == "any" and self._rng.integers(2) else "string" if kind == "any" else kind
        return {sign: self._value(held) for sign in signs}

    def _value(self, kind: str) -> Any:
        pools = {"number": [*WHOLE, *FRACTIONS, *ODD_NUMBERS], "string": TEXTS, "boolean": [True, False]}
        pools["any"] = [value for pool in list(pools.values()) for value in pool]
        return one_of(pools[kind])(self._rng)


def assert_same_answers(collection: Collection, ids: list[Any], filters: RandomFilters) -> None:
    """What passes there is what passes here, of the metadata that items come with."""
    columns = MetadataColumns.of(item.metadata for item in collection.items(ids))
    for _ in range(N_FILTERS):
        conditions = filters.filter()
        selection = Selection(parse_filter(conditions))
        collection.check(selection)
        passing = selection.condition.passing(columns)  # type: ignore[union-attr]
        expected = [ids[place] for place in np.flatnonzero(passing).tolist()]
        point = np.ones((1, WIDTH), dtype=np.float32)
        (found,) = collection.nearest(point, N_ITEMS, exclude=[[]], selection=selection, is_thorough=True)
        assert sorted(found.ids) == sorted(expected), conditions


COLUMNS: dict[str, tuple[str, Make]] = {
    "small": ("int2", one_of(WHOLE)),
    "year": ("int4", one_of([*WHOLE, 2**31 - 1])),
    "large": ("int8", one_of([*WHOLE, 2**53 + 1, 2**63 - 1, -(2**63)])),
    "price": ("float4", one_of([*FRACTIONS, 2.0**31, float("nan"), float("inf")])),
    "cost": ("float8", one_of([*FRACTIONS, 1e300, float("nan"), float("-inf")])),
    "n": ("numeric", one_of([*FRACTIONS, 10**30, 0.1 + 1e-12, float("nan")])),
    "lang": ("varchar", one_of(TEXTS)),
    "open": ("bool", one_of([True, False])),
    "tags": ("text[]", some_of([*TEXTS, None])),
    "sizes": ("int4[]", some_of([*WHOLE, None])),
    "weights": ("float4[]", some_of([*FRACTIONS, None])),
}
POSTGRES_KINDS = {
    **dict.fromkeys(["small", "year", "large", "price", "cost", "n", "sizes", "weights"], "number"),
    **dict.fromkeys(["lang", "tags"], "string"),
    "open": "boolean",
}
EXACT = [number for number in ODD_NUMBERS if abs(number) != 1e300]  # which JSON has as 1 and 300 zeros, another number
MIXED = any_of(one_of(WHOLE), one_of([*FRACTIONS, *EXACT]), one_of(TEXTS), one_of([True, False]))
JSON_FIELDS: dict[str, Make] = {
    "mixed": MIXED,
    "listed": any_of(some_of([*WHOLE, *TEXTS, None]), some_of(FRACTIONS), MIXED),
    "odd name": any_of(MIXED, one_of([[[1, "en"]], {"within": 1}])),
}


@pytest.mark.processes
@pytest.mark.parametrize("seed", range(3))
def test_columns_of_postgres(postgres: PostgresServer, seed: int) -> None:
    rng = np.random.default_rng(seed)
    rows = rows_of({name: make for name, (_, make) in COLUMNS.items()}, rng)
    types = {name: type_name for name, (type_name, _) in COLUMNS.items()}
    collection = fill_postgres(postgres, types, rows)
    assert_same_answers(collection, list(range(N_ITEMS)), RandomFilters(POSTGRES_KINDS, rng))


@pytest.mark.processes
@pytest.mark.parametrize("seed", range(3))
def test_a_column_of_json_in_postgres(postgres: PostgresServer, seed: int) -> None:
    from psycopg.types.json import Jsonb

    rng = np.random.default_rng(seed)
    rows = [{"about": Jsonb(row)} for row in rows_of(JSON_FIELDS, rng)]
    collection = fill_postgres(postgres, {"about": "jsonb"}, rows, metadata="about")
    assert_same_answers(collection, list(range(N_ITEMS)), RandomFilters(dict.fromkeys(JSON_FIELDS, "any"), rng))


def fill_postgres(
    server: PostgresServer, types: dict[str, str], rows: list[dict[str, Any]], metadata: str | None = None
) -> Collection:
    from psycopg import sql

    declared = [sql.SQL("{} {}").format(sql.Identifier(name), sql.SQL(held)) for name, held in types.items()]
    with server.connect() as connection:
        connection.execute("DROP TABLE IF EXISTS random_items")
        connection.execute(
            sql.SQL("CREATE TABLE random_items (id int PRIMARY KEY, text text, embedding vector(3), {})").format(
                sql.SQL(", ").join(declared)
            )
        )
        with connection.cursor() as cursor:
            places = sql.SQL(", ").join([sql.SQL(f"%s::{held}") for held in types.values()])
            statement = sql.SQL("INSERT INTO random_items VALUES (%s, 'x', '[1,2,3]', {})").format(places)
            cursor.executemany(statement, [[number, *row.values()] for number, row in enumerate(rows)])
    separator = "&" if "?" in server.location else "?"
    return anncur.attach(f"{server.location}{separator}table=random_items", no_scores, metadata=metadata).collection


MILVUS_FIELDS: dict[str, tuple[str, Make]] = {
    "year": ("INT32", one_of([*WHOLE, 2**31 - 1])),
    "large": ("INT64", one_of([*WHOLE, 2**53 + 1, 2**63 - 1])),
    "cost": ("DOUBLE", one_of([*FRACTIONS, 1e300])),
    "lang": ("VARCHAR", one_of(TEXTS)),
    "open": ("BOOL", one_of([True, False])),
}


@pytest.mark.parametrize("seed", range(2))
def test_fields_of_milvus(any_milvus: MilvusServer | LiteFolder, seed: int) -> None:
    rng = np.random.default_rng(seed)
    has_nulls = isinstance(any_milvus, LiteFolder)  # the server that tests start is of 2.3, which has none
    rows = rows_of({name: make for name, (_, make) in MILVUS_FIELDS.items()}, rng, has_nulls=has_nulls)
    collection = fill_milvus(any_milvus, {name: held for name, (held, _) in MILVUS_FIELDS.items()}, rows)
    kinds = {"year": "number", "large": "number", "cost": "number", "lang": "string", "open": "boolean"}
    assert_same_answers(collection, list(range(N_ITEMS)), RandomFilters(kinds, rng))


MILVUS_JSON: dict[str, tuple[str, Make]] = {
    "whole": ("number", one_of(WHOLE)),
    "part": ("number", one_of(FRACTIONS)),
    "lang": ("string", one_of(TEXTS)),
    "open": ("boolean", one_of([True, False])),
    "tags": ("string", some_of(TEXTS, least=1)),  # for Milvus, an empty list is a value
    "sizes": ("number", some_of(WHOLE, least=1)),
}


@pytest.mark.parametrize("seed", range(2))
def test_a_field_of_json_in_milvus(any_milvus: MilvusServer | LiteFolder, seed: int) -> None:
    rng = np.random.default_rng(seed)
    rows = rows_of({name: make for name, (_, make) in MILVUS_JSON.items()}, rng)
    filled = [{"about": {name: value for name, value in row.items() if value is not None}} for row in rows]
    collection = fill_milvus(any_milvus, {"about": "JSON"}, filled, metadata="about")
    kinds = {name: kind for name, (kind, _) in MILVUS_JSON.items()}
    assert_same_answers(collection, list(range(N_ITEMS)), RandomFilters(kinds, rng, listed=("tags", "sizes")))


def fill_milvus(
    database: MilvusServer | LiteFolder, types: dict[str, str], rows: list[dict[str, Any]], metadata: str | None = None
) -> Collection:
    from pymilvus import DataType, MilvusClient

    is_lite = isinstance(database, LiteFolder)
    client = MilvusClient(str(database.path) if isinstance(database, LiteFolder) else database.url)
    if client.has_collection("random_items"):
        client.drop_collection("random_items")
    schema = client.create_schema(auto_id=False, enable_dynamic_field=False)
    schema.add_field("id", DataType.INT64, is_primary=True)
    schema.add_field("text", DataType.VARCHAR, max_length=64)
    for name, held in types.items():
        options = {"max_length": 64} if held == "VARCHAR" else {}
        schema.add_field(name, DataType[held], **options, **({"nullable": True} if is_lite else {}))
    schema.add_field("embedding", DataType.FLOAT_VECTOR, dim=WIDTH)
    index = client.prepare_index_params()
    index.add_index("embedding", index_type="FLAT", metric_type="IP")
    client.create_collection("random_items", schema=schema, index_params=index, consistency_level="Strong")
    common = {"text": "x", "embedding": [1.0, 2.0, 3.0]}
    client.insert("random_items", [{"id": number, **common, **row} for number, row in enumerate(rows)])
    client.flush("random_items")
    client.load_collection("random_items")
    client.query("random_items", filter="id >= 0", output_fields=["count(*)"], consistency_level="Strong")
    separator = "&" if "?" in database.location else "?"
    location = f"{database.location}{separator}collection=random_items"
    return anncur.attach(location, no_scores, metadata=metadata).collection
