"""An index on disk: immutable segments, published by manifests.

    animals.anncur/
      lock                            held by the one writer
      queries-….jsonl                 the anchor queries
      manifests/00000001.json         what each version consists of
      segments/…/plan.json            what a segment's scores are bound to
      segments/…/items.sqlite         its items
      segments/…/scores/              their exact scores, a zarr v3 array
      learned/…/anchors.npy, ranks.npy

A build writes a segment and then publishes a manifest; until then no reader knows of it. Killed at any moment, it goes
on where it was."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from anncur.arrays import FloatMatrix, Positions
from anncur.candidates.base import Retriever
from anncur.candidates.loading import load_retrievers
from anncur.errors import DamagedError, FingerprintError, InputError, PlanError, StorageError, UnknownIdError
from anncur.index.build import Learned, Settings, check_stability, learn
from anncur.index.files import (
    STAGING,
    FileRecord,
    check_file,
    read_checked,
    record_file,
    storing,
    sync_folder,
    write_file,
    writer_lock,
)
from anncur.index.item_store import ItemStore, write_items
from anncur.index.manifest import (
    MANIFESTS,
    Manifest,
    Segment,
    manifest_path,
    newest_manifest,
    publish,
    read_manifest,
    versions,
)
from anncur.index.memory import places_of
from anncur.index.pilot import drop_pilot, read_pilot
from anncur.index.snapshot import Snapshot, StoredItems, make_snapshot
from anncur.items import Item, ItemLike, Query, as_item, duplicate_id, no_items
from anncur.progress import Progress, silent
from anncur.scorers.guard import GuardedScorer
from anncur.scorers.stability import StabilityWatch
from anncur.scores import ScoreMatrix, ScorePlan, chunk_key, decode_chunk
from anncur.search.split import Split, SplitTable

SEGMENTS, LEARNED = "segments", "learned"
PLAN, ITEMS, SCORES = "plan.json", "items.sqlite", "scores"
SHOWN_CELLS = [(k, budget) for k in (1, 10, 100) for budget in (50, 100, 200, 500) if budget > k]
SECONDS_TO_BEGIN = 60.0  # that a shard waits for another one to begin or to publish
TRIES = 20  # of reading a version while others publish and throw away old ones


@dataclass(frozen=True)
class Draft:
    """A segment that is being filled."""

    name: str
    plan: ScorePlan
    items: ItemStore
    matrix: ScoreMatrix


class FolderStorage:
    """An index in a folder. Writers hold a lock, readers never wait."""

    def __init__(self, folder: Path, retrievers: Mapping[str, Retriever] | None = None) -> None:
        self.folder = folder
        self._own_retrievers = retrievers or {}

    # Building

    def has_index(self) -> bool:
        """Whether any version was published."""
        return bool(versions(self.folder))

    def draft(
        self,
        items: Iterable[ItemLike],
        queries: Sequence[Query],
        scorer: GuardedScorer,
        settings: Settings,
        *,
        is_first: bool,
    ) -> Draft:
        """Store items as a new segment, or go on with the one that holds just these. Needs the lock.

        The first segment is refused where an index is already, unless it is that one's."""
        staged = self.folder / SEGMENTS / f"{ITEMS}{STAGING}"
        n_items, digest = write_items(staged, items)
        if not n_items:
            staged.unlink()
            raise no_items()
        plan = ScorePlan.make(
            scorer,
            queries,
            items_digest=digest,
            n_items=n_items,
            items_per_chunk=settings.items_per_chunk,
            dtype=settings.dtype,
        )
        name = hashlib.sha256(plan.to_json().encode()).hexdigest()[:16]
        segment = self.folder / SEGMENTS / name
        if is_first and self.has_index() and name not in {known.name for known in self.manifest().segments}:
            staged.unlink()
            raise InputError(f"{self.folder} holds another index; add to it, or choose another place")
        if (segment / PLAN).exists():
            staged.unlink()
        else:
            self._check_no_other_draft(plan)
            with storing(segment, 0):
                segment.mkdir(exist_ok=True)
                os.rename(staged, segment / ITEMS)
            write_file(segment / PLAN, plan.to_json().encode())
        matrix = self._matrix(segment, plan)
        return Draft(name, plan, ItemStore(segment / ITEMS), matrix)

    def _matrix(self, segment: Path, plan: ScorePlan) -> ScoreMatrix:
        if plan.n_anchor_queries == 0:
            return ScoreMatrix.in_memory(plan)
        return ScoreMatrix.stored(str(segment.resolve() / SCORES), plan)

    def _check_no_other_draft(self, plan: ScorePlan) -> None:
        """Refuse to begin anew beside an unfinished segment: most likely it was meant to be gone on with."""
        for segment in self.drafts():
            try:
                ScorePlan.from_json((segment / PLAN).read_bytes()).check_same(plan)
            except (PlanError, FingerprintError) as error:
                hint = f"{self.folder} holds an unfinished build, and {error}; `anncur gc --drafts` drops it"
                raise type(error)(hint) from None

    def drafts(self) -> list[Path]:
        """Segments that no version has yet: unfinished, and perhaps paid for in part."""
        published = {segment.name for segment in newest_manifest(self.folder).segments} if self.has_index() else set()
        plans = sorted((self.folder / SEGMENTS).glob(f"*/{PLAN}"))
        return [path.parent for path in plans if path.parent.name not in published]

    def publish_first(
        self,
        draft: Draft,
        queries: Sequence[Query],
        settings: Settings,
        *,
        scorer_name: str,
        retrievers: Sequence[str],
        progress: Progress = silent,
    ) -> None:
        """Make a filled segment the first version. Needs the lock."""
        learned = learn(draft.matrix, settings, progress=progress)
        lines = "".join(json.dumps(_query_record(query), ensure_ascii=False) + "\n" for query in queries)
        name = f"queries-{draft.plan.anchor_queries[:16]}.jsonl"
        files = {name: write_file(self.folder / name, lines.encode()), **self._write_learned(learned)}
        manifest = Manifest(
            version=1,
            scorer=draft.plan.scorer,
            scorer_name=scorer_name,
            higher_is_better=draft.plan.higher_is_better,
            dtype=draft.plan.dtype,
            retrievers=tuple(retrievers),
            anchors=settings.anchors,
            seed=settings.seed,
            segments=(Segment(draft.name),),
            splits=_as_pairs(learned.splits),
            files={**files, **self._segment_files(draft.name)},
        )
        publish(self.folder, manifest)

    # Life

    def add(self, items: Iterable[ItemLike], scorer: GuardedScorer, *, progress: Progress) -> None:
        with writer_lock(self.folder):
            manifest = newest_manifest(self.folder)
            there = self._items(manifest, check=False)
            settings = Settings(
                manifest.anchors, manifest.seed, manifest.dtype, self._first_plan(manifest).items_per_chunk
            )
            draft = self.draft(_new_only(items, there), self._queries(manifest), scorer, settings, is_first=False)
            draft.matrix.fill(scorer, self._queries(manifest), draft.items.between, progress=progress)
            files = {**manifest.files, **self._segment_files(draft.name)}
            publish(self.folder, manifest.next(segments=(*manifest.segments, Segment(draft.name)), files=files))

    def remove(self, item_ids: Iterable[str]) -> None:
        with writer_lock(self.folder):
            manifest = newest_manifest(self.folder)
            there = self._items(manifest, check=False)
            removed = [set(segment.removed) for segment in manifest.segments]
            gone = {there.row(item_id) for item_id in item_ids}
            if len(gone) == len(there):
                raise InputError("an index needs at least one item; these are all that it has")
            for home, row in gone:
                removed[home].add(row)
            segments = tuple(
                Segment(segment.name, tuple(sorted(rows)))
                for segment, rows in zip(manifest.segments, removed, strict=True)
            )
            publish(self.folder, manifest.next(segments=segments))

    def tune(self, anchors: str, seed: int, *, progress: Progress) -> None:
        settings = Settings(anchors, seed)
        with writer_lock(self.folder):
            manifest = newest_manifest(self.folder)
            scores = _Held(self._vectors(manifest), self._alive(manifest))
            learned = learn(scores, settings, progress=progress)
            learned = Learned(scores.alive[learned.anchor_items], learned.splits)
            kept = {name: record for name, record in manifest.files.items() if not name.startswith(LEARNED)}
            publish(
                self.folder,
                manifest.next(
                    anchors=settings.anchors,
                    seed=settings.seed,
                    splits=_as_pairs(learned.splits),
                    files={**kept, **self._write_learned(learned)},
                ),
            )

    def verify(self) -> list[str]:
        problems = []
        for version in versions(self.folder):
            try:
                manifest = read_manifest(self.folder, version)
            except DamagedError as error:
                problems.append(str(error))
                continue
            return problems + [str(error) for _, error in self._damage(manifest)]
        return problems or [f"no index at {self.folder}"]

    def repair(self, scorer: GuardedScorer, *, progress: Progress) -> list[str]:
        with writer_lock(self.folder):
            manifest = newest_manifest(self.folder)
            for name, _ in self._damage(manifest):
                if f"/{SCORES}/" in name:
                    (self.folder / name).unlink(missing_ok=True)
            files = dict(manifest.files)
            for segment in manifest.segments:
                files.update(self._refill(segment, manifest, scorer, progress=progress))
            if any(name.startswith(LEARNED) for name, _ in self._damage(manifest)):
                settings = Settings(manifest.anchors, manifest.seed, manifest.dtype)
                scores = _Held(self._vectors(replace(manifest, files=files)), self._alive(manifest))
                learned = learn(scores, settings, progress=progress)
                files = {name: record for name, record in files.items() if not name.startswith(LEARNED)}
                files.update(self._write_learned(Learned(scores.alive[learned.anchor_items], learned.splits)))
                manifest = replace(manifest, splits=_as_pairs(learned.splits))
            if files != manifest.files:
                publish(self.folder, manifest.next(files=files))
        return self.verify()

    def gc(self, *, drafts: bool) -> list[str]:
        with writer_lock(self.folder):
            newest = newest_manifest(self.folder)
            doomed = [
                manifest_path(self.folder, version) for version in versions(self.folder) if version < newest.version
            ]
            kept_folders = {segment.name for segment in newest.segments}
            kept_folders |= set() if drafts else {path.name for path in self.drafts()}
            doomed += [path for path in (self.folder / SEGMENTS).glob("*") if path.name not in kept_folders]
            learned = {name.split("/")[1] for name in newest.files if name.startswith(LEARNED)}
            doomed += [path for path in (self.folder / LEARNED).glob("*") if path.name not in learned]
            doomed += list((self.folder / MANIFESTS).glob(f"*{STAGING}"))
            for path in doomed:
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        return [str(path.relative_to(self.folder)) for path in doomed]

    # Reading

    def load(self) -> Snapshot:
        for _ in range(TRIES):
            manifest = newest_manifest(self.folder)
            try:
                return self._load(manifest)
            except DamagedError:
                if versions(self.folder)[:1] == [manifest.version]:
                    raise
        raise StorageError(f"{self.folder} changed {TRIES} times while it was being read")

    def manifest(self) -> Manifest:
        """The newest manifest."""
        return newest_manifest(self.folder)

    def describe(self) -> dict[str, Any]:
        """What the newest version is made of, as plain values."""
        manifest = self.manifest()
        plans = [self._plan(manifest, segment) for segment in manifest.segments]
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
            "expected_recall": self._expected_recall(manifest),
        }

    def _expected_recall(self, manifest: Manifest) -> dict[str, float]:
        """The recall of held-out anchor queries, by k and budget."""
        splits = self._read_learned(manifest).splits
        cells = {f"top {k} at {budget}": splits.highest_recall(k=k, budget=budget) for k, budget in SHOWN_CELLS}
        return {name: round(recall, 3) for name, recall in cells.items() if recall is not None}

    def _load(self, manifest: Manifest) -> Snapshot:
        items = self._items(manifest, check=True)
        retrievers = load_retrievers([self._own_retrievers.get(name, name) for name in manifest.retrievers])
        learned = self._read_learned(manifest)
        anchor_items = places_of(learned.anchor_items, self._alive(manifest))
        return make_snapshot(
            manifest.version,
            self._queries(manifest),
            items,
            self._vectors(manifest),
            learned=Learned(anchor_items, learned.splits),
            retrievers=retrievers,
            seed=manifest.seed,
        )

    def _items(self, manifest: Manifest, *, check: bool) -> StoredItems:
        stores, rows = [], []
        for segment in manifest.segments:
            name = f"{SEGMENTS}/{segment.name}/{ITEMS}"
            if check:
                check_file(self.folder / name, manifest.files[name])
            stores.append(ItemStore(self.folder / name))
            rows.append(np.setdiff1d(np.arange(len(stores[-1])), segment.removed))
        return StoredItems(stores, rows)

    def _alive(self, manifest: Manifest) -> Positions:
        """The places, counted through all segments, of the items that are there."""
        alive, start = [], 0
        for segment in manifest.segments:
            n_items = self._plan(manifest, segment).n_items
            alive.append(start + np.setdiff1d(np.arange(n_items), segment.removed))
            start += n_items
        return np.concatenate(alive)

    def _vectors(self, manifest: Manifest) -> FloatMatrix:
        """The exact scores of the items that are there, (n_items, n_anchor_queries)."""
        plans = [self._plan(manifest, segment) for segment in manifest.segments]
        n_alive = sum(plan.n_items - len(s.removed) for plan, s in zip(plans, manifest.segments, strict=True))
        vectors = np.empty((n_alive, plans[0].n_anchor_queries), dtype=np.float32)
        filled = 0
        for plan, segment in zip(plans, manifest.segments, strict=True):
            for chunk in range(plan.n_chunks if plan.n_anchor_queries else 0):
                name = f"{SEGMENTS}/{segment.name}/{SCORES}/{chunk_key(chunk)}"
                values = decode_chunk(read_checked(self.folder / name, manifest.files[name]), plan, chunk)
                start, stop = plan.chunk_range(chunk)
                kept = np.setdiff1d(np.arange(start, stop), segment.removed) - start
                vectors[filled : filled + len(kept)] = values[kept]
                filled += len(kept)
        return vectors

    def _first_plan(self, manifest: Manifest) -> ScorePlan:
        return self._plan(manifest, manifest.segments[0])

    def _plan(self, manifest: Manifest, segment: Segment) -> ScorePlan:
        name = f"{SEGMENTS}/{segment.name}/{PLAN}"
        return ScorePlan.from_json(read_checked(self.folder / name, manifest.files[name]))

    def _queries(self, manifest: Manifest) -> list[Query]:
        (name,) = (name for name in manifest.files if name.startswith("queries-"))
        lines = read_checked(self.folder / name, manifest.files[name]).decode().splitlines()
        return [_as_query(json.loads(line)) for line in lines]

    def _read_learned(self, manifest: Manifest) -> Learned:
        arrays = {
            Path(name).name: np.load(io.BytesIO(read_checked(self.folder / name, record)), allow_pickle=False)
            for name, record in manifest.files.items()
            if name.startswith(LEARNED)
        }
        splits = [Split(n_anchor_items, cutoff) for n_anchor_items, cutoff in manifest.splits]
        return Learned(arrays["anchors.npy"], SplitTable(splits, arrays["ranks.npy"]))

    # Writing

    def _write_learned(self, learned: Learned) -> dict[str, FileRecord]:
        contents = {"anchors.npy": _npy(learned.anchor_items), "ranks.npy": _npy(learned.splits.ranks)}
        name = hashlib.sha256(b"".join(contents.values())).hexdigest()[:16]
        return {
            f"{LEARNED}/{name}/{file}": write_file(self.folder / LEARNED / name / file, content)
            for file, content in contents.items()
        }

    def _segment_files(self, name: str) -> dict[str, FileRecord]:
        """All files of a segment, hashed, and safely on disk."""
        folder = self.folder / SEGMENTS / name
        paths = sorted(path for path in folder.rglob("*") if path.is_file() and not path.name.endswith(STAGING))
        for parent in {path.parent for path in paths}:
            sync_folder(parent)
        return {str(path.relative_to(self.folder)): record_file(path) for path in paths}

    def _refill(
        self, segment: Segment, manifest: Manifest, scorer: GuardedScorer, *, progress: Progress
    ) -> dict[str, FileRecord]:
        """Score what a segment has lost; returns its files as they are then."""
        try:
            plan = self._plan(manifest, segment)
            items = ItemStore(self.folder / SEGMENTS / segment.name / ITEMS)
        except DamagedError:
            return {}  # without its plan or items there is nothing to score
        if not plan.n_anchor_queries:
            return {}
        matrix = self._matrix(self.folder / SEGMENTS / segment.name, plan)
        matrix.fill(scorer, self._queries(manifest), items.between, progress=progress)
        found = self._segment_files(segment.name)
        return {name: record for name, record in found.items() if f"/{SCORES}/" in name}

    def _damage(self, manifest: Manifest) -> Iterator[tuple[str, DamagedError]]:
        for name, record in manifest.files.items():
            try:
                check_file(self.folder / name, record)
            except DamagedError as error:
                yield name, error


def build_in_folder(
    folder: Path,
    items: Iterable[ItemLike],
    queries: Sequence[Query],
    scorer: GuardedScorer,
    *,
    settings: Settings,
    retrievers: Mapping[str, Retriever],
    watch: StabilityWatch,
    scorer_name: str,
    shard: tuple[int, int] | None,
    progress: Progress,
) -> FolderStorage:
    """Build an index, or go on with it. A shard holds the lock only to begin and to publish."""
    storage = FolderStorage(folder, retrievers)
    patience = 0.0 if shard is None else SECONDS_TO_BEGIN
    with contextlib.ExitStack() as held:
        held.enter_context(writer_lock(folder, patience=patience))
        draft = storage.draft(items, queries, scorer, settings, is_first=True)
        if storage.has_index():
            return storage
        if shard is not None:
            held.close()
        pilot = read_pilot(folder, scorer)
        draft.matrix.fill(
            scorer,
            queries,
            draft.items.between,
            shard=shard or (0, 1),
            known=None if pilot is None else pilot.known,
            progress=progress,
        )
        if shard is not None:
            if draft.matrix.n_missing:
                return storage
            held.enter_context(writer_lock(folder, patience=SECONDS_TO_BEGIN))
            if storage.has_index():
                return storage
        check_stability(watch, draft.matrix, scorer, queries, draft.items.between)
        storage.publish_first(
            draft, queries, settings, scorer_name=scorer_name, retrievers=list(retrievers), progress=progress
        )
        drop_pilot(folder)
    return storage


def check_shard(shard: tuple[int, int] | None) -> None:
    """Refuse a shard that there isn't."""
    if shard is not None:
        part, n_parts = shard
        if not 0 <= part < n_parts:
            raise InputError(f"shard must be (i, n) with 0 <= i < n, got {shard!r}")


class _Held:
    """Scores in memory as `ItemScores`; `alive` are the places of its rows, counted through all segments."""

    def __init__(self, vectors: FloatMatrix, alive: Positions) -> None:
        self._vectors = vectors
        self.alive = alive
        self.n_items, self.n_anchor_queries = vectors.shape

    def parts(self) -> Iterator[tuple[int, FloatMatrix]]:
        yield 0, self._vectors

    def rows(self, positions: Positions) -> FloatMatrix:
        return self._vectors[positions]


def _new_only(items: Iterable[ItemLike], there: StoredItems) -> Iterator[Item]:
    """Items as they come, refusing those whose id is there already."""
    for number, item in enumerate(items):
        new = as_item(item, position=len(there) + number)
        with contextlib.suppress(UnknownIdError):
            first = there.position(new.id)
            raise duplicate_id(new.id, first, len(there) + number)
        yield new


def _query_record(query: Query) -> dict[str, Any]:
    return {"text": query.text, "id": query.id, "mention": query.mention}


def _as_query(record: dict[str, Any]) -> Query:
    mention = record["mention"]
    return Query(record["text"], record["id"], None if mention is None else tuple(mention))


def _as_pairs(table: SplitTable) -> tuple[tuple[int, float], ...]:
    return tuple((split.n_anchor_items, split.cutoff) for split in table.splits)


def _npy(array: Any) -> bytes:
    content = io.BytesIO()
    np.save(content, array, allow_pickle=False)
    return content.getvalue()
