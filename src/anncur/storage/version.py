"""Reads one version of an index on disk: every file hashed before anything parses it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anncur.arrays import FloatMatrix, Positions
from anncur.columns import MetadataColumns
from anncur.errors import DamagedError
from anncur.items import Query
from anncur.retrievers.base import Arrays, Encoded, EncodingRetriever, ProjectingRetriever, Retriever
from anncur.scores import ScoreSpec, chunk_key, decode_chunk
from anncur.search.settings import Tuned
from anncur.search.splits import BudgetSplit, SplitTable
from anncur.storage.codecs import decode_feedback, decode_tuned
from anncur.storage.encoded import (
    ABOUT,
    by_name,
    decode_array,
    encoded_folder,
    encoding_retrievers,
    is_of_basis,
    part_file,
    read_fingerprint,
    selected,
)
from anncur.storage.files import check_file, read_checked
from anncur.storage.items import ItemRows, ItemStore, PreparedStore, StoredItems
from anncur.storage.manifest import ANCHORS, DERIVED, PREPARED, QUERIES, RANKS, SEGMENTS, TUNED, Manifest, Segment
from anncur.storage.metadata import METADATA, columns_of, decode_metadata
from anncur.storage.queries import read_query
from anncur.storage.segments import ITEMS, SCORES, SPEC
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

    @cached_property
    def _sizes(self) -> dict[str, int]:
        """The number of items of each segment, removed ones included."""
        return {segment.name: spec.n_items for segment, spec in zip(self.manifest.segments, self.specs, strict=True)}

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

    def metadata(self) -> list[tuple[MetadataColumns, Positions]]:
        """The metadata of each segment in columns, and the rows of its live items; of the items themselves where an
        older version stored no columns."""
        found = []
        for segment in self.manifest.segments:
            name = f"{SEGMENTS}/{segment.name}/{METADATA}"
            is_stored = name in self.manifest.files
            columns = decode_metadata(self.read(name), name) if is_stored else columns_of(self.store(segment))
            found.append((columns, segment.rows(0, len(columns))))
        return found

    def check_metadata(self) -> None:
        """Refuse damaged columns when the index is opened, though only filters need them."""
        for name, record in self.manifest.files.items():
            if name.endswith(f"/{METADATA}"):
                check_file(self.folder / name, record)

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
        return [read_query(json.loads(line)) for line in self.read(name).split(b"\n") if line]  # texts may hold U+2028

    def derived(self) -> Derived:
        """What was derived from the scores; its items are rows counted through all segments."""
        contents = {Path(name).name: self.read(name) for name in self.manifest.files if name.startswith(DERIVED)}
        anchor_items = np.frombuffer(contents[ANCHORS], dtype="<i8").astype(np.int64)
        ranks = np.frombuffer(contents[RANKS], dtype="<i2").astype(np.int16).reshape(self.manifest.ranks_shape)
        splits = [BudgetSplit(n_anchor_items, cutoff) for n_anchor_items, cutoff in self.manifest.splits]
        tuned = decode_tuned(contents[TUNED]) if TUNED in contents else Tuned()  # none in the first indexes of 0.1
        return Derived(anchor_items, SplitTable(splits, ranks), tuned, decode_feedback(contents))

    def encoded(self, retrievers: Mapping[str, Retriever]) -> dict[str, Encoded]:
        """What retrievers derived from the live items, by their names; nothing of one that some segment has nothing of,
        as those of formats before 4."""
        found: dict[str, Encoded] = {}
        for stored_as, retriever in encoding_retrievers(retrievers).items():
            if self.has_encoded(stored_as):
                self._check_basis(stored_as)
                parts = [part for segment in self.manifest.segments for part in self._live_parts(segment, retriever)]
                found[stored_as] = Encoded(parts, self._fingerprint(stored_as))
        return by_name(retrievers, found)

    def first_encoded(self, retriever: EncodingRetriever, n_items: int) -> tuple[Positions, Encoded]:
        """Of the first part, the rows of some live items, and what is stored of them."""
        segment = self.manifest.segments[0]
        start, stop = self.part_ranges(segment, retriever)[0]
        rows = segment.rows(start, stop)[:n_items]
        part = retriever.select(self._part(segment, retriever, start), rows)
        return rows, Encoded([part], self._fingerprint(retriever.stored_as))

    def has_encoded(self, stored_as: str) -> bool:
        """Whether every segment has what a retriever derived."""
        folders = [encoded_folder(segment.name, stored_as) for segment in self.manifest.segments]
        return all(f"{folder}/{ABOUT}" in self.manifest.files for folder in folders)

    def bases(self, stored_as: Iterable[str]) -> dict[str, dict[str, NDArray[Any]]]:
        """The bases that items are projected onto, by what they are stored as."""
        found: dict[str, dict[str, NDArray[Any]]] = {}
        for one in stored_as:
            for name in self.manifest.files:
                if is_of_basis(name, one):
                    found.setdefault(one, {})[Path(name).stem] = decode_array(self.read(name), name)
        return found

    def part_ranges(self, segment: Segment, retriever: EncodingRetriever) -> list[tuple[int, int]]:
        """The first row of each part of a segment, and the first after it."""
        folder, ending = encoded_folder(segment.name, retriever.stored_as), f".{retriever.arrays[-1]}.npy"
        names = (name for name in self.manifest.files if name.startswith(f"{folder}/") and name.endswith(ending))
        starts = sorted(int(Path(name).name.removesuffix(ending)) for name in names)
        return list(zip(starts, [*starts[1:], self._sizes[segment.name]], strict=True))

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

    def _check_basis(self, stored_as: str) -> None:
        """Refuse a damaged basis when the index is opened, though it is needed only for items that are added."""
        for name, record in self.manifest.files.items():
            if is_of_basis(name, stored_as):
                check_file(self.folder / name, record)

    def _live_parts(self, segment: Segment, retriever: EncodingRetriever) -> list[Arrays]:
        """The parts of a segment without the rows that are hidden."""
        parts = [self._part(segment, retriever, start) for start, _ in self.part_ranges(segment, retriever)]
        if not segment.removed:
            return parts
        return selected(retriever, parts, segment.rows(0, self._sizes[segment.name]))

    def _part(self, segment: Segment, retriever: EncodingRetriever, start: int) -> Arrays:
        folder = encoded_folder(segment.name, retriever.stored_as)
        names = (*retriever.arrays, *(retriever.projected if isinstance(retriever, ProjectingRetriever) else ()))
        files = {name: f"{folder}/{part_file(start, name)}" for name in names}
        return {name: decode_array(self.read(file), file) for name, file in files.items()}

    def _fingerprint(self, stored_as: str) -> str:
        first = self.manifest.segments[0].name
        return read_fingerprint(self.read(f"{encoded_folder(first, stored_as)}/{ABOUT}"))

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
