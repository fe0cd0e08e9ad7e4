"""What a build is asked for, and its steps after the items are scored: check the scorer, derive what searches need.

Reads exact scores, feeds the storages. Everything here but the stability check costs no calls."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np

from anncur.anchors import choose_anchors, sample_positions
from anncur.arrays import Positions
from anncur.candidates.base import Retriever
from anncur.errors import AnncurWarning, ScorerError
from anncur.items import Corpus, ItemLike, Query
from anncur.progress import Progress, silent
from anncur.scorers.guard import GuardedScorer
from anncur.scorers.metered import Meter
from anncur.scorers.stability import StabilityWatch
from anncur.scores import ItemsAt, ScoreMatrix
from anncur.search.beliefs import Tuned
from anncur.search.lesson import Lesson
from anncur.search.sample import ItemScores
from anncur.search.split import ANCHOR_COUNTS, SplitTable, tune_splits
from anncur.search.tuning import tune_posterior

STABILITY_CHECKS = 8  # pairs that a build scores twice


@dataclass(frozen=True)
class Settings:
    """What a build was asked for, beside scorer, items and queries."""

    anchors: str = "pivoted_qr"
    seed: int = 0
    dtype: str = "float32"
    items_per_chunk: int | None = None


@dataclass(frozen=True, eq=False)
class Request:
    """All that a build is asked for, checked but for the items, which are read as they come."""

    items: Iterable[ItemLike]
    queries: Sequence[Query]
    scorer: GuardedScorer
    settings: Settings
    retrievers: Mapping[str, Retriever]
    watch: StabilityWatch
    progress: Progress


@dataclass(frozen=True, eq=False)
class Learned:
    """What is derived from exact scores: the best anchor items in their order, how to split budgets, how adaptive
    search is to be done, and what searches taught."""

    anchor_items: Positions
    splits: SplitTable
    tuned: Tuned = field(default_factory=Tuned)
    lesson: Lesson | None = None


def learn(
    scores: ItemScores,
    settings: Settings,
    *,
    queries: Sequence[Query],
    retrievers: Mapping[str, Retriever],
    progress: Progress = silent,
) -> Learned:
    """Choose anchor items, and tune the methods on held-out anchor queries. Memory doesn't grow with the items.

    `retrievers` are fitted to the items, now or when they are first asked."""
    rng = np.random.default_rng(settings.seed)
    sample = sample_positions(scores.n_items, rng)
    columns = scores.rows(sample).T
    chosen = sample[choose_anchors(columns, n_anchors=ANCHOR_COUNTS[-1], method=settings.anchors, rng=rng)]
    splits = tune_splits(scores, anchors=settings.anchors, rng=rng, progress=progress)
    tuned = tune_posterior(scores, queries, retrievers, rng=rng, progress=progress)
    return Learned(chosen, splits, tuned)


def check_stability(
    watch: StabilityWatch, matrix: ScoreMatrix, scorer: GuardedScorer, queries: Sequence[Query], items_at: ItemsAt
) -> None:
    """Score a few pairs again, spread over the items, so that an unstable scorer shows at once.

    A scorer that fails now, after all was scored, doesn't stop the build."""
    if not queries:
        return
    positions = np.unique(np.linspace(0, matrix.plan.n_items - 1, STABILITY_CHECKS).astype(np.int64))
    items = Corpus(item for position in positions.tolist() for item in items_at(position, position + 1))
    watch.observe(queries[0], positions, matrix.rows(positions)[:, 0].astype(np.float64))
    try:
        again = Meter(scorer, queries[0], items, budget=len(positions)).score(np.arange(len(positions)))
    except ScorerError as error:
        warnings.warn(f"could not check whether the scorer is stable: {error}", AnncurWarning, stacklevel=3)
    else:
        watch.observe(queries[0], positions, again)


@contextmanager
def keeping(paid: object) -> Iterator[None]:
    """Attach what was paid for to whatever stops the work, Ctrl-C included, as `kept`."""
    try:
        yield
    except BaseException as error:
        error.kept = paid  # type: ignore[attr-defined]
        raise
