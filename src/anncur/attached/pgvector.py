"""A table or view of PostgreSQL with a column of embeddings, as a `Collection`.

    pgvector:postgresql://me@host/database?table=docs

Connections are read-only: PostgreSQL itself refuses whatever would write. Filters become SQL, items that were seen are
excluded in the query, embeddings come with the ids, and the queries of a block go over the network together."""

from __future__ import annotations

import datetime
import decimal
import uuid
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from anncur.arrays import FloatMatrix
from anncur.attached.base import COSINE, DISTANCE, PRODUCT, FoundRows, Names, RowId, Selection, no_rows
from anncur.attached.sql_filter import Column, SqlFilter
from anncur.databases.location import Location
from anncur.databases.postgres import Postgres
from anncur.errors import DatabaseError, InputError
from anncur.items import Item

if TYPE_CHECKING:
    import psycopg
    from psycopg.sql import Composable, Composed

OPERATORS = {PRODUCT: "<#>", COSINE: "<=>", DISTANCE: "<->"}
CLASSES = {"ip": PRODUCT, "cosine": COSINE, "l2": DISTANCE}  # of operators: vector_ip_ops, and so on
VECTORS = ("vector", "halfvec")
INTEGERS = ("int2", "int4", "int8")
JSON = ("json", "jsonb")
MOST_EFFORT = 1000  # of a graph: what pgvector takes
LISTS_SHARE = 0.1  # of an index by lists that is looked at


class PgvectorCollection:
    """One table, or view."""

    def __init__(self, database: Postgres, table: str, names: Names, metric: str | None = None) -> None:
        from psycopg import sql

        self._database = database
        self._table = sql.Identifier(*table.split("."))
        self._names = names
        columns = database.run(partial(_columns, table=self._table))
        self.name = f"{database.location.kind}:{database.location.url} table {table}"
        self._check_columns(columns)
        self._columns = columns
        self._json, self._metadata = self._metadata_columns()
        self._filter = SqlFilter({name: columns[name] for name in self._metadata}, self._json)
        found, self._n_lists = database.run(self._index)
        self.metric = metric or found or COSINE
        self._width = database.run(self._find_width)

    @classmethod
    def open(cls, location: Location, names: Names, metric: str | None, timeout: float) -> Self:
        """Connect to the table that a location names."""
        table = location.option("table", "")
        if not table:
            raise InputError(f"{location} must name a table; add table=… to it")
        return cls(Postgres(location, is_read_only=True, timeout=timeout), table, names, metric)

    @property
    def width(self) -> int:
        return self._width

    def check(self, selection: Selection) -> None:
        if selection.condition is not None:
            self._filter.check(selection.condition)

    def count(self, selection: Selection, *, most: int) -> int:
        return self._database.run(partial(self._count, selection, most))

    def sample(self, n: int, *, seed: int) -> FoundRows:
        return self._database.run(partial(self._sample, n, seed))

    def nearest(
        self,
        points: FloatMatrix,
        n_best: int,
        *,
        exclude: Sequence[Sequence[RowId]],
        selection: Selection,
        is_thorough: bool = False,
    ) -> list[FoundRows]:
        work = partial(self._nearest, points, n_best, exclude=exclude, selection=selection, is_thorough=is_thorough)
        return self._database.run(lambda connection: work(connection=connection))

    def items(self, ids: Sequence[RowId]) -> list[Item]:
        return self._database.run(partial(self._fetch, ids))

    def _nearest(
        self,
        points: FloatMatrix,
        n_best: int,
        *,
        exclude: Sequence[Sequence[RowId]],
        selection: Selection,
        is_thorough: bool,
        connection: psycopg.Connection[Any],
    ) -> list[FoundRows]:
        """All in one pipeline."""
        from pgvector import HalfVector, Vector
        from psycopg import sql

        where, values = self._where(selection)
        embedding = sql.Identifier(self._names.embedding)
        statement = sql.SQL("SELECT {id}, {embedding} FROM {table} WHERE {where} AND {gone} ORDER BY {order} LIMIT %s")
        composed = statement.format(
            id=sql.Identifier(self._names.id),
            embedding=embedding,
            table=self._table,
            where=where,
            gone=sql.SQL("{} <> ALL({})").format(sql.Identifier(self._names.id), sql.SQL(f"%s::{self._id_type}[]")),
            order=sql.SQL("{} {} {}").format(embedding, sql.SQL(OPERATORS[self.metric]), sql.SQL("%s")),
        )
        as_vector = HalfVector if self._columns[self._names.embedding].type == "halfvec" else Vector
        with connection.pipeline():
            for setting in self._settings(n_best, is_thorough):
                connection.execute(setting)
            found = [
                connection.execute(
                    composed, [*values, list(gone), as_vector(point), n_best], prepare=False, binary=True
                )
                for point, gone in zip(points, exclude, strict=True)
            ]
        return [self._rows(cursor.fetchall()) for cursor in found]

    def _settings(self, n_best: int, is_thorough: bool) -> list[str]:
        if is_thorough:
            return ["SET LOCAL enable_indexscan = off", "SET LOCAL jit = off"]
        return [
            f"SET LOCAL hnsw.ef_search = {min(MOST_EFFORT, max(100, n_best))}",
            "SET LOCAL hnsw.iterative_scan = relaxed_order",
            f"SET LOCAL ivfflat.probes = {max(1, round(LISTS_SHARE * self._n_lists), min(self._n_lists, 32))}",
            "SET LOCAL ivfflat.iterative_scan = relaxed_order",
            "SET LOCAL jit = off",
        ]

    def _where(self, selection: Selection) -> tuple[Composable, list[Any]]:
        from psycopg import sql

        has_embedding = sql.SQL("{} IS NOT NULL").format(sql.Identifier(self._names.embedding))
        if selection.ids is not None:
            wanted = sql.SQL("{} = ANY({})").format(sql.Identifier(self._names.id), sql.SQL(f"%s::{self._id_type}[]"))
            return sql.SQL("({} AND {})").format(has_embedding, wanted), [self._own_ids(selection.ids)]
        if selection.condition is None:
            return has_embedding, []
        condition, values = self._filter.where(selection.condition)
        return sql.SQL("({} AND {})").format(has_embedding, condition), values

    def _own_ids(self, ids: Sequence[str]) -> list[RowId]:
        """Ids as the column has them; those that it can't have are left out."""
        if self._columns[self._names.id].type in INTEGERS:
            return [int(one) for one in ids if one.lstrip("-").isdigit()]
        return [one for one in ids if self._id_type != "uuid" or _is_uuid(one)]

    @property
    def _id_type(self) -> str:
        return self._columns[self._names.id].type

    def _count(self, selection: Selection, most: int, connection: psycopg.Connection[Any]) -> int:
        from psycopg import sql

        where, values = self._where(selection)
        statement = sql.SQL("SELECT count(*) FROM (SELECT 1 FROM {} WHERE {} LIMIT %s) AS counted")
        found = connection.execute(statement.format(self._table, where), [*values, most]).fetchone()
        return int(found[0]) if found else 0

    def _sample(self, n: int, seed: int, connection: psycopg.Connection[Any]) -> FoundRows:
        """Of random pages where there are many; of a view, which has none, the first rows."""
        from psycopg import sql

        about = connection.execute(
            "SELECT relkind, reltuples FROM pg_class WHERE oid = to_regclass(%s)", [self._table.as_string()]
        ).fetchone()
        pages: Composable = sql.SQL("")
        if about is not None and about[0] in ("r", "m", "p") and about[1] > 4 * n:
            share = min(100.0, 400.0 * n / about[1])  # more than are wanted: pages are not equally full
            pages = sql.SQL("TABLESAMPLE SYSTEM ({}) REPEATABLE ({})").format(sql.Literal(share), sql.Literal(seed))
        statement = sql.SQL("SELECT {}, {} FROM {} {} WHERE {} IS NOT NULL LIMIT %s").format(
            sql.Identifier(self._names.id),
            sql.Identifier(self._names.embedding),
            self._table,
            pages,
            sql.Identifier(self._names.embedding),
        )
        rows = self._rows(connection.execute(statement, [8 * n], binary=True).fetchall())
        chosen = np.sort(np.random.default_rng(seed).permutation(len(rows.ids))[:n])
        return FoundRows([rows.ids[place] for place in chosen.tolist()], rows.embeddings[chosen])

    def _fetch(self, ids: Sequence[RowId], connection: psycopg.Connection[Any]) -> list[Item]:
        statement, names = self._items_statement()
        found = connection.execute(statement, [list(ids)]).fetchall()
        by_id = {_plain(row[0]): dict(zip(names, row, strict=True)) for row in found}
        gone = [one for one in ids if one not in by_id]
        if gone:
            raise DatabaseError(f"{self.name} no longer has the item {gone[0]!r}; it is being changed: search again")
        return [self._item(by_id[one]) for one in ids]

    def _items_statement(self) -> tuple[Composed, list[str]]:
        from psycopg import sql

        own = self._names
        names = [own.id, own.text, *filter(None, [own.title, self._json]), *self._metadata]
        statement = sql.SQL("SELECT {} FROM {} WHERE {} = ANY({})").format(
            sql.SQL(", ").join(map(sql.Identifier, names)),
            self._table,
            sql.Identifier(own.id),
            sql.SQL(f"%s::{self._id_type}[]"),
        )
        return statement, names

    def _item(self, row: dict[str, Any]) -> Item:
        own = self._names
        metadata = dict(row[self._json] or {}) if self._json else {}
        metadata.update({name: _plain(row[name]) for name in self._metadata if row[name] is not None})
        title = str(row[own.title] or "") if own.title else ""
        return Item(str(row[own.id]), str(row[own.text] or ""), title, metadata)

    def _rows(self, found: Sequence[tuple[Any, Any]]) -> FoundRows:
        if not found:
            return no_rows(self.width)
        return FoundRows([_plain(row_id) for row_id, _ in found], np.stack([_as_array(vector) for _, vector in found]))

    def _check_columns(self, columns: dict[str, Column]) -> None:
        own = self._names
        if not columns:
            raise InputError(f"there is no {self.name}; name one that is there: …?table=…")
        several = own.metadata if isinstance(own.metadata, tuple) else (own.metadata,)
        for name in filter(None, (own.id, own.text, own.title, own.embedding, *several)):
            if name not in columns:
                raise InputError(f"{self.name} has no column {name!r}; it has {', '.join(columns)}: name those to use")
        if columns[own.embedding].type not in VECTORS:
            raise InputError(
                f"the column {own.embedding!r} of {self.name} must hold embeddings, of type vector or halfvec, got "
                f"{columns[own.embedding].type}"
            )

    def _metadata_columns(self) -> tuple[str | None, list[str]]:
        """The column of JSON, if there is one, and the others."""
        own, columns = self._names, self._columns
        if isinstance(own.metadata, str) and columns[own.metadata].type in JSON:
            return own.metadata, []
        if own.metadata is not None:
            return None, [own.metadata] if isinstance(own.metadata, str) else list(own.metadata)
        others = [name for name in columns if name not in (own.id, own.text, own.title, own.embedding)]
        return None, [name for name in others if columns[name].kinds]

    def _index(self, connection: psycopg.Connection[Any]) -> tuple[str | None, int]:
        """The metric of an index over the embeddings, and its number of lists if it has some."""
        found = connection.execute(
            "SELECT opcname, pg_class.reloptions FROM pg_index JOIN pg_class ON pg_class.oid = indexrelid "
            "JOIN pg_opclass ON pg_opclass.oid = ANY(indclass) JOIN pg_attribute ON attrelid = indrelid "
            "AND attnum = ANY(indkey) WHERE indrelid = to_regclass(%s) AND attname = %s AND opcname ~ %s",
            [self._table.as_string(), self._names.embedding, "^(vector|halfvec)_(ip|cosine|l2)_ops$"],
        ).fetchone()
        if found is None:
            return None, 1
        options = dict(option.split("=", 1) for option in found[1] or [])
        return CLASSES[found[0].split("_")[1]], int(options.get("lists", 1))

    def _find_width(self, connection: psycopg.Connection[Any]) -> int:
        from psycopg import sql

        embedding = sql.Identifier(self._names.embedding)
        statement = sql.SQL("SELECT vector_dims({}) FROM {} WHERE {} IS NOT NULL LIMIT 1")
        found = connection.execute(statement.format(embedding, self._table, embedding)).fetchone()
        if found is None:
            raise InputError(f"{self.name} must have at least one item with an embedding, got none")
        return int(found[0])


def _columns(connection: psycopg.Connection[Any], *, table: Any) -> dict[str, Column]:
    found = connection.execute(
        "SELECT attname, typname FROM pg_attribute JOIN pg_type ON pg_type.oid = atttypid "
        "WHERE attrelid = to_regclass(%s) AND attnum > 0 AND NOT attisdropped ORDER BY attnum",
        [table.as_string()],
    ).fetchall()
    return {name: Column(name, type_name) for name, type_name in found}


def _as_array(vector: Any) -> FloatMatrix:
    found: FloatMatrix = np.asarray(vector.to_numpy() if hasattr(vector, "to_numpy") else vector, dtype=np.float32)
    return found


def _plain(value: Any) -> Any:
    """A value of a row as JSON has it."""
    if isinstance(value, datetime.datetime | datetime.date | datetime.time):
        return value.isoformat()
    if isinstance(value, uuid.UUID):
        return str(value)
    if isinstance(value, decimal.Decimal):
        return int(value) if value == value.to_integral_value() else float(value)
    return [_plain(one) for one in value] if isinstance(value, list) else value


def _is_uuid(text: str) -> bool:
    try:
        uuid.UUID(text)
    except ValueError:
        return False
    return True
