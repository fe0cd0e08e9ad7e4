"""An index that lives with the process: the same life as on disk, without files."""

from __future__ import annotations

import threading
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from anncur.arrays import FloatMatrix, Positions
from anncur.columns import MetadataColumns
from anncur.errors import InputError
from anncur.filling import Known
from anncur.index.backend import Contents
from anncur.index.build import BuildSettings, Request, check_retrievers, check_stability, keeping, warn_of_constant
from anncur.index.calibration import calibrate_on, check_calibration_queries, keep_calibration
from anncur.index.changes import Incoming, embeddings_of_stored, rearranged, taken_over
from anncur.index.encoding import (
    check_embeddings,
    check_encoder,
    check_first_query,
    encode_in_memory,
    with_new_items,
    without_arrays,
)
from anncur.index.feedback import fit_query_log
from anncur.index.filtering import Metadata, MetadataPart
from anncur.index.folder_build import save_in_folder
from anncur.index.snapshot import Prepared, Snapshot, make_snapshot
from anncur.items import Corpus, Item, ItemLike, Query, digest_items, no_items
from anncur.progress import Progress
from anncur.retrievers.base import Arrays, Encoded, EncodingRetriever, Retriever, fitted_on_use
from anncur.retrievers.user_embeddings import EmbeddingsLike
from anncur.scorers.base import with_prepared
from anncur.scorers.guard import GuardedScorer
from anncur.scores import ScoreMatrix, ScoreSpec
from anncur.storage.encoded import N_COMPARED, by_name, encoding_retrievers, n_rows, selected
from anncur.storage.query_log import LoggedSearch, MemoryQueryLog
from anncur.tuning.derive import Derived, derive


@dataclass(frozen=True)
class _State:
    """One version, swapped as a whole, so that a search never sees half of a change."""

    version: int
    items: Corpus
    prepared: list[bytes]  # what the scorer made of each item
    matrix: ScoreMatrix
    settings: BuildSettings
    derived: Derived
    encoded: Mapping[str, Encoded]  # what retrievers derived from the items, by what it is stored as
    bases: Mapping[str, Arrays]

    def for_scorer(self) -> Prepared:
        return Prepared(self.matrix.spec.scorer, Corpus(with_prepared(self.items, self.prepared)))


@dataclass(frozen=True, eq=False)
class _Added:
    """Items that come in, and what was made of them. `sources` are the positions of those that had other metadata, -1
    for the others."""

    items: Sequence[Item]
    prepared: list[bytes]
    exact_scores: FloatMatrix
    encoded: Mapping[str, Encoded]
    sources: Positions


class MemoryBackend:
    """Items and exact scores in memory; writers wait for each other."""

    def __init__(
        self, state: _State, queries: Sequence[Query], retrievers: Mapping[str, Retriever], scorer_name: str
    ) -> None:
        self._state = state
        self._queries = queries
        self._retrievers = retrievers
        self._scorer_name = scorer_name
        self._writing = threading.Lock()
        self._query_log = MemoryQueryLog()
        self._calibration: ScoreMatrix | None = None  # that was interrupted
        self._unfinished: ScoreMatrix | None = None  # of items whose scoring was interrupted

    @property
    def matrix(self) -> ScoreMatrix:
        """The exact scores of the newest version."""
        return self._state.matrix

    @property
    def is_complete(self) -> bool:
        return True

    def contents(self) -> Contents:
        state, spec = self._state, self._state.matrix.spec
        return Contents(
            path=None,
            version=state.version,
            n_items=len(state.items),
            n_removed=0,
            n_anchor_queries=len(self._queries),
            n_segments=1,
            scorer=spec.scorer,
            scorer_name=self._scorer_name,
            higher_is_better=spec.higher_is_better,
            dtype=spec.dtype,
            retrievers=tuple(self._retrievers),
            vectors=state.settings.engine.name,
            n_bytes=0,
        )

    def load(self) -> Snapshot:
        state = self._state
        return make_snapshot(
            state.version,
            state.items,
            state.matrix,
            anchor_queries=self._queries,
            derived=state.derived,
            retrievers=self._retrievers,
            encoded=by_name(self._retrievers, state.encoded),
            metadata=Metadata(lambda: [_metadata_part(state.items)]),
            engine=state.settings.engine,
            seed=state.settings.seed,
            prepared=state.for_scorer() if any(state.prepared) else None,
        )

    def mark(self) -> Hashable:
        return self._state.version

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
        with self._writing:
            state, gone = self._state, list(item_ids)
            positions = np.unique([state.items.position(item_id) for item_id in gone]).astype(np.int64)
            if len(positions) == len(state.items):
                raise InputError("an index needs at least one item; these are all that it has")
            self._query_log.forget(gone, state.version + 1)
            self._state = self._changed(state, positions, None)

    def compact(self) -> None:
        """Nothing: items that were removed are gone."""

    def tune(self, anchor_method: str, seed: int, *, progress: Progress) -> None:
        with self._writing:
            state = self._state
            settings = replace(state.settings, anchor_method=anchor_method, seed=seed)
            derived = derive(
                state.matrix,
                queries=self._queries,
                retrievers=fitted_on_use(self._retrievers, state.items, by_name(self._retrievers, state.encoded)),
                anchor_method=anchor_method,
                seed=seed,
                progress=progress,
            )
            derived = replace(keep_calibration(derived, state.derived.tuned), feedback=state.derived.feedback)
            self._state = replace(state, version=state.version + 1, settings=settings, derived=derived)

    def log(self, searches: Sequence[LoggedSearch], *, most: int) -> None:
        self._query_log.append(searches, most=most)

    def latest_searches(self, most: int) -> list[LoggedSearch]:
        return self._query_log.read_latest(most)

    def learn(self, *, progress: Progress) -> int:
        with self._writing:
            state = self._state
            feedback = fit_query_log(self._query_log.read(), self.load(), seed=state.settings.seed, progress=progress)
            derived = replace(state.derived, feedback=feedback)
            self._state = replace(state, version=state.version + 1, derived=derived)
            return feedback.n_queries

    def calibrate(self, queries: Sequence[Query], scorer: GuardedScorer, *, progress: Progress) -> None:
        with self._writing:
            state, snapshot = self._state, self.load()
            tuned = calibrate_on(
                check_calibration_queries(queries, snapshot),
                snapshot,
                scorer,
                open_matrix=self._begin_calibration,
                seed=state.settings.seed,
                progress=progress,
            )
            self._calibration = None
            derived = replace(state.derived, tuned=tuned)
            self._state = replace(state, version=state.version + 1, derived=derived)

    def _begin_calibration(self, spec: ScoreSpec) -> ScoreMatrix:
        """The scores of a calibration that was interrupted, if it is the same."""
        if self._calibration is None or self._calibration.spec != spec:
            self._calibration = ScoreMatrix.in_memory(spec)
        return self._calibration

    def save(self, folder: Path) -> None:
        with self._writing:
            state = self._state
            save_in_folder(
                folder,
                state.matrix,
                items=with_prepared(state.items, state.prepared),
                queries=self._queries,
                derived=state.derived,
                settings=state.settings,
                retrievers=self._retrievers,
                encoded=state.encoded,
                bases=state.bases,
                scorer_name=self._scorer_name,
            )

    def verify(self) -> list[str]:
        return []  # nothing in memory is ever damaged

    def repair(self, scorer: GuardedScorer, *, progress: Progress) -> list[str]:
        return []

    def gc(self, *, unpublished: bool) -> list[str]:
        return []

    def _append(
        self,
        items: Iterable[ItemLike],
        scorer: GuardedScorer,
        *,
        replaces: bool,
        embeddings: EmbeddingsLike | None,
        progress: Progress,
    ) -> None:
        """Append items, with `replaces` in the place of those that have their ids."""
        with self._writing:
            state = self._state
            encoders = with_new_items(self._retrievers, embeddings)
            incoming = Incoming(items, state.items, replaces=replaces)
            taken = incoming.peek()
            if taken is None:
                return
            new = Corpus(taken)
            encoders = embeddings_of_stored(encoders, incoming)
            check_embeddings(encoders, len(new), ())
            kept = [item for item in state.items if item.id not in incoming.replaced]
            check_retrievers(self._retrievers, Corpus([*kept, *new]), self._queries)
            for stored_as, encoder in encoding_retrievers(encoders).items():
                check_encoder(encoder, *_first_encoded(encoder, state.encoded[stored_as], state.items))
            encoded, _ = encode_in_memory(encoders, new, bases=state.bases, progress=progress)
            values = scorer.prepare(new)
            known = taken_over(incoming.same_text, state.matrix.rows)
            scores = self._score(with_prepared(new, values), scorer, known, progress=progress)
            self._query_log.forget(incoming.rescored, state.version + 1)
            added = _Added(new, values, scores, encoded, incoming.sources(new))
            self._state = self._changed(state, incoming.positions, added)
            self._unfinished = None

    def _score(
        self, new: Sequence[Item], scorer: GuardedScorer, known: Known | None, *, progress: Progress
    ) -> FloatMatrix:
        """The exact scores of new items; where scoring was interrupted, it resumes."""
        spec = replace(self._state.matrix.spec, items=digest_items(new), n_items=len(new))
        if self._unfinished is None or self._unfinished.spec != spec:
            self._unfinished = ScoreMatrix.in_memory(spec)
        matrix = self._unfinished
        matrix.fill(scorer, self._queries, lambda start, stop: new[start:stop], known=known, progress=progress)
        return matrix.all()

    def _changed(self, state: _State, gone: Positions, added: _Added | None) -> _State:
        """The next version: without the items at these positions, and with those that were added behind the others."""
        kept = np.setdiff1d(np.arange(len(state.items)), gone)
        encoders = encoding_retrievers(self._retrievers)
        parts = {name: selected(encoders[name], old.parts, kept) for name, old in state.encoded.items()}
        items, prepared = state.items.take(kept), [state.prepared[place] for place in kept.tolist()]
        exact_scores, sources = state.matrix.all()[kept], kept
        if added is not None:
            items, prepared = [*items, *added.items], [*prepared, *added.prepared]
            exact_scores, sources = np.vstack([exact_scores, added.exact_scores]), np.append(kept, added.sources)
            parts = {name: [*old, *added.encoded[name].parts] for name, old in parts.items()}
        spec = replace(state.matrix.spec, items=digest_items(items), n_items=len(items))
        return replace(
            state,
            version=state.version + 1,
            items=Corpus(items),
            prepared=prepared,
            matrix=ScoreMatrix.in_memory(spec, exact_scores),
            derived=rearranged(state.derived, sources, len(state.items)),
            encoded={name: replace(old, parts=parts[name]) for name, old in state.encoded.items()},
        )


def build_in_memory(request: Request, exact_scores: ScoreMatrix | None, *, scorer_name: str) -> MemoryBackend:
    """Score, check and derive; `exact_scores` is resumed."""
    scorer, queries, settings = request.scorer, request.queries, request.settings
    corpus = Corpus(request.items)
    if not len(corpus):
        raise no_items()
    spec = ScoreSpec.make(
        scorer,
        queries,
        items_digest=digest_items(corpus),
        n_items=len(corpus),
        items_per_chunk=settings.items_per_chunk,
        dtype=settings.dtype,
    )
    matrix = ScoreMatrix.in_memory(spec) if exact_scores is None else exact_scores
    if not isinstance(matrix, ScoreMatrix):
        raise InputError(f"exact_scores must be a ScoreMatrix, got {type(matrix).__name__}")
    matrix.spec.check_same(spec)
    check_embeddings(request.retrievers, len(corpus), queries)
    check_retrievers(request.retrievers, corpus, queries)
    with keeping(matrix):
        encoded, bases = encode_in_memory(request.retrievers, corpus, engine=request.engine, progress=request.progress)
        fitted = fitted_on_use(request.retrievers, corpus, by_name(request.retrievers, encoded))
        if queries:
            check_first_query(fitted, request.retrievers, queries[0])
        values = scorer.prepare(corpus)
        prepared = with_prepared(corpus, values)
        matrix.fill(
            scorer,
            queries,
            lambda start, stop: prepared[start:stop],
            engine=request.engine,
            progress=request.progress,
        )
        warn_of_constant(matrix, scorer)
        check_stability(request.watch, matrix, scorer, queries, lambda start, stop: prepared[start:stop])
        derived = derive(
            matrix,
            queries=queries,
            retrievers=fitted,
            anchor_method=settings.anchor_method,
            seed=settings.seed,
            progress=request.progress,
        )
    state = _State(1, corpus, values, matrix, settings, derived, encoded, bases)
    return MemoryBackend(state, queries, without_arrays(request.retrievers), scorer_name)


def _metadata_part(items: Corpus) -> MetadataPart:
    return MetadataPart(MetadataColumns.of(item.metadata for item in items), np.arange(len(items)))


def _first_encoded(encoder: EncodingRetriever, encoded: Encoded, items: Corpus) -> tuple[Encoded, list[Item]]:
    """What is stored of the first items, and these."""
    rows = np.arange(min(N_COMPARED, n_rows(encoder, encoded.parts[0])))
    return replace(encoded, parts=[encoder.select(encoded.parts[0], rows)]), items.take(rows)
