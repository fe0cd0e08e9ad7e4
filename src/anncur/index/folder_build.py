"""Builds an index in a folder: writes a segment, fills it, and publishes the first manifest.

Killed at any moment, it goes on where it was when it is run again. Several processes can fill one segment."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import numpy as np

from anncur.errors import InputError
from anncur.index.build import Request, check_stability, learn
from anncur.index.files import in_use, write_file, writer_lock
from anncur.index.folder import FolderStorage, as_pairs, write_learned
from anncur.index.manifest import QUERIES, Manifest, Segment, publish
from anncur.index.pilot import drop_pilot, read_pilot
from anncur.index.segments import PLAN, SEGMENTS, Draft, make_draft, segment_files
from anncur.index.snapshot import StoredItems, fitted_on_use
from anncur.items import Query

SECONDS_TO_BEGIN = 60.0  # that a shard waits for another one to begin or to publish


def build_in_folder(
    folder: Path, request: Request, *, scorer_name: str, shard: tuple[int, int] | None
) -> FolderStorage:
    """Build an index, or go on with it. A shard holds the lock only to begin and to publish."""
    scorer, queries = request.scorer, request.queries
    storage = FolderStorage(folder, request.retrievers)
    with contextlib.ExitStack() as held:
        held.enter_context(writer_lock(folder, patience=0.0 if shard is None else SECONDS_TO_BEGIN))
        draft = make_draft(folder, request.items, queries, scorer, settings=request.settings, is_first=True)
        if storage.has_index():
            return storage
        if shard is not None:
            held.close()
        _fill(folder, draft, request, shard or (0, 1))
        if shard is not None:
            if draft.matrix.n_missing:
                return storage
            held.enter_context(writer_lock(folder, patience=SECONDS_TO_BEGIN))
            if storage.has_index():
                return storage
        check_stability(request.watch, draft.matrix, scorer, queries, draft.items.between)
        _publish_first(folder, draft, request, scorer_name=scorer_name)
        drop_pilot(folder)
    return storage


def check_shard(shard: tuple[int, int] | None) -> None:
    """Refuse a shard that there isn't."""
    if shard is not None:
        part, n_parts = shard
        if not 0 <= part < n_parts:
            raise InputError(f"shard must be (i, n) with 0 <= i < n, got {shard!r}")


def _fill(folder: Path, draft: Draft, request: Request, shard: tuple[int, int]) -> None:
    """Score what is missing of a draft and of this shard, but for what a pilot has paid for."""
    pilot = read_pilot(folder, request.scorer)
    with in_use(folder / SEGMENTS / draft.name / PLAN):
        draft.matrix.fill(
            request.scorer,
            request.queries,
            draft.items.between,
            shard=shard,
            known=None if pilot is None else pilot.known,
            progress=request.progress,
        )


def _publish_first(folder: Path, draft: Draft, request: Request, *, scorer_name: str) -> None:
    """Make a filled segment the first version. Needs the lock."""
    items = StoredItems([draft.items], [np.arange(draft.plan.n_items)])
    learned = learn(
        draft.matrix,
        request.settings,
        queries=request.queries,
        retrievers=fitted_on_use(request.retrievers, items),
        progress=request.progress,
    )
    lines = "".join(json.dumps(_record(query), ensure_ascii=False) + "\n" for query in request.queries)
    name = f"{QUERIES}{draft.plan.anchor_queries[:16]}.jsonl"
    files = {name: write_file(folder / name, lines.encode()), **write_learned(folder, learned)}
    manifest = Manifest(
        version=1,
        scorer=draft.plan.scorer,
        scorer_name=scorer_name,
        higher_is_better=draft.plan.higher_is_better,
        dtype=draft.plan.dtype,
        retrievers=tuple(request.retrievers),
        anchors=request.settings.anchors,
        seed=request.settings.seed,
        segments=(Segment(draft.name),),
        splits=as_pairs(learned.splits),
        ranks_shape=learned.splits.ranks.shape,
        files={**files, **segment_files(folder, draft.name)},
    )
    publish(folder, manifest)


def _record(query: Query) -> dict[str, Any]:
    return {"text": query.text, "id": query.id, "mention": query.mention}
