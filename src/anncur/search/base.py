"""What a method is: it proposes items, gets their exact scores, and proposes again.

A method works on a block of queries at once, so that products over all items are matrix products. It is a generator:

    def rounds(self, block, knowledge):
        exact_scores = yield [Proposal(first_items) for query in block.queries]
        ...
        yield [Proposal(best_guesses) for query in block.queries]

The loop pays for each proposal and sends back the exact scores, one vector per query. A method never calls the scorer
and never sees more budget than there is. It proposes items of `block.candidates(knowledge)` only, which a filter may
have left. One that can estimate the recall of its answers returns the estimates: a sequence of recalls or, where it
also knows how unlike the anchor queries its queries are, `Estimates`."""

from __future__ import annotations

import threading
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias, runtime_checkable

from anncur.arrays import FloatMatrix, FloatVector, Positions
from anncur.caching import Cache
from anncur.candidates import Candidates
from anncur.factors.cur import CurFactors
from anncur.items import Query
from anncur.ranking import Explanation
from anncur.retrievers.base import Retriever
from anncur.search.model import PosteriorModel, check_known
from anncur.search.schedule import Schedule
from anncur.search.splits import SplitTable
from anncur.vectors.base import VectorIndex
from anncur.vectors.engines import VectorEngine
from anncur.vectors.exact import ExactVectors


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
    engine: VectorEngine = field(default_factory=VectorEngine)
    cache: Cache[Any] = field(default_factory=lambda: Cache(2))
    is_used: threading.Event = field(default_factory=threading.Event)  # by a search, so that all is made and loaded

    def ranked_anchor_scores(self) -> VectorIndex:
        """The anchor scores as item vectors, in the index's engine; made once."""
        vectors = ExactVectors(self.factors.item_vectors)
        if not self.engine.is_worth(self.n_items):
            return vectors
        found: VectorIndex = self.cache.get("anchor scores", lambda: self.engine.index(vectors))
        return found

    def retriever(self, name: str | None = None) -> Retriever:
        """The named retriever, or the index's first."""
        wanted = name or next(iter(self.retrievers), "bm25")
        check_known([wanted], self.retrievers)
        return self.retrievers[wanted]


@dataclass(frozen=True, eq=False)
class QueryBlock:
    """Some queries that are searched together; `budget` is for each of them and at most the number of items.

    `seed` is for methods that draw at random. A method that estimates recall stops at `target_recall`, and one that
    knows how sure it is stops where nothing above `min_score` is likely to be left. `schedule` limits the rounds."""

    queries: Sequence[Query]
    k: int
    budget: int
    seed: int = 0
    target_recall: float | None = None
    min_score: float | None = None  # higher is better
    schedule: Schedule = field(default_factory=Schedule)
    noise: float = 0.0  # variance of the scorer's answers to one pair
    noise_share: float = 0.0  # the same as a share of the variance over different pairs
    passing: Positions | None = None  # items that may be scored, in ascending order; None for all
    explains: bool = False  # whether a method that can tells what it knew of the items that it proposes

    def candidates(self, knowledge: Knowledge) -> Candidates:
        """The items that may be scored."""
        return Candidates(knowledge.n_items, self.passing)


@dataclass(frozen=True, eq=False)
class Proposal:
    """Items to score next for one query, and the scores guessed for them where the method guesses."""

    positions: Positions
    guesses: FloatVector | None = None
    explanation: Explanation | None = None


@dataclass(frozen=True, eq=False)
class Estimates:
    """What a method can tell of its answers: a recall and perhaps a drift for each query, NaN where it isn't known."""

    recalls: Sequence[float] = ()
    drifts: Sequence[float] = ()


# a DeadlineError comes out of the yield when time is up; a method that estimates recall may then return estimates
Rounds: TypeAlias = Generator[Sequence[Proposal], Sequence[FloatVector], Sequence[float] | Estimates | None]


@runtime_checkable
class Method(Protocol):
    """Decides what to score; `name` is what users call it.

    `is_exact` marks a method that means to score every item, and whose answer is partial when it can't. One that
    returns estimates of recall and stops at a `target_recall` has an attribute `estimates_recall`."""

    @property
    def name(self) -> str: ...

    @property
    def is_exact(self) -> bool: ...

    def rounds(self, block: QueryBlock, knowledge: Knowledge, /) -> Rounds:
        """One list of proposals per round, one proposal per query."""
        ...


def best_guesses(
    vectors: VectorIndex,
    query_vectors: FloatMatrix,
    *,
    n_best: int,
    exclude: Sequence[Positions],
    among: Candidates,
) -> list[Proposal]:
    """For each query the `n_best` candidates by inner product, best first, without its `exclude`."""
    ranked = vectors.top(query_vectors, n_best, exclude=exclude, among=among)
    return [Proposal(*of_query) for of_query in ranked]


def raised(proposal: Proposal, level: float) -> Proposal:
    """The same with guesses that are higher by a query's level."""
    assert proposal.guesses is not None, "best guesses have some"
    return Proposal(proposal.positions, proposal.guesses + level)
