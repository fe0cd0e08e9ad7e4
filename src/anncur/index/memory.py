"""An index that lives with the process: the same life as on disk, without files."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from anncur.arrays import FloatMatrix, Positions
from anncur.candidates.base import Retriever
from anncur.errors import InputError
from anncur.index.build import Learned, Request, Settings, check_stability, keeping, learn
from anncur.index.lessons import learn_from
from anncur.index.prepared import prepare, with_prepared
from anncur.index.snapshot import Prepared, Snapshot, fitted_on_use, make_snapshot
from anncur.index.traffic import KeptSearch, MemoryTraffic
from anncur.items import Corpus, ItemLike, Query, as_item, digest_items, no_items
from anncur.progress import Progress
from anncur.scorers.guard import GuardedScorer
from anncur.scores import ScoreMatrix, ScorePlan


@dataclass(frozen=True)
class _State:
    """One version, swapped as a whole, so that a search never sees half of a change."""

    version: int
    items: Corpus
    prepared: list[bytes]  # what the scorer made of each item
    matrix: ScoreMatrix
    settings: Settings
    learned: Learned

    def for_scorer(self) -> Prepared:
        return Prepared(self.matrix.plan.scorer, Corpus(with_prepared(self.items, self.prepared)))


class MemoryStorage:
    """Items and exact scores in memory; writers wait for each other."""

    def __init__(self, state: _State, queries: Sequence[Query], retrievers: Mapping[str, Retriever]) -> None:
        self._state = state
        self._queries = queries
        self._retrievers = retrievers
        self._writing = threading.Lock()
        self._traffic = MemoryTraffic()

    @property
    def matrix(self) -> ScoreMatrix:
        """The exact scores of the newest version."""
        return self._state.matrix

    def load(self) -> Snapshot:
        state = self._state
        return make_snapshot(
            state.version,
            self._queries,
            state.items,
            state.matrix.all(),
            learned=state.learned,
            retrievers=self._retrievers,
            seed=state.settings.seed,
            prepared=state.for_scorer() if any(state.prepared) else None,
        )

    def add(self, items: Iterable[ItemLike], scorer: GuardedScorer, *, progress: Progress) -> None:
        with self._writing:
            state = self._state
            new = [as_item(item, position=len(state.items) + number) for number, item in enumerate(items)]
            if not new:
                raise no_items()
            grown = Corpus([*state.items, *new])
            values = prepare(new, scorer)
            prepared = with_prepared(new, values)
            added = ScoreMatrix.in_memory(replace(state.matrix.plan, items=digest_items(new), n_items=len(new)))
            added.fill(scorer, self._queries, lambda start, stop: prepared[start:stop], progress=progress)
            exact_scores = np.vstack([state.matrix.all(), added.all()])
            learned = keep_items(state.learned, np.arange(len(grown)))
            self._become(
                replace(state, items=grown, prepared=[*state.prepared, *values], learned=learned), exact_scores
            )

    def remove(self, item_ids: Iterable[str]) -> None:
        with self._writing:
            state = self._state
            gone = {state.items.position(item_id) for item_id in item_ids}
            kept = np.setdiff1d(np.arange(len(state.items)), list(gone)).astype(np.int64)
            if not len(kept):
                raise InputError("an index needs at least one item; these are all that it has")
            learned = keep_items(state.learned, kept)
            items, prepared = Corpus(state.items.take(kept)), [state.prepared[place] for place in kept.tolist()]
            exact_scores = state.matrix.all()[kept]
            self._traffic.forget([state.items[position].id for position in gone], state.version + 1)
            self._become(replace(state, items=items, prepared=prepared, learned=learned), exact_scores)

    def tune(self, anchors: str, seed: int, *, progress: Progress) -> None:
        with self._writing:
            settings = replace(self._state.settings, anchors=anchors, seed=seed)
            learned = learn(
                self._state.matrix,
                settings,
                queries=self._queries,
                retrievers=fitted_on_use(self._retrievers, self._state.items),
                progress=progress,
            )
            learned = replace(learned, lesson=self._state.learned.lesson)
            self._state = replace(self._state, version=self._state.version + 1, settings=settings, learned=learned)

    def keep(self, searches: Sequence[KeptSearch], *, most: int) -> None:
        self._traffic.keep(searches, most=most)

    def learn(self, *, progress: Progress) -> int:
        with self._writing:
            state = self._state
            lesson = learn_from(self._traffic.read(), self.load(), seed=state.settings.seed, progress=progress)
            learned = replace(state.learned, lesson=lesson)
            self._state = replace(state, version=state.version + 1, learned=learned)
            return lesson.n_queries

    def verify(self) -> list[str]:
        return []  # nothing in memory is ever damaged

    def repair(self, scorer: GuardedScorer, *, progress: Progress) -> list[str]:
        return []

    def gc(self, *, drafts: bool) -> list[str]:
        return []

    def _become(self, state: _State, exact_scores: FloatMatrix) -> None:
        """Make this the next version, with these scores of its items."""
        plan = replace(state.matrix.plan, items=digest_items(state.items), n_items=len(state.items))
        matrix = ScoreMatrix.in_memory(plan, exact_scores)
        self._state = replace(state, version=state.version + 1, matrix=matrix)


def keep_items(learned: Learned, kept: Positions) -> Learned:
    """What was learnt of the items that are kept (in ascending order); of new ones at the end it was nothing."""
    lesson = None if learned.lesson is None else learned.lesson.take(kept)
    return replace(learned, anchor_items=_places_of(learned.anchor_items, kept), lesson=lesson)


def _places_of(positions: Positions, kept: Positions) -> Positions:
    """Where positions are found among those that are kept (in ascending order), without those that aren't."""
    places: Positions = np.minimum(np.searchsorted(kept, positions), len(kept) - 1)
    return places[np.equal(kept[places], positions)]


def build_in_memory(request: Request, exact_scores: ScoreMatrix | None) -> MemoryStorage:
    """Score, check and learn; `exact_scores` is gone on with."""
    scorer, queries, settings = request.scorer, request.queries, request.settings
    corpus = Corpus(request.items)
    if not len(corpus):
        raise no_items()
    plan = ScorePlan.make(
        scorer,
        queries,
        items_digest=digest_items(corpus),
        n_items=len(corpus),
        items_per_chunk=settings.items_per_chunk,
        dtype=settings.dtype,
    )
    matrix = ScoreMatrix.in_memory(plan) if exact_scores is None else exact_scores
    if not isinstance(matrix, ScoreMatrix):
        raise InputError(f"exact_scores must be a ScoreMatrix, got {type(matrix).__name__}")
    matrix.plan.check_same(plan)
    with keeping(matrix):
        values = prepare(corpus, scorer)
        prepared = with_prepared(corpus, values)
        matrix.fill(scorer, queries, lambda start, stop: prepared[start:stop], progress=request.progress)
        check_stability(request.watch, matrix, scorer, queries, lambda start, stop: prepared[start:stop])
        learned = learn(
            matrix,
            settings,
            queries=queries,
            retrievers=fitted_on_use(request.retrievers, corpus),
            progress=request.progress,
        )
    return MemoryStorage(_State(1, corpus, values, matrix, settings, learned), queries, request.retrievers)
