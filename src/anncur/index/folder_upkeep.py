"""Looks after an index in a folder: what is damaged, what can be made again, and which files nobody needs.

Called by `folder.py`, under its lock where something is written."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from anncur.errors import DamagedError, LockedError
from anncur.index.encoding import encode_again
from anncur.progress import Progress
from anncur.retrievers.base import Retriever
from anncur.scorers.guard import GuardedScorer
from anncur.storage.encoded import RETRIEVERS
from anncur.storage.files import STAGING, FileRecord, is_in_use, storing
from anncur.storage.item_vectors import VECTORS
from anncur.storage.items import ItemRows
from anncur.storage.manifest import (
    DERIVED,
    MANIFESTS,
    PREPARED,
    SEGMENTS,
    Manifest,
    Segment,
    manifest_path,
    newest_damage,
    newest_manifest,
    no_index,
    read_manifest,
    versions,
)
from anncur.storage.metadata import METADATA, write_metadata
from anncur.storage.segments import SCORES, open_matrix, prepare_once, segment_files, unpublished_segments
from anncur.storage.version import Version


def damage_of(folder: Path) -> list[str]:
    """What is damaged of the newest version, a line each."""
    problems = newest_damage(folder)
    for number in versions(folder):
        try:
            version = Version(folder, read_manifest(folder, number))
        except DamagedError as error:
            problems.append(str(error))
            continue
        return problems + [str(error) for _, error in version.damage()]
    if not problems:
        raise no_index(folder)
    return problems


def make_again(
    version: Version,
    retrievers: Callable[[], Mapping[str, Retriever]],
    damaged: Sequence[str],
    scorer: GuardedScorer,
    *,
    progress: Progress,
) -> dict[str, FileRecord]:
    """Make damaged files again that can be made of the items; all files of the version then."""
    for name in filter(_can_be_made_again, damaged):
        (version.folder / name).unlink(missing_ok=True)
    lost = {name for name in damaged if name.endswith(PREPARED)}  # made again, or left out
    files = dict(version.manifest.files)
    if any(f"{RETRIEVERS}/" in name for name in damaged):
        files = encode_again(version, retrievers(), damaged, progress=progress)
    files = {name: record for name, record in files.items() if name not in lost}
    for segment in version.manifest.segments:
        files.update(_refill(version, segment, scorer, progress=progress))
    return files


def unneeded(folder: Path) -> list[Path]:
    """What only older versions need, and what nobody will ever finish."""
    newest = newest_manifest(folder)
    kept = {segment.name for segment in newest.segments} | {path.name for path in unpublished_segments(folder)}
    derived = {name.split("/")[1] for name in newest.files if name.startswith((f"{DERIVED}/", f"{RETRIEVERS}/"))}
    older = [manifest_path(folder, number) for number in versions(folder) if number < newest.version]
    return [  # manifests last: what they list must not seem unpublished where a kill comes in between
        *(path for path in (folder / SEGMENTS).glob("*") if path.name not in kept),
        *(path for path in (folder / DERIVED).glob("*") if path.name not in derived),
        *(path for path in (folder / RETRIEVERS).glob("*") if path.name not in derived),
        *_unneeded_vectors(folder, newest),
        *(folder / MANIFESTS).glob(f"*{STAGING}"),
        *older,
    ]


def _unneeded_vectors(folder: Path, newest: Manifest) -> list[Path]:
    """Spaces that only older versions have, and of the newest one's what belongs to segments that are gone."""
    spaces = {name.split("/")[1] for name in newest.files if name.startswith(f"{VECTORS}/")}
    older = [path for path in (folder / VECTORS).glob("*") if path.name not in spaces]
    within = [path for space in spaces for path in (folder / VECTORS / space).glob("*")]
    return older + [path for path in within if path.relative_to(folder).as_posix() not in newest.files]


def idle_segments(folder: Path) -> list[Path]:
    """Segments that no version has; refused while somebody fills one."""
    found = unpublished_segments(folder)
    for segment in found:
        if is_in_use(folder, segment.name):
            raise LockedError(f"{segment} is being filled by another process; wait for it, or end it")
    return found


def delete(paths: Sequence[Path]) -> None:
    """Delete files and folders."""
    for path in paths:
        with storing(path, 0):
            shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)


def _refill(version: Version, segment: Segment, scorer: GuardedScorer, *, progress: Progress) -> dict[str, FileRecord]:
    """Make again what a segment has lost; returns the files that can be made, as they are then."""
    name = f"{SEGMENTS}/{segment.name}"
    try:
        spec, queries = version.spec(segment), version.queries()
        items: ItemRows = version.store(segment)
        if f"{name}/{METADATA}" in version.manifest.files:
            write_metadata(version.folder / name, items)
        if f"{name}/{PREPARED}" in version.manifest.files:
            items = prepare_once(version.folder / name, items, scorer)
        if spec.n_anchor_queries:
            matrix = open_matrix(version.folder, segment.name, spec)
            matrix.fill(scorer, queries, items.between, progress=progress)
    except DamagedError:
        return {}  # without its spec, its items or the queries there is nothing to score
    found = segment_files(version.folder, segment.name)
    return {name: record for name, record in found.items() if _can_be_made_again(name)}


def _can_be_made_again(name: str) -> bool:
    """Whether a file of an index holds what can be made again from its items, with the scorer or without."""
    return f"/{SCORES}/" in name or name.endswith((f"/{PREPARED}", f"/{METADATA}"))
