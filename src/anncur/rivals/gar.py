"""GAR, graph-based adaptive re-ranking (MacAvaney, Tonellotto and Macdonald, 2022): what lies near a good item may be
good too.

A search takes turns between a retriever's ranking and the frontier, the neighbours of the items scored so far, those
of the best item first. Neighbours come from a graph over the items that is made once, without the scorer."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from anncur.arrays import FloatMatrix, FloatVector, Positions
from anncur.items import Item, Query
from anncur.numbers import whole_number
from anncur.ranking import top_k
from anncur.retrievers.base import Retriever
from anncur.rivals.embedded import embedded, unit_rows
from anncur.search.base import Knowledge, Proposal, QueryBlock, Rounds
from anncur.search.regression import even_rounds

MOST_NEIGHBOURS = 16
ITEMS_AT_ONCE = 256


@dataclass(frozen=True, eq=False)
class NeighbourGraph:
    """Of each item the others that are most like it, nearest first, (n_items, n_neighbours)."""

    neighbours: Positions


def graph_by_vectors(vectors: FloatMatrix, *, n_neighbours: int = MOST_NEIGHBOURS) -> NeighbourGraph:
    """Neighbours by the cosine of item vectors, (n_items, width)."""
    rows = unit_rows(vectors)
    starts = range(0, len(rows), ITEMS_AT_ONCE)
    return _graph((rows[start : start + ITEMS_AT_ONCE] @ rows.T for start in starts), len(rows), n_neighbours)


def graph_by_retriever(
    retriever: Retriever, items: Sequence[Item], *, n_neighbours: int = MOST_NEIGHBOURS
) -> NeighbourGraph:
    """Neighbours by the scores of a retriever that is fitted to these items, with items as queries."""
    queries = [Query(item.full_text) for item in items]
    starts = range(0, len(queries), ITEMS_AT_ONCE)
    rows = (np.array(retriever.scores(queries[start : start + ITEMS_AT_ONCE])) for start in starts)
    return _graph(rows, len(items), n_neighbours)


def _graph(blocks: Iterable[FloatMatrix], n_items: int, n_neighbours: int) -> NeighbourGraph:
    """From the likeness of all items to some of them, block after block; `blocks` are overwritten."""
    found: list[Positions] = []
    for block in blocks:
        for row in block:
            row[len(found)] = -np.inf  # no item is its own neighbour
            found.append(top_k(row, min(n_neighbours, n_items - 1)))
    return NeighbourGraph(np.stack(found))


@dataclass(frozen=True)
class Gar:
    """Scores rounds of about `batch_size` items, by turns from a retriever's ranking and from the frontier.

    The ranking is that of `retriever`: the named one, else the index's first. Of each scored item, the first
    `n_neighbours` in `graph` come to the frontier; without a graph, one is made of the item vectors of the index's
    embeddings when it is first needed."""

    graph: NeighbourGraph | None = None
    n_neighbours: int = 8
    batch_size: int = 16
    retriever: str | None = None
    name: ClassVar[str] = "gar"
    is_exact: ClassVar[bool] = False

    def __post_init__(self) -> None:
        for name in ("n_neighbours", "batch_size"):
            object.__setattr__(self, name, whole_number(name, getattr(self, name), least=1))

    def rounds(self, block: QueryBlock, knowledge: Knowledge) -> Rounds:
        neighbours = self._graph(knowledge).neighbours[:, : self.n_neighbours]
        retriever, among = knowledge.retriever(self.retriever), block.candidates(knowledge)
        is_candidate = np.zeros(knowledge.n_items, dtype=np.bool_)
        is_candidate[among.first(len(among))] = True
        # a row per query over all items is the largest thing here, so one query at a time
        rankings = (among.best(retriever.scores([query])[0], block.budget) for query in block.queries)
        walks = [_Walk(ranking, neighbours, is_candidate) for ranking in rankings]
        n_rounds = block.schedule.at_most(math.ceil(block.budget / self.batch_size))
        for turn, size in enumerate(even_rounds(block.budget, n_rounds)):
            proposed = [walk.propose(size, from_frontier=turn % 2 == 1) for walk in walks]
            exact_scores = yield [Proposal(positions) for positions in proposed]
            for walk, positions, of_query in zip(walks, proposed, exact_scores, strict=True):
                walk.observe(positions, of_query)
        return None

    def _graph(self, knowledge: Knowledge) -> NeighbourGraph:
        if self.graph is not None:
            return self.graph
        source = embedded(knowledge, None, method=self.name)
        n_neighbours = max(self.n_neighbours, MOST_NEIGHBOURS)

        def make() -> NeighbourGraph:
            return graph_by_vectors(source.vectors, n_neighbours=n_neighbours)

        made: NeighbourGraph = knowledge.cache.get((self.name, source.retriever.name, n_neighbours), make)
        return made


@dataclass
class _Walk:
    """One query: what was scored, and the frontier, where an item stands by the score of its best neighbour so far,
    then by how near it is to it."""

    ranking: Positions
    neighbours: Positions  # (n_items, n_neighbours)
    is_candidate: NDArray[np.bool_]
    scored: set[int] = field(default_factory=set)
    frontier: dict[int, tuple[float, int]] = field(default_factory=dict)  # minus the score, and the place

    def propose(self, size: int, *, from_frontier: bool) -> Positions:
        """The next items; where the frontier is too small, the ranking fills up."""
        reached = sorted(self.frontier, key=lambda item: (*self.frontier[item], item)) if from_frontier else []
        others = (item for item in self.ranking.tolist() if item not in self.scored)
        both = dict.fromkeys([*reached[:size], *others])
        return np.array(list(both)[:size], dtype=np.int64)

    def observe(self, positions: Positions, exact_scores: FloatVector) -> None:
        """Take the neighbours of what was scored to the frontier."""
        self.scored.update(positions.tolist())
        for position, score in zip(positions.tolist(), exact_scores.tolist(), strict=True):
            self.frontier.pop(position, None)
            for place, item in enumerate(self.neighbours[position].tolist()):
                if item not in self.scored and self.is_candidate[item]:
                    self.frontier[item] = min(self.frontier.get(item, (math.inf, 0)), (-score, place))
