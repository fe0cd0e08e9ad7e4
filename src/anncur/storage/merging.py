"""Merges segments into one without the rows that are hidden: copies items, what was prepared and derived of them, and
exact scores. Nothing is scored or encoded again, and the order of items stays.

Which segments are merged is chosen in `index/folder_changes.py`. A merge that is killed leaves a folder that no
manifest lists and nobody resumes; `gc` deletes it."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from anncur.errors import InputError
from anncur.retrievers.base import STORED_WORDS, Arrays, EncodingRetriever, Retriever
from anncur.retrievers.embeddings import EmbeddingRetriever
from anncur.retrievers.lexical import WordCounts
from anncur.scores import ScoreSpec
from anncur.storage.encoded import (
    ABOUT,
    RETRIEVERS,
    FolderParts,
    about_encoded,
    encoded_folder,
    encoding_retrievers,
    folder_name,
    n_rows,
)
from anncur.storage.files import FileRecord, storing, write_file
from anncur.storage.items import ItemStore, write_items, write_values
from anncur.storage.manifest import PREPARED, SEGMENTS, Segment
from anncur.storage.metadata import write_metadata
from anncur.storage.segments import ITEMS, MERGED, ORIGIN, SPEC, open_matrix, origin_of, segment_files
from anncur.storage.version import Version


def merge_segments(
    version: Version, segments: Sequence[Segment], retrievers: Mapping[str, Retriever], *, number: int
) -> tuple[str, dict[str, FileRecord]]:
    """Store the live items of neighbouring segments as one; its name and files. Needs the lock.

    `number` is that of the version that will have it: no other segment ever gets the same name."""
    check_mergeable(version, segments, retrievers)
    sources = "".join(f"{segment.name} {segment.removed}\n" for segment in segments)
    name = f"{MERGED}{number:08}-{hashlib.sha256(sources.encode()).hexdigest()[:16]}"
    folder = version.folder / SEGMENTS / name
    with storing(folder, 0):
        shutil.rmtree(folder, ignore_errors=True)  # of a merge that was killed
    spec = _merge_items(version, segments, folder)
    _merge_prepared(version, segments, folder)
    for stored_as, retriever in encoding_retrievers(retrievers).items():
        if _has_parts(version, segments, stored_as):
            _merge_parts(version, segments, retriever, version.folder / encoded_folder(name, stored_as))
    if spec.n_anchor_queries:
        matrix = open_matrix(version.folder, name, spec)
        matrix.write_rows(part for segment in segments for part in version.score_chunks(segment))
    write_file(folder / SPEC, spec.to_json().encode())
    files = segment_files(version.folder, name)
    first = version.manifest.segments[0].name
    if segments[0].name == first:  # part of no version: an index is whole without
        write_file(folder / ORIGIN, origin_of(version.folder, first).encode())
    return name, files


def check_mergeable(version: Version, segments: Sequence[Segment], retrievers: Mapping[str, Retriever]) -> None:
    """Refuse to merge where what a retriever derived would be lost: only the retriever can tell the rows apart."""
    known = {folder_name(stored_as) for stored_as in encoding_retrievers(retrievers)}
    for segment in segments:
        within = f"{SEGMENTS}/{segment.name}/{RETRIEVERS}/"
        stored = {name.removeprefix(within).split("/")[0] for name in version.manifest.files if name.startswith(within)}
        if stored - known:
            raise InputError(
                f"the segments of {version.folder} hold what a retriever derived that isn't here, "
                f"{', '.join(sorted(stored - known))}; open the index with retrievers=[…] to merge them"
            )


def joined_parts(retriever: EncodingRetriever, parts: Iterable[Arrays]) -> Iterator[Arrays]:
    """The same parts, neighbours joined as long as they are no larger than a retriever would make one."""
    waiting: list[Arrays] = []
    for part in parts:
        n_waiting = sum(n_rows(retriever, one) for one in waiting)
        if waiting and n_waiting + n_rows(retriever, part) > retriever.items_per_part:
            yield from _joined(retriever, waiting)
            waiting = []
        waiting.append(part)
    yield from _joined(retriever, waiting)


def _joined(retriever: EncodingRetriever, parts: Sequence[Arrays]) -> list[Arrays]:
    """Parts as one, where we know how they are made; else as they are."""
    if len(parts) < 2:
        return list(parts)
    if retriever.stored_as == STORED_WORDS:
        counts = WordCounts.joined([WordCounts.from_arrays(part) for part in parts]).to_arrays()
        vectors = [part["vectors"] for part in parts if "vectors" in part]
        return [counts | {"vectors": np.concatenate(vectors)} if len(vectors) == len(parts) else counts]
    if isinstance(retriever, EmbeddingRetriever):
        return [{name: np.concatenate([part[name] for part in parts]) for name in retriever.arrays}]
    return list(parts)


def _merge_items(version: Version, segments: Sequence[Segment], folder: Path) -> ScoreSpec:
    """Write the items and their metadata in columns; what their scores are bound to."""
    n_items, digest = write_items(folder / ITEMS, version.items(segments))
    write_metadata(folder, ItemStore(folder / ITEMS))
    return replace(version.specs[0], items=digest, n_items=n_items)


def _merge_prepared(version: Version, segments: Sequence[Segment], folder: Path) -> None:
    """Write what the scorer prepared; nothing for items of a segment that came without."""
    if any(f"{SEGMENTS}/{segment.name}/{PREPARED}" in version.manifest.files for segment in segments):
        write_values(folder / PREPARED, (item.prepared for item in version.items_for_scorer(segments)))


def _has_parts(version: Version, segments: Sequence[Segment], stored_as: str) -> bool:
    abouts = (f"{encoded_folder(segment.name, stored_as)}/{ABOUT}" for segment in segments)
    return all(about in version.manifest.files for about in abouts)


def _merge_parts(version: Version, segments: Sequence[Segment], retriever: EncodingRetriever, folder: Path) -> None:
    start = 0
    parts = (part for segment in segments for part in version.live_parts(segment, retriever))
    for part in joined_parts(retriever, parts):
        FolderParts(folder).put(start, part)
        start += n_rows(retriever, part)
    write_file(folder / ABOUT, about_encoded(version.fingerprint(retriever.stored_as), start))
