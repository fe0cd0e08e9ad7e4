"""A cascade: a retriever's first items are ranked by a shallow scorer, and the scorer itself decides on the best.

The shallow scorer's pairs take time, too. They are charged at their share of the time of a pair, and taken off the
budget, so that a cascade is compared with other methods at equal time."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, TypeAlias

import numpy as np

from anncur.arrays import FloatVector, Positions
from anncur.candidates import Candidates
from anncur.items import Item, Query
from anncur.numbers import number
from anncur.ranking import top_k
from anncur.scorers.base import with_prepared
from anncur.scorers.guard import GuardedScorer
from anncur.search.base import Knowledge, Proposal, QueryBlock, Rounds

ShallowScorer: TypeAlias = Callable[[Query, Positions], FloatVector]  # of items at some positions
LEAST_COST = 1e-6


@dataclass(frozen=True)
class Cascade:
    """Spends `share` of the budget's time on pairs of the `shallow` scorer, and the rest on the best of them.

    `cost` is the time of a shallow pair as a share of the scorer's own. Where the budget is too small for the shallow
    scorer to choose anything, or covers every item, it isn't asked. `retriever` is the named one, else the index's
    first."""

    shallow: ShallowScorer
    cost: float
    share: float = 0.25
    retriever: str | None = None
    name: ClassVar[str] = "cascade"
    is_exact: ClassVar[bool] = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "cost", number("cost", self.cost, least=LEAST_COST, most=1))
        object.__setattr__(self, "share", number("share", self.share, least=0, most=1))

    def rounds(self, block: QueryBlock, knowledge: Knowledge) -> Rounds:
        retriever, among = knowledge.retriever(self.retriever), block.candidates(knowledge)
        rows = (retriever.scores([query])[0] for query in block.queries)
        chosen = [self._choose(query, row, among, block.budget) for query, row in zip(block.queries, rows, strict=True)]
        yield [Proposal(positions) for positions in chosen]
        return None

    def _choose(self, query: Query, row: FloatVector, among: Candidates, budget: int) -> Positions:
        n_shallow = min(len(among), int(self.share * budget / self.cost))
        n_left = budget - math.ceil(n_shallow * self.cost)
        if not 0 < n_left < n_shallow or budget >= len(among):
            return among.best(row, budget)
        first = among.best(row, n_shallow)
        return first[top_k(self.shallow(query, first), n_left)]


def shallow_scorer(scorer: GuardedScorer, items: Sequence[Item]) -> ShallowScorer:
    """Another scorer over the items of an index, in their order."""
    prepared = with_prepared(items, scorer.prepare(items))

    def score(query: Query, positions: Positions) -> FloatVector:
        return np.asarray(scorer.score(query, [prepared[position] for position in positions.tolist()]))

    return score
