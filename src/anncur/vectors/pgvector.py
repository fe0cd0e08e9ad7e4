"""Vectors in PostgreSQL with pgvector (extra `postgres`): a table for each space, in half precision.

    pgvector:postgresql://me@host/database?index=ivf&prefix=anncur&timeout=30

`index` is `ivf`, which looks at the nearest lists, or `flat`, which scans all rows. The tables' names begin with
`prefix`; one of them, `…_spaces`, tells what the others hold. What is found is ranked again by the client, so that
half precision costs nothing but a few candidates."""

from __future__ import annotations

import math
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from anncur.arrays import FloatMatrix
from anncur.databases.location import Location
from anncur.databases.postgres import Postgres
from anncur.errors import DatabaseError, InputError
from anncur.vectors.database import SEGMENT_BITS, Keys
from anncur.vectors.naming import IVF, PREFIX, table_name, timeout_of
from anncur.vectors.prepared import Transform

if TYPE_CHECKING:
    import psycopg
    from psycopg import sql

MOST_FOUND = 50_000  # rows of one answer
MOST_WIDTH = 4000  # that an index takes in half precision
LEAST_INDEXED = 2000  # rows; fewer are scanned
OUTGROWN = 4  # times the rows that an index was made of: then its lists are too long
DROP_SECONDS = 2  # that readers may delay the drop of an index
MIX_FACTOR, MIX_PRIME = 2**31 - 19, 2**61 - 1  # a product with the lower half of a key fits into 63 bits
SAMPLES_PER_LIST = 50  # rows that lists are fitted to


class PgvectorTable:
    """One space's table."""

    def __init__(self, database: Postgres, space: str, *, prefix: str, index: str) -> None:
        from psycopg import sql

        self.name = str(database.location)
        self._database = database
        self._space = space
        self._plain_name = table_name(prefix, space)
        self._table = sql.Identifier(self._plain_name)
        self._spaces = sql.Identifier(f"{prefix}_spaces")
        self._index = index
        self._n_rows, self._n_lists = 0, 1

    @classmethod
    def open(cls, location: Location, space: str) -> Self:
        """Connect to the database of a location."""
        database = Postgres(location, timeout=timeout_of(location))
        return cls(database, space, prefix=location.option("prefix", PREFIX), index=location.option("index", IVF))

    def prepare(self, make_transform: Callable[[], Transform], *, width: int, n_items: int) -> Transform:
        if width + 1 > MOST_WIDTH:
            raise InputError(
                f"pgvector ranks vectors of at most {MOST_WIDTH - 1} numbers, got {width}; use 'faiss:ivf'"
            )
        found = self._database.run(self._find)
        if found is None:
            transform = make_transform()
            found = self._database.run(lambda connection: self._create(connection, transform, width))
        found_width, mean, scale, longest = found
        if found_width != width:
            raise InputError(
                f"the table {self._plain_name} of {self.name} holds vectors of {found_width} numbers, got {width}; is "
                "it that of another index? Name another prefix=…"
            )
        return Transform(np.array(mean, dtype=np.float32), scale, longest)

    @property
    def n_lost(self) -> int:
        return self._database.n_lost

    @property
    def is_elsewhere(self) -> bool:
        return True

    def is_dropped(self) -> bool:
        return self._database.run(self._is_dropped)

    @contextmanager
    def writing(self) -> Iterator[None]:
        with self._database.holding(f"write {self._plain_name}"):
            yield

    def missing(self, keys: Keys) -> Keys:
        there = self._database.run(self._summary)
        self._n_rows = sum(n for n, _ in there.values())
        parts = np.split(keys, np.flatnonzero(np.diff(keys >> SEGMENT_BITS)) + 1) if len(keys) else []
        return np.concatenate([np.empty(0, dtype=np.int64), *(self._missing(part, there) for part in parts)])

    def write(self, keys: Keys, rows: FloatMatrix) -> None:
        content = _binary_rows(keys, rows)
        self._database.run(lambda connection: self._copy(connection, content))

    def finish(self) -> None:
        n_indexed = self._database.run(self._n_indexed)
        self._n_lists = _n_lists(n_indexed)
        wanted = self._index == IVF and self._n_rows >= LEAST_INDEXED
        if wanted and self._n_rows > OUTGROWN * n_indexed:
            with self._database.holding(f"index {self._plain_name}"):
                self._database.run(self._make_index, timeout=0)
                with suppress(DatabaseError):  # one that somebody reads all the time is dropped with the next
                    self._database.run(self._drop_outgrown)

    @property
    def n_rows(self) -> int:
        return self._n_rows

    @property
    def most_effort(self) -> int:
        return self._n_lists if self._index == IVF else 1

    @property
    def most_found(self) -> int:
        return MOST_FOUND

    def search(self, queries: FloatMatrix, n_best: int, *, exclude: Sequence[Keys], effort: int) -> list[Keys]:
        return self._database.run(lambda connection: self._nearest(connection, queries, n_best, exclude, effort))

    def forget(self, keys: Keys) -> None:
        from psycopg import sql

        statement = sql.SQL("DELETE FROM {} WHERE key = ANY(%b::bigint[])").format(self._table)
        self._database.run(lambda connection: connection.execute(statement, [keys.tolist()]), timeout=0)

    def drop(self) -> None:
        self._database.run(self._drop)

    def _find(self, connection: psycopg.Connection[Any]) -> tuple[Any, ...] | None:
        """What is known of the space; None where there is no table of it."""
        from psycopg import sql

        for name in (self._spaces, self._table):
            there = connection.execute("SELECT to_regclass(%s) IS NOT NULL", [name.as_string()]).fetchone()
            if there is None or not there[0]:
                return None
        statement = sql.SQL("SELECT width, mean, scale, longest FROM {} WHERE space = %s").format(self._spaces)
        return connection.execute(statement, [self._space]).fetchone()

    def _create(self, connection: psycopg.Connection[Any], transform: Transform, width: int) -> tuple[Any, ...]:
        """Make the table, unless somebody else has made it by now."""
        from psycopg import sql

        connection.execute("SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))", [f"create {self._plain_name}"])
        connection.execute("SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))", [self._spaces.as_string()])
        found = self._find(connection)
        if found is not None:
            return found
        of_spaces = (
            "CREATE TABLE IF NOT EXISTS {} (space text PRIMARY KEY, name text, width int, mean float4[], "
            "scale float8, longest float8, n_indexed bigint)"
        )
        connection.execute(sql.SQL(of_spaces).format(self._spaces))
        of_rows = "CREATE TABLE IF NOT EXISTS {} (key bigint PRIMARY KEY, vector halfvec({}) STORAGE PLAIN NOT NULL)"
        connection.execute(sql.SQL(of_rows).format(self._table, sql.Literal(width + 1)))
        row = (width, transform.mean.tolist(), transform.scale, transform.longest)
        insert = "INSERT INTO {} VALUES (%s, %s, %s, %s, %s, %s, 0) ON CONFLICT (space) DO NOTHING"
        connection.execute(sql.SQL(insert).format(self._spaces), [self._space, self._plain_name, *row])
        found = self._find(connection)
        assert found is not None, "it was made in this transaction"
        return found

    def _summary(self, connection: psycopg.Connection[Any]) -> dict[int, tuple[int, int]]:
        """The number of rows of each segment, and their keys mixed and combined: of neighbours as they are, many
        combine to the same."""
        from psycopg import sql

        statement = sql.SQL(
            "SELECT key >> {bits}, count(*), bit_xor((key & {mask}) * {factor} % {prime}) FROM {table} GROUP BY 1"
        ).format(
            bits=sql.Literal(SEGMENT_BITS),
            mask=sql.Literal(2**SEGMENT_BITS - 1),
            factor=sql.Literal(MIX_FACTOR),
            prime=sql.Literal(MIX_PRIME),
            table=self._table,
        )
        return {segment: (n, combined) for segment, n, combined in connection.execute(statement).fetchall()}

    def _missing(self, keys: Keys, there: dict[int, tuple[int, int]]) -> Keys:
        """Of the keys of one segment."""
        segment = int(keys[0]) >> SEGMENT_BITS
        if segment not in there:
            return keys
        mixed = (keys & (2**SEGMENT_BITS - 1)) * MIX_FACTOR % MIX_PRIME
        if there[segment] == (len(keys), int(np.bitwise_xor.reduce(mixed))):
            return keys[:0]
        known = self._database.run(lambda connection: self._keys_between(connection, int(keys[0]), int(keys[-1])))
        return np.setdiff1d(keys, known)

    def _keys_between(self, connection: psycopg.Connection[Any], first: int, last: int) -> Keys:
        from psycopg import sql

        statement = sql.SQL("SELECT array_agg(key) FROM {} WHERE key BETWEEN %s AND %s").format(self._table)
        found = connection.execute(statement, [first, last], binary=True).fetchone()
        return np.array((found[0] if found else None) or [], dtype=np.int64)

    def _copy(self, connection: psycopg.Connection[Any], content: bytes) -> None:
        """Through a table of this transaction's own, because others may have written some of the rows."""
        from psycopg import sql

        incoming = sql.Identifier("anncur_incoming")
        like = "CREATE TEMPORARY TABLE {} (LIKE {}) ON COMMIT DROP"
        connection.execute(sql.SQL(like).format(incoming, self._table))
        with (
            connection.cursor() as cursor,
            cursor.copy(sql.SQL("COPY {} FROM STDIN (FORMAT binary)").format(incoming)) as copy,
        ):
            copy.write(content)
        move = "INSERT INTO {} SELECT * FROM {} ON CONFLICT (key) DO NOTHING"
        connection.execute(sql.SQL(move).format(self._table, incoming))

    def _n_indexed(self, connection: psycopg.Connection[Any]) -> int:
        """The rows that there were when the index was made; 0 where there is none."""
        from psycopg import sql

        statement = sql.SQL(
            "SELECT n_indexed FROM {} WHERE space = %s AND EXISTS (SELECT 1 FROM pg_index JOIN pg_class "
            "ON pg_class.oid = indexrelid WHERE indrelid = to_regclass(%s) AND relname LIKE %s AND indisvalid)"
        ).format(self._spaces)
        pattern = f"{self._plain_name}_ivf%"
        found = connection.execute(statement, [self._space, self._table.as_string(), pattern]).fetchone()
        return int(found[0] or 0) if found else 0

    def _make_index(self, connection: psycopg.Connection[Any]) -> None:
        """An index of all rows, beside one that the table has outgrown: readers use that meanwhile."""
        from psycopg import sql

        if self._n_rows <= OUTGROWN * self._n_indexed(connection):  # somebody else has made it
            self._n_lists = _n_lists(self._n_indexed(connection))
            return
        self._n_lists = _n_lists(self._n_rows)
        find = sql.SQL("SELECT width FROM {} WHERE space = %s").format(self._spaces)
        (width,) = connection.execute(find, [self._space]).fetchone() or (MOST_WIDTH,)
        connection.execute(f"SET LOCAL maintenance_work_mem = '{_memory_mb(self._n_lists, width)}MB'")
        name = sql.Identifier(f"{self._plain_name}_ivf_{uuid.uuid4().hex[:8]}")
        make = "CREATE INDEX {} ON {} USING ivfflat (vector halfvec_l2_ops) WITH (lists = {})"
        connection.execute(sql.SQL(make).format(name, self._table, sql.Literal(self._n_lists)))
        record = sql.SQL("UPDATE {} SET n_indexed = %s WHERE space = %s").format(self._spaces)
        connection.execute(record, [self._n_rows, self._space])
        connection.execute(sql.SQL("ANALYZE {}").format(self._table))

    def _drop_outgrown(self, connection: psycopg.Connection[Any]) -> None:
        """All indexes but the latest, unless readers keep them too long: all others would wait behind this."""
        from psycopg import sql

        connection.execute(f"SET LOCAL lock_timeout = '{DROP_SECONDS}s'")
        find = (
            "SELECT relname FROM pg_index JOIN pg_class ON pg_class.oid = indexrelid "
            "WHERE indrelid = to_regclass(%s) AND relname LIKE %s ORDER BY indexrelid DESC OFFSET 1"
        )
        found = connection.execute(find, [self._table.as_string(), f"{self._plain_name}_ivf%"]).fetchall()
        for (name,) in found:
            connection.execute(sql.SQL("DROP INDEX IF EXISTS {}").format(sql.Identifier(name)))

    def _nearest(
        self,
        connection: psycopg.Connection[Any],
        queries: FloatMatrix,
        n_best: int,
        exclude: Sequence[Keys],
        effort: int,
    ) -> list[Keys]:
        """All queries in one pipeline, which is one journey over the network."""
        from pgvector import HalfVector

        statement = self._statement()
        with connection.pipeline():
            for setting in _settings(effort, self._n_lists) if self._index == IVF else _EXACT_SETTINGS:
                connection.execute(setting)
            found = [
                connection.execute(statement, [gone.tolist(), HalfVector(query), n_best], binary=True, prepare=False)
                for query, gone in zip(queries, exclude, strict=True)
            ]
        rows = [cursor.fetchone() for cursor in found]
        return [np.array((row[0] if row else None) or [], dtype=np.int64) for row in rows]

    def _statement(self) -> sql.Composed:
        from psycopg import sql

        return sql.SQL(
            "SELECT array_agg(key) FROM (SELECT key FROM {} WHERE key <> ALL(%b::bigint[]) "
            "ORDER BY vector <-> %b LIMIT %s) AS nearest"
        ).format(self._table)

    def _drop(self, connection: psycopg.Connection[Any]) -> None:
        from psycopg import sql

        connection.execute(sql.SQL("DROP TABLE IF EXISTS {}").format(self._table))
        if self._find_spaces(connection):
            connection.execute(sql.SQL("DELETE FROM {} WHERE space = %s").format(self._spaces), [self._space])

    def _is_dropped(self, connection: psycopg.Connection[Any]) -> bool:
        from psycopg import sql

        if not self._find_spaces(connection):
            return False  # all is lost
        statement = sql.SQL("SELECT 1 FROM {} WHERE space = %s").format(self._spaces)
        return connection.execute(statement, [self._space]).fetchone() is None

    def _find_spaces(self, connection: psycopg.Connection[Any]) -> bool:
        found = connection.execute("SELECT to_regclass(%s) IS NOT NULL", [self._spaces.as_string()]).fetchone()
        return bool(found and found[0])


_EXACT_SETTINGS = ("SET LOCAL enable_indexscan = off", "SET LOCAL jit = off")  # the table may have an index


def _settings(effort: int, n_lists: int) -> list[str]:
    """Of this transaction: how many lists to look at, more of them where too few rows come, and no compilation."""
    return [
        f"SET LOCAL ivfflat.probes = {min(effort, n_lists)}",
        f"SET LOCAL ivfflat.max_probes = {n_lists}",
        "SET LOCAL ivfflat.iterative_scan = relaxed_order",
        "SET LOCAL jit = off",
    ]


def _n_lists(n_rows: int) -> int:
    return max(1, round(math.sqrt(n_rows)))


def _memory_mb(n_lists: int, width: int) -> int:
    """What fitting lists takes: the rows that they are fitted to, and the distances of each from every list."""
    numbers = SAMPLES_PER_LIST * n_lists * (n_lists + width + 16) + n_lists**2
    return max(64, math.ceil(1.2 * 4 * numbers / 2**20))


def _binary_rows(keys: Keys, rows: FloatMatrix) -> bytes:
    """Rows in PostgreSQL's binary format for COPY."""
    width = rows.shape[1]
    layout = [
        ("n_fields", ">i2"),
        ("key_bytes", ">i4"),
        ("key", ">i8"),
        ("vector_bytes", ">i4"),
        ("width", ">i2"),
        ("unused", ">i2"),
        ("vector", ">f2", (width,)),
    ]
    content = np.zeros(len(keys), dtype=layout)
    content["n_fields"], content["key_bytes"], content["key"] = 2, 8, keys
    content["vector_bytes"], content["width"], content["vector"] = 4 + 2 * width, width, rows
    return b"PGCOPY\n\xff\r\n\0" + bytes(8) + content.tobytes() + b"\xff\xff"
