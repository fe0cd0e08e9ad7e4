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
from anncur.attached.base import COSINE, DISTANCE, EVERYTHING, PRODUCT, FoundRows, Names, RowId, Selection, found_rows
from anncur.attached.fields import check_named, in_order, item_of, metadata_names
from anncur.attached.sql_filter import INTEGERS, Column, SqlFilter, quoted
from anncur.attached.values import whole_ids
from anncur.databases.location import Location
from anncur.databases.postgres import Postgres
from anncur.errors import InputError
from anncur.items import Item

if TYPE_CHECKING:
    import psycopg
    from psycopg.sql import Composable, Composed

OPERATORS = {PRODUCT: "<#>", COSINE: "<=>", DISTANCE: "<->"}
CLASSES = {"ip": PRODUCT, "cosine": COSINE, "l2": DISTANCE}  # of operators: vector_ip_ops, and so on
VECTORS = ("vector", "halfvec")
JSON = ("json", "jsonb")
MOST_EFFORT = 1000  # of a graph: what pgvector takes
LISTS_SHARE = 0.1  # of an index by lists that is looked at


class PgvectorCollection:
    """One table, or view."""

    def __init__(self, database: Postgres, table: str, names: Names, metric: str | None = None) -> None:
        from psycopg import sql

        self._database = database
        self._table = quoted(*table.split("."))
        self._table_name = sql.Identifier(*table.split(".")).as_string()
        self._names = names
        self._id, self._embedding = quoted(names.id), quoted(names.embedding)
        columns = database.run(partial(_columns, table=self._table_name))
        self.name = f"{database.location.kind}:{database.location.url} table {table}"
        self._check_columns(columns)
        self._columns = columns
        json_names = [name for name, column in columns.items() if column.type in JSON]
        kinds = {name: column.kinds for name, column in columns.items()}
        self._json, self._metadata = metadata_names(names, kinds, json_names=json_names)
        self._filter = SqlFilter({name: columns[name] for name in self._metadata}, self._json)
        database.run(self._check_unique)
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
        statement = sql.SQL(
            "SELECT {id}, {embedding} FROM {table} WHERE {where} AND {unseen} ORDER BY {order} LIMIT %s"
        )
        composed = statement.format(
            id=self._given_id,
            embedding=self._embedding,
            table=self._table,
            where=where,
            unseen=sql.SQL("{} <> ALL({})").format(self._id, self._some_ids),
            order=sql.SQL("{} {} {}").format(self._embedding, sql.SQL(OPERATORS[self.metric]), sql.SQL("%s")),
        )
        as_vector = HalfVector if self._columns[self._names.embedding].type == "halfvec" else Vector
        with connection.pipeline():
            for setting in self._settings(n_best, is_thorough):
                connection.execute(setting)
            found = [
                connection.execute(
                    composed, [*values, list(seen), as_vector(point), n_best], prepare=False, binary=True
                )
                for point, seen in zip(points, exclude, strict=True)
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

        is_item = sql.SQL("{} IS NOT NULL AND {} IS NOT NULL").format(self._id, self._embedding)
        if selection.ids is not None:
            wanted = sql.SQL("{} = ANY({})").format(self._id, self._some_ids)
            return sql.SQL("({} AND {})").format(is_item, wanted), [self._own_ids(selection.ids)]
        if selection.condition is None:
            return is_item, []
        condition, values = self._filter.where(selection.condition)
        return sql.SQL("({} AND {})").format(is_item, condition), values

    def _own_ids(self, ids: Sequence[str]) -> Sequence[RowId]:
        """Ids as the column has them; those that it can't have are left out."""
        held = self._columns[self._names.id].type
        if held in INTEGERS:
            return whole_ids(ids, n_bytes=INTEGERS[held])
        return [one for one in ids if (_is_uuid(one) if held == "uuid" else "\0" not in one)]

    @property
    def _given_id(self) -> Composable:
        """As it is selected: the driver knows no binary form of types that others made."""
        from psycopg import sql

        is_known = bool(self._columns[self._names.id].kinds)
        return self._id if is_known else sql.SQL("{}::text").format(self._id)

    @property
    def _some_ids(self) -> Composable:
        """A parameter: a list of ids."""
        from psycopg import sql

        type_name = self._columns[self._names.id].sql_type.replace("%", "%%")
        return sql.SQL("%s::{}[]").format(sql.SQL(type_name))

    def _count(self, selection: Selection, most: int, connection: psycopg.Connection[Any]) -> int:
        from psycopg import sql

        where, values = self._where(selection)
        statement = sql.SQL("SELECT count(*) FROM (SELECT 1 FROM {} WHERE {} LIMIT %s) AS counted")
        found = connection.execute(statement.format(self._table, where), [*values, most]).fetchone()
        return int(found[0]) if found else 0

    def _sample(self, n: int, seed: int, connection: psycopg.Connection[Any]) -> FoundRows:
        """Of random pages where there are many; of a view, which has none, the first rows."""
        from psycopg import sql

        nothing, pages = sql.SQL(""), self._pages(n, seed, connection)
        rows = self._first_rows(8 * n, pages or nothing, connection)
        if pages and len(rows.ids) < n and len(rows.ids) < self._count(EVERYTHING, n, connection):
            rows = self._first_rows(8 * n, nothing, connection)  # there are fewer than statistics say
        chosen = np.sort(np.random.default_rng(seed).permutation(len(rows.ids))[:n])
        return FoundRows([rows.ids[place] for place in chosen.tolist()], rows.embeddings[chosen])

    def _pages(self, n: int, seed: int, connection: psycopg.Connection[Any]) -> Composable | None:
        from psycopg import sql

        about = connection.execute(
            "SELECT relkind, reltuples FROM pg_class WHERE oid = to_regclass(%s)", [self._table_name]
        ).fetchone()
        if about is None or about[0] not in ("r", "m", "p") or about[1] <= 4 * n:
            return None
        share = min(100.0, 400.0 * n / about[1])  # more than are wanted: pages are not equally full
        return sql.SQL("TABLESAMPLE SYSTEM ({}) REPEATABLE ({})").format(sql.Literal(share), sql.Literal(seed))

    def _first_rows(self, n: int, pages: Composable, connection: psycopg.Connection[Any]) -> FoundRows:
        from psycopg import sql

        where, values = self._where(EVERYTHING)
        statement = sql.SQL("SELECT {}, {} FROM {} {} WHERE {} LIMIT %s").format(
            self._given_id, self._embedding, self._table, pages, where
        )
        return self._rows(connection.execute(statement, [*values, n], binary=True).fetchall())

    def _fetch(self, ids: Sequence[RowId], connection: psycopg.Connection[Any]) -> list[Item]:
        statement, names = self._items_statement()
        found = [dict(zip(names, map(_plain, row), strict=True)) for row in connection.execute(statement, [list(ids)])]
        rows = in_order(self.name, {row[self._names.id]: row for row in found}, ids)
        return [item_of(self.name, self._names, row, json_name=self._json) for row in rows]

    def _items_statement(self) -> tuple[Composed, list[str]]:
        from psycopg import sql

        own = self._names
        names = [own.id, own.text, *filter(None, [own.title, self._json]), *self._metadata]
        statement = sql.SQL("SELECT {} FROM {} WHERE {} = ANY({})").format(
            sql.SQL(", ").join(map(quoted, names)), self._table, self._id, self._some_ids
        )
        return statement, names

    def _rows(self, found: Sequence[tuple[Any, Any]]) -> FoundRows:
        return found_rows(self, [_plain(row_id) for row_id, _ in found], [_as_array(vector) for _, vector in found])

    def _check_columns(self, columns: dict[str, Column]) -> None:
        own = self._names
        if not columns:
            raise InputError(f"there is no {self.name}; name one that is there: …?table=…")
        check_named(self.name, own, columns, what="column")
        if columns[own.embedding].type not in VECTORS:
            raise InputError(
                f"the column {own.embedding!r} of {self.name} must hold embeddings, of type vector or halfvec, got "
                f"{columns[own.embedding].type}"
            )

    def _check_unique(self, connection: psycopg.Connection[Any]) -> None:
        """Refuse a table that may have several rows with an id; what a view has, its rows show."""
        found = connection.execute(
            "SELECT relkind, EXISTS (SELECT 1 FROM pg_index WHERE indrelid = pg_class.oid AND indisunique "
            "AND indisvalid AND indpred IS NULL AND indnkeyatts = 1 AND indkey[0] = attnum) FROM pg_class "
            "JOIN pg_attribute ON attrelid = pg_class.oid AND attname = %s WHERE pg_class.oid = to_regclass(%s)",
            [self._names.id, self._table_name],
        ).fetchone()
        if found is not None and found[0] == "r" and not found[1]:
            raise InputError(
                f"the column {self._names.id!r} of {self.name} must have a unique index, got none, and rows may share "
                "ids; name another as id=…, CREATE UNIQUE INDEX, or attach to a view with one row for each id"
            )

    def _index(self, connection: psycopg.Connection[Any]) -> tuple[str | None, int]:
        """The metric of an index over the embeddings, and its number of lists if it has some."""
        found = connection.execute(
            "SELECT opcname, pg_class.reloptions FROM pg_index JOIN pg_class ON pg_class.oid = indexrelid "
            "JOIN pg_opclass ON pg_opclass.oid = ANY(indclass) JOIN pg_attribute ON attrelid = indrelid "
            "AND attnum = ANY(indkey) WHERE indrelid = to_regclass(%s) AND attname = %s AND opcname ~ %s",
            [self._table_name, self._names.embedding, "^(vector|halfvec)_(ip|cosine|l2)_ops$"],
        ).fetchone()
        if found is None:
            return None, 1
        options = dict(option.split("=", 1) for option in found[1] or [])
        return CLASSES[found[0].split("_")[1]], int(options.get("lists", 1))

    def _find_width(self, connection: psycopg.Connection[Any]) -> int:
        from psycopg import sql

        where, values = self._where(EVERYTHING)
        statement = sql.SQL("SELECT vector_dims({}) FROM {} WHERE {} LIMIT 1")
        found = connection.execute(statement.format(self._embedding, self._table, where), values).fetchone()
        if found is None:
            raise InputError(f"{self.name} must have at least one item with an embedding, got none")
        return int(found[0])


def _columns(connection: psycopg.Connection[Any], *, table: str) -> dict[str, Column]:
    """In their order; of a domain, the type that it is made of."""
    found = connection.execute(
        "WITH RECURSIVE held AS (SELECT attname, attnum, atttypid AS type FROM pg_attribute "
        "WHERE attrelid = to_regclass(%s) AND attnum > 0 AND NOT attisdropped "
        "UNION ALL SELECT attname, attnum, typbasetype FROM held JOIN pg_type ON oid = type WHERE typtype = 'd') "
        "SELECT attname, typname, format_type(type, -1) FROM held JOIN pg_type ON oid = type "
        "WHERE typtype <> 'd' ORDER BY attnum",
        [table],
    ).fetchall()
    return {name: Column(name, type_name, sql_type) for name, type_name, sql_type in found}


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
