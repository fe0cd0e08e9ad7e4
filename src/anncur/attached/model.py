"""The model of scores without anchor queries, over a collection: embeddings alone say which items are alike.

    score = level + coefficient x (standardised comparison of embeddings) + embedding . query vector

Level, coefficient and vector are the query's own (`search/prior.py`). All but the level is one comparison of the
item's embedding with a point: so the database ranks all of its items by the posterior mean, in every round. What the
database's metric can't express is made good on what it gives. Reads a `Pool`, feeds the method posterior."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from anncur.arrays import NO_POSITIONS, FloatMatrix, FloatVector, Positions, Selector
from anncur.attached.base import DISTANCE, FoundRows
from anncur.attached.pool import Pool, as_compared, compared
from anncur.candidates import Candidates
from anncur.factors.items import EmbeddingBasis, ItemModel, in_components, most_variance, noise_of
from anncur.item_scores import HeldScores
from anncur.items import Item, Query
from anncur.ranking import top_k
from anncur.retrievers.embeddings import EMBEDDINGS
from anncur.retrievers.features import Scale
from anncur.retrievers.user_embeddings import UserRetriever
from anncur.search.base import Knowledge, Proposal, QueryBlock, Rounds
from anncur.search.model import PosteriorModel
from anncur.search.prior import Additive, QueryPrior, prior_of
from anncur.search.settings import PosteriorSettings, Tuned
from anncur.vectors.base import Ranked
from anncur.vectors.exact import ExactVectors

N_SAMPLED = 2000  # items that the scale of comparisons is taken from
LEAST_PULL = 0.05  # of a comparison by distance: below, the point would be far from all items
NO_OFFSETS: FloatVector = np.broadcast_to(np.float32(0), 2**40)  # takes no memory


@dataclass(frozen=True, eq=False)
class Basis:
    """Embeddings centred and in principal components, with a mean variance of 1, and back."""

    sample: FloatMatrix  # (n_sampled, width), as compared
    embeddings: EmbeddingBasis

    @classmethod
    def fit(cls, sample: FoundRows, metric: str) -> Basis:
        """To some of the items."""
        rows = as_compared(sample.embeddings, metric)
        return cls(rows, EmbeddingBasis.fit(rows, 1.0))

    @property
    def n_components(self) -> int:
        components = self.embeddings.components
        return int(self.sample.shape[1] if components is None else components.shape[1])

    def scaled(self, variance: float) -> Basis:
        """The same with another mean variance."""
        factor = self.embeddings.factor * float(np.sqrt(variance))
        return replace(self, embeddings=replace(self.embeddings, factor=factor))

    def apply(self, embeddings: FloatMatrix) -> FloatMatrix:
        """(…, width) to (…, n_components)."""
        return self.embeddings.apply(embeddings)

    def back(self, query_vectors: FloatMatrix) -> FloatMatrix:
        """What embeddings are multiplied with where their vectors are multiplied with these, but for a constant."""
        components = self.embeddings.components
        scaled: FloatMatrix = query_vectors.astype(np.float32) * np.float32(self.embeddings.factor)
        return in_components(scaled, None if components is None else components.T)


@dataclass(frozen=True, eq=False)
class Comparison:
    """Queries' embeddings compared with items', standardised: `Features` of the prior."""

    pool: Pool
    metric: str
    embeddings: FloatMatrix  # (n_queries, width)
    scale: Scale

    @classmethod
    def of(cls, pool: Pool, metric: str, embeddings: FloatMatrix, basis: Basis) -> Comparison:
        """With the scale of a sample."""
        queries = as_compared(embeddings, metric)
        return cls(pool, metric, queries, Scale.of(compared(basis.sample[None], queries, metric)))

    def at(self, positions: Positions) -> FloatMatrix:
        found = compared(self.pool.embeddings(positions), self.embeddings, self.metric)
        return self.scale.features(found)[:, :1]

    def of_items(self, items: Selector) -> FloatMatrix:
        raise AssertionError("a collection is never listed")

    def keep(self, rows: Positions) -> Comparison:
        return Comparison(self.pool, self.metric, self.embeddings[rows], self.scale.keep(rows))

    def points(self, directions: FloatMatrix, coefficients: FloatVector) -> FloatMatrix:
        """The points that items are ranked by: a comparison with these has the order of `coefficients` times the
        features, plus the products with `directions`. (n_queries, width)"""
        pull = (coefficients / self.scale.spread[:, 0])[:, None]  # of the comparison as it is
        if self.metric != DISTANCE:
            points: FloatMatrix = directions + pull * self.embeddings
            return points
        least = LEAST_PULL / self.scale.spread[:, :1]
        moved: FloatMatrix = self.embeddings + directions / (2 * np.maximum(pull, least))
        return moved


class PooledVectors(ExactVectors):
    """Vectors of the items in a pool; a ranking is of all items of the collection, which come into the pool."""

    def __init__(self, pool: Pool, basis: Basis) -> None:
        super().__init__(np.empty((0, basis.n_components), dtype=np.float32))
        self._pool = pool
        self._basis = basis

    def __len__(self) -> int:
        return self._pool.n_items

    def take(self, positions: Positions) -> FloatMatrix:
        return self._basis.apply(self._pool.embeddings(positions))

    def top(
        self,
        query_vectors: FloatMatrix,
        n_best: int,
        *,
        exclude: Sequence[Positions],
        among: Candidates,
        means: Any = None,
    ) -> list[Ranked]:
        found = self._pool.nearest(self._points(query_vectors, means), n_best, exclude)
        ranked = []
        for row, (positions, vector) in enumerate(zip(found, query_vectors.astype(np.float32), strict=True)):
            ordered = np.sort(positions)
            own = _only(means, row)
            guesses = self.take(ordered) @ vector + own.at(ordered[None])[0]
            best = top_k(guesses, n_best)
            ranked.append(Ranked(ordered[best], guesses[best]))
        return ranked

    def _points(self, query_vectors: FloatMatrix, means: Additive) -> FloatMatrix:
        directions = self._basis.back(query_vectors)
        if not isinstance(means.features, Comparison) or means.coefficients is None:
            return directions
        return means.features.points(directions, means.coefficients[:, 0].astype(np.float32))


class AttachedModel(PosteriorModel):
    """What the method posterior knows of a collection: its embeddings, by a sample of them."""

    def __init__(self, pool: Pool, basis: Basis, metric: str, embedder: UserRetriever) -> None:
        super().__init__(HeldScores(np.empty((0, 0), dtype=np.float32)), (), {EMBEDDINGS: _Unlisted()}, Tuned())
        self._pool = pool
        self._basis = basis
        self._metric = metric
        self._embedder = embedder

    def item_model(self, settings: PosteriorSettings) -> ItemModel:
        basis = self._basis.scaled(settings.embedding_share)
        most = most_variance(basis.apply(basis.sample))
        return ItemModel(NO_OFFSETS, PooledVectors(self._pool, basis), noise_of(settings.noise_share, 1.0), most)

    def engine_index(self, settings: PosteriorSettings) -> None:
        """None: the database ranks."""

    def prior(self, settings: PosteriorSettings, queries: Sequence[Query]) -> QueryPrior:
        self._pool.begin_block()
        features = self.compare(queries) if settings.retrievers else None
        prior = prior_of(NO_OFFSETS, features, settings, is_scale_free=True)
        return replace(prior, initial=None)  # the first round is ranked by the database too

    def nearest(self, queries: Sequence[Query], n_best: int) -> list[Positions]:
        """The items whose embeddings are closest to those of queries."""
        self._pool.begin_block()
        points = self._embed(queries)
        return self._pool.nearest(points, n_best, [NO_POSITIONS] * len(queries))

    def compare(self, queries: Sequence[Query]) -> Comparison:
        """Queries' embeddings with items'."""
        return Comparison.of(self._pool, self._metric, self._embed(queries), self._basis)

    def _embed(self, queries: Sequence[Query]) -> FloatMatrix:
        return self._embedder.embed_queries(queries, width=self._basis.sample.shape[1])


@dataclass(frozen=True)
class NearestRerank:
    """Scores the items that the database ranks highest for a query's embedding."""

    name: ClassVar[str] = "rerank"
    is_exact: ClassVar[bool] = False

    def rounds(self, block: QueryBlock, knowledge: Knowledge) -> Rounds:
        model = knowledge.posterior
        assert isinstance(model, AttachedModel), "it is for collections alone"
        yield [Proposal(positions) for positions in model.nearest(block.queries, block.budget)]
        return None


class _Unlisted:
    """Stands for the database among retrievers: it never scores all items."""

    name = EMBEDDINGS

    def fit(self, items: Iterable[Item]) -> None: ...

    def scores(self, queries: Sequence[Query]) -> Any:
        raise AssertionError("a collection is never listed")

    def item_vectors(self) -> FloatMatrix:
        return np.empty((0, 1), dtype=np.float32)


def _only(means: Additive, row: int) -> Additive:
    """Those of one query."""
    features = None if means.features is None else means.features.keep(np.array([row]))
    coefficients = None if means.coefficients is None else means.coefficients[row : row + 1]
    return Additive(means.offsets, features, coefficients)
