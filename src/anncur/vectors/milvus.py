"""Vectors in Milvus (extra `milvus`): a collection for each space.

    milvus:http://localhost:19530?index=ivf&prefix=anncur&timeout=30
    milvus:./vectors.db

`index` is `ivf`, which looks at the nearest cells, or `flat`, which looks at all. The collections' names begin with
`prefix`; one of them, `…_spaces`, tells what the others hold. Milvus has one filter for all queries of a request, so
that the items to exclude are part of it where there is one query, and else left out of a longer answer."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from anncur.arrays import FloatMatrix
from anncur.databases.location import Location
from anncur.databases.milvus import BOUNDED, MOST_FOUND, STRONG, Milvus
from anncur.errors import DatabaseError, InputError
from anncur.vectors.database import SEGMENT_BITS, Keys
from anncur.vectors.naming import IVF, PREFIX, table_name, timeout_of
from anncur.vectors.prepared import Transform

if TYPE_CHECKING:
    from pymilvus import MilvusClient

BYTES_AT_ONCE = 2**24  # of an upload; Milvus takes four times as much
INDEX_SECONDS = 3600.0
HANDOVER_SECONDS = 60.0
INDEX_PAUSE = 0.5  # seconds between two looks whether it is made
LEAST_CELLS = 128  # of an index; milvus-lite has as many
NOTE_WIDTH = 2  # Milvus has no collection without a vector


class MilvusCollection:
    """One space's collection."""

    def __init__(self, database: Milvus, space: str, *, prefix: str, index: str) -> None:
        self.name = str(database.location)
        self._database = database
        self._space = space
        self._collection = table_name(prefix, space)
        self._spaces = f"{prefix}_spaces"
        self._index = index
        self._is_written = False
        self._n_rows, self._n_cells = 0, 1

    @classmethod
    def open(cls, location: Location, space: str) -> Self:
        """Connect to the database of a location."""
        database = Milvus(location, timeout=timeout_of(location))
        return cls(database, space, prefix=location.option("prefix", PREFIX), index=location.option("index", IVF))

    def prepare(self, make_transform: Callable[[], Transform], *, width: int, n_items: int) -> Transform:
        note = self._database.run(self._note)
        if note is None or not self._database.run(lambda client: client.has_collection(self._collection)):
            transform = make_transform()
            note = {
                "width": width,
                "mean": transform.mean.tolist(),
                "scale": transform.scale,
                "longest": transform.longest,
            }
            made = note  # written before the rows: whoever finds these knows how they were transformed
            self._database.run(lambda client: self._write_note(client, made))
            self._database.run(lambda client: self._create(client, width, n_items))
        if note["width"] != width:
            raise InputError(
                f"the collection {self._collection} of {self.name} holds vectors of {note['width']} numbers, got "
                f"{width}; is it that of another index? Name another prefix=…"
            )
        return Transform(np.array(note["mean"], dtype=np.float32), note["scale"], note["longest"])

    @property
    def n_lost(self) -> int:
        return self._database.n_lost

    @property
    def is_elsewhere(self) -> bool:
        return self._database.is_server

    def is_dropped(self) -> bool:
        has_spaces = self._database.run(lambda client: client.has_collection(self._spaces))
        return has_spaces and self._database.run(self._note) is None

    def writing(self) -> AbstractContextManager[object]:
        return nullcontext()  # Milvus has no locks, and rows that are written twice are the same

    def missing(self, keys: Keys) -> Keys:
        self._n_rows = self._n_matching(_between(0, 2**63 - 1))
        parts = np.split(keys, np.flatnonzero(np.diff(keys >> SEGMENT_BITS)) + 1) if len(keys) else []
        return np.concatenate([np.empty(0, dtype=np.int64), *map(self._missing, parts)])

    def write(self, keys: Keys, rows: FloatMatrix) -> None:
        step = max(1, BYTES_AT_ONCE // (4 * rows.shape[1]))
        single = rows.astype(np.float32)
        for start in range(0, len(keys), step):
            both = zip(keys[start : start + step].tolist(), single[start : start + step], strict=True)
            content = [{"key": key, "vector": row} for key, row in both]
            self._database.run(partial(self._upsert, content))
        self._is_written = True

    def finish(self) -> None:
        self._database.run(self._await_index)

    @property
    def n_rows(self) -> int:
        return self._n_rows

    @property
    def most_effort(self) -> int:
        return self._n_cells if self._index == IVF else 1

    @property
    def most_found(self) -> int:
        return MOST_FOUND

    def search(self, queries: FloatMatrix, n_best: int, *, exclude: Sequence[Keys], effort: int) -> list[Keys]:
        n_most = max(map(len, exclude), default=0)
        condition, n_asked = "", n_best + n_most
        if len(queries) == 1 and n_most:
            condition, n_asked = f"key not in {exclude[0].tolist()}", n_best
        found = self._database.run(lambda client: self._nearest(client, queries, n_asked, condition, effort))
        left = (row[~np.isin(row, gone)] for row, gone in zip(found, exclude, strict=True))
        return [row[:n_best] for row in left]

    def forget(self, keys: Keys) -> None:
        for start in range(0, len(keys), MOST_FOUND):
            self._database.run(partial(self._delete, keys[start : start + MOST_FOUND].tolist()))

    def drop(self) -> None:
        self._database.run(lambda client: client.drop_collection(self._collection, **self._timed))
        if self._database.run(lambda client: client.has_collection(self._spaces, **self._timed)):
            self._database.run(lambda client: client.delete(self._spaces, ids=[self._space], **self._timed))

    @property
    def _timed(self) -> dict[str, Any]:
        return {"timeout": self._database.timeout}

    def _note(self, client: MilvusClient) -> dict[str, Any] | None:
        """What is known of the space."""
        if not client.has_collection(self._spaces):
            return None
        client.load_collection(self._spaces)
        found = client.query(
            self._spaces, ids=[self._space], output_fields=["note"], consistency_level=STRONG, **self._timed
        )
        note: dict[str, Any] | None = json.loads(found[0]["note"]) if found else None
        return note

    def _write_note(self, client: MilvusClient, note: dict[str, Any]) -> None:
        from pymilvus import DataType

        if not client.has_collection(self._spaces):
            schema = client.create_schema(auto_id=False, enable_dynamic_field=False)
            schema.add_field("space", DataType.VARCHAR, is_primary=True, max_length=1024)
            schema.add_field("note", DataType.VARCHAR, max_length=65_535)
            schema.add_field("vector", DataType.FLOAT_VECTOR, dim=NOTE_WIDTH)
            index = client.prepare_index_params()
            index.add_index("vector", index_type="FLAT", metric_type="L2")
            client.create_collection(self._spaces, schema=schema, index_params=index)
        client.upsert(
            self._spaces,
            [{"space": self._space, "note": json.dumps(note), "vector": [0.0] * NOTE_WIDTH}],
            **self._timed,
        )

    def _create(self, client: MilvusClient, width: int, n_items: int) -> None:
        """Make the collection with its index, which rows join when they have come to the disk."""
        from pymilvus import DataType

        if client.has_collection(self._collection):
            return
        schema = client.create_schema(auto_id=False, enable_dynamic_field=False)
        schema.add_field("key", DataType.INT64, is_primary=True)
        schema.add_field("vector", DataType.FLOAT_VECTOR, dim=width + 1)
        index = client.prepare_index_params()
        n_cells = max(LEAST_CELLS, round(math.sqrt(n_items)))
        by_cells = {"index_type": "IVF_FLAT", "params": {"nlist": n_cells}}
        index.add_index("vector", metric_type="L2", **(by_cells if self._index == IVF else {"index_type": "FLAT"}))
        client.create_collection(self._collection, schema=schema, index_params=index)

    def _await_index(self, client: MilvusClient) -> None:
        """Until all rows are in the index."""
        if self._is_written:
            client.flush(self._collection, timeout=INDEX_SECONDS)
        client.load_collection(self._collection, timeout=INDEX_SECONDS)
        until = time.monotonic() + INDEX_SECONDS
        while not _is_indexed(made := client.describe_index(self._collection, "vector")):
            if time.monotonic() > until:
                raise DatabaseError(f"{self.name} hasn't indexed {self._collection} in an hour; look into its log")
            time.sleep(INDEX_PAUSE)
        if self._is_written and self._database.is_server:
            self._await_handover(client)
        self._is_written = False
        self._n_cells = 1 if made["index_type"] == "FLAT" else int(made.get("nlist", LEAST_CELLS))

    def _await_handover(self, client: MilvusClient) -> None:
        """Until searches use the index: before, they use one of fewer rows and low recall. Small segments never come
        to that, so that it is not waited for without end."""
        until = time.monotonic() + HANDOVER_SECONDS
        while time.monotonic() < until:
            segments = client.list_loaded_segments(self._collection, **self._timed)
            if sum(segment.num_rows for segment in segments) >= self._n_rows:
                return
            time.sleep(INDEX_PAUSE)

    def _upsert(self, content: list[dict[str, Any]], client: MilvusClient) -> None:
        client.upsert(self._collection, content, **self._timed)

    def _delete(self, keys: list[int], client: MilvusClient) -> None:
        client.delete(self._collection, ids=keys, **self._timed)

    def _n_matching(self, condition: str) -> int:
        """The number of rows that fulfil a condition."""
        return self._database.run(partial(self._count, condition))

    def _count(self, condition: str, client: MilvusClient) -> int:
        client.load_collection(self._collection, timeout=INDEX_SECONDS)
        found = client.query(
            self._collection,
            filter=condition,
            output_fields=["count(*)"],
            consistency_level=STRONG,
            **self._timed,
        )
        return int(found[0]["count(*)"])

    def _missing(self, keys: Keys) -> Keys:
        """Of the keys of one segment."""
        first, last = int(keys[0]), int(keys[-1])
        n_between = self._n_matching(_between(first, last))
        if n_between == 0:
            return keys
        if last - first + 1 - len(keys) <= MOST_FOUND:
            others = np.setdiff1d(np.arange(first, last + 1), keys)  # those of other versions may have rows, or not
            n_others = self._n_matching(f"key in {others.tolist()}") if len(others) else 0
            if n_between - n_others == len(keys):
                return keys[:0]
        starts = np.unique(keys // MOST_FOUND) * MOST_FOUND  # a window of keys has no more rows than an answer
        windows = [self._database.run(partial(self._keys_from, start)) for start in starts.tolist()]
        return np.setdiff1d(keys, np.concatenate(windows))

    def _keys_from(self, start: int, client: MilvusClient) -> Keys:
        found = client.query(
            self._collection,
            filter=_between(start, start + MOST_FOUND - 1),
            output_fields=["key"],
            limit=MOST_FOUND,
            consistency_level=STRONG,
            **self._timed,
        )
        return np.array([row["key"] for row in found], dtype=np.int64)

    def _nearest(
        self, client: MilvusClient, queries: FloatMatrix, n_best: int, condition: str, effort: int
    ) -> list[Keys]:
        n_cells = min(effort, self._n_cells) if self._index == IVF else self._n_cells
        found = client.search(
            self._collection,
            data=list(queries),
            filter=condition,
            limit=n_best,
            anns_field="vector",
            output_fields=["key"],
            search_params={"metric_type": "L2", "params": {"nprobe": n_cells}},
            consistency_level=BOUNDED,
            **self._timed,
        )
        return [np.array(hits.ids, dtype=np.int64) for hits in found]


def _is_indexed(index: Mapping[str, Any]) -> bool:
    """Whether all rows are in an index. Milvus then merges them into larger segments and indexes those too, for a long
    time, in which it searches the smaller ones."""
    return bool(index["pending_index_rows"] <= 0 or index["indexed_rows"] >= index["total_rows"] > 0)


def _between(first: int, last: int) -> str:
    return f"key >= {first} && key <= {last}"
