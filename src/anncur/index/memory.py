"""An index that lives with the process: the same life as on disk, without files."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from anncur.arrays import FloatMatrix, Positions
from anncur.candidates.base import Retriever
from anncur.errors import InputError
from anncur.index.build import Learned, Settings, check_stability, keeping, learn
from anncur.index.snapshot import Snapshot, make_snapshot
from anncur.items import Corpus, Item, ItemLike, Query, TextDigest, as_item, no_items
from anncur.progress import Progress
from anncur.scorers.guard import GuardedScorer
from anncur.scorers.stability import StabilityWatch
from anncur.scores import ScoreMatrix, ScorePlan


class MemoryStorage:
    """Items and exact scores in memory."""

    def __init__(
        self,
        items: Iterable[ItemLike],
        queries: Sequence[Query],
        scorer: GuardedScorer,
        settings: Settings,
        retrievers: Mapping[str, Retriever],
    ) -> None:
        self._items = Corpus(items)
        self._queries = queries
        self._settings = settings
        self._retrievers = retrievers
        self._version = 0
        self._learned: Learned | None = None
        if not len(self._items):
            raise no_items()
        plan = ScorePlan.make(
            scorer,
            queries,
            items_digest=_digest(self._items),
            n_items=len(self._items),
            items_per_chunk=settings.items_per_chunk,
            dtype=settings.dtype,
        )
        self.matrix = ScoreMatrix.in_memory(plan)

    def items_at(self, start: int, stop: int) -> Sequence[Item]:
        """The items from a position up to another."""
        return self._items[start:stop]

    def finish(self, *, progress: Progress) -> None:
        """Learn from the scores, once they are complete."""
        self._learned = learn(self.matrix, self._settings, progress=progress)
        self._version += 1

    def load(self) -> Snapshot:
        assert self._learned is not None
        return make_snapshot(
            self._version,
            self._queries,
            self._items,
            self.matrix.all(),
            learned=self._learned,
            retrievers=self._retrievers,
            seed=self._settings.seed,
        )

    def add(self, items: Iterable[ItemLike], scorer: GuardedScorer, *, progress: Progress) -> None:
        position = len(self._items)
        new = [as_item(item, position=position + number) for number, item in enumerate(items)]
        if not new:
            raise no_items()
        grown = Corpus([*self._items, *new])
        added = ScoreMatrix.in_memory(replace(self.matrix.plan, items=_digest(new), n_items=len(new)))
        added.fill(scorer, self._queries, lambda start, stop: new[start:stop], progress=progress)
        self._replace(grown, np.vstack([self.matrix.all(), added.all()]))

    def remove(self, item_ids: Iterable[str]) -> None:
        gone = {self._items.position(item_id) for item_id in item_ids}
        kept = np.array([position for position in range(len(self._items)) if position not in gone], dtype=np.int64)
        if not len(kept):
            raise InputError("an index needs at least one item; these are all that it has")
        assert self._learned is not None
        self._learned = Learned(places_of(self._learned.anchor_items, kept), self._learned.splits)
        self._replace(Corpus(self._items.take(kept)), self.matrix.all()[kept])

    def tune(self, anchors: str, seed: int, *, progress: Progress) -> None:
        self._settings = replace(self._settings, anchors=anchors, seed=seed)
        self.finish(progress=progress)

    def verify(self) -> list[str]:
        return []  # nothing in memory is ever damaged

    def repair(self, scorer: GuardedScorer, *, progress: Progress) -> list[str]:
        return []

    def gc(self, *, drafts: bool) -> list[str]:
        return []

    def _replace(self, items: Corpus, values: FloatMatrix) -> None:
        plan = replace(self.matrix.plan, items=_digest(items), n_items=len(items))
        matrix = ScoreMatrix.in_memory(plan)
        matrix.all()[:] = values
        self._items, self.matrix, self._version = items, matrix, self._version + 1


def places_of(positions: Positions, kept: Positions) -> Positions:
    """Where positions are found among those that are kept (in ascending order), without those that aren't."""
    places: Positions = np.minimum(np.searchsorted(kept, positions), len(kept) - 1)
    return places[np.equal(kept[places], positions)]


def build_in_memory(
    items: Iterable[ItemLike],
    queries: Sequence[Query],
    scorer: GuardedScorer,
    *,
    settings: Settings,
    retrievers: Mapping[str, Retriever],
    watch: StabilityWatch,
    exact_scores: ScoreMatrix | None,
    progress: Progress,
) -> MemoryStorage:
    """Score, check and learn; `exact_scores` is gone on with."""
    storage = MemoryStorage(items, queries, scorer, settings, retrievers)
    if exact_scores is not None:
        if not isinstance(exact_scores, ScoreMatrix):
            raise InputError(f"exact_scores must be a ScoreMatrix, got {type(exact_scores).__name__}")
        exact_scores.plan.check_same(storage.matrix.plan)
        storage.matrix = exact_scores
    with keeping(storage.matrix):
        storage.matrix.fill(scorer, queries, storage.items_at, progress=progress)
        check_stability(watch, storage.matrix, scorer, queries, storage.items_at)
        storage.finish(progress=progress)
    return storage


def _digest(items: Iterable[Item]) -> str:
    digest = TextDigest()
    for item in items:
        digest.add_item(item)
    return str(digest)
