"""Changes of an index in a folder: items are appended as a segment, rows are hidden, small segments are merged.

Each makes the manifest of the next version, which `folder.py` publishes under its lock; until then no reader sees
anything of it. One way to append and one way to hide serve `add`, `upsert` and `remove`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from anncur.arrays import Positions
from anncur.errors import InputError
from anncur.index.build import check_retrievers
from anncur.index.changes import Incoming, embeddings_of_stored, rearranged, taken_over
from anncur.index.encoding import check_embeddings, check_encoder, with_new_items
from anncur.index.folder_build import write_derived
from anncur.index.folder_vectors import merged_vectors
from anncur.progress import Progress
from anncur.retrievers.base import EncodingRetriever, Retriever
from anncur.retrievers.user_embeddings import EmbeddingsLike
from anncur.scorers.guard import GuardedScorer
from anncur.storage.encoded import N_COMPARED, RETRIEVERS, encode_segment, encoding_retrievers
from anncur.storage.files import FileRecord
from anncur.storage.item_vectors import PROJECTION, VECTORS
from anncur.storage.items import StoredItems
from anncur.storage.manifest import DERIVED, QUERIES, SEGMENTS, Manifest, Segment, next_version
from anncur.storage.merging import merge_segments
from anncur.storage.segments import UnpublishedSegment, begin_segment, segment_files
from anncur.storage.version import Version

LEAST_MERGED = 8  # segments: fewer aren't worth copying
MOST_GROWTH = 2  # how many times as large as all behind it a segment may be to be merged with them


@dataclass(frozen=True, eq=False)
class Placed:
    """A segment of the next version. `sources` are the rows that its items had before, counted through all segments,
    -1 for those that are new."""

    segment: Segment
    sources: Positions

    def without(self, rows: Positions) -> Placed:
        """The same segment with more of these rows hidden."""
        hidden = np.flatnonzero(np.isin(self.sources, rows))
        removed = np.union1d(np.array(self.segment.removed, dtype=np.int64), hidden)
        return replace(self, segment=replace(self.segment, removed=tuple(removed.tolist())))

    @property
    def n_live(self) -> int:
        """The number of its items that aren't hidden."""
        return len(self.sources) - len(self.segment.removed)


def placed(version: Version) -> list[Placed]:
    """The segments of a version, as they are."""
    bounds = zip(version.manifest.segments, version.starts[:-1], version.starts[1:], strict=True)
    return [Placed(segment, np.arange(start, stop)) for segment, start, stop in bounds]


def append_items(
    version: Version,
    incoming: Incoming,
    live: StoredItems,
    scorer: GuardedScorer,
    *,
    retrievers: Mapping[str, Retriever],
    embeddings: EmbeddingsLike | None,
    progress: Progress,
) -> Manifest | None:
    """Score items that come in, and append them as a segment, in place of those that they replace; None where nothing
    changes."""
    encoders = with_new_items(_stored_only(retrievers, version), embeddings)
    _check_encoders(version, encoders)
    items = incoming.peek()
    if items is None:
        return None
    queries = version.queries()
    segment = begin_segment(
        version.folder,
        items,
        queries,
        scorer,
        dtype=version.manifest.dtype,
        items_per_chunk=version.specs[0].items_per_chunk,
        is_first=False,
    )
    encoders = embeddings_of_stored(encoders, incoming)
    check_embeddings(encoders, len(segment.items), ())
    check_retrievers(retrievers, live.without(incoming.positions).followed_by(segment.items), queries)
    encode_segment(
        version.folder,
        segment.name,
        encoders,
        items_at=segment.texts.between,
        n_items=len(segment.items),
        bases=version.bases(encoding_retrievers(encoders)),
        progress=progress,
    )
    rows = version.live_rows()
    same_text = {item_id: int(rows[position]) for item_id, position in incoming.same_text.items()}
    known = taken_over(incoming.same_text, version.scores().rows)
    segment.matrix.fill(scorer, queries, segment.items.between, known=known, progress=progress)
    hidden = [one.without(rows[incoming.positions]) for one in placed(version)]
    new = Placed(Segment(segment.name), _sources(segment, same_text))
    return next_manifest(version, [*hidden, new], segment_files(version.folder, segment.name))


def hide_items(version: Version, live: StoredItems, item_ids: Sequence[str]) -> Manifest:
    """Hide items; their ids must be there."""
    positions = np.array(sorted({live.position(item_id) for item_id in item_ids}), dtype=np.int64)
    if len(positions) == len(live):
        raise InputError("an index needs at least one item; these are all that it has")
    rows = version.live_rows()[positions]
    return next_manifest(version, [one.without(rows) for one in placed(version)], {})


def merge(version: Version, start: int, retrievers: Mapping[str, Retriever]) -> Manifest:
    """Merge the segments from the one at `start` on."""
    kept, run = placed(version)[:start], placed(version)[start:]
    number = next_version(version.folder)
    name, files = merge_segments(version, [one.segment for one in run], retrievers, number=number)
    files |= merged_vectors(version, [one.segment for one in run], name)
    live = version.live_rows()
    merged = Placed(Segment(name), live[live >= version.starts[start]])
    return next_manifest(version, [*kept, merged], files)


def run_of_small(version: Version) -> int | None:
    """Where a run of small segments begins that is due to be merged, if there is one.

    From the last segment to the left, one joins while it is at most twice as large as all behind it, or more than half
    of it is hidden: so that every item is copied a few times in all, however many segments come."""
    segments, total = placed(version), 0
    start = len(segments)
    for place in reversed(range(len(segments))):
        n_live, n_hidden = segments[place].n_live, len(segments[place].segment.removed)
        if total and n_live > MOST_GROWTH * total and n_hidden <= n_live:
            break
        start, total = place, total + n_live
    return start if len(segments) - start >= LEAST_MERGED else None


def next_manifest(version: Version, segments: Sequence[Placed], files: Mapping[str, FileRecord]) -> Manifest:
    """The manifest of a version with these segments, but for those that have no item left; `files` are new ones."""
    kept = [one for one in segments if one.n_live]
    vectors = f"{VECTORS}/{version.space}"
    needed = (
        *(QUERIES, f"{RETRIEVERS}/", f"{vectors}/{PROJECTION}"),
        *(f"{SEGMENTS}/{one.segment.name}/" for one in kept),
        *(f"{vectors}/{one.segment.name}." for one in kept),
    )
    found = {name: record for name, record in version.manifest.files.items() if name.startswith(needed)} | dict(files)
    sources, n_before = np.concatenate([one.sources for one in kept]), int(version.starts[-1])
    if np.array_equal(sources[:n_before], np.arange(n_before)) and (sources[n_before:] < 0).all():
        derived = {name: record for name, record in version.manifest.files.items() if name.startswith(f"{DERIVED}/")}
    else:
        derived = write_derived(version.folder, rearranged(version.derived(), sources, n_before))
    return replace(version.manifest, segments=tuple(one.segment for one in kept), files=found | derived)


def _sources(segment: UnpublishedSegment, same_text: Mapping[str, int]) -> Positions:
    """For each row of a new segment the row that its item had before, where only metadata changed."""
    sources = np.full(len(segment.items), -1, dtype=np.int64)
    for item_id, row in same_text.items():
        place = segment.items.row(item_id)
        assert place is not None, "what was read is stored"
        sources[place] = row
    return sources


def _check_encoders(version: Version, encoders: Mapping[str, Retriever]) -> None:
    """Refuse to encode items with other models than those that are stored."""
    for encoder in encoding_retrievers(encoders).values():
        rows, encoded = version.first_encoded(encoder, N_COMPARED)
        check_encoder(encoder, encoded, version.store(version.manifest.segments[0]).take(rows))


def _stored_only(retrievers: Mapping[str, Retriever], version: Version) -> dict[str, Retriever]:
    """Those retrievers whose parts every segment has: where one is without, all items are fitted anyway."""
    return {
        name: one
        for name, one in retrievers.items()
        if isinstance(one, EncodingRetriever) and version.has_encoded(one.stored_as)
    }
