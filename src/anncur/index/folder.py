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
      segments/merged-…/              the same, of several segments that were merged
      vectors/…/                      items as searches rank them
      retrievers/                     bases that items are projected onto
      learned/…/anchors.int64, ranks.int16, tuned.json
      learned/…/feedback.json, feedback.float32    the feedback model, if the query log was fitted
      query_log/                      what searches paid for, where they are logged

`folder_build.py` makes it, `folder_changes.py` changes its items, `folder_upkeep.py` repairs it and tells what isn't
needed, and here all of that is published, and versions are read.
Whatever writes, writes a segment and then publishes a manifest; until then no reader sees it."""

from __future__ import annotations

import contextlib
import logging
import warnings
import weakref
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from anncur.errors import (
    AnncurError,
    AnncurWarning,
    DamagedError,
    DamagedWarning,
    FingerprintError,
    InputError,
    RetrieverError,
    StorageError,
)
from anncur.index.backend import Contents
from anncur.index.calibration import calibrate_on, check_calibration_queries, keep_calibration
from anncur.index.changes import Incoming
from anncur.index.feedback import fit_query_log
from anncur.index.filtering import Metadata, MetadataPart
from anncur.index.folder_build import with_derived
from anncur.index.folder_changes import append_items, hide_items, merge, run_of_small
from anncur.index.folder_upkeep import damage_of, delete, idle_segments, make_again, unneeded
from anncur.index.folder_vectors import forget_vectors, with_vectors, without_vectors
from anncur.index.snapshot import Prepared, Snapshot, make_snapshot
from anncur.items import ItemLike, Query
from anncur.progress import Progress
from anncur.retrievers.base import Retriever, fitted_on_use
from anncur.retrievers.loading import load_retriever
from anncur.retrievers.user_embeddings import EmbeddingsLike, UserRetriever
from anncur.scorers.guard import GuardedScorer
from anncur.search.feedback import FeedbackModel
from anncur.storage.codecs import OLDER_FILES
from anncur.storage.files import copy_file, writer_lock
from anncur.storage.item_vectors import VECTORS
from anncur.storage.loaded import LoadedSegments
from anncur.storage.manifest import (
    CALIBRATION,
    DERIVED,
    FEEDBACK,
    SEGMENTS,
    Manifest,
    is_whole_index,
    newest_manifest,
    newest_mark,
    next_version,
    no_index,
    publish,
    restore_newest,
    versions,
)
from anncur.storage.query_log import FolderQueryLog, LoggedSearch
from anncur.storage.segments import (
    ORIGIN,
    check_is_ours,
    drop_calibration,
    open_calibration,
    unpublished_segments,
)
from anncur.storage.version import Version
from anncur.tuning.derive import derive
from anncur.vectors.engines import KeptIndex, VectorEngine

Read = TypeVar("Read")
LOG = logging.getLogger("anncur")

MOST_VERSIONS = 32  # with their manifests; where more have piled up, a change deletes what only older ones need
TRIES = 20  # of reading a version while others publish and delete old ones
REPAIR = "`anncur verify --repair` scores again what it can"
LOST = "it can't be scored again: restore the file from a copy, or build the index again"


class FolderBackend:
    """An index in a folder. Writers hold a lock, readers never wait."""

    def __init__(
        self,
        folder: Path,
        retrievers: Mapping[str, Retriever] | None = None,
        *,
        engine: VectorEngine | None = None,
    ) -> None:
        self.folder = folder
        self.engine = engine  # None for the one that it was built with
        self.own_retrievers = dict(retrievers or {})
        self._query_log = FolderQueryLog(folder)
        self._loaded = LoadedSegments()
        self._kept_index = KeptIndex()
        self._latest: Version | None = None  # that was read
        self._in_use: tuple[Manifest, weakref.ref[Snapshot]] | None = None  # that was loaded last

    def newest(self) -> Version:
        """The newest version that verifies."""
        self._latest = Version(self.folder, newest_manifest(self.folder), self._loaded)
        return self._latest

    def latest_contents(self) -> Contents:
        """What the latest version that was read is made of: its scorer is that of all versions."""
        return self._contents(self._latest or self.newest())

    @property
    def is_complete(self) -> bool:
        return is_whole_index(self.folder)

    def contents(self) -> Contents:
        return self._read(self._contents)

    def _contents(self, version: Version) -> Contents:
        found = _contents(version)
        return found if self.engine is None else replace(found, vectors=self.engine.name)

    def mark(self) -> Hashable:
        return newest_mark(self.folder)

    def load(self) -> Snapshot:
        return self._read(self._load)

    def add(
        self,
        items: Iterable[ItemLike],
        scorer: GuardedScorer,
        *,
        embeddings: EmbeddingsLike | None = None,
        progress: Progress,
    ) -> None:
        self._append(items, scorer, replaces=False, embeddings=embeddings, progress=progress)

    def upsert(
        self,
        items: Iterable[ItemLike],
        scorer: GuardedScorer,
        *,
        embeddings: EmbeddingsLike | None = None,
        progress: Progress,
    ) -> None:
        self._append(items, scorer, replaces=True, embeddings=embeddings, progress=progress)

    def remove(self, item_ids: Iterable[str]) -> None:
        with self._changing():
            version, gone = self.newest(), list(item_ids)
            self._publish_change(hide_items(version, version.items(), gone), forgotten=gone)

    def compact(self) -> None:
        with self._changing():
            version = self.newest()
            if len(version.manifest.segments) > 1 or version.n_removed:
                self._publish(merge(version, 0, self._loadable(version)))
            self._discard(unneeded(self.folder))

    def tune(self, anchor_method: str, seed: int, *, progress: Progress) -> None:
        with self._changing():
            manifest = replace(self.newest().manifest, anchor_method=anchor_method, seed=seed)
            self._publish(self._derive_again(Version(self.folder, manifest, self._loaded), progress=progress))

    def log(self, searches: Sequence[LoggedSearch], *, most: int) -> None:
        self._query_log.append(searches, most=most)

    def latest_searches(self, most: int) -> list[LoggedSearch]:
        return self._query_log.read_latest(most)

    def learn(self, *, progress: Progress) -> int:
        with self._changing():
            version = self.newest()
            snapshot = self._snapshot(version)
            feedback = fit_query_log(self._query_log.read(), snapshot, seed=version.manifest.seed, progress=progress)
            rows = feedback.put(version.live_rows(), int(version.starts[-1]))
            self._publish(with_derived(self.folder, version.manifest, replace(version.derived(), feedback=rows)))
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
            self._publish(with_derived(self.folder, version.manifest, replace(version.derived(), tuned=tuned)))
            drop_calibration(self.folder)

    def save(self, folder: Path) -> None:
        check_is_ours(folder)
        self._read(lambda version: self._copy(version, folder))

    def verify(self) -> list[str]:
        for _ in range(TRIES):
            before = versions(self.folder)
            problems = damage_of(self.folder)
            if not problems or versions(self.folder) == before:
                return problems  # else files were deleted while we read them
        raise self._restless()

    def repair(self, scorer: GuardedScorer, *, progress: Progress) -> list[str]:
        with self._changing():
            self._loaded.clear()  # what is on disk counts
            version = self.newest()
            damaged = [name for name, _ in version.damage()]
            files = make_again(version, lambda: self._retrievers(version), damaged, scorer, progress=progress)
            repaired = replace(version.manifest, files=files)
            if any(name.startswith(f"{VECTORS}/") for name in damaged):
                repaired = without_vectors(repaired)
            if any(name.startswith(DERIVED) for name in damaged):
                repaired = self._derive_again(Version(self.folder, repaired), progress=progress)
            if repaired != version.manifest:
                self._publish_repaired(repaired)
            restore_newest(self.folder)
            self._loaded.clear()
        return [f"{problem}; {LOST}" for problem in self.verify()]

    def gc(self, *, unpublished: bool) -> list[str]:
        with self._changing():
            doomed = unneeded(self.folder) if versions(self.folder) else []
            if unpublished:
                doomed += [*idle_segments(self.folder), *self.folder.glob(CALIBRATION)]
            self._discard(doomed)
        return [path.relative_to(self.folder).as_posix() for path in doomed]

    def _discard(self, doomed: Sequence[Path]) -> None:
        """Delete what no version needs, also from databases: that of the index, and that which it was opened with."""
        if versions(self.folder):
            own = VectorEngine(self.newest().manifest.vectors)
            given = self.engine or own
            forget_vectors(self.folder, doomed, [given] if given == own else [own, given])  # one has a password
        delete(doomed)

    @contextlib.contextmanager
    def _changing(self) -> Iterator[None]:
        """Hold the lock of an index that is there."""
        if not versions(self.folder) and not unpublished_segments(self.folder):
            raise no_index(self.folder)
        with writer_lock(self.folder, remedy="try again later"):
            yield

    def _append(
        self,
        items: Iterable[ItemLike],
        scorer: GuardedScorer,
        *,
        replaces: bool,
        embeddings: EmbeddingsLike | None,
        progress: Progress,
    ) -> None:
        """Append items, with `replaces` in the place of those that have their ids; nothing is published where nothing
        changed."""
        with self._changing():
            version = self.newest()
            live = version.items()
            incoming = Incoming(items, live, replaces=replaces)
            manifest = append_items(
                version,
                incoming,
                live,
                scorer,
                retrievers=self._retrievers(version),
                embeddings=embeddings,
                progress=progress,
            )
            if manifest is not None:
                self._publish_change(manifest, forgotten=incoming.rescored)

    def _publish_change(self, manifest: Manifest, *, forgotten: Sequence[str]) -> None:
        """Publish a version with other items, and merge and delete what is due."""
        if forgotten:  # first: whoever gets the id must not inherit
            self._query_log.forget(forgotten, next_version(self.folder))
        self._tidy(self._publish(manifest))

    def _publish(self, manifest: Manifest) -> Version:
        """Publish a version, with the vectors of those of its items that have none yet."""
        version = Version(self.folder, manifest, self._loaded)
        try:
            manifest = with_vectors(version, lambda: self._fitted(version))
        except (FingerprintError, InputError, RetrieverError) as error:  # a retriever that isn't here can't be asked
            LOG.info("readers of %s make the vectors of its items in memory: %s", self.folder, error)
            manifest = without_vectors(manifest)
        return Version(self.folder, publish(self.folder, manifest), self._loaded)

    def _publish_repaired(self, manifest: Manifest) -> None:
        """The same of a version that may still be damaged: without vectors where they can't be made of it."""
        try:
            self._publish(manifest)
        except DamagedError:
            publish(self.folder, without_vectors(manifest))

    def _fitted(self, version: Version) -> dict[str, Retriever]:
        retrievers = self._retrievers(version)
        return fitted_on_use(retrievers, version.items(), version.encoded(retrievers))

    def _tidy(self, version: Version) -> None:
        """Merge a run of small segments, and delete what only older versions need, where it is due.

        The change that came before is published: it doesn't fail with this."""
        try:
            start = run_of_small(version)
            if start is not None:
                self._publish(merge(version, start, self._loadable(version)))
            if start is not None or len(versions(self.folder)) > MOST_VERSIONS:
                self._discard(unneeded(self.folder))
        except AnncurError as error:
            warnings.warn(
                f"{self.folder} is changed, but its small segments couldn't be merged: {error}; `anncur compact` tries "
                "again",
                AnncurWarning,
                stacklevel=6,
            )

    def _read(self, make: Callable[[Version], Read]) -> Read:
        """What is made of the newest version; again of a newer one, where its files are deleted meanwhile."""
        for _ in range(TRIES):
            before = versions(self.folder)
            try:
                return make(self.newest())
            except DamagedError as error:
                if versions(self.folder) == before:
                    raise DamagedError(f"{error}; {REPAIR}") from error
        raise self._restless()

    def _copy(self, version: Version, folder: Path) -> None:
        """Publish a version in another folder; no file is left there where those of it are deleted meanwhile."""
        for _, problem in version.damage():
            raise DamagedError(f"{self.folder} can't be copied: {problem}")
        files, origin = list(version.manifest.files), f"{SEGMENTS}/{version.manifest.segments[0].name}/{ORIGIN}"
        if (self.folder / origin).exists():
            files.append(origin)
        with writer_lock(folder):
            if versions(folder):
                raise InputError(f"{folder} holds an index already; save to another place")
            try:
                for name in files:
                    copy_file(self.folder / name, folder / name)
            except DamagedError:
                delete([folder / name for name in files])
                raise
            publish(folder, version.manifest, least=version.manifest.version)

    def _restless(self) -> StorageError:
        return StorageError(f"{self.folder} changed {TRIES} times while it was being read")

    def _load(self, version: Version) -> Snapshot:
        """A version to search; the one that is loaded, where it is that."""
        snapshot = None if self._in_use is None else self._in_use[1]()
        if self._in_use is not None and snapshot is not None and self._in_use[0] == version.manifest:
            return snapshot
        loaded = self._snapshot(version)
        self._in_use = version.manifest, weakref.ref(loaded)
        return loaded

    def _snapshot(self, version: Version) -> Snapshot:
        """All of a version, checked. Nothing of it is read from a path later: the files may be deleted."""
        retrievers, columns = self._retrievers(version), version.metadata()
        return make_snapshot(
            version.manifest.version,
            version.items(),
            version.scores(),
            anchor_queries=version.queries(),
            derived=version.derived().take(version.live_rows()),
            retrievers=retrievers,
            encoded=version.encoded(retrievers),
            projected=version.projected(),
            metadata=Metadata(lambda: [MetadataPart(make(), rows) for make, rows in columns]),
            engine=self.engine or VectorEngine(version.manifest.vectors).at_hand(),
            kept_index=self._kept_index,
            seed=version.manifest.seed,
            prepared=Prepared(version.manifest.scorer, version.items_for_scorer()),
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

    def _loadable(self, version: Version) -> dict[str, Retriever]:
        """The retrievers of a version that are here: one that stores nothing isn't needed to merge segments."""
        found: dict[str, Retriever] = {}
        for name in version.manifest.retrievers:
            with contextlib.suppress(InputError):
                found[name] = self.own_retrievers.get(name) or load_retriever(name, is_remembered=True)
        return found

    def _derive_again(self, version: Version, *, progress: Progress) -> Manifest:
        """The same version with what can be derived from its scores; costs no pairs."""
        live = version.live_rows()
        derived = derive(
            version.scores(),
            queries=version.queries(),
            retrievers=self._fitted(version),
            anchor_method=version.manifest.anchor_method,
            seed=version.manifest.seed,
            progress=progress,
        )
        derived = replace(derived, anchor_items=live[derived.anchor_items], feedback=_feedback_of(version))
        with contextlib.suppress(DamagedError):
            derived = keep_calibration(derived, version.derived().tuned)
        return with_derived(self.folder, version.manifest, derived)


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
        vectors=manifest.vectors,
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
