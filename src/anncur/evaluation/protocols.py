"""How methods are measured: the `sound` protocol.

Every distinct call is charged once and everything that was paid for counts, settings are chosen on held-out anchor
queries, and test queries come from documents that no anchor query comes from. Reads tasks, feeds reports."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from anncur.arrays import FloatMatrix, FloatVector
from anncur.evaluation.recall import recalls
from anncur.evaluation.tasks import Split, Task
from anncur.index.index import Index
from anncur.progress import Progress, silent
from anncur.ranking import Hits
from anncur.retrievers.base import Retriever
from anncur.search.anncur import Anncur
from anncur.search.base import Method

KS = (1, 10, 50, 100)
BUDGETS = (50, 100, 200, 500)


@dataclass(frozen=True, eq=False)
class Outcome:
    """What a method found for the test queries with one budget."""

    method: str
    k: int
    budget: int
    recalls: FloatVector  # (n_tests,)
    calls: FloatVector
    seconds: float  # per query


def cells(ks: Sequence[int] = KS, budgets: Sequence[int] = BUDGETS) -> list[tuple[int, int]]:
    """The pairs of k and budget that there is anything to measure in."""
    return [(k, budget) for k in ks for budget in budgets if budget > k]


def build(
    task: Task, split: Split, retrievers: Iterable[Retriever], *, seed: int = 0, progress: Progress = silent
) -> Index:
    """An index of the task's items that knows its anchor queries only."""
    anchor_queries = task.queries_at(split.anchors)
    return Index.build(task.items, task.scorer(), anchor_queries, retrievers=retrievers, seed=seed, progress=progress)


def measure(
    index: Index, task: Task, split: Split, method: Method, *, ks: Sequence[int] = KS, budgets: Sequence[int] = BUDGETS
) -> list[Outcome]:
    """What a policy finds for the test queries, for each k and budget above it."""
    queries = task.queries_at(split.tests)
    exact_scores = task.exact_scores[split.tests]
    outcomes = []
    for budget in budgets:
        smaller = [k for k in ks if k < budget]
        # all but ANNCUR, whose split is tuned for a k, go the same way whatever k is: the best k are in the best 100
        for some in ([k] for k in smaller) if isinstance(method, Anncur) else [smaller]:
            answers = index.search_many(queries, max(some), budget, method=method)
            outcomes += [_outcome(answers, exact_scores, k, budget) for k in some]
    return outcomes


def _outcome(answers: Sequence[Hits], exact_scores: FloatMatrix, k: int, budget: int) -> Outcome:
    calls = np.array([hits.calls for hits in answers])
    seconds = float(np.mean([hits.seconds for hits in answers]))
    return Outcome(answers[0].method, k, budget, recalls(answers, exact_scores, k), calls, seconds)
