"""What a method is: it proposes items, gets their exact scores, and proposes again.

A method works on a block of queries at once, so that products over all items are matrix products. It is a generator:

    def rounds(self, block, knowledge):
        exact_scores = yield [Proposal(first_items) for query in block.queries]
        ...
        yield [Proposal(best_guesses) for query in block.queries]

The loop pays for each proposal and sends back the exact scores, one vector per query. A method never calls the scorer
and never sees more budget than there is. One that can estimate the recall of its answers returns the estimates."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias, runtime_checkable

from anncur.arrays import FloatVector, Positions
from anncur.caching import Cache
from anncur.errors import InputError
from anncur.factors.cur import CurFactors
from anncur.items import Query
from anncur.retrievers.base import Retriever
from anncur.search.model import PosteriorModel
from anncur.search.splits import SplitTable


@dataclass(frozen=True, eq=False)
class Knowledge:
    """What an index knows before a search begins.

    `cache` is for what a method makes of it on first use; that may be as large as the item vectors, so little is
    kept."""

    n_items: int
    factors: CurFactors
    splits: SplitTable
    retrievers: Mapping[str, Retriever]
    posterior: PosteriorModel
    anchor_queries: Sequence[Query] = ()
    cache: Cache[Any] = field(default_factory=lambda: Cache(2))

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
class QueryBlock:
    """Some queries that are searched together; `budget` is for each of them and at most the number of items.

    `seed` is for methods that draw at random. A method that estimates recall stops at `target_recall`."""

    queries: Sequence[Query]
    k: int
    budget: int
    seed: int = 0
    target_recall: float | None = None


@dataclass(frozen=True, eq=False)
class Proposal:
    """Items to score next for one query, and the scores guessed for them where the method guesses."""

    positions: Positions
    guesses: FloatVector | None = None


Rounds: TypeAlias = Generator[Sequence[Proposal], Sequence[FloatVector], Sequence[float] | None]


@runtime_checkable
class Method(Protocol):
    """Decides what to score; `name` is what users call it.

    `is_exact` marks a method that means to score every item, and whose answer is partial when it can't. One that
    returns estimates of recall and stops at a `target_recall` says so by an attribute `estimates_recall`."""

    @property
    def name(self) -> str: ...

    @property
    def is_exact(self) -> bool: ...

    def rounds(self, block: QueryBlock, knowledge: Knowledge, /) -> Rounds:
        """One list of proposals per round, one proposal per query."""
        ...
