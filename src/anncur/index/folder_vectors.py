"""The vectors of an index's items, made when a version is published: readers map them, and compute nothing.

Only rows that have none yet are projected: those of a new segment, or all of them where settings changed, or where
more items came than the projection was fitted to. Called by `folder.py` and `folder_build.py`, under their lock."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np

from anncur.arrays import NO_POSITIONS, Positions
from anncur.errors import AnncurWarning, DamagedError, DatabaseError, InputError
from anncur.retrievers.base import FittedRetriever, Retriever
from anncur.search.model import PosteriorModel
from anncur.search.projection import ItemSource, Projection, fit_projection, project
from anncur.search.settings import PosteriorSettings
from anncur.storage.encoded import decode_array
from anncur.storage.files import FileRecord, read_file
from anncur.storage.item_vectors import (
    KEYS,
    VECTORS,
    SegmentRows,
    encode_projection,
    first_key,
    first_key_since,
    live_blocks,
    space_of,
    write_projected,
    write_projection,
)
from anncur.storage.manifest import Manifest, Segment, next_version
from anncur.storage.version import Version
from anncur.vectors.engines import VectorEngine


def with_vectors(version: Version, fitted: Callable[[], Mapping[str, Retriever]]) -> Manifest:
    """The manifest of a version that is about to be published, with the vectors of all its items.

    `fitted` gives its retrievers; it is called only where something is projected. A version with a feedback model has
    none: its vectors change with every fit."""
    manifest, derived = version.manifest, version.derived()
    if derived.feedback is not None:
        return without_vectors(manifest)
    missing = [segment for segment in manifest.segments if not version.has_vectors(segment)]
    projection, space = version.projection(), version.space
    is_current = projection is not None and _is_for(projection, derived.tuned.settings)
    if is_current and not missing:
        return manifest
    model = PosteriorModel(version.scores(), version.queries(), fitted(), derived.tuned)
    source = model.source()
    if projection is None or space is None or not (is_current and _serves_others(projection, source)):
        return _projected_again(version, source, model.own_settings())
    if projection.has_aged(_n_since(version, space)):
        return _projected_again(version, source, model.own_settings())
    files = _project(version, missing, projection, source, space=space)
    return replace(manifest, files={**manifest.files, **files})


def merged_vectors(version: Version, segments: Sequence[Segment], name: str) -> dict[str, FileRecord]:
    """The vectors of a segment that was merged of others: copies of theirs, with their keys."""
    if version.space is None or not all(map(version.has_vectors, segments)):
        return {}
    parts = [(version.segment_vectors(segment), version.rows_of(segment)) for segment in segments]
    keys = np.concatenate([part.keys[live] for part, live in parts])
    number = next_version(version.folder)
    rows = SegmentRows(name, number, np.arange(len(keys)), keys, partial(live_blocks, parts))
    return write_projected(version.folder, version.space, rows, is_half=_is_half(version))


def without_vectors(manifest: Manifest) -> Manifest:
    """The same version without the vectors of its items, which readers then make in memory."""
    files = {name: record for name, record in manifest.files.items() if not name.startswith(f"{VECTORS}/")}
    return replace(manifest, files=files)


def forget_vectors(folder: Path, doomed: Sequence[Path], engines: Iterable[VectorEngine]) -> None:
    """Delete from engines' databases what belongs to files that are about to be deleted; others may have it still.

    Those files alone know of it, so that what can't be deleted now is named in a warning."""
    within = [path.relative_to(folder).parts for path in doomed if path.is_relative_to(folder / VECTORS)]
    gone = [parts[1] for parts in within if len(parts) == 2]
    some_gone = [parts for parts in within if len(parts) == 3]
    for engine in {engine for engine in engines if engine.is_database}:
        try:
            for space in gone:
                engine.forget(space)
            for space, keys in _keys_gone(folder, some_gone).items():
                engine.forget(space, keys)
        except (DatabaseError, DamagedError, InputError) as error:  # it may be down, or its driver not be installed
            tables = sorted({engine.table_of(parts[1]) for parts in within})
            droppable = f"; these may be dropped: {', '.join(map(engine.table_of, gone))}" if gone else ""
            warnings.warn(
                f"vectors that no version of {folder} needs are still in {', '.join(tables)}: {error}; they do no "
                f"harm{droppable}",
                AnncurWarning,
                stacklevel=4,
            )


def _is_for(projection: Projection, wanted: PosteriorSettings | None) -> bool:
    """Whether a projection is that of the tuned settings; where nothing was tuned, there are no others."""
    return wanted is None or projection.settings == wanted.of_items


def _serves_others(projection: Projection, source: ItemSource) -> bool:
    """Whether embeddings of new items are in the space of those that it was fitted to: not those of a retriever that is
    fitted to all items each time."""
    if not projection.basis.needs_embeddings:
        return True
    retriever = source.retrievers.get(projection.settings.embeddings_of or "")
    return isinstance(retriever, FittedRetriever) and retriever.is_stored


def _n_since(version: Version, space: str) -> int:
    """The number of live items that came since the projection was fitted."""
    n_new, first = 0, first_key_since(space)
    for segment in version.manifest.segments:
        live = version.rows_of(segment)
        is_new = version.segment_vectors(segment).keys[live] >= first if version.has_vectors(segment) else live >= 0
        n_new += int(is_new.sum())
    return n_new


def _projected_again(version: Version, source: ItemSource, settings: PosteriorSettings) -> Manifest:
    """With a projection that is fitted to all items now."""
    projection = fit_projection(source, settings)
    content = encode_projection(projection)
    bare = without_vectors(version.manifest)
    space = space_of(next_version(version.folder), content)
    files = write_projection(version.folder, space, content)
    files |= _project(version, bare.segments, projection, source, space=space)
    return replace(bare, files={**bare.files, **files})


def _project(
    version: Version, segments: Sequence[Segment], projection: Projection, source: ItemSource, *, space: str
) -> dict[str, FileRecord]:
    """Project the rows of some segments, and store them."""
    files: dict[str, FileRecord] = {}
    starts = np.concatenate([[0], np.cumsum([len(version.rows_of(one)) for one in version.manifest.segments])])
    number = next_version(version.folder)
    key = first_key(number, [segment.name for segment in segments])
    for place, segment in enumerate(version.manifest.segments):
        if segment not in segments:
            continue
        start, stop, n_rows = int(starts[place]), int(starts[place + 1]), version.spec(segment).n_items
        rows = SegmentRows(
            segment.name,
            number,
            version.rows_of(segment),
            np.arange(key, key + n_rows),
            partial(project, projection, source, start, stop),
        )
        files |= write_projected(version.folder, space, rows, is_half=_is_half(version))
        key += n_rows
    return files


def _is_half(version: Version) -> bool:
    return VectorEngine(version.manifest.vectors).precision == np.float16


def _keys_gone(folder: Path, files: Sequence[tuple[str, ...]]) -> dict[str, Positions]:
    """By space, the keys of rows in files that are about to be deleted, and in no other file."""
    found: dict[str, Positions] = {}
    for space in {parts[1] for parts in files}:
        doomed = {parts[2] for parts in files if parts[1] == space and parts[2].endswith(f".{KEYS}")}
        kept = [path for path in (folder / VECTORS / space).glob(f"*.{KEYS}") if path.name not in doomed]
        gone = [_read_keys(folder / VECTORS / space / name) for name in sorted(doomed)]
        if gone:
            there = np.concatenate([_read_keys(path) for path in kept]) if kept else NO_POSITIONS
            found[space] = np.setdiff1d(np.concatenate(gone), there)
    return found


def _read_keys(file: Path) -> Positions:
    return decode_array(read_file(file), str(file))
