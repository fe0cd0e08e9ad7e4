"""The methods by the names that users call them, and the two that need no file of their own.

Re-ranking is what everybody does: a cheap retriever proposes, the scorer decides. Scoring everything is the truth that
other methods are measured against."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from anncur.errors import InputError
from anncur.search.adacur import Adacur
from anncur.search.anncur import Anncur
from anncur.search.axn import Axn
from anncur.search.base import Knowledge, Method, Proposal, QueryBlock, Rounds
from anncur.search.posterior import Posterior


@dataclass(frozen=True)
class Rerank:
    """Scores the best items of a retriever: the named one, or the index's first."""

    retriever: str | None = None
    name: ClassVar[str] = "rerank"
    is_exact: ClassVar[bool] = False

    def rounds(self, block: QueryBlock, knowledge: Knowledge) -> Rounds:
        retriever = knowledge.retriever(self.retriever)
        # a row per query over all items is the largest thing here, so one query at a time
        rows = (retriever.scores([query])[0] for query in block.queries)
        yield [Proposal(block.candidates(knowledge).best(row, block.budget)) for row in rows]
        return None


@dataclass(frozen=True)
class Exhaustive:
    """Scores the items in their order until the budget is spent."""

    name: ClassVar[str] = "exhaustive"
    is_exact: ClassVar[bool] = True

    def rounds(self, block: QueryBlock, knowledge: Knowledge) -> Rounds:
        everything = Proposal(block.candidates(knowledge).first(block.budget))
        yield [everything] * len(block.queries)
        return None


DEFAULT_METHOD = Posterior.name

METHODS: dict[str, Method] = {
    method.name: method for method in (Posterior(), Anncur(), Adacur(), Axn(), Rerank(), Exhaustive())
}


def as_method(method: str | Method) -> Method:
    """Take a method by name, or an object with settings of its own such as `Anncur(n_anchor_items=100)`."""
    if isinstance(method, str) and method in METHODS:
        return METHODS[method]
    if isinstance(method, (str, type)) or not isinstance(method, Method):
        raise InputError(f"method must be one of {', '.join(METHODS)}, or a method object, got {method!r}")
    return method
