"""Turns the searches that an index kept into what they teach: ids to positions, and each query once."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from anncur.errors import InputError, UnknownIdError
from anncur.index.snapshot import Snapshot
from anncur.index.traffic import KeptSearch
from anncur.items import Items, Query
from anncur.progress import Progress
from anncur.search.lesson import Lesson, ScoredQuery, learn_lesson

STAGE = "learning from searches"


def learn_from(searches: Sequence[KeptSearch], snapshot: Snapshot, *, seed: int, progress: Progress) -> Lesson:
    """Fit a lesson to searches and to the anchor queries of an index; costs no calls."""
    if not searches:
        raise InputError(
            "there is nothing to learn from: no searches were kept; open the index with keep_traffic=1000, "
            "or search with --keep-traffic 1000, and learn when some were made"
        )
    progress(STAGE, 0, 2)
    beliefs = snapshot.knowledge.beliefs
    scored = _scored(searches, snapshot)
    if not scored:
        raise InputError(
            f"there is nothing to learn from: {len(searches)} search(es) were kept, but all are of anchor queries "
            "or of items that are gone"
        )
    progress(STAGE, 1, 2)
    lesson = learn_lesson(
        scored,
        anchor_scores=beliefs.anchor_scores,
        anchor_queries=snapshot.queries,
        retrievers=snapshot.knowledge.retrievers,
        coefficients=beliefs.own_settings().in_mean,
        seed=seed,
    )
    progress(STAGE, 2, 2)
    return lesson


def _scored(searches: Sequence[KeptSearch], snapshot: Snapshot) -> list[ScoredQuery]:
    """Every query once with all of its scores, the newest where they differ; without anchor queries."""
    by_query: dict[str, tuple[Query, dict[str, float]]] = {}
    for search in searches:
        by_query.setdefault(search.query.marked_text, (search.query, {}))[1].update(search.scores)
    for query in snapshot.queries:
        by_query.pop(query.marked_text, None)
    positions = _positions({item_id for _, scores in by_query.values() for item_id in scores}, snapshot.items)
    scored = []
    for query, scores in by_query.values():
        there = sorted((positions[item_id], score) for item_id, score in scores.items() if item_id in positions)
        if there:
            places, values = zip(*there, strict=True)
            scored.append(ScoredQuery(query, np.array(places, dtype=np.int64), np.array(values, dtype=np.float64)))
    return scored


def _positions(item_ids: set[str], items: Items) -> dict[str, int]:
    """Those of the items that are there."""
    found = {}
    for item_id in item_ids:
        try:
            found[item_id] = items.position(item_id)
        except UnknownIdError:
            continue
    return found
