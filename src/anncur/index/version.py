"""Reads one version of an index on disk: every file hashed before anything parses it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from anncur.arrays import FloatMatrix, Positions
from anncur.candidates.base import Retriever
from anncur.candidates.loading import load_retrievers
from anncur.errors import DamagedError
from anncur.index.build import Learned
from anncur.index.files import check_file, read_checked
from anncur.index.item_store import ItemStore, Store
from anncur.index.lesson_file import decode_lesson
from anncur.index.manifest import ANCHORS, LEARNED, PREPARED, QUERIES, RANKS, TUNED, Manifest, Segment
from anncur.index.memory import keep_items
from anncur.index.prepared import PreparedStore
from anncur.index.segments import ITEMS, PLAN, SCORES, SEGMENTS
from anncur.index.snapshot import Prepared, Snapshot, StoredItems, make_snapshot
from anncur.index.tuned_file import decode_tuned
from anncur.items import Query
from anncur.scores import ScorePlan, chunk_key, decode_chunk
from anncur.search.beliefs import Tuned
from anncur.search.split import Split, SplitTable


@dataclass(frozen=True)
class Version:
    """A manifest and the folder that it speaks of."""

    folder: Path
    manifest: Manifest

    def load(self, own_retrievers: Mapping[str, Retriever]) -> Snapshot:
        """All of it, checked."""
        stores = self._stores()
        prepared = [
            self._prepared(store, segment) for store, segment in zip(stores, self.manifest.segments, strict=True)
        ]
        learned = self.learned()
        return make_snapshot(
            self.manifest.version,
            self.queries(),
            self._present(stores),
            self.vectors(),
            learned=keep_items(learned, self.alive()),
            retrievers=self.retrievers(own_retrievers),
            seed=self.manifest.seed,
            prepared=Prepared(self.manifest.scorer, self._present(prepared)),
        )

    def retrievers(self, own_retrievers: Mapping[str, Retriever]) -> dict[str, Retriever]:
        """Those that it was built with, still to be fitted."""
        names = self.manifest.retrievers
        return load_retrievers([own_retrievers.get(name, name) for name in names], are_remembered=True)

    def items(self) -> StoredItems:
        """The items that are there."""
        return self._present(self._stores())

    def _stores(self) -> list[ItemStore]:
        return [self.store(segment) for segment in self.manifest.segments]

    def _present(self, stores: Sequence[Store]) -> StoredItems:
        """Of the items of all segments, those that are there."""
        segments = zip(stores, self.manifest.segments, strict=True)
        rows = [segment.rows(0, len(store)) for store, segment in segments]
        return StoredItems(stores, rows)

    def store(self, segment: Segment) -> ItemStore:
        """All items of a segment."""
        name = f"{SEGMENTS}/{segment.name}/{ITEMS}"
        check_file(self.folder / name, self.manifest.files[name])
        return ItemStore(self.folder / name)

    def _prepared(self, items: ItemStore, segment: Segment) -> Store:
        """The items of a segment as their scorer gets them."""
        name = f"{SEGMENTS}/{segment.name}/{PREPARED}"
        if name not in self.manifest.files:
            return items
        check_file(self.folder / name, self.manifest.files[name])
        return PreparedStore(items, self.folder / name)

    def alive(self) -> Positions:
        """The places, counted through all segments, of the items that are there."""
        alive, start = [], 0
        for segment in self.manifest.segments:
            n_items = self.plan(segment).n_items
            alive.append(start + segment.rows(0, n_items))
            start += n_items
        return np.concatenate(alive)

    def vectors(self) -> FloatMatrix:
        """The exact scores of the items that are there, (n_items, n_anchor_queries)."""
        plans = [self.plan(segment) for segment in self.manifest.segments]
        n_removed = sum(len(segment.removed) for segment in self.manifest.segments)
        n_items = sum(plan.n_items for plan in plans) - n_removed
        vectors = np.empty((n_items, plans[0].n_anchor_queries), dtype=np.float32)
        filled = 0
        for plan, segment in zip(plans, self.manifest.segments, strict=True):
            for values in self._chunks(plan, segment):
                vectors[filled : filled + len(values)] = values
                filled += len(values)
        return vectors

    def _chunks(self, plan: ScorePlan, segment: Segment) -> Iterator[FloatMatrix]:
        """The scores of a segment, chunk by chunk, without the rows that are hidden."""
        for chunk in range(plan.n_chunks if plan.n_anchor_queries else 0):
            values = decode_chunk(self.read(f"{SEGMENTS}/{segment.name}/{SCORES}/{chunk_key(chunk)}"), plan, chunk)
            start, stop = plan.chunk_range(chunk)
            yield values[segment.rows(start, stop) - start] if segment.removed else values

    def plan(self, segment: Segment) -> ScorePlan:
        """What a segment's scores are bound to."""
        return ScorePlan.from_json(self.read(f"{SEGMENTS}/{segment.name}/{PLAN}"))

    def queries(self) -> list[Query]:
        """The anchor queries."""
        (name,) = (name for name in self.manifest.files if name.startswith(QUERIES))
        return [_query(json.loads(line)) for line in self.read(name).decode().splitlines()]

    def learned(self) -> Learned:
        """What was learnt; its items are places counted through all segments."""
        contents = {Path(name).name: self.read(name) for name in self.manifest.files if name.startswith(LEARNED)}
        anchor_items = np.frombuffer(contents[ANCHORS], dtype="<i8").astype(np.int64)
        ranks = np.frombuffer(contents[RANKS], dtype="<i2").astype(np.int16).reshape(self.manifest.ranks_shape)
        splits = [Split(n_anchor_items, cutoff) for n_anchor_items, cutoff in self.manifest.splits]
        tuned = decode_tuned(contents[TUNED]) if TUNED in contents else Tuned()  # none in an index of version 0.1
        return Learned(anchor_items, SplitTable(splits, ranks), tuned, decode_lesson(contents))

    def damage(self) -> list[tuple[str, DamagedError]]:
        """The files that aren't what they must be."""
        found = []
        for name, record in self.manifest.files.items():
            try:
                check_file(self.folder / name, record)
            except DamagedError as error:
                found.append((name, error))
        return found

    def describe(self) -> dict[str, Any]:
        """What it is made of, as plain values."""
        manifest = self.manifest
        plans = [self.plan(segment) for segment in manifest.segments]
        n_removed = sum(len(segment.removed) for segment in manifest.segments)
        return {
            "path": str(self.folder),
            "version": manifest.version,
            "n_items": sum(plan.n_items for plan in plans) - n_removed,
            "n_removed": n_removed,
            "n_anchor_queries": plans[0].n_anchor_queries,
            "n_segments": len(plans),
            "scorer": manifest.scorer,
            "scorer_name": manifest.scorer_name,
            "higher_is_better": manifest.higher_is_better,
            "dtype": manifest.dtype,
            "retrievers": list(manifest.retrievers),
            "bytes": sum(record.size for record in manifest.files.values()),
        }

    def read(self, name: str) -> bytes:
        """A file of this version, checked."""
        if name not in self.manifest.files:
            raise DamagedError(f"version {self.manifest.version} of {self.folder} doesn't list {name}")
        return read_checked(self.folder / name, self.manifest.files[name])


def _query(record: dict[str, Any]) -> Query:
    mention = record["mention"]
    return Query(record["text"], record["id"], None if mention is None else tuple(mention))
