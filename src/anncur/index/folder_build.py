"""Makes an index in a folder: writes a segment, fills it, and publishes the first manifest.

Killed at any moment, a build resumes when it is run again. Several processes can fill one segment."""

from __future__ import annotations

import contextlib
import hashlib
import json
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from anncur.errors import AnncurWarning, FingerprintError, InputError
from anncur.index.build import BuildSettings, Request, check_retrievers, check_stability, warn_of_constant
from anncur.index.encoding import check_embeddings, check_first_query
from anncur.index.folder_vectors import with_vectors
from anncur.items import Corpus, Item, Items, Query
from anncur.retrievers.base import Arrays, Encoded, Retriever, fitted_on_use
from anncur.retrievers.user_embeddings import UserRetriever
from anncur.scores import ScoreMatrix, ScoreSpec
from anncur.storage.codecs import encode_feedback, encode_tuned
from anncur.storage.encoded import N_COMPARED, by_name, encode_segment, store_encoded, write_basis
from anncur.storage.files import FileRecord, in_use, write_file, writer_lock
from anncur.storage.items import StoredItems
from anncur.storage.manifest import (
    ANCHORS,
    DERIVED,
    QUERIES,
    RANKS,
    TUNED,
    Manifest,
    Segment,
    is_whole_index,
    newest_manifest,
    publish,
    restore_newest,
)
from anncur.storage.pilot import drop_pilot, read_pilot
from anncur.storage.queries import query_record
from anncur.storage.segments import (
    BuiltBeforeError,
    UnpublishedSegment,
    begin_segment,
    check_is_ours,
    is_merged,
    segment_files,
    store_segment,
)
from anncur.storage.version import Version
from anncur.tuning.derive import Derived, derive

PATIENCE = -1.0  # a shard waits for others to begin or to publish as long as it takes: who is killed holds no lock


def build_in_folder(folder: Path, request: Request, *, scorer_name: str, shard: tuple[int, int] | None) -> None:
    """Build an index, or resume it. A shard holds the lock only to begin and to publish."""
    scorer, queries, settings = request.scorer, request.queries, request.settings
    check_is_ours(folder)
    with contextlib.ExitStack() as held:
        held.enter_context(writer_lock(folder, patience=0.0 if shard is None else PATIENCE))
        try:
            segment = begin_segment(
                folder,
                request.items,
                queries,
                scorer,
                dtype=settings.dtype,
                items_per_chunk=settings.items_per_chunk,
                is_first=True,
            )
            check_embeddings(request.retrievers, segment.spec.n_items, queries)
        except BuiltBeforeError:
            assert is_whole_index(folder)
        if is_whole_index(folder):
            restore_newest(folder)  # a kill may have come between the manifest and that
            _warn_of_difference(folder, request)
            return
        if shard is not None:
            held.close()
        items = StoredItems([segment.items], [np.arange(segment.spec.n_items)])
        check_retrievers(request.retrievers, items, queries)
        if shard is None:
            fitted, basis_files = _encode(folder, segment, items, request)
        _fill(folder, segment, request, shard or (0, 1))
        if shard is not None:
            if segment.matrix.n_missing:
                return
            held.enter_context(writer_lock(folder, patience=PATIENCE))
            if is_whole_index(folder):
                return
            fitted, basis_files = _encode(folder, segment, items, request)  # by the one that publishes
        warn_of_constant(segment.matrix, scorer)
        check_stability(request.watch, segment.matrix, scorer, queries, segment.items.between)
        derived = derive(
            segment.matrix,
            queries=queries,
            retrievers=fitted,
            anchor_method=settings.anchor_method,
            seed=settings.seed,
            progress=request.progress,
        )
        manifest = _first_manifest(segment.name, segment.spec, settings, request.retrievers, scorer_name)
        _publish_first(folder, replace(manifest, files=basis_files), queries, derived, fitted)
        drop_pilot(folder)


def save_in_folder(
    folder: Path,
    matrix: ScoreMatrix,
    *,
    items: Sequence[Item],
    queries: Sequence[Query],
    derived: Derived,
    settings: BuildSettings,
    retrievers: Mapping[str, Retriever],
    encoded: Mapping[str, Encoded],
    bases: Mapping[str, Arrays],
    scorer_name: str,
) -> None:
    """Write an index that was built in memory; `items` are as the scorer gets them. Costs no pairs."""
    check_is_ours(folder)
    with writer_lock(folder):
        if is_whole_index(folder):
            raise InputError(f"{folder} holds an index already; save to another place")
        name = store_segment(folder, items, matrix)
        store_encoded(folder, name, retrievers, encoded)
        manifest = _first_manifest(name, matrix.spec, settings, retrievers, scorer_name)
        files = [write_basis(folder, stored_as, basis) for stored_as, basis in bases.items()]
        files_by_name = {file: record for some in files for file, record in some.items()}
        fitted = fitted_on_use(retrievers, Corpus(items), by_name(retrievers, encoded))
        _publish_first(folder, replace(manifest, files=files_by_name), queries, derived, fitted)


def check_shard(shard: tuple[int, int] | None) -> None:
    """Refuse a shard that there isn't."""
    if shard is not None:
        part, n_parts = shard
        if not 0 <= part < n_parts:
            raise InputError(f"shard must be (i, n) with 0 <= i < n, got {shard!r}")


def with_derived(folder: Path, manifest: Manifest, derived: Derived) -> Manifest:
    """The same version with something else derived."""
    kept = {name: record for name, record in manifest.files.items() if not name.startswith(DERIVED)}
    splits = derived.splits
    return replace(
        manifest,
        splits=tuple((split.n_anchor_items, split.cutoff) for split in splits.splits),
        ranks_shape=splits.ranks.shape,
        files={**kept, **write_derived(folder, derived)},
    )


def write_derived(folder: Path, derived: Derived) -> dict[str, FileRecord]:
    """Store what was derived, under a name of its own."""
    contents = {
        ANCHORS: derived.anchor_items.astype("<i8").tobytes(),
        RANKS: derived.splits.ranks.astype("<i2").tobytes(),
        TUNED: encode_tuned(derived.tuned),
        **({} if derived.feedback is None else encode_feedback(derived.feedback)),
    }
    name = hashlib.sha256(b"".join(contents.values())).hexdigest()[:16]
    return {
        f"{DERIVED}/{name}/{file}": write_file(folder / DERIVED / name / file, content)
        for file, content in contents.items()
    }


def _warn_of_difference(folder: Path, request: Request) -> None:
    """An index that is there stays as it was built; other retrievers or settings would be passed over in silence."""
    built, asked = newest_manifest(folder), request.settings
    was = (list(built.retrievers), built.anchor_method, built.seed, built.vectors)
    now = (list(request.retrievers), asked.anchor_method, asked.seed, asked.engine.name)
    if _has_other_embeddings(Version(folder, built), request.retrievers):
        warnings.warn(
            f"{folder} was built already, with other embeddings, and keeps them: build in another place",
            AnncurWarning,
            stacklevel=4,
        )
    if was != now:
        warnings.warn(
            f"{folder} was built already, with (retrievers, anchor_method, seed, vectors) {was}, and stays so; {now} "
            "was asked for: build in another place, call tune for another anchor_method or seed, or open it with "
            "other vectors",
            AnncurWarning,
            stacklevel=4,
        )


def _has_other_embeddings(version: Version, retrievers: Mapping[str, Retriever]) -> bool:
    """Whether the user's embeddings of the first items aren't those that are stored, or those of queries others."""
    if is_merged(version.manifest.segments[0].name):
        return False  # its first items needn't be those of the build
    own = [one for one in retrievers.values() if isinstance(one, UserRetriever) and version.has_encoded(one.stored_as)]
    for retriever in own:
        rows, encoded = version.first_encoded(retriever, N_COMPARED)
        try:
            if np.array_equal(rows, np.arange(len(rows))):  # else the first items were removed since
                retriever.check_same(version.store(version.manifest.segments[0]).take(rows), encoded.parts[0])
        except FingerprintError:
            return True
        if retriever.queries_name != version.manifest.embed_queries:
            return True
    return False


def _encode(
    folder: Path, segment: UnpublishedSegment, items: Items, request: Request
) -> tuple[dict[str, Retriever], dict[str, FileRecord]]:
    """Store what retrievers derive from a segment's items; returns them, fitted by that, and the files of bases."""
    encoded, basis_files = encode_segment(
        folder,
        segment.name,
        request.retrievers,
        items_at=segment.texts.between,
        n_items=len(items),
        engine=request.engine,
        progress=request.progress,
    )
    fitted = fitted_on_use(request.retrievers, items, by_name(request.retrievers, encoded))
    if request.queries:
        check_first_query(fitted, request.retrievers, request.queries[0])
    return fitted, basis_files


def _fill(folder: Path, segment: UnpublishedSegment, request: Request, shard: tuple[int, int]) -> None:
    """Score what is missing of a segment and of this shard, but for what a pilot has paid for."""
    pilot = read_pilot(folder, request.scorer)
    with in_use(folder, segment.name):
        segment.matrix.fill(
            request.scorer,
            request.queries,
            segment.items.between,
            shard=shard,
            known=None if pilot is None else pilot.known,
            engine=request.engine,
            progress=request.progress,
        )


def _first_manifest(
    segment: str, spec: ScoreSpec, settings: BuildSettings, retrievers: Mapping[str, Retriever], scorer_name: str
) -> Manifest:
    """The first version's, but for its files."""
    return Manifest(
        version=1,
        scorer=spec.scorer,
        scorer_name=scorer_name,
        higher_is_better=spec.higher_is_better,
        dtype=spec.dtype,
        retrievers=tuple(retrievers),
        anchor_method=settings.anchor_method,
        seed=settings.seed,
        segments=(Segment(segment),),
        splits=(),
        ranks_shape=(),
        files={},
        embed_queries=next((one.queries_name for one in retrievers.values() if isinstance(one, UserRetriever)), ""),
        vectors=settings.engine.name,
    )


def _publish_first(
    folder: Path, manifest: Manifest, queries: Sequence[Query], derived: Derived, fitted: Mapping[str, Retriever]
) -> None:
    """Make a filled segment the first version. Needs the lock."""
    (segment,) = manifest.segments
    lines = "".join(json.dumps(query_record(query), ensure_ascii=False) + "\n" for query in queries).encode()
    name = f"{QUERIES}{hashlib.sha256(lines).hexdigest()[:16]}.jsonl"
    files = {name: write_file(folder / name, lines), **segment_files(folder, segment.name), **manifest.files}
    version = Version(folder, with_derived(folder, replace(manifest, files=files), derived))
    publish(folder, with_vectors(version, lambda: fitted))
