"""Fits a feedback model to the query log of an index: ids become positions, and each query counts once."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import numpy as np

from anncur.errors import AnncurWarning, InputError, UnknownIdError
from anncur.index.snapshot import Snapshot
from anncur.items import Items, Query
from anncur.progress import Progress
from anncur.retrievers.base import FittedRetriever
from anncur.search.feedback import FeedbackModel, ScoredQuery, fit_feedback
from anncur.storage.query_log import LoggedSearch
from anncur.threads import one_blas_thread

STAGE = "fitting the query log"


def fit_query_log(
    searches: Sequence[LoggedSearch], snapshot: Snapshot, *, seed: int, progress: Progress
) -> FeedbackModel:
    """Fit a feedback model to logged searches and to the anchor queries of an index; costs no pairs."""
    if not searches:
        raise InputError(
            "the query log is empty; open the index with log_queries=1000, or search with --log-queries 1000, and "
            "learn when some searches were made"
        )
    progress(STAGE, 0, 2)
    posterior = snapshot.knowledge.posterior
    scored = _scored(searches, snapshot)
    if not scored:
        raise InputError(
            f"the query log has {len(searches)} search(es), but all are of anchor queries or of items that were removed"
        )
    progress(STAGE, 1, 2)
    with one_blas_thread():
        feedback = fit_feedback(
            scored,
            anchor_scores=posterior.scores.all(),
            anchor_queries=snapshot.anchor_queries,
            retrievers=snapshot.knowledge.retrievers,
            coefficients=posterior.own_settings().in_mean,
            seed=seed,
        )
    progress(STAGE, 2, 2)
    return feedback


def _scored(searches: Sequence[LoggedSearch], snapshot: Snapshot) -> list[ScoredQuery]:
    """Every query once with all of its scores, the newest where they differ; without anchor queries."""
    by_query: dict[str, tuple[Query, dict[str, float]]] = {}
    for search in searches:
        by_query.setdefault(search.query.key, (search.query, {}))[1].update(search.scores)
    for query in snapshot.anchor_queries:
        by_query.pop(query.key, None)
    by_query = _with_retriever_scores(by_query, snapshot)
    positions = _positions({item_id for _, scores in by_query.values() for item_id in scores}, snapshot.items)
    scored = []
    for query, scores in by_query.values():
        there = sorted((positions[item_id], score) for item_id, score in scores.items() if item_id in positions)
        if there:
            places, values = zip(*there, strict=True)
            scored.append(ScoredQuery(query, np.array(places, dtype=np.int64), np.array(values, dtype=np.float64)))
    return scored


def _with_retriever_scores(
    by_query: dict[str, tuple[Query, dict[str, float]]], snapshot: Snapshot
) -> dict[str, tuple[Query, dict[str, float]]]:
    """Those queries that all retrievers can score: not one whose embedding nobody can make."""
    retrievers = [one for one in snapshot.knowledge.retrievers.values() if isinstance(one, FittedRetriever)]
    usable = {text: found for text, found in by_query.items() if all(one.can_score(found[0]) for one in retrievers)}
    if len(usable) < len(by_query):
        warnings.warn(
            f"{len(by_query) - len(usable)} of {len(by_query)} logged queries have no embedding and were left out; "
            "open the index with embed_queries=…",
            AnncurWarning,
            stacklevel=4,
        )
    return usable


def _positions(item_ids: set[str], items: Items) -> dict[str, int]:
    """Those of the items that are there."""
    found = {}
    for item_id in item_ids:
        try:
            found[item_id] = items.position(item_id)
        except UnknownIdError:
            continue
    return found
