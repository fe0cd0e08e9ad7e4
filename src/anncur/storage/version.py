"""Reads one version of an index on disk: every file hashed before anything parses it.

What was read of a segment before, of this version or of another one, isn't read again (`loaded.py`)."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anncur.arrays import FloatMatrix, Positions
from anncur.columns import MetadataColumns
from anncur.errors import DamagedError
from anncur.item_scores import ChunkedScores
from anncur.items import Query
from anncur.retrievers.base import Arrays, Encoded, EncodingRetriever, ProjectingRetriever, Retriever
from anncur.scores import ScoreSpec, chunk_key, decode_chunk
from anncur.search.projection import Projected, Projection
from anncur.search.settings import Tuned
from anncur.search.splits import BudgetSplit, SplitTable
from anncur.storage.codecs import decode_feedback, decode_tuned
from anncur.storage.encoded import (
    ABOUT,
    RETRIEVERS,
    by_name,
    decode_array,
    encoded_folder,
    encoding_retrievers,
    is_of_basis,
    part_file,
    read_fingerprint,
    selected,
)
from anncur.storage.files import FileRecord, check_file, map_checked, read_checked
from anncur.storage.item_vectors import (
    KEYS,
    OFFSETS,
    PROJECTION,
    ROWS,
    VECTORS,
    SegmentVectors,
    decode_projection,
    projection_file,
    segment_file,
)
from anncur.storage.items import ItemRows, ItemStore, PreparedStore, StoredItems
from anncur.storage.loaded import LoadedSegment, LoadedSegments
from anncur.storage.manifest import ANCHORS, DERIVED, PREPARED, QUERIES, RANKS, SEGMENTS, TUNED, Manifest, Segment
from anncur.storage.metadata import METADATA, columns_of, decode_metadata
from anncur.storage.queries import read_query
from anncur.storage.segments import ITEMS, SCORES, SPEC
from anncur.tuning.derive import Derived
from anncur.vectors.engines import Identity
from anncur.vectors.exact import ExactVectors, Part


@dataclass(frozen=True)
class Version:
    """A manifest and the folder that it describes; `loaded` is what was read before."""

    folder: Path
    manifest: Manifest
    loaded: LoadedSegments = field(default_factory=LoadedSegments, repr=False, compare=False)

    @cached_property
    def specs(self) -> list[ScoreSpec]:
        """What each segment's scores are bound to."""
        return [self.spec(segment) for segment in self.manifest.segments]

    def spec(self, segment: Segment) -> ScoreSpec:
        """What a segment's scores are bound to."""
        name = f"{SEGMENTS}/{segment.name}/{SPEC}"
        return self._of(segment).get(SPEC, lambda: ScoreSpec.from_json(self.read(name)))

    @cached_property
    def _sizes(self) -> dict[str, int]:
        """The number of items of each segment, removed ones included."""
        return {segment.name: spec.n_items for segment, spec in zip(self.manifest.segments, self.specs, strict=True)}

    @cached_property
    def starts(self) -> Positions:
        """The first row of each segment, counted through all of them, and behind them the number of rows."""
        return np.concatenate([[0], np.cumsum([spec.n_items for spec in self.specs])]).astype(np.int64)

    @property
    def n_items(self) -> int:
        """The number of live items."""
        return sum(spec.n_items for spec in self.specs) - self.n_removed

    @property
    def n_removed(self) -> int:
        """The number of items that are hidden, and still on disk."""
        return sum(len(segment.removed) for segment in self.manifest.segments)

    def items(self, segments: Sequence[Segment] | None = None) -> StoredItems:
        """The live items, or those of some segments."""
        segments = self.manifest.segments if segments is None else segments
        return _live([self.store(segment) for segment in segments], segments)

    def items_for_scorer(self, segments: Sequence[Segment] | None = None) -> StoredItems:
        """The same as their scorer gets them, with what it prepared."""
        segments = self.manifest.segments if segments is None else segments
        return _live([self._prepared(segment) for segment in segments], segments)

    def store(self, segment: Segment) -> ItemStore:
        """All items of a segment."""
        return self._of(segment).get(ITEMS, lambda: ItemStore(self._checked(segment, ITEMS)))

    def metadata(self) -> list[tuple[Callable[[], MetadataColumns], Positions]]:
        """What gives the metadata of each segment in columns, and the rows of its live items.

        Stored columns are read now, so that they are there when the files are gone; where an older version stored none,
        they are made of the items when they are asked for."""
        return [(self._columns(segment), self.rows_of(segment)) for segment in self.manifest.segments]

    def live_rows(self) -> Positions:
        """The rows of the live items, counted through all segments."""
        pairs = zip(self.starts[:-1], self.manifest.segments, strict=True)
        return np.concatenate([start + self.rows_of(segment) for start, segment in pairs])

    def scores(self) -> ChunkedScores:
        """The exact scores of the live items, mapped from their files."""
        chunks = [chunk for segment in self.manifest.segments for chunk in self._chunks(segment)]
        return ChunkedScores(chunks, self.live_rows(), self.specs[0].n_anchor_queries)

    def projected(self) -> Projected | None:
        """The live items as searches rank them, mapped from their files; None where an older version stored none."""
        projection, space = self.projection(), self.space
        if projection is None or space is None:
            return None
        parts = [(self.segment_vectors(segment), self.rows_of(segment)) for segment in self.manifest.segments]
        offsets = np.concatenate([part.offsets[rows] for part, rows in parts])
        vectors = [Part(part.vectors, None if len(rows) == len(part.keys) else rows) for part, rows in parts]
        return Projected(
            projection,
            offsets=np.ascontiguousarray(offsets[:, 0]),
            vectors=ExactVectors(*vectors),
            most_variance=float(offsets[:, 1].max()),
            identity=Identity(space, np.concatenate([part.keys[rows] for part, rows in parts])),
        )

    def projection(self) -> Projection | None:
        """How items are projected, if they are."""
        if self.space is None:
            return None
        name = projection_file(self.space)
        return self._segments[VECTORS].get(name, lambda: decode_projection(self.read(name), name))

    @cached_property
    def space(self) -> str | None:
        """The space that items are projected into, if they are."""
        return next((Path(name).parts[1] for name in self.manifest.files if name.endswith(f"/{PROJECTION}")), None)

    def segment_vectors(self, segment: Segment) -> SegmentVectors:
        """What is stored of the rows of a segment, hidden ones included."""
        space = self.space
        assert space is not None, "there are vectors"
        names = [self._vector_file(segment, what) for what in (OFFSETS, ROWS, KEYS)]
        loaded = self._segments[f"{VECTORS}/{segment.name}"]
        return loaded.get(space, lambda: SegmentVectors(*(self._mapped_array(name) for name in names)))

    def has_vectors(self, segment: Segment) -> bool:
        """Whether the rows of a segment are projected."""
        return segment.name in self._vector_versions

    @cached_property
    def _vector_versions(self) -> dict[str, int]:
        """By the names of segments whose rows are projected, the version that did it."""
        names = (Path(name).name for name in self.manifest.files if name.startswith(f"{VECTORS}/"))
        parts = (name.removesuffix(f".{ROWS}").rpartition(".") for name in names if name.endswith(f".{ROWS}"))
        return {segment: int(number) for segment, _, number in parts}

    def _vector_file(self, segment: Segment, what: str) -> str:
        assert self.space is not None, "there are vectors"
        return segment_file(self.space, segment.name, self._vector_versions[segment.name], what)

    def rows_of(self, segment: Segment) -> Positions:
        """The live rows of a segment."""
        return segment.rows(0, self._sizes[segment.name])

    def score_chunks(self, segment: Segment) -> Iterator[FloatMatrix]:
        """The scores of a segment, chunk by chunk, without the rows that are hidden."""
        spec = self.spec(segment)
        for chunk in range(spec.n_chunks if spec.n_anchor_queries else 0):
            start, stop = spec.chunk_range(chunk)
            values = self._chunks(segment)[chunk]
            yield values[segment.rows(start, stop) - start] if segment.removed else values

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
                parts = [part for segment in self.manifest.segments for part in self.live_parts(segment, retriever)]
                found[stored_as] = Encoded(parts, self.fingerprint(stored_as))
        return by_name(retrievers, found)

    def first_encoded(self, retriever: EncodingRetriever, n_items: int) -> tuple[Positions, Encoded]:
        """Of the first part, the rows of some live items, and what is stored of them."""
        segment = self.manifest.segments[0]
        start, stop = self.part_ranges(segment, retriever)[0]
        rows = segment.rows(start, stop)[:n_items]
        part = retriever.select(self._part(segment, retriever, start), rows)
        return rows, Encoded([part], self.fingerprint(retriever.stored_as))

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
            raise self._unlisted(name)
        return read_checked(self.folder / name, self.manifest.files[name])

    @cached_property
    def _segments(self) -> dict[str, LoadedSegment]:
        """What was read of each segment, and of its vectors; bases and projection stand there as ones of their own."""
        records: dict[str, dict[str, FileRecord]] = {segment.name: {} for segment in self.manifest.segments}
        records |= {f"{VECTORS}/{segment.name}": {} for segment in self.manifest.segments}
        records[RETRIEVERS], records[VECTORS] = {}, {}
        for name, record in self.manifest.files.items():
            owner = _owner(name)
            if owner in records:
                records[owner][name] = record
        return self.loaded.of(records)

    def _of(self, segment: Segment) -> LoadedSegment:
        return self._segments[segment.name]

    def _checked(self, segment: Segment, file: str) -> Path:
        """A file of a segment, hashed."""
        name = f"{SEGMENTS}/{segment.name}/{file}"
        if name not in self.manifest.files:
            raise self._unlisted(name)
        check_file(self.folder / name, self.manifest.files[name])
        return self.folder / name

    def _check_basis(self, stored_as: str) -> None:
        """Refuse a damaged basis when the index is opened, though it is needed only for items that are added."""
        self._segments[RETRIEVERS].get(stored_as, lambda: self._check_basis_files(stored_as))

    def _check_basis_files(self, stored_as: str) -> None:
        for name, record in self.manifest.files.items():
            if is_of_basis(name, stored_as):
                check_file(self.folder / name, record)

    def live_parts(self, segment: Segment, retriever: EncodingRetriever) -> list[Arrays]:
        """What a retriever derived from the items of a segment, without the rows that are hidden."""
        parts = self._of(segment).get(
            (RETRIEVERS, retriever.stored_as),
            lambda: [self._part(segment, retriever, start) for start, _ in self.part_ranges(segment, retriever)],
        )
        if not segment.removed:
            return parts
        return selected(retriever, parts, self.rows_of(segment))

    def _part(self, segment: Segment, retriever: EncodingRetriever, start: int) -> Arrays:
        folder = encoded_folder(segment.name, retriever.stored_as)
        names = (*retriever.arrays, *(retriever.projected if isinstance(retriever, ProjectingRetriever) else ()))
        files = {name: f"{folder}/{part_file(start, name)}" for name in names}
        return {name: self._mapped_array(file) for name, file in files.items()}

    def fingerprint(self, stored_as: str) -> str:
        """That of what a retriever derived items with."""
        first = self.manifest.segments[0]
        name = f"{encoded_folder(first.name, stored_as)}/{ABOUT}"
        return self._of(first).get(name, lambda: read_fingerprint(self.read(name)))

    def _prepared(self, segment: Segment) -> ItemRows:
        """The items of a segment as their scorer gets them."""
        if f"{SEGMENTS}/{segment.name}/{PREPARED}" not in self.manifest.files:
            return self.store(segment)
        items = self.store(segment)
        return self._of(segment).get(PREPARED, lambda: PreparedStore(items, self._checked(segment, PREPARED)))

    def _columns(self, segment: Segment) -> Callable[[], MetadataColumns]:
        """The metadata of a segment, read now where it is stored."""
        name, loaded = f"{SEGMENTS}/{segment.name}/{METADATA}", self._of(segment)
        if name in self.manifest.files:
            columns = loaded.get(METADATA, lambda: decode_metadata(self.read(name), name))
            return lambda: columns
        store = self.store(segment)
        return lambda: loaded.get(METADATA, lambda: columns_of(store))

    def _chunks(self, segment: Segment) -> list[FloatMatrix]:
        """The scores of all rows of a segment, mapped, a chunk each."""
        spec, scores = self.spec(segment), f"{SEGMENTS}/{segment.name}/{SCORES}"
        numbers = range(spec.n_chunks if spec.n_anchor_queries else 0)
        return self._of(segment).get(
            SCORES,
            lambda: [decode_chunk(self._mapped(f"{scores}/{chunk_key(chunk)}"), spec, chunk) for chunk in numbers],
        )

    def _mapped(self, name: str) -> memoryview:
        """A file of this version, checked, and mapped into memory."""
        if name not in self.manifest.files:
            raise self._unlisted(name)
        return map_checked(self.folder / name, self.manifest.files[name])

    def _mapped_array(self, name: str) -> NDArray[Any]:
        return decode_array(self._mapped(name), name)

    def _unlisted(self, name: str) -> DamagedError:
        return DamagedError(f"version {self.manifest.version} of {self.folder} doesn't list {name}")


def _owner(name: str) -> str:
    """Under which what is read of a file is kept."""
    part, _, rest = name.partition("/")
    if part == SEGMENTS:
        return rest.partition("/")[0]
    file = Path(name).name
    return f"{VECTORS}/{file.partition('.')[0]}" if part == VECTORS and file != PROJECTION else part


def _live(stores: Sequence[ItemRows], segments: Sequence[Segment]) -> StoredItems:
    """Of the items of segments, those that weren't removed."""
    pairs = zip(stores, segments, strict=True)
    return StoredItems(stores, [segment.rows(0, len(store)) for store, segment in pairs])
