"""An index on disk: immutable segments, published by manifests.

    animals.anncur/
      lock                            held by the one writer
      queries-….jsonl                 the anchor queries
      manifests/00000001.json         what each version consists of
      segments/…/plan.json            what a segment's scores are bound to
      segments/…/items.sqlite         its items
      segments/…/prepared.sqlite      what the scorer made of them, if it makes anything
      segments/…/scores/              their exact scores, a zarr v3 array
      learned/…/anchors.int64, ranks.int16, tuned.json
      learned/…/lesson.json, lesson.float32    what searches taught, if anything
      traffic/                        what searches paid for, where they are kept

`folder_build.py` makes it, and here it is read, changed and looked after. Whatever writes, writes a segment and then
publishes a manifest; until then no reader knows of it."""

from __future__ import annotations

import contextlib
import hashlib
import shutil
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from anncur.arrays import FloatMatrix, Positions
from anncur.candidates.base import Retriever
from anncur.errors import DamagedError, DamagedWarning, InputError, LockedError, StorageError, UnknownIdError
from anncur.index.build import Learned, Settings, learn
from anncur.index.files import STAGING, FileRecord, is_in_use, write_file, writer_lock
from anncur.index.item_store import Store
from anncur.index.lesson_file import encode_lesson
from anncur.index.lessons import learn_from
from anncur.index.manifest import (
    ANCHORS,
    LEARNED,
    LESSON,
    MANIFESTS,
    PREPARED,
    QUERIES,
    RANKS,
    TUNED,
    Manifest,
    Segment,
    is_whole_index,
    manifest_path,
    newest_manifest,
    next_version,
    no_index,
    publish,
    read_manifest,
    versions,
)
from anncur.index.memory import keep_items
from anncur.index.segments import (
    PLAN,
    SCORES,
    SEGMENTS,
    drafts,
    make_draft,
    open_matrix,
    prepare_once,
    segment_files,
)
from anncur.index.snapshot import Snapshot, StoredItems, fitted_on_use
from anncur.index.traffic import FolderTraffic, KeptSearch
from anncur.index.tuned_file import encode_tuned
from anncur.index.version import Version
from anncur.items import Item, ItemLike, as_item, duplicate_id
from anncur.progress import Progress
from anncur.scorers.guard import GuardedScorer
from anncur.search.lesson import Lesson
from anncur.search.split import SplitTable

TRIES = 20  # of reading a version while others publish and throw away old ones


class FolderStorage:
    """An index in a folder. Writers hold a lock, readers never wait."""

    def __init__(self, folder: Path, retrievers: Mapping[str, Retriever] | None = None) -> None:
        self.folder = folder
        self._own_retrievers = retrievers or {}
        self._traffic = FolderTraffic(folder)

    def has_index(self) -> bool:
        """Whether there is a version that verifies."""
        return is_whole_index(self.folder)

    def newest(self) -> Version:
        """The newest version that verifies."""
        return Version(self.folder, newest_manifest(self.folder))

    def load(self) -> Snapshot:
        for _ in range(TRIES):
            version = self.newest()
            try:
                return version.load(self._own_retrievers)
            except DamagedError:
                if versions(self.folder)[:1] == [version.manifest.version]:
                    raise  # else it was thrown away while we read it, and a newer one is there
        raise StorageError(f"{self.folder} changed {TRIES} times while it was being read")

    def add(self, items: Iterable[ItemLike], scorer: GuardedScorer, *, progress: Progress) -> None:
        with self._changing():
            version = self.newest()
            manifest, queries = version.manifest, version.queries()
            chunk_size = version.plan(manifest.segments[0]).items_per_chunk
            settings = Settings(manifest.anchors, manifest.seed, manifest.dtype, chunk_size)
            new_items = _new_only(items, version.items())
            draft = make_draft(self.folder, new_items, queries, scorer, settings=settings, is_first=False)
            draft.matrix.fill(scorer, queries, draft.items.between, progress=progress)
            files = {**manifest.files, **segment_files(self.folder, draft.name)}
            publish(self.folder, replace(manifest, segments=(*manifest.segments, Segment(draft.name)), files=files))

    def remove(self, item_ids: Iterable[str]) -> None:
        with self._changing():
            version = self.newest()
            there, item_ids = version.items(), list(item_ids)
            gone = {there.row(item_id) for item_id in item_ids}
            if len(gone) == len(there):
                raise InputError("an index needs at least one item; these are all that it has")
            segments = tuple(
                replace(
                    segment, removed=tuple(sorted({*segment.removed, *(row for home, row in gone if home == place)}))
                )
                for place, segment in enumerate(version.manifest.segments)
            )
            smaller = self._without_empty(Version(self.folder, replace(version.manifest, segments=segments)))
            self._traffic.forget(item_ids, next_version(self.folder))  # before: whoever gets the id must not inherit
            publish(self.folder, smaller)

    def tune(self, anchors: str, seed: int, *, progress: Progress) -> None:
        with self._changing():
            version = self.newest()
            tuned = self._learn_again(version, Settings(anchors, seed), progress=progress)
            publish(self.folder, replace(tuned, anchors=anchors, seed=seed))

    def keep(self, searches: Sequence[KeptSearch], *, most: int) -> None:
        self._traffic.keep(searches, most=most)

    def learn(self, *, progress: Progress) -> int:
        with self._changing():
            version = self.newest()
            snapshot = version.load(self._own_retrievers)
            lesson = learn_from(self._traffic.read(), snapshot, seed=version.manifest.seed, progress=progress)
            places = lesson.put(version.alive(), sum(version.plan(s).n_items for s in version.manifest.segments))
            publish(self.folder, self._with_learned(version.manifest, replace(version.learned(), lesson=places)))
            return lesson.n_queries

    def verify(self) -> list[str]:
        problems: list[str] = []
        for number in versions(self.folder):
            try:
                version = Version(self.folder, read_manifest(self.folder, number))
            except DamagedError as error:
                problems.append(str(error))
                continue
            return problems + [str(error) for _, error in version.damage()]
        if not problems:
            raise no_index(self.folder)
        return problems

    def repair(self, scorer: GuardedScorer, *, progress: Progress) -> list[str]:
        with self._changing():
            version = self.newest()
            damaged = [name for name, _ in version.damage()]
            for name in filter(_is_made_by_the_scorer, damaged):
                (self.folder / name).unlink(missing_ok=True)
            lost = {name for name in damaged if name.endswith(PREPARED)}  # made again, or else done without
            files = {name: record for name, record in version.manifest.files.items() if name not in lost}
            for segment in version.manifest.segments:
                files.update(self._refill(version, segment, scorer, progress=progress))
            mended = replace(version.manifest, files=files)
            if any(name.startswith(LEARNED) for name in damaged):
                settings = Settings(mended.anchors, mended.seed)
                mended = self._learn_again(Version(self.folder, mended), settings, progress=progress)
            if mended != version.manifest:
                publish(self.folder, mended)
        return self.verify()

    def gc(self, *, drafts: bool) -> list[str]:
        with self._changing():
            doomed = self._unneeded(newest_manifest(self.folder)) if self.has_index() else []
            doomed += self._idle_drafts() if drafts else []
            for path in doomed:
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        return [str(path.relative_to(self.folder)) for path in doomed]

    @contextlib.contextmanager
    def _changing(self) -> Iterator[None]:
        """Hold the lock of an index that is there."""
        if not versions(self.folder) and not drafts(self.folder):
            raise no_index(self.folder)
        with writer_lock(self.folder):
            yield

    def _learn_again(self, version: Version, settings: Settings, *, progress: Progress) -> Manifest:
        """The same version with what can be learnt from its scores; costs no calls."""
        scores = _Held(version.vectors(), version.alive())
        learned = learn(
            scores,
            settings,
            queries=version.queries(),
            retrievers=fitted_on_use(version.retrievers(self._own_retrievers), version.items()),
            progress=progress,
        )
        learned = replace(learned, anchor_items=scores.alive[learned.anchor_items], lesson=_lesson_of(version))
        splits = learned.splits
        manifest = replace(version.manifest, splits=as_pairs(splits), ranks_shape=splits.ranks.shape)
        return self._with_learned(manifest, learned)

    def _with_learned(self, manifest: Manifest, learned: Learned) -> Manifest:
        """The same version with something else learnt."""
        kept = {name: record for name, record in manifest.files.items() if not name.startswith(LEARNED)}
        return replace(manifest, files={**kept, **write_learned(self.folder, learned)})

    def _without_empty(self, version: Version) -> Manifest:
        """Let go of segments that have no item left, so that files and handles don't pile up."""
        kept, places, start = [], [], 0
        for segment in version.manifest.segments:
            n_items = version.plan(segment).n_items
            if len(segment.removed) < n_items:
                kept.append(segment)
                places.append(np.arange(start, start + n_items))
            start += n_items
        if len(kept) == len(version.manifest.segments):
            return version.manifest
        learned = keep_items(version.learned(), np.concatenate(places))
        needed = (QUERIES, *(f"{SEGMENTS}/{segment.name}/" for segment in kept))
        files = {name: record for name, record in version.manifest.files.items() if name.startswith(needed)}
        return replace(version.manifest, segments=tuple(kept), files={**files, **write_learned(self.folder, learned)})

    def _refill(
        self, version: Version, segment: Segment, scorer: GuardedScorer, *, progress: Progress
    ) -> dict[str, FileRecord]:
        """Let the scorer make again what a segment has lost; returns the files that it makes, as they are then."""
        name = f"{SEGMENTS}/{segment.name}"
        try:
            plan, queries = version.plan(segment), version.queries()
            items: Store = version.store(segment)
            if f"{name}/{PREPARED}" in version.manifest.files:
                items = prepare_once(self.folder / name, items, scorer)
            if plan.n_anchor_queries:
                matrix = open_matrix(self.folder, segment.name, plan)
                matrix.fill(scorer, queries, items.between, progress=progress)
        except DamagedError:
            return {}  # without its plan, its items or the queries there is nothing to score
        found = segment_files(self.folder, segment.name)
        return {name: record for name, record in found.items() if _is_made_by_the_scorer(name)}

    def _idle_drafts(self) -> list[Path]:
        found = drafts(self.folder)
        for draft in found:
            if is_in_use(draft / PLAN):
                raise LockedError(f"{draft} is being filled by another process; wait for it, or end it")
        return found

    def _unneeded(self, newest: Manifest) -> list[Path]:
        kept = {segment.name for segment in newest.segments} | {path.name for path in drafts(self.folder)}
        learned = {name.split("/")[1] for name in newest.files if name.startswith(LEARNED)}
        older = [manifest_path(self.folder, number) for number in versions(self.folder) if number < newest.version]
        return [
            *older,
            *(path for path in (self.folder / SEGMENTS).glob("*") if path.name not in kept),
            *(path for path in (self.folder / LEARNED).glob("*") if path.name not in learned),
            *(self.folder / MANIFESTS).glob(f"*{STAGING}"),
        ]


def write_learned(folder: Path, learned: Learned) -> dict[str, FileRecord]:
    """Store what was learnt, under a name of its own."""
    contents = {
        ANCHORS: learned.anchor_items.astype("<i8").tobytes(),
        RANKS: learned.splits.ranks.astype("<i2").tobytes(),
        TUNED: encode_tuned(learned.tuned),
        **({} if learned.lesson is None else encode_lesson(learned.lesson)),
    }
    name = hashlib.sha256(b"".join(contents.values())).hexdigest()[:16]
    return {
        f"{LEARNED}/{name}/{file}": write_file(folder / LEARNED / name / file, content)
        for file, content in contents.items()
    }


def as_pairs(table: SplitTable) -> tuple[tuple[int, float], ...]:
    """Splits as a manifest has them."""
    return tuple((split.n_anchor_items, split.cutoff) for split in table.splits)


def _lesson_of(version: Version) -> Lesson | None:
    """What searches taught, as far as its files are whole."""
    try:
        return version.learned().lesson
    except DamagedError as error:
        if not any(name.endswith(LESSON) for name in version.manifest.files):
            return None
        warnings.warn(f"{error}; what searches taught is lost until it is learnt again", DamagedWarning, stacklevel=4)
        return None


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


def _is_made_by_the_scorer(name: str) -> bool:
    """Whether a file of an index holds what its scorer can make again."""
    return f"/{SCORES}/" in name or name.endswith(f"/{PREPARED}")
