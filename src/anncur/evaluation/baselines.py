"""The paper's baselines over item-item scores: fixedITEM as a policy.

itemCUR needs none of its own: it is ANNCUR over an index whose anchor queries are items (`Task.item_task`)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from anncur.arrays import Positions
from anncur.search.base import Knowledge, Proposal, QueryBlock, Rounds
from anncur.search.guesses import best_guesses


@dataclass(frozen=True, eq=False)
class FixedItems:
    """Compares items by their scores with fixed ones: half of the budget scores the query with those, the other half
    the items whose scores with them have the largest dot product with the query's.

    `items` are the positions of the index's anchor queries, which are items."""

    items: Positions
    name: ClassVar[str] = "fixed_items"
    is_exact: ClassVar[bool] = False

    def rounds(self, block: QueryBlock, knowledge: Knowledge) -> Rounds:
        n_fixed = min(len(self.items), block.budget // 2)
        fixed = self.items[:n_fixed]
        exact_scores = yield [Proposal(fixed)] * len(block.queries)
        vectors = np.ascontiguousarray(knowledge.factors.item_vectors[:, :n_fixed])
        yield best_guesses(
            vectors, np.stack(exact_scores), n_best=block.budget - n_fixed, exclude=[fixed] * len(block.queries)
        )
        return None
