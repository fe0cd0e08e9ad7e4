"""How methods are measured: the `sound` protocol.

Every pair is charged once and every exact score counts, settings are chosen on held-out anchor queries, and test
queries come from documents that no anchor query comes from. Reads scored worlds, feeds the scoreboard."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from anncur.arrays import FloatMatrix, FloatVector
from anncur.evaluation.recall import recalls
from anncur.evaluation.worlds import QuerySplit, ScoredWorld
from anncur.index.index import Index
from anncur.planning.advice import BUDGETS
from anncur.progress import Progress, silent
from anncur.ranking import Hits
from anncur.retrievers.base import Retriever
from anncur.search.anncur import Anncur
from anncur.search.base import Method
from anncur.search.settings import KS

SOUND = "sound"


@dataclass(frozen=True, eq=False)
class Outcome:
    """What a method found for the test queries with one budget."""

    method: str
    k: int
    budget: int
    recalls: FloatVector  # (n_tests,)
    calls: FloatVector  # pairs paid for, (n_tests,)
    rounds: FloatVector  # (n_tests,)
    seconds: float  # per query; exact scores are looked up, so these are the method's own


def points(ks: Sequence[int] = KS, budgets: Sequence[int] = BUDGETS) -> list[tuple[int, int]]:
    """The pairs of k and budget that there is anything to measure at."""
    return [(k, budget) for k in ks for budget in budgets if budget > k]


def build(
    world: ScoredWorld,
    split: QuerySplit,
    retrievers: Iterable[Retriever],
    *,
    seed: int = 0,
    progress: Progress = silent,
) -> Index:
    """An index of the world's items that knows its anchor queries only."""
    anchor_queries = world.queries_at(split.anchors)
    return Index.build(world.items, world.scorer(), anchor_queries, retrievers=retrievers, seed=seed, progress=progress)


def measure(
    index: Index,
    world: ScoredWorld,
    split: QuerySplit,
    method: Method,
    *,
    ks: Sequence[int] = KS,
    budgets: Sequence[int] = BUDGETS,
    max_rounds: int | None = None,
) -> list[Outcome]:
    """What a method finds for the test queries, for each k and each budget above it."""
    queries = world.queries_at(split.tests)
    exact_scores = world.exact_scores[split.tests]
    outcomes = []
    for budget in budgets:
        smaller = [k for k in ks if k < budget]
        # all but ANNCUR, whose split is tuned for a k, score the same items whatever k is: one search serves all ks
        for some in ([k] for k in smaller) if isinstance(method, Anncur) else [smaller]:
            answers = index.search_many(queries, max(some), budget, method=method, max_rounds=max_rounds)
            outcomes += [_outcome(answers, exact_scores, k, budget) for k in some]
    return outcomes


def _outcome(answers: Sequence[Hits], exact_scores: FloatMatrix, k: int, budget: int) -> Outcome:
    calls, rounds = (np.array([getattr(hits, name) for hits in answers]) for name in ("calls", "n_rounds"))
    seconds = float(np.mean([hits.seconds for hits in answers]))
    return Outcome(answers[0].method, k, budget, recalls(answers, exact_scores, k), calls, rounds, seconds)
