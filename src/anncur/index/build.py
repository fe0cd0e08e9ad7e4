"""The steps of a build after the items are scored: check the scorer, and derive what searches need.

Reads exact scores, feeds `index.py`. Everything here but the stability check costs no calls."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence

import numpy as np

from anncur.anchors import order_anchors
from anncur.candidates.base import Retriever
from anncur.errors import AnncurWarning, ScorerError
from anncur.factors.cur import CurFactors
from anncur.items import Corpus, Query
from anncur.progress import Progress
from anncur.scorers.guard import GuardedScorer
from anncur.scorers.metered import Meter
from anncur.scorers.stability import StabilityWatch
from anncur.scores import ScoreMatrix
from anncur.search.base import Knowledge
from anncur.search.split import ANCHOR_COUNTS, tune_splits

STABILITY_CHECKS = 8  # pairs that a build scores twice


def check_stability(
    watch: StabilityWatch, matrix: ScoreMatrix, scorer: GuardedScorer, queries: Sequence[Query], corpus: Corpus
) -> None:
    """Score a few pairs again, spread over the items, so that an unstable scorer shows at once.

    A scorer that fails now, after all was scored, doesn't stop the build."""
    if not queries:
        return
    positions = np.unique(np.linspace(0, len(corpus) - 1, STABILITY_CHECKS).astype(np.int64))
    watch.observe(queries[0], positions, matrix.values[positions, 0].astype(np.float64))
    try:
        again = Meter(scorer, queries[0], corpus, budget=len(positions)).score(positions)
    except ScorerError as error:
        warnings.warn(f"could not check whether the scorer is stable: {error}", AnncurWarning, stacklevel=3)
    else:
        watch.observe(queries[0], positions, again)


def learn(
    matrix: ScoreMatrix,
    retrievers: Mapping[str, Retriever],
    *,
    anchors: str,
    rng: np.random.Generator,
    progress: Progress,
) -> Knowledge:
    """Choose anchor items, and tune the methods on held-out anchor queries."""
    item_vectors = matrix.values
    order = order_anchors(item_vectors.T, n_anchors=ANCHOR_COUNTS[-1], method=anchors, rng=rng)
    splits = tune_splits(item_vectors, anchors=anchors, rng=rng, progress=progress)
    return Knowledge(len(item_vectors), CurFactors(item_vectors, order), splits, retrievers)
