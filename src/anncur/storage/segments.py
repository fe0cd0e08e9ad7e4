"""Segments on disk: some items, and their exact scores. Made once, filled, and never changed after they are published.

    segments/<name>/plan.json        what the scores are bound to; the name comes from it
    segments/<name>/items.sqlite
    segments/<name>/metadata.npz     the items' metadata in columns
    segments/<name>/prepared.sqlite  what the scorer made of the items, if it makes anything
    segments/<name>/retrievers/      what retrievers derived from the items, see `encoded.py`
    segments/<name>/scores/          a zarr v3 array

A segment that no manifest lists is unpublished: unfinished, and perhaps paid for in part. One that was merged of others
(`merging.py`) has a name that no build or add ever has: unfinished, it is of no use to anybody."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from anncur.errors import AnncurError, DamagedError, FingerprintError, InputError, ResumeError
from anncur.items import Item, ItemLike, Query, no_items
from anncur.scorers.guard import GuardedScorer
from anncur.scores import ScoreMatrix, ScoreSpec
from anncur.storage.files import (
    LOCK,
    STAGING,
    UNFINISHED,
    FileRecord,
    make_folder,
    read_file,
    record_file,
    storing,
    sync_folder,
    write_file,
)
from anncur.storage.items import ItemRows, ItemStore, PreparedStore, is_whole, write_items, write_prepared, write_values
from anncur.storage.manifest import (
    CALIBRATION,
    MANIFESTS,
    PILOT,
    PREPARED,
    SEGMENTS,
    is_whole_index,
    newest_manifest,
    read_manifest,
    versions,
)
from anncur.storage.metadata import write_metadata

SPEC, ITEMS, SCORES = "plan.json", "items.sqlite", "scores"
MERGED = "merged-"  # begins the name of a segment that was merged of others
ORIGIN = "origin"  # in a merged segment: the name of the first one that the index was built of
CACHE = "scores.cache"  # of scores, which belongs to no version; SQLite keeps files beside it
OURS = {SEGMENTS, MANIFESTS, PILOT, LOCK}  # by one of these a folder is known for an index


class BuiltBeforeError(InputError):
    """The items of a build are those that the index was built of; its segment has been merged with others since."""


@dataclass(frozen=True)
class UnpublishedSegment:
    """A segment that is being filled; its items are as the scorer gets them, and its `texts` the same as they came."""

    name: str
    spec: ScoreSpec
    items: ItemRows
    matrix: ScoreMatrix
    texts: ItemRows


def begin_segment(
    folder: Path,
    items: Iterable[ItemLike],
    queries: Sequence[Query],
    scorer: GuardedScorer,
    *,
    dtype: str,
    items_per_chunk: int | None,
    is_first: bool,
) -> UnpublishedSegment:
    """Store items as a new segment, or resume the one that holds just these. Needs the lock.

    The first segment is refused where an index is already, unless it is that one's; `BuiltBeforeError` where it was."""
    staged = folder / SEGMENTS / f"{ITEMS}{STAGING}"
    n_items, digest = write_items(staged, items)
    spec = ScoreSpec.make(
        scorer,
        queries,
        items_digest=digest,
        n_items=n_items,
        items_per_chunk=items_per_chunk,
        dtype=dtype,
    )
    name = _segment_name(spec)
    segment = folder / SEGMENTS / name
    try:
        if not n_items:
            raise no_items()
        if not (segment / SPEC).exists():
            if is_first:
                _check_welcome(folder, name, spec)
            with storing(segment, 0):
                make_folder(segment)
                os.replace(staged, segment / ITEMS)
            write_file(segment / SPEC, spec.to_json().encode())
        else:
            _restore_segment(folder, name, spec, staged)
    finally:
        staged.unlink(missing_ok=True)
    texts = ItemStore(segment / ITEMS)
    stored: ItemRows = texts
    if not _is_in_newest(folder, name):
        write_metadata(segment, texts)
        stored = prepare_once(segment, texts, scorer)
    return UnpublishedSegment(name, spec, stored, open_matrix(folder, name, spec), texts)


def store_segment(folder: Path, items: Sequence[Item], matrix: ScoreMatrix) -> str:
    """Store items with what their scorer prepared, and their exact scores, as a segment; its name. Needs the lock."""
    name = _segment_name(matrix.spec)
    segment = folder / SEGMENTS / name
    write_items(segment / ITEMS, items)
    write_metadata(segment, ItemStore(segment / ITEMS))
    if any(item.prepared for item in items):
        write_values(segment / PREPARED, (item.prepared for item in items))
    write_file(segment / SPEC, matrix.spec.to_json().encode())
    open_matrix(folder, name, matrix.spec).copy_from(matrix)
    return name


def prepare_once(segment: Path, items: ItemRows, scorer: GuardedScorer) -> ItemRows:
    """A segment's items as their scorer gets them: with what it prepared, now unless that is there whole."""
    path = segment / PREPARED
    if not (path.exists() and is_whole(path, len(items))):
        path.unlink(missing_ok=True)
        write_prepared(path, items, scorer)
    return PreparedStore(items, path) if path.exists() else items


def open_matrix(folder: Path, name: str, spec: ScoreSpec) -> ScoreMatrix:
    """The exact scores of a segment, to be filled."""
    if spec.n_anchor_queries == 0:
        return ScoreMatrix.in_memory(spec)
    return ScoreMatrix.stored(str((folder / SEGMENTS / name / SCORES).resolve()), spec)


def open_calibration(folder: Path, spec: ScoreSpec) -> ScoreMatrix:
    """The exact scores of queries that an index is calibrated on, as far as they are there."""
    return ScoreMatrix.stored(str((folder / CALIBRATION / _segment_name(spec)).resolve()), spec)


def drop_calibration(folder: Path) -> None:
    """Delete these scores: the index is calibrated."""
    shutil.rmtree(folder / CALIBRATION, ignore_errors=True)


def check_is_ours(folder: Path) -> None:
    """Refuse to build in a folder that holds something other than an index."""
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder} is a file; give the path of a folder to build in")
    names = {path.name for path in folder.iterdir()} if folder.is_dir() else set()
    if any(not name.startswith(CACHE) for name in names) and not names & OURS:
        raise InputError(
            f"{folder} isn't empty and holds no index ({', '.join(sorted(names)[:3])}, …); build in a folder of its own"
        )


def unpublished_segments(folder: Path) -> list[Path]:
    """The folders of segments that no version has, but for those that were being merged: nothing was paid for them."""
    published: set[str] = set()
    for version in versions(folder):
        with contextlib.suppress(DamagedError):
            published.update(segment.name for segment in read_manifest(folder, version).segments)
    specs = sorted((folder / SEGMENTS).glob(f"*/{SPEC}"))
    return [path.parent for path in specs if path.parent.name not in published and not is_merged(path.parent.name)]


def is_merged(name: str) -> bool:
    """Whether a segment was merged of others."""
    return name.startswith(MERGED)


def origin_of(folder: Path, first: str) -> str:
    """The segment that an index was built of, given its first one now."""
    path = folder / SEGMENTS / first / ORIGIN
    return read_file(path).decode() if path.exists() else first


def segment_files(folder: Path, name: str) -> dict[str, FileRecord]:
    """All files of a segment, hashed, and their names safely on disk."""
    found = (path for path in (folder / SEGMENTS / name).rglob("*") if not path.name.endswith(UNFINISHED))
    paths = sorted(path for path in found if path.is_file())
    for parent in {parent for path in paths for parent in path.parents if parent.is_relative_to(folder)}:
        sync_folder(parent)
    return {path.relative_to(folder).as_posix(): record_file(path) for path in paths}


def _segment_name(spec: ScoreSpec) -> str:
    """The same segment has the same name, whoever builds it."""
    return hashlib.sha256(spec.to_json().encode()).hexdigest()[:16]


def _is_in_newest(folder: Path, name: str) -> bool:
    """Whether a segment belongs to the newest version, and so must stay as it is."""
    return is_whole_index(folder) and name in [segment.name for segment in newest_manifest(folder).segments]


def _restore_segment(folder: Path, name: str, spec: ScoreSpec, staged: Path) -> None:
    """Put back what a segment has lost since it was begun, where that is known to be the same."""
    segment = folder / SEGMENTS / name
    is_published = segment not in unpublished_segments(folder)
    if not is_published and (segment / SPEC).read_bytes() != spec.to_json().encode():
        write_file(segment / SPEC, spec.to_json().encode())
    wanted = record_file(staged)
    if is_published:  # only what the manifest lists will do
        wanted = newest_manifest(folder).files.get(f"{SEGMENTS}/{name}/{ITEMS}", wanted)
    is_whole = (segment / ITEMS).exists() and record_file(segment / ITEMS) == wanted
    if not is_whole and record_file(staged) == wanted:
        with storing(segment, 0):
            os.replace(staged, segment / ITEMS)
            sync_folder(segment)


def _check_welcome(folder: Path, name: str, spec: ScoreSpec) -> None:
    """Refuse to begin beside another index or an unfinished one: most likely that was meant to be resumed."""
    if is_whole_index(folder):
        first = newest_manifest(folder).segments[0].name
        if origin_of(folder, first) == name:
            raise BuiltBeforeError(f"{folder} was built of these items")
        holding, remedy = f"{folder} holds an index that", "choose another path, or give the same again"
        difference = _difference(folder / SEGMENTS / first, spec, holding, remedy)
        raise InputError(str(difference or f"{folder} holds another index; choose another path"))
    holding = f"{folder} holds an unfinished build that"
    remedy = "give the same to resume it, choose another path, or drop it with `anncur gc --unpublished`"
    for segment in unpublished_segments(folder):
        difference = _difference(segment, spec, holding, remedy)
        if difference:
            raise difference


def _difference(segment: Path, spec: ScoreSpec, holding: str, remedy: str) -> AnncurError | None:
    """The error that names what a segment was begun with and a spec hasn't; None where they are the same."""
    try:
        ScoreSpec.from_json(read_file(segment / SPEC)).check_same(spec, f"{holding} was built", remedy)
    except DamagedError as error:
        return DamagedError(f"{holding} is damaged: {error}; {remedy}")
    except (ResumeError, FingerprintError) as error:
        return error
    return None
