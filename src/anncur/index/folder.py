"""An index on disk: immutable segments, published by manifests.

    animals.anncur/
      lock, writer, locks/            the one writer's, and those of processes that fill a segment
      queries-….jsonl                 the anchor queries
      manifests/00000001.json         what each version consists of
      segments/…/plan.json            what a segment's scores are bound to
      segments/…/items.sqlite         its items
      segments/…/metadata.npz         their metadata in columns
      segments/…/prepared.sqlite      what the scorer prepared of them, if anything
      segments/…/retrievers/          what retrievers derived from them, such as embeddings
      segments/…/scores/              their exact scores, a zarr v3 array
      retrievers/                     bases that items are projected onto
      learned/…/anchors.int64, ranks.int16, tuned.json
      learned/…/feedback.json, feedback.float32    the feedback model, if the query log was fitted
      query_log/                      what searches paid for, where they are logged

`folder_build.py` makes it, and here it is read, changed and maintained. Whatever writes, writes a segment and then
publishes a manifest; until then no reader sees it."""

from __future__ import annotations

import contextlib
import shutil
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from anncur.errors import DamagedError, DamagedWarning, InputError, LockedError, StorageError
from anncur.index.backend import Contents
from anncur.index.build import check_retrievers, new_items
from anncur.index.calibration import calibrate_on, check_calibration_queries, keep_calibration
from anncur.index.encoding import check_embeddings, check_encoder, encode_again, with_new_items
from anncur.index.feedback import fit_query_log
from anncur.index.filtering import Metadata, MetadataPart
from anncur.index.folder_build import with_derived, write_derived
from anncur.index.snapshot import Prepared, Snapshot, make_snapshot
from anncur.items import ItemLike, Query
from anncur.progress import Progress
from anncur.retrievers.base import EncodingRetriever, Retriever, fitted_on_use
from anncur.retrievers.loading import load_retriever
from anncur.retrievers.user_embeddings import EmbeddingsLike, UserRetriever
from anncur.scorers.guard import GuardedScorer
from anncur.search.feedback import FeedbackModel
from anncur.storage.codecs import OLDER_FILES
from anncur.storage.encoded import N_COMPARED, RETRIEVERS, encode_segment, encoding_retrievers
from anncur.storage.files import STAGING, FileRecord, copy_file, is_in_use, storing, writer_lock
from anncur.storage.items import ItemRows
from anncur.storage.manifest import (
    CALIBRATION,
    DERIVED,
    FEEDBACK,
    MANIFESTS,
    PREPARED,
    QUERIES,
    SEGMENTS,
    Manifest,
    Segment,
    is_whole_index,
    manifest_path,
    newest_damage,
    newest_manifest,
    next_version,
    no_index,
    publish,
    read_manifest,
    restore_newest,
    versions,
)
from anncur.storage.metadata import METADATA, write_metadata
from anncur.storage.query_log import FolderQueryLog, LoggedSearch
from anncur.storage.segments import (
    SCORES,
    begin_segment,
    check_is_ours,
    drop_calibration,
    open_calibration,
    open_matrix,
    prepare_once,
    segment_files,
    unpublished_segments,
)
from anncur.storage.version import Version
from anncur.tuning.derive import derive
from anncur.tuning.held_out import HeldScores

TRIES = 20  # of reading a version while others publish and delete old ones
REPAIR = "`anncur verify --repair` scores again what it can"
LOST = "it can't be scored again: restore the file from a copy, or build the index again"


class FolderBackend:
    """An index in a folder. Writers hold a lock, readers never wait."""

    def __init__(self, folder: Path, retrievers: Mapping[str, Retriever] | None = None) -> None:
        self.folder = folder
        self.own_retrievers = dict(retrievers or {})
        self._query_log = FolderQueryLog(folder)
        self._latest: Version | None = None  # that was read

    def newest(self) -> Version:
        """The newest version that verifies."""
        self._latest = Version(self.folder, newest_manifest(self.folder))
        return self._latest

    def latest_contents(self) -> Contents:
        """What the latest version that was read is made of: its scorer is that of all versions."""
        return _contents(self._latest or self.newest())

    @property
    def is_complete(self) -> bool:
        return is_whole_index(self.folder)

    def contents(self) -> Contents:
        return _contents(self.newest())

    def load(self) -> Snapshot:
        for _ in range(TRIES):
            before = versions(self.folder)
            version = self.newest()
            try:
                return self._snapshot(version)
            except DamagedError as error:
                if versions(self.folder) == before:
                    raise DamagedError(f"{error}; {REPAIR}") from error
                # else it was deleted while we read it, and a newer one is there
        raise StorageError(f"{self.folder} changed {TRIES} times while it was being read")

    def add(
        self,
        items: Iterable[ItemLike],
        scorer: GuardedScorer,
        *,
        embeddings: EmbeddingsLike | None = None,
        progress: Progress,
    ) -> None:
        with self._changing():
            version = self.newest()
            manifest, queries, live = version.manifest, version.queries(), version.items()
            retrievers = self._retrievers(version)
            encoders = with_new_items(_stored_only(retrievers, version), embeddings)
            self._check_encoders(version, encoders)
            segment = begin_segment(
                self.folder,
                new_items(items, live),
                queries,
                scorer,
                dtype=manifest.dtype,
                items_per_chunk=version.specs[0].items_per_chunk,
                is_first=False,
            )
            check_embeddings(encoders, len(segment.items), ())
            check_retrievers(retrievers, live.followed_by(segment.items), queries)
            encode_segment(
                self.folder,
                segment.name,
                encoders,
                items_at=segment.texts.between,
                n_items=len(segment.items),
                bases=version.bases(encoding_retrievers(encoders)),
                progress=progress,
            )
            segment.matrix.fill(scorer, queries, segment.items.between, progress=progress)
            files = {**manifest.files, **segment_files(self.folder, segment.name)}
            publish(self.folder, replace(manifest, segments=(*manifest.segments, Segment(segment.name)), files=files))

    def remove(self, item_ids: Iterable[str]) -> None:
        with self._changing():
            version = self.newest()
            live, item_ids = version.items(), list(item_ids)
            gone = {live.row(item_id) for item_id in item_ids}
            if len(gone) == len(live):
                raise InputError("an index needs at least one item; these are all that it has")
            segments = tuple(
                replace(
                    segment, removed=tuple(sorted({*segment.removed, *(row for home, row in gone if home == place)}))
                )
                for place, segment in enumerate(version.manifest.segments)
            )
            smaller = self._without_empty(Version(self.folder, replace(version.manifest, segments=segments)))
            self._query_log.forget(item_ids, next_version(self.folder))  # first: whoever gets the id must not inherit
            publish(self.folder, smaller)

    def tune(self, anchor_method: str, seed: int, *, progress: Progress) -> None:
        with self._changing():
            manifest = replace(self.newest().manifest, anchor_method=anchor_method, seed=seed)
            publish(self.folder, self._derive_again(Version(self.folder, manifest), progress=progress))

    def log(self, searches: Sequence[LoggedSearch], *, most: int) -> None:
        self._query_log.append(searches, most=most)

    def learn(self, *, progress: Progress) -> int:
        with self._changing():
            version = self.newest()
            snapshot = self._snapshot(version)
            feedback = fit_query_log(self._query_log.read(), snapshot, seed=version.manifest.seed, progress=progress)
            rows = feedback.put(version.live_rows(), sum(spec.n_items for spec in version.specs))
            publish(self.folder, with_derived(self.folder, version.manifest, replace(version.derived(), feedback=rows)))
            return feedback.n_queries

    def calibrate(self, queries: Sequence[Query], scorer: GuardedScorer, *, progress: Progress) -> None:
        with self._changing():
            version = self.newest()
            snapshot = self._snapshot(version)
            tuned = calibrate_on(
                check_calibration_queries(queries, snapshot),
                snapshot,
                scorer,
                open_matrix=lambda spec: open_calibration(self.folder, spec),
                seed=version.manifest.seed,
                progress=progress,
            )
            publish(self.folder, with_derived(self.folder, version.manifest, replace(version.derived(), tuned=tuned)))
            drop_calibration(self.folder)

    def save(self, folder: Path) -> None:
        check_is_ours(folder)
        version = self.newest()
        for _, problem in version.damage():
            raise DamagedError(f"{self.folder} can't be copied: {problem}; {REPAIR}")
        with writer_lock(folder):
            if versions(folder):
                raise InputError(f"{folder} holds an index already; save to another place")
            for name in version.manifest.files:
                copy_file(self.folder / name, folder / name)
            publish(folder, version.manifest)

    def verify(self) -> list[str]:
        problems = newest_damage(self.folder)
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
            for name in filter(_can_be_made_again, damaged):
                (self.folder / name).unlink(missing_ok=True)
            lost = {name for name in damaged if name.endswith(PREPARED)}  # made again, or left out
            files = version.manifest.files
            if any(f"{RETRIEVERS}/" in name for name in damaged):
                files = encode_again(version, self._retrievers(version), damaged, progress=progress)
            files = {name: record for name, record in files.items() if name not in lost}
            for segment in version.manifest.segments:
                files.update(self._refill(version, segment, scorer, progress=progress))
            repaired = replace(version.manifest, files=files)
            if any(name.startswith(DERIVED) for name in damaged):
                repaired = self._derive_again(Version(self.folder, repaired), progress=progress)
            if repaired != version.manifest:
                publish(self.folder, repaired)
            restore_newest(self.folder)
        return [f"{problem}; {LOST}" for problem in self.verify()]

    def gc(self, *, unpublished: bool) -> list[str]:
        with self._changing():
            doomed = self._unneeded(newest_manifest(self.folder)) if versions(self.folder) else []
            if unpublished:
                doomed += [*self._idle_segments(), *self.folder.glob(CALIBRATION)]
            for path in doomed:
                with storing(path, 0):
                    shutil.rmtree(path) if path.is_dir() else path.unlink()
        return [path.relative_to(self.folder).as_posix() for path in doomed]

    @contextlib.contextmanager
    def _changing(self) -> Iterator[None]:
        """Hold the lock of an index that is there."""
        if not versions(self.folder) and not unpublished_segments(self.folder):
            raise no_index(self.folder)
        with writer_lock(self.folder, remedy="try again later"):
            yield

    def _snapshot(self, version: Version) -> Snapshot:
        """All of a version, checked."""
        items, prepared = version.items_for_scorer()
        version.check_metadata()
        retrievers = self._retrievers(version)
        return make_snapshot(
            version.manifest.version,
            items,
            version.anchor_scores(),
            anchor_queries=version.queries(),
            derived=version.derived().take(version.live_rows()),
            retrievers=retrievers,
            encoded=version.encoded(retrievers),
            metadata=Metadata(lambda: [MetadataPart(*part) for part in version.metadata()]),
            seed=version.manifest.seed,
            prepared=Prepared(version.manifest.scorer, prepared),
        )

    def _retrievers(self, version: Version) -> dict[str, Retriever]:
        """Those that a version was built with, still to be fitted."""
        found = {
            name: self.own_retrievers.get(name) or load_retriever(name, is_remembered=True)
            for name in version.manifest.retrievers
        }
        return {
            name: one.with_queries(version.manifest.embed_queries) if isinstance(one, UserRetriever) else one
            for name, one in found.items()
        }

    def _check_encoders(self, version: Version, encoders: Mapping[str, Retriever]) -> None:
        """Refuse to encode items with other models than those that are stored."""
        for encoder in encoding_retrievers(encoders).values():
            rows, encoded = version.first_encoded(encoder, N_COMPARED)
            check_encoder(encoder, encoded, version.store(version.manifest.segments[0]).take(rows))

    def _derive_again(self, version: Version, *, progress: Progress) -> Manifest:
        """The same version with what can be derived from its scores; costs no pairs."""
        live, retrievers = version.live_rows(), self._retrievers(version)
        derived = derive(
            HeldScores(version.anchor_scores()),
            queries=version.queries(),
            retrievers=fitted_on_use(retrievers, version.items(), version.encoded(retrievers)),
            anchor_method=version.manifest.anchor_method,
            seed=version.manifest.seed,
            progress=progress,
        )
        derived = replace(derived, anchor_items=live[derived.anchor_items], feedback=_feedback_of(version))
        with contextlib.suppress(DamagedError):
            derived = keep_calibration(derived, version.derived().tuned)
        return with_derived(self.folder, version.manifest, derived)

    def _without_empty(self, version: Version) -> Manifest:
        """Let go of segments that have no item left, so that files and handles don't pile up."""
        kept, rows, start = [], [], 0
        for spec, segment in zip(version.specs, version.manifest.segments, strict=True):
            if len(segment.removed) < spec.n_items:
                kept.append(segment)
                rows.append(np.arange(start, start + spec.n_items))
            start += spec.n_items
        if len(kept) == len(version.manifest.segments):
            return version.manifest
        derived = version.derived().take(np.concatenate(rows))
        needed = (QUERIES, f"{RETRIEVERS}/", *(f"{SEGMENTS}/{segment.name}/" for segment in kept))
        files = {name: record for name, record in version.manifest.files.items() if name.startswith(needed)}
        return replace(version.manifest, segments=tuple(kept), files={**files, **write_derived(self.folder, derived)})

    def _refill(
        self, version: Version, segment: Segment, scorer: GuardedScorer, *, progress: Progress
    ) -> dict[str, FileRecord]:
        """Make again what a segment has lost; returns the files that can be made, as they are then."""
        name = f"{SEGMENTS}/{segment.name}"
        try:
            spec, queries = version.spec(segment), version.queries()
            items: ItemRows = version.store(segment)
            if f"{name}/{METADATA}" in version.manifest.files:
                write_metadata(self.folder / name, items)
            if f"{name}/{PREPARED}" in version.manifest.files:
                items = prepare_once(self.folder / name, items, scorer)
            if spec.n_anchor_queries:
                matrix = open_matrix(self.folder, segment.name, spec)
                matrix.fill(scorer, queries, items.between, progress=progress)
        except DamagedError:
            return {}  # without its spec, its items or the queries there is nothing to score
        found = segment_files(self.folder, segment.name)
        return {name: record for name, record in found.items() if _can_be_made_again(name)}

    def _idle_segments(self) -> list[Path]:
        found = unpublished_segments(self.folder)
        for segment in found:
            if is_in_use(self.folder, segment.name):
                raise LockedError(f"{segment} is being filled by another process; wait for it, or end it")
        return found

    def _unneeded(self, newest: Manifest) -> list[Path]:
        kept = {segment.name for segment in newest.segments} | {path.name for path in unpublished_segments(self.folder)}
        derived = {name.split("/")[1] for name in newest.files if name.startswith((DERIVED, f"{RETRIEVERS}/"))}
        older = [manifest_path(self.folder, number) for number in versions(self.folder) if number < newest.version]
        return [
            *older,
            *(path for path in (self.folder / SEGMENTS).glob("*") if path.name not in kept),
            *(path for path in (self.folder / DERIVED).glob("*") if path.name not in derived),
            *(path for path in (self.folder / RETRIEVERS).glob("*") if path.name not in derived),
            *(self.folder / MANIFESTS).glob(f"*{STAGING}"),
        ]


def _stored_only(retrievers: Mapping[str, Retriever], version: Version) -> dict[str, Retriever]:
    """Those retrievers whose parts every segment has: where one is without, all items are fitted anyway."""
    return {
        name: one
        for name, one in retrievers.items()
        if isinstance(one, EncodingRetriever) and version.has_encoded(one.stored_as)
    }


def _contents(version: Version) -> Contents:
    manifest = version.manifest
    return Contents(
        path=version.folder,
        version=manifest.version,
        n_items=version.n_items,
        n_removed=version.n_removed,
        n_anchor_queries=version.specs[0].n_anchor_queries,
        n_segments=len(manifest.segments),
        scorer=manifest.scorer,
        scorer_name=manifest.scorer_name,
        higher_is_better=manifest.higher_is_better,
        dtype=manifest.dtype,
        retrievers=manifest.retrievers,
        n_bytes=sum(record.size for record in manifest.files.values()),
    )


def _feedback_of(version: Version) -> FeedbackModel | None:
    """The feedback model of a version, as far as its files are whole."""
    try:
        return version.derived().feedback
    except DamagedError as error:
        if not any(name.endswith((FEEDBACK, *OLDER_FILES)) for name in version.manifest.files):
            return None
        warnings.warn(f"{error}; the feedback model is lost until `learn` fits one again", DamagedWarning, stacklevel=4)
        return None


def _can_be_made_again(name: str) -> bool:
    """Whether a file of an index holds what can be made again from its items, with the scorer or without."""
    return f"/{SCORES}/" in name or name.endswith((f"/{PREPARED}", f"/{METADATA}"))
