"""Score everything: the truth that other methods are measured against."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from anncur.search.base import Block, Knowledge, Proposal, Rounds


@dataclass(frozen=True)
class Exhaustive:
    """Scores the items in their order until the budget is spent."""

    name: ClassVar[str] = "exhaustive"
    is_exact: ClassVar[bool] = True

    def rounds(self, block: Block, knowledge: Knowledge) -> Rounds:
        everything = Proposal(np.arange(block.budget))
        yield [everything] * len(block.queries)
        return None
