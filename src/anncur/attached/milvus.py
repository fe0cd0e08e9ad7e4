"""A collection of Milvus, as a `Collection`.

    milvus:http://localhost:19530?collection=docs

It is only read: searched and queried, never loaded, indexed or written to. Milvus has one filter for all queries of a
request, so that items that were seen are excluded by it where there is one query, and else left out of a longer
answer."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Self, TypeVar

import numpy as np

from anncur.arrays import FloatMatrix
from anncur.attached.base import COSINE, DISTANCE, PRODUCT, FoundRows, Names, RowId, Selection, no_rows
from anncur.attached.milvus_filter import DYNAMIC, Field, MilvusFilter
from anncur.databases.location import Location
from anncur.databases.milvus import Milvus
from anncur.errors import DatabaseError, InputError
from anncur.items import Item

if TYPE_CHECKING:
    from pymilvus import MilvusClient

METRICS = {"IP": PRODUCT, "COSINE": COSINE, "L2": DISTANCE}
MOST_FOUND = 16_384  # that Milvus gives, whether of a search or of a query
N_DRAWS = 40  # places of the collection that a sample is taken from
LEAST_ID, MOST_ID = -(2**63), 2**63 - 1
BOUNDED = "Bounded"  # what was written some seconds ago

T = TypeVar("T")


class MilvusItems:
    """One collection."""

    def __init__(self, database: Milvus, collection: str, names: Names, metric: str | None = None) -> None:
        self._database = database
        self._collection = collection
        self._names = names
        self.name = f"{database.location.kind}:{database.location.url} collection {collection}"
        schema = database.run(self._schema)
        self._fields = {field["name"]: field for field in schema["fields"]}
        self._has_dynamic = bool(schema.get("enable_dynamic_field"))
        self._check_fields()
        self._json, self._metadata = self._metadata_fields()
        own = {name: _as_field(self._fields[name]) for name in self._metadata}
        filled = self._json or (DYNAMIC if self._has_dynamic else None)
        others = frozenset(self._fields) - own.keys()
        self._filter = MilvusFilter(own, filled, names.id, others, is_lite=not database.is_server)
        self._index = database.run(self._describe_index)
        self.metric = metric or METRICS[self._index["metric_type"]]
        if METRICS[self._index["metric_type"]] != self.metric:
            raise InputError(f"{self.name} has an index for {self._index['metric_type']}, and ranks by no other metric")
        self._width = int(self._fields[names.embedding]["params"]["dim"])

    @classmethod
    def open(cls, location: Location, names: Names, metric: str | None, timeout: float) -> Self:
        """Connect to the collection that a location names."""
        collection = location.option("collection", "")
        if not collection:
            raise InputError(f"{location} must name a collection; add collection=… to it")
        return cls(Milvus(location, timeout=timeout), collection, names, metric)

    @property
    def width(self) -> int:
        return self._width

    def check(self, selection: Selection) -> None:
        if selection.condition is not None:
            self._filter.check(selection.condition)

    def count(self, selection: Selection, *, most: int) -> int:
        found = self._run(self._query, self._expression(selection) or self._any_id(), ["count(*)"], None)
        return min(most, int(found[0]["count(*)"]))

    def sample(self, n: int, *, seed: int) -> FoundRows:
        """From places all over the collection where ids are numbers; else the first rows that Milvus gives."""
        starts = self._starts(np.random.default_rng(seed)) if self._has_numbers else [None]
        rows: dict[RowId, Any] = {}
        for start in starts:
            where = self._any_id() if start is None else f"{self._names.id} >= {start}"
            found = self._run(self._query, where, [self._names.embedding], min(MOST_FOUND, -(-n // len(starts))))
            rows.update({row[self._names.id]: row[self._names.embedding] for row in found})
        if not rows:
            raise InputError(f"{self.name} must have at least one item, got none")
        return FoundRows(list(rows), np.array(list(rows.values()), dtype=np.float32))

    def nearest(
        self,
        points: FloatMatrix,
        n_best: int,
        *,
        exclude: Sequence[Sequence[RowId]],
        selection: Selection,
        is_thorough: bool = False,
    ) -> list[FoundRows]:
        n_gone = max(map(len, exclude), default=0)
        conditions = [self._expression(selection)]
        if len(points) == 1 and n_gone:
            conditions.append(f"{self._names.id} not in {_listed(exclude[0])}")
            n_gone = 0
        where = " and ".join(f"({each})" for each in conditions if each)
        n_asked = min(MOST_FOUND, n_best + n_gone)
        found = self._run(self._search, points.astype(np.float32), where, n_asked, is_thorough)
        both = zip(found, map(set, exclude), strict=True)
        return [self._rows([row for row in rows if row[0] not in gone][:n_best]) for rows, gone in both]

    def items(self, ids: Sequence[RowId]) -> list[Item]:
        wanted = list(dict.fromkeys(ids))
        found: dict[RowId, Any] = {}
        for start in range(0, len(wanted), MOST_FOUND):
            where = f"{self._names.id} in {_listed(wanted[start : start + MOST_FOUND])}"
            found.update({row[self._names.id]: row for row in self._run(self._query, where, self._item_fields(), None)})
        gone = [one for one in ids if one not in found]
        if gone:
            raise DatabaseError(f"{self.name} no longer has the item {gone[0]!r}; it is being changed: search again")
        return [self._item(found[one]) for one in ids]

    def _run(self, work: Callable[..., T], *arguments: Any) -> T:
        return self._database.run(partial(work, *arguments))

    def _schema(self, client: MilvusClient) -> dict[str, Any]:
        if not client.has_collection(self._collection):
            there = ", ".join(sorted(client.list_collections())) or "none"
            raise InputError(f"there is no {self.name}; there are: {there}")
        if "Loaded" not in str(client.get_load_state(self._collection)["state"]).replace("NotLoad", ""):
            raise InputError(f"{self.name} isn't loaded, and nothing is changed by attaching to it; load it first")
        found: dict[str, Any] = client.describe_collection(self._collection)
        return found

    def _describe_index(self, client: MilvusClient) -> dict[str, Any]:
        found: dict[str, Any] | None = client.describe_index(self._collection, self._names.embedding)
        if not found:
            raise InputError(f"{self.name} must have an index of the field {self._names.embedding!r}, got none")
        return found

    def _query(self, where: str, fields: list[str], limit: int | None, client: MilvusClient) -> list[dict[str, Any]]:
        limited = {} if limit is None else {"limit": limit}
        found: list[dict[str, Any]] = client.query(
            self._collection,
            filter=where,
            output_fields=fields,
            consistency_level=BOUNDED,
            timeout=self._database.timeout,
            **limited,
        )
        return found

    def _search(
        self, points: FloatMatrix, where: str, limit: int, is_thorough: bool, client: MilvusClient
    ) -> list[list[tuple[RowId, Any]]]:
        found = client.search(
            self._collection,
            data=list(points),
            filter=where,
            limit=limit,
            anns_field=self._names.embedding,
            output_fields=[self._names.embedding],
            search_params={"metric_type": self._index["metric_type"], "params": self._effort(limit, is_thorough)},
            consistency_level=BOUNDED,
            timeout=self._database.timeout,
        )
        name = self._names
        return [[(hit[name.id], hit["entity"][name.embedding]) for hit in hits] for hits in found]

    def _effort(self, limit: int, is_thorough: bool) -> dict[str, int]:
        """How hard an index of cells or a graph is to look."""
        kind, n_cells = self._index["index_type"], int(self._index.get("nlist", 128))
        if kind.startswith("IVF"):
            return {"nprobe": n_cells if is_thorough else max(min(32, n_cells), n_cells // 10)}
        if kind == "HNSW":
            return {"ef": min(32_768, (16 if is_thorough else 2) * max(64, limit))}
        return {}

    def _expression(self, selection: Selection) -> str:
        if selection.ids is not None:
            return f"{self._names.id} in {_listed(self._own_ids(selection.ids))}"
        return "" if selection.condition is None else self._filter.expression(selection.condition)

    def _own_ids(self, ids: Sequence[str]) -> list[RowId]:
        if not self._has_numbers:
            return list(ids)
        return [int(one) for one in ids if one.lstrip("-").isdigit()]

    @property
    def _has_numbers(self) -> bool:
        return _type_name(self._fields[self._names.id]) == "INT64"

    def _any_id(self) -> str:
        return f"{self._names.id} >= {LEAST_ID + 1}" if self._has_numbers else f'{self._names.id} >= ""'

    def _starts(self, rng: np.random.Generator) -> list[int]:
        """Ids between the first and the last one."""
        first = self._run(self._query, self._any_id(), [self._names.id], 1)
        if not first:
            return [0]
        low, high = int(first[0][self._names.id]), MOST_ID
        last = low
        while last < high:  # the last one, by halving
            middle = last + (high - last + 1) // 2
            if self._run(self._query, f"{self._names.id} >= {middle}", [self._names.id], 1):
                last = middle
            else:
                high = middle - 1
        return np.linspace(low, last, N_DRAWS, endpoint=False).astype(np.int64).tolist() if last > low else [low]

    def _rows(self, found: Sequence[tuple[RowId, Any]]) -> FoundRows:
        if not found:
            return no_rows(self.width)
        return FoundRows([one for one, _ in found], np.array([vector for _, vector in found], dtype=np.float32))

    def _item_fields(self) -> list[str]:
        own = self._names
        named = [own.text, *filter(None, [own.title, self._json]), *self._metadata]
        return [*named, "*"] if self._has_dynamic and own.metadata is None else named

    def _item(self, row: dict[str, Any]) -> Item:
        own = self._names
        title = str(row.get(own.title) or "") if own.title else ""
        stored = row.get(self._json) if self._json else {}
        metadata = dict(json.loads(stored) if isinstance(stored, str) else stored or {})
        left_out = {own.id, own.text, own.title, own.embedding, self._json}
        metadata.update({name: value for name, value in row.items() if name not in left_out and value is not None})
        return Item(str(row[own.id]), str(row.get(own.text) or ""), title, metadata)

    def _check_fields(self) -> None:
        own = self._names
        several = own.metadata if isinstance(own.metadata, tuple) else (own.metadata,)
        for name in filter(None, (own.id, own.embedding, own.text, own.title, *several)):
            if name not in self._fields and (not self._has_dynamic or name in (own.id, own.embedding)):
                there = ", ".join(self._fields)
                raise InputError(f"{self.name} has no field {name!r}; it has {there}: name those to use")
        if not self._fields[own.id].get("is_primary"):
            raise InputError(f"the field {own.id!r} of {self.name} must be its primary key; name that as id=…")
        if _type_name(self._fields[own.embedding]) != "FLOAT_VECTOR":
            found = _type_name(self._fields[own.embedding])
            raise InputError(f"the field {own.embedding!r} of {self.name} must be a FLOAT_VECTOR, got {found}")

    def _metadata_fields(self) -> tuple[str | None, list[str]]:
        """The field of JSON, if there is one, and the others."""
        own, fields = self._names, self._fields
        if isinstance(own.metadata, str) and own.metadata in fields and _type_name(fields[own.metadata]) == "JSON":
            return own.metadata, []
        if own.metadata is not None:
            several = [own.metadata] if isinstance(own.metadata, str) else list(own.metadata)
            return None, [name for name in several if name in fields]
        others = [name for name in fields if name not in (own.id, own.text, own.title, own.embedding)]
        return None, [name for name in others if _as_field(fields[name]).kinds]


def _as_field(field: dict[str, Any]) -> Field:
    element = field.get("element_type")
    is_array = _type_name(field) == "ARRAY"
    return Field(field["name"], _type_name(field), _named(element) if is_array else "", bool(field.get("nullable")))


def _type_name(field: dict[str, Any]) -> str:
    return _named(field["type"])


def _named(data_type: Any) -> str:
    from pymilvus import DataType

    return str(DataType(data_type).name)


def _listed(ids: Sequence[RowId]) -> str:
    return json.dumps(list(ids), ensure_ascii=False)
