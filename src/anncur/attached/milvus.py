"""A collection of Milvus, as a `Collection`.

    milvus:http://localhost:19530?collection=docs

It is only read: searched and queried, never loaded, indexed or written to. Milvus has one filter for all queries of a
request, so that items that were seen are excluded by it where there is one query, and else left out of a longer
answer. What it gives at once is limited: where more is asked for, it is asked again."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Self, TypeAlias, TypeVar

import numpy as np

from anncur.arrays import FloatMatrix
from anncur.attached.base import COSINE, DISTANCE, PRODUCT, FoundRows, Names, RowId, Selection, found_rows
from anncur.attached.fields import check_named, in_order, item_of, metadata_names
from anncur.attached.milvus_filter import DYNAMIC, LEAST, Field, MilvusFilter
from anncur.attached.pool import as_compared, compared
from anncur.attached.values import whole_ids
from anncur.columns import INT64_MAX
from anncur.databases.location import Location
from anncur.databases.milvus import BOUNDED, MOST_FOUND, Milvus
from anncur.errors import InputError
from anncur.items import Item

if TYPE_CHECKING:
    from pymilvus import MilvusClient

METRICS = {"IP": PRODUCT, "COSINE": COSINE, "L2": DISTANCE}
MOST_BYTES = 2**26  # of embeddings that are fetched unranked: Milvus gives answers of 100 MB at most
AT_ONE_PLACE = 50  # rows of a sample that are beside each other

T = TypeVar("T")
Row: TypeAlias = tuple[RowId, Any]  # an id and an embedding


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
        json_names = [name for name, field in self._fields.items() if _type_name(field) == "JSON"]
        kinds = {name: _as_field(field).kinds for name, field in self._fields.items()}
        self._json, self._metadata = metadata_names(names, kinds, json_names=json_names)
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
        if self._has_numbers:
            n_items = self._count_between(LEAST, INT64_MAX)
            return self._rows(self._draw(LEAST, INT64_MAX, n_items, n=min(n, n_items)))
        return self._rows(self._unranked(self._any_id(), n))

    def nearest(
        self,
        points: FloatMatrix,
        n_best: int,
        *,
        exclude: Sequence[Sequence[RowId]],
        selection: Selection,
        is_thorough: bool = False,
    ) -> list[FoundRows]:
        if len(points) == 1:
            return [self._rows(self._nearest(points, n_best, exclude[0], selection, is_thorough))]
        n_seen = max(map(len, exclude), default=0)
        if n_best + n_seen > MOST_FOUND:
            alone = partial(self.nearest, selection=selection, is_thorough=is_thorough)
            each = zip(points, exclude, strict=True)
            return [rows for point, seen in each for rows in alone(point[None], n_best, exclude=[seen])]
        found = self._run(self._search, points, self._where(selection), n_best + n_seen, is_thorough)
        both = zip(found, map(set, exclude), strict=True)
        return [self._rows([row for row in rows if row[0] not in seen][:n_best]) for rows, seen in both]

    def items(self, ids: Sequence[RowId]) -> list[Item]:
        wanted = list(dict.fromkeys(ids))
        found: dict[RowId, Any] = {}
        for start in range(0, len(wanted), MOST_FOUND):
            where = f"{self._names.id} in {_listed(wanted[start : start + MOST_FOUND])}"
            found.update({row[self._names.id]: row for row in self._run(self._query, where, self._item_fields(), None)})
        return [self._item(row) for row in in_order(self.name, found, ids)]

    def _nearest(
        self, point: FloatMatrix, n_best: int, seen: Sequence[RowId], selection: Selection, is_thorough: bool
    ) -> list[Row]:
        """For one point: page by page, each without what came before."""
        found: list[Row] = []
        while len(found) < n_best:
            n_asked = min(MOST_FOUND, n_best - len(found))
            where = self._where(selection, [*seen, *(row_id for row_id, _ in found)])
            (page,) = self._run(self._search, point, where, n_asked, is_thorough)
            if len(page) < n_asked and is_thorough:  # some indexes can't be asked to look at everything
                page = self._completed(page, point, where, n_asked)
            found += page
            if len(page) < n_asked:
                break
        return found

    def _completed(self, page: list[Row], point: FloatMatrix, where: str, n_best: int) -> list[Row]:
        """With what Milvus has besides, unranked; all of it in the order of the metric."""
        n_more = max(n_best, MOST_BYTES // (4 * self.width))
        rows = {**dict(self._unranked(where or self._any_id(), n_more)), **dict(page)}
        if len(rows) == len(page):
            return page
        embeddings = np.array(list(rows.values()), dtype=np.float32)
        order = np.argsort(-compared(as_compared(embeddings, self.metric)[None], point, self.metric)[0], kind="stable")
        ids = list(rows)
        return [(ids[place], rows[ids[place]]) for place in order[:n_best].tolist()]

    def _where(self, selection: Selection, seen: Sequence[RowId] = ()) -> str:
        unseen = f"{self._names.id} not in {_listed(seen)}" if seen else ""
        return " and ".join(f"({each})" for each in (self._expression(selection), unseen) if each)

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
    ) -> list[list[Row]]:
        found = client.search(
            self._collection,
            data=list(points.astype(np.float32)),
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

    def _own_ids(self, ids: Sequence[str]) -> Sequence[RowId]:
        return [one for one in whole_ids(ids) if one >= LEAST] if self._has_numbers else ids

    @property
    def _has_numbers(self) -> bool:
        return _type_name(self._fields[self._names.id]) == "INT64"

    def _any_id(self) -> str:
        return self._between(LEAST, INT64_MAX) if self._has_numbers else f'{self._names.id} >= ""'

    def _between(self, low: int, high: int) -> str:
        return f"{self._names.id} >= {low} and {self._names.id} <= {high}"

    def _count_between(self, low: int, high: int) -> int:
        return int(self._run(self._query, self._between(low, high), ["count(*)"], None)[0]["count(*)"])

    def _draw(self, low: int, high: int, n_items: int, *, n: int) -> list[Row]:
        """Some of the rows with these ids, of each half in proportion to its items: ids may lie close together."""
        if n <= AT_ONE_PLACE or n == n_items <= MOST_FOUND or low == high:
            return self._unranked(self._between(low, high), n) if n else []
        middle = (low + high) // 2
        n_left = min(n_items, self._count_between(low, middle))
        n_of_left = round(n * n_left / n_items)
        left = self._draw(low, middle, n_left, n=n_of_left)
        return left + self._draw(middle + 1, high, n_items - n_left, n=n - n_of_left)

    def _unranked(self, where: str, n: int) -> list[Row]:
        name = self._names
        found = self._run(self._query, where, [name.embedding], min(n, MOST_FOUND))
        return [(row[name.id], row[name.embedding]) for row in found]

    def _rows(self, found: Sequence[Row]) -> FoundRows:
        return found_rows(self, [row_id for row_id, _ in found], [embedding for _, embedding in found])

    def _item_fields(self) -> list[str]:
        own = self._names
        named = [own.text, *filter(None, [own.title, self._json]), *self._metadata]
        return [*named, "*"] if self._has_dynamic and own.metadata is None else named

    def _item(self, row: dict[str, Any]) -> Item:
        stored = row.get(self._json) if self._json else None
        if isinstance(stored, str | bytes):
            row = {**row, str(self._json): json.loads(stored)}
        return item_of(self.name, self._names, row, json_name=self._json)

    def _check_fields(self) -> None:
        own = self._names
        check_named(self.name, own, self._fields, what="field", has_others=self._has_dynamic)
        if not self._fields[own.id].get("is_primary"):
            raise InputError(f"the field {own.id!r} of {self.name} must be its primary key; name that as id=…")
        if _type_name(self._fields[own.embedding]) != "FLOAT_VECTOR":
            found = _type_name(self._fields[own.embedding])
            raise InputError(f"the field {own.embedding!r} of {self.name} must be a FLOAT_VECTOR, got {found}")


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
