"""Calibrates an index's estimates of recall on queries that are scored on all of its items.

For an index without anchor queries, which has none to hold out, and for queries unlike the anchor queries."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from anncur.errors import InputError
from anncur.index.snapshot import Snapshot
from anncur.items import Query, digest_items
from anncur.progress import Progress
from anncur.scorers.guard import GuardedScorer
from anncur.scores import ScoreMatrix, ScoreSpec
from anncur.search.settings import Tuned
from anncur.threads import one_blas_thread
from anncur.tuning.derive import Derived
from anncur.tuning.measure import measure

LEAST_QUERIES = 4  # fewer tell nothing about others


def check_calibration_queries(queries: Sequence[Query], snapshot: Snapshot) -> list[Query]:
    """The queries to calibrate on, each once; refused where they are too few or known to the index already."""
    anchors = {query.key for query in snapshot.anchor_queries}
    known = [query.marked_text for query in queries if query.key in anchors]
    if known:
        raise InputError(
            f"estimates of recall are calibrated on queries that the index doesn't know, and {known[0]!r} is one of "
            "its anchor queries; take others"
        )
    distinct = list({query.key: query for query in queries}.values())
    if len(distinct) < LEAST_QUERIES:
        raise InputError(f"calibrating needs at least {LEAST_QUERIES} different queries, got {len(distinct)}")
    return distinct


def calibrate_on(
    queries: Sequence[Query],
    snapshot: Snapshot,
    scorer: GuardedScorer,
    *,
    open_matrix: Callable[[ScoreSpec], ScoreMatrix],
    seed: int,
    progress: Progress,
) -> Tuned:
    """Score the queries on all items, but for what `open_matrix` has of them already, and calibrate on that."""
    spec = ScoreSpec.make(scorer, queries, items_digest=digest_items(snapshot.items), n_items=len(snapshot.items))
    matrix, items = open_matrix(spec), snapshot.items_for(scorer.fingerprint)
    matrix.fill(scorer, queries, lambda start, stop: items.take(np.arange(start, stop)), progress=progress)
    with one_blas_thread():
        knowledge = snapshot.knowledge
        rng = np.random.default_rng(seed)
        return measure(knowledge.posterior, matrix, queries, knowledge.retrievers, rng=rng)


def keep_calibration(derived: Derived, before: Tuned) -> Derived:
    """What was derived, with the calibration there was where tuning had no queries to hold out."""
    if derived.tuned.calibration.ks or not before.calibration.ks:
        return derived
    kept = {name: getattr(before, name) for name in ("curve", "calibration", "rerank_curves", "drift")}
    return replace(derived, tuned=replace(derived.tuned, **kept))
