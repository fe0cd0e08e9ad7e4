"""BAGEL (2026): a Gaussian process over embeddings for each query, and the upper confidence bound.

The kernel is a radial basis function of unit vectors. The process begins with the query itself, as if it were an item
with the highest score so far; each round takes the items with the highest upper confidence bounds. The scores of a
query are standardised by those that it has scored."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from anncur.arrays import FloatMatrix, FloatVector, Positions
from anncur.numbers import number, whole_number
from anncur.ranking import top_k
from anncur.rivals.embedded import embedded, unit_rows
from anncur.search.base import Knowledge, Proposal, QueryBlock, Rounds
from anncur.search.regression import even_rounds

LEAST_NOISE = 1e-4  # below, rounding in single precision makes the kernel of near duplicates singular


@dataclass(frozen=True)
class Bagel:
    """Scores items in `n_rounds` rounds of the same size: first a retriever's best, then the highest bounds.

    A bound is the posterior mean plus `exploration` standard deviations. The kernel of two unit vectors is
    exp(-`sharpness` x their squared distance), `noise` the variance of a score in units of that of all scores. Only the
    retriever's first `n_considered` items are looked at. `retriever` is the named one, else the one whose item vectors
    the index uses."""

    n_rounds: int = 10
    exploration: float = 0.5
    sharpness: float = 0.5
    noise: float = 0.1
    n_considered: int = 2000
    retriever: str | None = None
    name: ClassVar[str] = "bagel"
    is_exact: ClassVar[bool] = False

    def __post_init__(self) -> None:
        for name in ("n_rounds", "n_considered"):
            object.__setattr__(self, name, whole_number(name, getattr(self, name), least=1))
        for name, lowest in (("exploration", 0.0), ("sharpness", 0.0), ("noise", LEAST_NOISE)):
            object.__setattr__(self, name, number(name, getattr(self, name), least=lowest))

    def rounds(self, block: QueryBlock, knowledge: Knowledge) -> Rounds:
        source, among = embedded(knowledge, self.retriever, method=self.name), block.candidates(knowledge)
        n_considered = min(len(among), max(self.n_considered, block.budget))
        considered, query_vectors = source.begin(block.queries, among, n_considered)
        queries = unit_rows(query_vectors)
        processes = [
            Process(source.unit, items, query, sharpness=self.sharpness, noise=self.noise)
            for items, query in zip(considered, queries, strict=True)
        ]
        sizes = even_rounds(block.budget, block.schedule.at_most(self.n_rounds))
        places = [np.arange(sizes[0])] * len(processes)
        for size in sizes[1:]:
            proposed = [Proposal(items[some]) for items, some in zip(considered, places, strict=True)]
            exact_scores = yield proposed
            for process, some, of_query in zip(processes, places, exact_scores, strict=True):
                process.observe(some, of_query)
            places = [process.best(size, exploration=self.exploration) for process in processes]
        yield [Proposal(items[some]) for items, some in zip(considered, places, strict=True)]
        return None


class Process:
    """A Gaussian process over some `items`, by their unit `vectors`, of which one query scores some after others.

    Places are those among `items`. It keeps the kernel between scored and all items, whitened by the Cholesky factor of
    the scored ones, so that no round solves a system again."""

    def __init__(
        self, vectors: FloatMatrix, items: Positions, query: FloatVector, *, sharpness: float, noise: float
    ) -> None:
        self._vectors = vectors  # unit vectors of all items of the index, which all queries share
        self._items = items
        self._sharpness = sharpness
        self._noise = noise
        self._scores = np.empty(0)
        self._places = np.empty(0, dtype=np.int64)
        seed = self._kernel(query[None]) / np.sqrt(1 + noise)
        self._whitened = seed  # (1 + n_scored, n_items)
        self._variances = 1 - np.square(seed[0])
        # by columns what the factor makes of exact scores, of ones, and of the seed: the mean and spread of the scores
        # change with every round, and whatever they are, three columns combine to the standardised ones
        self._targets = np.array([[0.0, 0.0, 1 / np.sqrt(1 + noise)]])

    def observe(self, places: Positions, exact_scores: FloatVector) -> None:
        """Take in the scores of some of the items."""
        cross = self._whitened[:, places]  # (1 + n_scored, n_new)
        rows = self._kernel(self._vectors[self._items[places]]) - cross.T @ self._whitened
        factor = np.linalg.cholesky(rows[:, places].astype(np.float64) + self._noise * np.eye(len(places)))
        targets = np.stack([exact_scores, np.ones(len(places)), np.zeros(len(places))], axis=1)
        new = np.linalg.solve(factor, rows).astype(np.float32)
        self._targets = np.concatenate([self._targets, np.linalg.solve(factor, targets - cross.T @ self._targets)])
        self._whitened = np.concatenate([self._whitened, new])
        self._variances = self._variances - np.square(new).sum(axis=0)
        self._places, self._scores = np.append(self._places, places), np.append(self._scores, exact_scores)

    def means(self) -> FloatVector:
        """The posterior means of all items, in standard deviations from the mean of what was scored."""
        mean, spread = self._scores.mean(), self._scores.std() or 1.0
        highest = (self._scores.max() - mean) / spread
        combined = self._targets @ np.array([1 / spread, -mean / spread, highest])
        means: FloatVector = combined @ self._whitened
        return means

    def best(self, n_best: int, *, exploration: float) -> Positions:
        """The items with the highest upper confidence bounds that weren't scored."""
        bounds = self.means() + exploration * np.sqrt(np.maximum(self._variances, 0))
        bounds[self._places] = -np.inf
        return top_k(bounds, n_best)

    def _kernel(self, vectors: FloatMatrix) -> FloatMatrix:
        """Of some unit vectors and `items`, (n, n_items)."""
        kernel: FloatMatrix = np.exp(2 * self._sharpness * (vectors @ self._vectors[self._items].T - 1))
        return kernel
