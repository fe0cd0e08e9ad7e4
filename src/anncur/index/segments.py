"""Segments on disk: some items, and their exact scores. Made once, filled, and never changed after they are published.

    segments/<name>/plan.json        what the scores are bound to; the name comes from it
    segments/<name>/items.sqlite
    segments/<name>/prepared.sqlite  what the scorer made of the items, if it makes anything
    segments/<name>/scores/          a zarr v3 array

A segment that no manifest lists is a draft: unfinished, and perhaps paid for in part."""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from anncur.errors import DamagedError, FingerprintError, InputError, PlanError
from anncur.index.build import Settings
from anncur.index.files import (
    STAGING,
    UNFINISHED,
    FileRecord,
    make_folder,
    record_file,
    storing,
    sync_folder,
    write_file,
)
from anncur.index.item_store import ItemStore, Store, write_items
from anncur.index.manifest import PREPARED, is_whole_index, newest_manifest, read_manifest, versions
from anncur.index.prepared import PreparedStore, is_whole, write_prepared
from anncur.items import ItemLike, Query, no_items
from anncur.scorers.guard import GuardedScorer
from anncur.scores import ScoreMatrix, ScorePlan

SEGMENTS = "segments"
PLAN, ITEMS, SCORES = "plan.json", "items.sqlite", "scores"


@dataclass(frozen=True)
class Draft:
    """A segment that is being filled; its items are as the scorer gets them."""

    name: str
    plan: ScorePlan
    items: Store
    matrix: ScoreMatrix


def make_draft(
    folder: Path,
    items: Iterable[ItemLike],
    queries: Sequence[Query],
    scorer: GuardedScorer,
    *,
    settings: Settings,
    is_first: bool,
) -> Draft:
    """Store items as a new segment, or go on with the one that holds just these. Needs the lock.

    The first segment is refused where an index is already, unless it is that one's."""
    staged = folder / SEGMENTS / f"{ITEMS}{STAGING}"
    n_items, digest = write_items(staged, items)
    plan = ScorePlan.make(
        scorer,
        queries,
        items_digest=digest,
        n_items=n_items,
        items_per_chunk=settings.items_per_chunk,
        dtype=settings.dtype,
    )
    name = hashlib.sha256(plan.to_json().encode()).hexdigest()[:16]
    segment = folder / SEGMENTS / name
    try:
        if not n_items:
            raise no_items()
        if not (segment / PLAN).exists():
            if is_first:
                _check_welcome(folder, plan)
            with storing(segment, 0):
                make_folder(segment)
                os.rename(staged, segment / ITEMS)
            write_file(segment / PLAN, plan.to_json().encode())
        else:
            _mend_draft(folder, name, plan, staged)
    finally:
        staged.unlink(missing_ok=True)
    stored: Store = ItemStore(segment / ITEMS)
    if not _is_in_newest(folder, name):
        stored = prepare_once(segment, stored, scorer)
    return Draft(name, plan, stored, open_matrix(folder, name, plan))


def prepare_once(segment: Path, items: Store, scorer: GuardedScorer) -> Store:
    """A segment's items as their scorer gets them: with what it made of them, made now unless it is there whole."""
    path = segment / PREPARED
    if not (path.exists() and is_whole(path, len(items))):
        path.unlink(missing_ok=True)
        write_prepared(path, items, scorer)
    return PreparedStore(items, path) if path.exists() else items


def open_matrix(folder: Path, name: str, plan: ScorePlan) -> ScoreMatrix:
    """The exact scores of a segment, to be filled."""
    if plan.n_anchor_queries == 0:
        return ScoreMatrix.in_memory(plan)
    return ScoreMatrix.stored(str((folder / SEGMENTS / name / SCORES).resolve()), plan)


def drafts(folder: Path) -> list[Path]:
    """The folders of segments that no version has."""
    published: set[str] = set()
    for version in versions(folder):
        with contextlib.suppress(DamagedError):
            published.update(segment.name for segment in read_manifest(folder, version).segments)
    plans = sorted((folder / SEGMENTS).glob(f"*/{PLAN}"))
    return [path.parent for path in plans if path.parent.name not in published]


def segment_files(folder: Path, name: str) -> dict[str, FileRecord]:
    """All files of a segment, hashed, and their names safely on disk."""
    found = (path for path in (folder / SEGMENTS / name).rglob("*") if not path.name.endswith(UNFINISHED))
    paths = sorted(path for path in found if path.is_file())
    for parent in {parent for path in paths for parent in path.parents if parent.is_relative_to(folder)}:
        sync_folder(parent)
    return {str(path.relative_to(folder)): record_file(path) for path in paths}


def _is_in_newest(folder: Path, name: str) -> bool:
    """Whether a segment belongs to the newest version, and so must stay as it is."""
    return is_whole_index(folder) and name in [segment.name for segment in newest_manifest(folder).segments]


def _mend_draft(folder: Path, name: str, plan: ScorePlan, staged: Path) -> None:
    """Put back what a segment has lost since it was begun, where that is known to be the same."""
    segment = folder / SEGMENTS / name
    is_published = segment not in drafts(folder)
    if not is_published and (segment / PLAN).read_bytes() != plan.to_json().encode():
        write_file(segment / PLAN, plan.to_json().encode())
    wanted = record_file(staged)
    if is_published:  # only what the manifest lists will do
        wanted = newest_manifest(folder).files.get(f"{SEGMENTS}/{name}/{ITEMS}", wanted)
    is_whole = (segment / ITEMS).exists() and record_file(segment / ITEMS) == wanted
    if not is_whole and record_file(staged) == wanted:
        with storing(segment, 0):
            os.rename(staged, segment / ITEMS)
            sync_folder(segment)


def _check_welcome(folder: Path, plan: ScorePlan) -> None:
    """Refuse to begin beside another index or an unfinished one: most likely that was meant to be gone on with."""
    if is_whole_index(folder):
        raise InputError(f"{folder} holds another index; add to it, or choose another place")
    for segment in drafts(folder):
        try:
            ScorePlan.from_json((segment / PLAN).read_bytes()).check_same(plan)
        except (PlanError, FingerprintError) as error:
            hint = f"{folder} holds an unfinished build, and {error}; `anncur gc --drafts` drops it"
            raise type(error)(hint) from None
