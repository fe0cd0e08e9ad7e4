"""A Gaussian posterior over a query's vector: estimates of all scores, given the exact ones so far.

An item has an offset and a vector, a query a vector of its own, and

    score = offset + item vector . query vector + noise.

A query may have columns of its own beside the items' vectors, with coefficients that are unknown like its vector.

Item vectors are the item's centred scores under the anchor queries, so that the anchor queries' own vectors, and by
the same measure those of other queries, have a standard normal distribution: that is the prior. Exact scores turn it
into the posterior, which is least squares regularised by the prior, and so never ill-conditioned.

Reads exact scores, feeds `search/posterior.py` and `least_squares.py`. Pure NumPy: no files, no models. Systems are
solved in float64; products are in float32 where the noise is far above its rounding."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from anncur.arrays import FloatMatrix, FloatVector, Positions
from anncur.vectors.exact import ExactVectors
from anncur.vectors.half import halved

ITEMS_AT_ONCE = 8192
MOST_COMPONENTS = 256  # of the anchor queries' covariance; the others are left to the noise, and are little missed
MOST_EMBEDDING_COMPONENTS = 256
OFFSET_SPREAD = 0.3  # of a query's coefficient of the offsets, whose mean is 1
LEAST_NOISE_SHARE = 1e-6  # of an item's variance: exact scores of low rank have none, and rounding must not rule
SAFE_NOISE = 1e-4  # of the largest variance of an item; float32 rounds products to about 1e-6 of it


@dataclass(frozen=True, eq=False)
class ItemModel:
    """Offsets and vectors of items: the prior of scores before a query is known."""

    offsets: FloatVector  # (n_items,)
    vectors: ExactVectors
    noise: float  # a variance
    most_variance: float  # of an item

    @classmethod
    def of(cls, offsets: FloatVector, vectors: FloatMatrix, noise: float) -> ItemModel:
        """With these vectors, (n_items, width)."""
        squares = np.einsum("ij,ij->i", vectors, vectors)
        return cls(offsets, ExactVectors(vectors), noise, float(squares.max(initial=0.0)))

    @property
    def width(self) -> int:
        """Of the vectors."""
        return self.vectors.width

    def take(self, items: Positions) -> ItemModel:
        """That of some items."""
        return ItemModel(self.offsets[items], ExactVectors(self.vectors.take(items)), self.noise, self.most_variance)

    def halved(self) -> ItemModel:
        """The same with vectors in half precision, where that holds them."""
        array = self.vectors.all()
        starts = range(0, len(array), ITEMS_AT_ONCE)
        parts = [halved(array[start : start + ITEMS_AT_ONCE]) for start in starts]
        if any(part.dtype != np.float16 for part in parts):
            return self
        return replace(self, vectors=ExactVectors(np.concatenate(parts)))

    def with_noise(self, variance: float) -> ItemModel:
        """The same for scores that are noisier by this much."""
        return replace(self, noise=self.noise + variance) if variance else self


def fit_items(
    anchor_scores: FloatMatrix,
    fitted: FloatMatrix | None = None,
    *,
    noise_share: float,
    embeddings: FloatMatrix | None = None,
    embedding_share: float = 0.0,
) -> ItemModel:
    """Offsets and vectors of items from their scores under the anchor queries, (n_items, n_anchor_queries).

    `fitted` is the part of these scores that retrievers account for, and that a query's prior mean brings back.
    The rest is as in `item_model`."""
    offsets, vectors = centred_items(anchor_scores, fitted)
    return item_model(offsets, vectors, noise_share=noise_share, embeddings=embeddings, embedding_share=embedding_share)


def centred_items(anchor_scores: FloatMatrix, fitted: FloatMatrix | None = None) -> tuple[FloatVector, FloatMatrix]:
    """Offsets and vectors before other settings come in, which is the long part of `fit_items`."""
    n_items, n_queries = anchor_scores.shape
    offsets = np.zeros(n_items, dtype=np.float32)
    vectors = np.zeros((n_items, n_queries), dtype=np.float32)
    scale = 1 / np.sqrt(max(1, n_queries - 1))
    for start in range(0, n_items if n_queries else 0, ITEMS_AT_ONCE):
        part = slice(start, start + ITEMS_AT_ONCE)
        residuals = anchor_scores[part] if fitted is None else anchor_scores[part] - fitted[part]
        offsets[part] = residuals.mean(axis=1)
        vectors[part] = (residuals - offsets[part, None]) * scale
    return offsets, _principal(vectors, MOST_COMPONENTS)


def item_model(
    offsets: FloatVector,
    vectors: FloatMatrix,
    *,
    noise_share: float,
    embeddings: FloatMatrix | None = None,
    embedding_share: float = 0.0,
) -> ItemModel:
    """The model of items with these offsets and vectors.

    `embeddings`, (n_items, any width), are a retriever's view of which items are alike; `embedding_share` of the
    variance is theirs; where the items have no vectors, it is their variance. The noise is `noise_share` of the mean
    variance of an item."""
    if not vectors.shape[1]:
        embedded = join_embeddings(vectors, embeddings if embedding_share else None, variance=embedding_share)
        return ItemModel.of(offsets, embedded, noise_of(noise_share, 1.0))
    shared = share_with_embeddings(vectors, embeddings, share=embedding_share)
    return ItemModel.of(offsets, beside_offsets(offsets, shared), noise_of(noise_share, mean_square(vectors)))


def beside_offsets(offsets: FloatVector, vectors: FloatMatrix) -> FloatMatrix:
    """Vectors with the offsets as a column behind them: how far a query's scores follow these is its own."""
    column = OFFSET_SPREAD * (offsets - offsets.mean())
    return np.hstack([vectors, column[:, None].astype(np.float32)])


def noise_of(noise_share: float, variance: float) -> float:
    """The noise's variance, from its share of an item's."""
    return max(noise_share, LEAST_NOISE_SHARE) * (variance or 1.0)


def join_embeddings(vectors: FloatMatrix, embeddings: FloatMatrix | None, *, variance: float) -> FloatMatrix:
    """Vectors with embeddings beside them, that add this variance to an item's on average."""
    return vectors if embeddings is None else np.hstack([vectors, _scaled_embeddings(embeddings, variance)])


def share_with_embeddings(vectors: FloatMatrix, embeddings: FloatMatrix | None, *, share: float) -> FloatMatrix:
    """Vectors with embeddings beside them, to which a share of the variance goes."""
    if embeddings is None or not share:
        return vectors
    variance = mean_square(vectors) or 1.0
    return join_embeddings(np.float32(np.sqrt(1 - share)) * vectors, embeddings, variance=share * variance)


def _scaled_embeddings(embeddings: FloatMatrix, variance: float) -> FloatMatrix:
    """Centred, in principal components, with this mean variance; (n_items, at most MOST_EMBEDDING_COMPONENTS)."""
    rows = embeddings.astype(np.float32, copy=False)
    centred = _principal(rows - rows.mean(axis=0), MOST_EMBEDDING_COMPONENTS)
    scaled: FloatMatrix = (np.sqrt(variance / (mean_square(centred) or 1.0)) * centred).astype(np.float32)
    return scaled


def _principal(vectors: FloatMatrix, most: int) -> FloatMatrix:
    """The vectors in at most `most` principal components."""
    if vectors.shape[1] <= most:
        return vectors
    components = np.linalg.eigh(gram(vectors))[1][:, -most:]
    return vectors @ components.astype(np.float32)


def gram(vectors: FloatMatrix) -> FloatMatrix:
    """Products of the columns with each other, (width, width), summed over the items block by block."""
    total = np.zeros((vectors.shape[1], vectors.shape[1]))
    for start in range(0, len(vectors), ITEMS_AT_ONCE):
        part = vectors[start : start + ITEMS_AT_ONCE].astype(np.float64)
        total += part.T @ part
    return total


def mean_square(vectors: FloatMatrix) -> float:
    """The mean squared length of the rows."""
    return float(np.einsum("ij,ij->", vectors, vectors, dtype=np.float64) / max(1, len(vectors)))


class OwnColumns(Protocol):
    """Columns beside the items' vectors that differ from query to query, like features of a retriever's scores."""

    @property
    def n_columns(self) -> int: ...

    def columns(self, positions: Positions, /) -> FloatMatrix:
        """For some items of each query, times their coefficients' standard deviation. (n_queries, n, n_columns)"""
        ...


class QueryPosterior:
    """The posterior of a block of queries, updated with every round of exact scores.

    Unknown are a query's vector and, behind it, its coefficients of columns of its own. The vectors of scored items are
    kept whitened, that is, made independent of one another. An update then costs products with what is new, and no
    system is solved twice. Several right-hand sides can be observed at once."""

    def __init__(self, n_queries: int, model: ItemModel, own: OwnColumns | None = None, *, n_sides: int = 1) -> None:
        self._model = model
        self._own = own
        width = model.width + (own.n_columns if own else 0)
        is_safe = model.noise > SAFE_NOISE * model.most_variance and not (own and own.n_columns)  # they may be spiky
        precision = np.float32 if is_safe else np.float64
        self._buffer = np.zeros((n_queries, 0, width), dtype=precision)  # for whitened vectors
        self._innovations = np.zeros((n_queries, 0, n_sides))  # given earlier items, in standard deviations
        self.solutions = np.zeros((n_queries, width, n_sides))  # posterior means

    @property
    def query_vectors(self) -> FloatMatrix:
        """The posterior means of the first side, (n_queries, width)."""
        return self.solutions[..., 0]

    def observe(self, positions: Positions, residuals: FloatMatrix) -> None:
        """Take in new exact scores less their prior means, (n_queries, n_new) or (n_queries, n_new, n_sides)."""
        sides = residuals[..., None] if residuals.ndim == 2 else residuals
        new = self._vectors(positions)
        projected = new @ self._whitened.mT  # (n_queries, n_new, n_scored)
        whitening = np.linalg.inv(np.linalg.cholesky(self._covariance(new, projected)))
        whitened = whitening.astype(new.dtype) @ (new - projected @ self._whitened)
        innovations = whitening @ (sides - projected @ self._innovations)
        self._append(whitened, innovations)
        self.solutions = self.solutions + whitened.mT @ innovations

    def keep(self, rows: Positions, own: OwnColumns | None = None) -> None:
        """Continue with some of the queries only, whose own columns are these."""
        self._own = own
        self._buffer, self._innovations = self._buffer[rows], self._innovations[rows]
        self.solutions = self.solutions[rows]

    def posterior_covariance_times(self, vectors: FloatMatrix) -> FloatMatrix:
        """The posterior covariance times one vector for each query. (n_queries, width)"""
        projected = self._whitened @ vectors[..., None]
        left: FloatMatrix = vectors - (self._whitened.mT @ projected)[..., 0]
        return left

    def covariance(self, positions: Positions) -> FloatMatrix:
        """Of the scores of unscored items, (n_queries, n, n) for positions of (n_queries, n), without `misfit`."""
        vectors = self._vectors(positions)
        return self._covariance(vectors, vectors @ self._whitened.mT)

    def misfit(self, weights: FloatMatrix | None = None) -> FloatVector:
        """The mean squared innovation of each query, drawn towards the 1 that the model expects. (n_queries,)

        `weights` are those of the sides, (n_queries, n_sides); by default 1."""
        weight = 5.0  # observations that the expectation counts for
        sides = np.ones(self._innovations.shape[::2]) if weights is None else weights
        squares = np.square((self._innovations @ sides[..., None])[..., 0]).sum(axis=1)
        misfit: FloatVector = (weight + squares) / (weight + self._innovations.shape[1])
        return misfit

    @property
    def _whitened(self) -> FloatMatrix:
        """Of the scored items, (n_queries, n_scored, width)."""
        return self._buffer[:, : self._innovations.shape[1]]

    def _vectors(self, positions: Positions) -> FloatMatrix:
        """(n_queries, n, width)"""
        vectors = self._model.vectors.take(positions).astype(self._buffer.dtype, copy=False)
        if self._own is None:
            return vectors
        return np.concatenate([vectors, self._own.columns(positions).astype(vectors.dtype, copy=False)], axis=2)

    def _covariance(self, vectors: FloatMatrix, projected: FloatMatrix) -> FloatMatrix:
        """Of the scores of items, from their vectors and the products with those of scored ones. (n_queries, n, n)"""
        left = (vectors @ vectors.mT - projected @ projected.mT).astype(np.float64)
        return left + self._model.noise * np.eye(left.shape[1])

    def _append(self, whitened: FloatMatrix, innovations: FloatMatrix) -> None:
        """Room grows by doubling, so that what is there is seldom copied."""
        n_scored, n_all = self._innovations.shape[1], self._innovations.shape[1] + innovations.shape[1]
        if n_all > self._buffer.shape[1]:
            more = np.empty(
                (len(self._buffer), max(n_all, 2 * n_scored), self._buffer.shape[2]), dtype=self._buffer.dtype
            )
            more[:, :n_scored] = self._whitened
            self._buffer = more
        self._buffer[:, n_scored:n_all] = whitened
        self._innovations = np.concatenate([self._innovations, innovations], axis=1)
