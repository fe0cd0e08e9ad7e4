"""What everybody does: a cheap retriever proposes, the scorer re-ranks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from anncur.ranking import top_k
from anncur.search.base import Block, Knowledge, Proposal, Rounds


@dataclass(frozen=True)
class Rerank:
    """Scores the best items of a retriever: the named one, or the index's first."""

    retriever: str | None = None
    name: ClassVar[str] = "rerank"
    is_exact: ClassVar[bool] = False

    def rounds(self, block: Block, knowledge: Knowledge) -> Rounds:
        retriever = knowledge.retriever(self.retriever)
        # a row per query over all items is the largest thing here, so one query at a time
        rows = (retriever.scores([query])[0] for query in block.queries)
        yield [Proposal(top_k(row, block.budget)) for row in rows]
        return None
