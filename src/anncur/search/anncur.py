"""ANNCUR, the paper's method: score fixed anchor items, guess all the others from them, score the best guesses."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from anncur.errors import InputError
from anncur.factors.cur import estimate_queries
from anncur.numbers import number, whole_number
from anncur.search.base import Knowledge, Proposal, QueryBlock, Rounds, best_guesses
from anncur.search.splits import BudgetSplit


@dataclass(frozen=True)
class Anncur:
    """Spends `n_anchor_items` pairs on anchor items and the rest of the budget on the best guesses.

    What is not given is chosen for k and budget on held-out anchor queries. `cutoff` is the share of the largest
    singular value of the anchor block up to which values count as noise; the paper's is 1e-15, which keeps all."""

    n_anchor_items: int | None = None
    cutoff: float | None = None
    name: ClassVar[str] = "anncur"
    is_exact: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if self.n_anchor_items is not None:
            object.__setattr__(self, "n_anchor_items", whole_number("n_anchor_items", self.n_anchor_items, least=0))
        if self.cutoff is not None:
            object.__setattr__(self, "cutoff", number("cutoff", self.cutoff, least=0, most=1))

    def rounds(self, block: QueryBlock, knowledge: Knowledge) -> Rounds:
        factors = knowledge.factors
        if factors.n_anchor_queries == 0:
            raise InputError("anncur needs anchor queries and this index has none; build it with some, or use rerank")
        if block.schedule.at_most(2) < 2:
            raise InputError(
                "anncur needs two rounds, one for anchor items and one for the best guesses; got max_rounds=1"
            )
        split, among = self._split(block, knowledge), block.candidates(knowledge)
        anchor_items = among.of(factors.anchor_order)[: split.n_anchor_items]
        exact_scores = yield [Proposal(anchor_items)] * len(block.queries)
        query_vectors = estimate_queries(np.stack(exact_scores), factors.link(anchor_items, split.cutoff))
        yield best_guesses(
            knowledge.ranked_anchor_scores(),
            query_vectors,
            n_best=block.budget - len(anchor_items),
            exclude=[anchor_items] * len(block.queries),
            among=among,
        )
        return None

    def _split(self, block: QueryBlock, knowledge: Knowledge) -> BudgetSplit:
        n_anchor_items = self.n_anchor_items
        if n_anchor_items is not None and block.budget == len(block.candidates(knowledge)):
            n_anchor_items = min(n_anchor_items, block.budget)
        if n_anchor_items is not None and n_anchor_items > block.budget:
            raise InputError(f"n_anchor_items must be at most the budget of {block.budget}, got {n_anchor_items}")
        best = knowledge.splits.best(k=block.k, budget=block.budget, n_anchor_items=n_anchor_items)
        return best if self.cutoff is None else BudgetSplit(best.n_anchor_items, self.cutoff)
