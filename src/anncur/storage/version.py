"""Reads one version of an index on disk: every file hashed before anything parses it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from anncur.arrays import FloatMatrix, Positions
from anncur.errors import DamagedError
from anncur.items import Query
from anncur.scores import ScoreSpec, chunk_key, decode_chunk
from anncur.search.settings import Tuned
from anncur.search.splits import BudgetSplit, SplitTable
from anncur.storage.codecs import decode_feedback, decode_tuned
from anncur.storage.files import check_file, read_checked
from anncur.storage.items import ItemRows, ItemStore, PreparedStore, StoredItems
from anncur.storage.manifest import ANCHORS, DERIVED, PREPARED, QUERIES, RANKS, TUNED, Manifest, Segment
from anncur.storage.segments import ITEMS, SCORES, SEGMENTS, SPEC
from anncur.tuning.derive import Derived


@dataclass(frozen=True)
class Version:
    """A manifest and the folder that it describes."""

    folder: Path
    manifest: Manifest

    @cached_property
    def specs(self) -> list[ScoreSpec]:
        """What each segment's scores are bound to."""
        return [self.spec(segment) for segment in self.manifest.segments]

    def spec(self, segment: Segment) -> ScoreSpec:
        """What a segment's scores are bound to."""
        return ScoreSpec.from_json(self.read(f"{SEGMENTS}/{segment.name}/{SPEC}"))

    @property
    def n_items(self) -> int:
        """The number of live items."""
        return sum(spec.n_items for spec in self.specs) - self.n_removed

    @property
    def n_removed(self) -> int:
        """The number of items that are hidden, and still on disk."""
        return sum(len(segment.removed) for segment in self.manifest.segments)

    def items(self) -> StoredItems:
        """The live items."""
        return self._live(self._stores())

    def items_for_scorer(self) -> tuple[StoredItems, StoredItems]:
        """The live items, and the same as their scorer gets them, with what it prepared."""
        stores = self._stores()
        prepared = [
            self._prepared(store, segment) for store, segment in zip(stores, self.manifest.segments, strict=True)
        ]
        return self._live(stores), self._live(prepared)

    def store(self, segment: Segment) -> ItemStore:
        """All items of a segment."""
        name = f"{SEGMENTS}/{segment.name}/{ITEMS}"
        check_file(self.folder / name, self.manifest.files[name])
        return ItemStore(self.folder / name)

    def live_rows(self) -> Positions:
        """The rows of the live items, counted through all segments."""
        live, start = [], 0
        for spec, segment in zip(self.specs, self.manifest.segments, strict=True):
            live.append(start + segment.rows(0, spec.n_items))
            start += spec.n_items
        return np.concatenate(live)

    def anchor_scores(self) -> FloatMatrix:
        """The exact scores of the live items, (n_items, n_anchor_queries)."""
        scores = np.empty((self.n_items, self.specs[0].n_anchor_queries), dtype=np.float32)
        filled = 0
        for spec, segment in zip(self.specs, self.manifest.segments, strict=True):
            for values in self._chunks(spec, segment):
                scores[filled : filled + len(values)] = values
                filled += len(values)
        return scores

    def queries(self) -> list[Query]:
        """The anchor queries."""
        (name,) = (name for name in self.manifest.files if name.startswith(QUERIES))
        return [_query(json.loads(line)) for line in self.read(name).split(b"\n") if line]  # texts may hold U+2028

    def derived(self) -> Derived:
        """What was derived from the scores; its items are rows counted through all segments."""
        contents = {Path(name).name: self.read(name) for name in self.manifest.files if name.startswith(DERIVED)}
        anchor_items = np.frombuffer(contents[ANCHORS], dtype="<i8").astype(np.int64)
        ranks = np.frombuffer(contents[RANKS], dtype="<i2").astype(np.int16).reshape(self.manifest.ranks_shape)
        splits = [BudgetSplit(n_anchor_items, cutoff) for n_anchor_items, cutoff in self.manifest.splits]
        tuned = decode_tuned(contents[TUNED]) if TUNED in contents else Tuned()  # none in the first indexes of 0.1
        return Derived(anchor_items, SplitTable(splits, ranks), tuned, decode_feedback(contents))

    def damage(self) -> list[tuple[str, DamagedError]]:
        """The files that aren't what they must be."""
        found = []
        for name, record in self.manifest.files.items():
            try:
                check_file(self.folder / name, record)
            except DamagedError as error:
                found.append((name, error))
        return found

    def read(self, name: str) -> bytes:
        """A file of this version, checked."""
        if name not in self.manifest.files:
            raise DamagedError(f"version {self.manifest.version} of {self.folder} doesn't list {name}")
        return read_checked(self.folder / name, self.manifest.files[name])

    def _stores(self) -> list[ItemStore]:
        return [self.store(segment) for segment in self.manifest.segments]

    def _live(self, stores: Sequence[ItemRows]) -> StoredItems:
        """Of the items of all segments, those that weren't removed."""
        segments = zip(stores, self.manifest.segments, strict=True)
        return StoredItems(stores, [segment.rows(0, len(store)) for store, segment in segments])

    def _prepared(self, items: ItemStore, segment: Segment) -> ItemRows:
        """The items of a segment as their scorer gets them."""
        name = f"{SEGMENTS}/{segment.name}/{PREPARED}"
        if name not in self.manifest.files:
            return items
        check_file(self.folder / name, self.manifest.files[name])
        return PreparedStore(items, self.folder / name)

    def _chunks(self, spec: ScoreSpec, segment: Segment) -> Iterator[FloatMatrix]:
        """The scores of a segment, chunk by chunk, without the rows that are hidden."""
        for chunk in range(spec.n_chunks if spec.n_anchor_queries else 0):
            values = decode_chunk(self.read(f"{SEGMENTS}/{segment.name}/{SCORES}/{chunk_key(chunk)}"), spec, chunk)
            start, stop = spec.chunk_range(chunk)
            yield values[segment.rows(start, stop) - start] if segment.removed else values


def _query(record: dict[str, Any]) -> Query:
    mention = record["mention"]
    return Query(record["text"], record["id"], None if mention is None else tuple(mention))
