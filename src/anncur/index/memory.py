"""An index that lives with the process: the same life as on disk, without files."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from anncur.arrays import FloatMatrix
from anncur.columns import MetadataColumns
from anncur.errors import InputError
from anncur.index.backend import Contents
from anncur.index.build import BuildSettings, Request, check_retrievers, check_stability, keeping, new_items
from anncur.index.calibration import calibrate_on, check_calibration_queries, keep_calibration
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
            n_bytes=0,
        )

    def load(self) -> Snapshot:
        state = self._state
        return make_snapshot(
            state.version,
            state.items,
            state.matrix.all(),
            anchor_queries=self._queries,
            derived=state.derived,
            retrievers=self._retrievers,
            encoded=by_name(self._retrievers, state.encoded),
            metadata=Metadata(lambda: [_metadata_part(state.items)]),
            seed=state.settings.seed,
            prepared=state.for_scorer() if any(state.prepared) else None,
        )

    def add(
        self,
        items: Iterable[ItemLike],
        scorer: GuardedScorer,
        *,
        embeddings: EmbeddingsLike | None = None,
        progress: Progress,
    ) -> None:
        with self._writing:
            state = self._state
            encoders = with_new_items(self._retrievers, embeddings)
            new = list(new_items(items, state.items))
            if not new:
                raise no_items()
            check_embeddings(encoders, len(new), ())
            grown = Corpus([*state.items, *new])
            check_retrievers(self._retrievers, grown, self._queries)
            for stored_as, encoder in encoding_retrievers(encoders).items():
                check_encoder(encoder, *_first_encoded(encoder, state.encoded[stored_as], state.items))
            encoded, _ = encode_in_memory(encoders, new, bases=state.bases, progress=progress)
            values = scorer.prepare(new)
            prepared = with_prepared(new, values)
            added = ScoreMatrix.in_memory(replace(state.matrix.spec, items=digest_items(new), n_items=len(new)))
            added.fill(scorer, self._queries, lambda start, stop: prepared[start:stop], progress=progress)
            exact_scores = np.vstack([state.matrix.all(), added.all()])
            derived = state.derived.take(np.arange(len(grown)))
            together = {
                stored_as: replace(old, parts=[*old.parts, *encoded[stored_as].parts])
                for stored_as, old in state.encoded.items()
            }
            prepared_values = [*state.prepared, *values]
            changed = replace(state, items=grown, prepared=prepared_values, derived=derived, encoded=together)
            self._become(changed, exact_scores)

    def remove(self, item_ids: Iterable[str]) -> None:
        with self._writing:
            state = self._state
            gone = {state.items.position(item_id) for item_id in item_ids}
            kept = np.setdiff1d(np.arange(len(state.items)), list(gone)).astype(np.int64)
            if not len(kept):
                raise InputError("an index needs at least one item; these are all that it has")
            items, prepared = Corpus(state.items.take(kept)), [state.prepared[place] for place in kept.tolist()]
            self._query_log.forget([state.items[position].id for position in gone], state.version + 1)
            encoders = encoding_retrievers(self._retrievers)
            encoded = {
                stored_as: replace(old, parts=selected(encoders[stored_as], old.parts, kept))
                for stored_as, old in state.encoded.items()
            }
            changed = replace(state, items=items, prepared=prepared, derived=state.derived.take(kept), encoded=encoded)
            self._become(changed, state.matrix.all()[kept])

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

    def _become(self, state: _State, exact_scores: FloatMatrix) -> None:
        """Make this the next version, with these scores of its items."""
        spec = replace(state.matrix.spec, items=digest_items(state.items), n_items=len(state.items))
        matrix = ScoreMatrix.in_memory(spec, exact_scores)
        self._state = replace(state, version=state.version + 1, matrix=matrix)


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
        encoded, bases = encode_in_memory(request.retrievers, corpus, progress=request.progress)
        fitted = fitted_on_use(request.retrievers, corpus, by_name(request.retrievers, encoded))
        if queries:
            check_first_query(fitted, request.retrievers, queries[0])
        values = scorer.prepare(corpus)
        prepared = with_prepared(corpus, values)
        matrix.fill(scorer, queries, lambda start, stop: prepared[start:stop], progress=request.progress)
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
