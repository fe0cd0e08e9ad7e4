"""What a policy is: it proposes items, is told their exact scores, and proposes again.

A policy works on a block of queries at once, so that products over all items are matrix products. It is a generator:

    def rounds(self, block, knowledge):
        exact_scores = yield [Proposal(first_items) for query in block.queries]
        ...
        yield [Proposal(best_guesses) for query in block.queries]

The loop pays for each proposal and sends back the exact scores, one vector per query. A policy never calls the scorer
and never sees more budget than there is. One that can estimate the recall of its answers returns the estimates."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, TypeAlias, runtime_checkable

from anncur.arrays import FloatVector, Positions
from anncur.candidates.base import Retriever
from anncur.errors import InputError
from anncur.factors.cur import CurFactors
from anncur.items import Query
from anncur.search.derived import Derived
from anncur.search.split import SplitTable

if TYPE_CHECKING:
    from anncur.search.beliefs import Beliefs


@dataclass(frozen=True, eq=False)
class Knowledge:
    """What an index knows before a search begins."""

    n_items: int
    factors: CurFactors
    splits: SplitTable
    retrievers: Mapping[str, Retriever]
    beliefs: Beliefs
    anchor_queries: Sequence[Query] = ()
    derived: Derived = field(default_factory=Derived)

    def retriever(self, name: str | None = None) -> Retriever:
        """The named retriever, or the index's first."""
        names = list(self.retrievers)
        wanted = name or next(iter(names), None)
        if wanted is None or wanted not in self.retrievers:
            had = ", ".join(names) or "none"
            raise InputError(
                f"this index has the retrievers: {had}; build it with retrievers={(*names, wanted or 'bm25')!r}"
            )
        return self.retrievers[wanted]


@dataclass(frozen=True, eq=False)
class Block:
    """Some queries that are searched together; `budget` is for each of them and at most the number of items.

    `seed` is for policies that draw at random. A policy that can tell how much it has found stops at
    `target_recall`."""

    queries: Sequence[Query]
    k: int
    budget: int
    seed: int = 0
    target_recall: float | None = None


@dataclass(frozen=True, eq=False)
class Proposal:
    """Items to score next for one query, and the scores guessed for them where the policy guesses."""

    positions: Positions
    guesses: FloatVector | None = None


Rounds: TypeAlias = Generator[Sequence[Proposal], Sequence[FloatVector], Sequence[float] | None]


@runtime_checkable
class Policy(Protocol):
    """Decides what to score; `name` is what users call the method.

    `is_exact` marks a policy that means to score every item, and whose answer is partial when it can't."""

    @property
    def name(self) -> str: ...

    @property
    def is_exact(self) -> bool: ...

    def rounds(self, block: Block, knowledge: Knowledge, /) -> Rounds:
        """One list of proposals per round, one proposal per query."""
        ...
