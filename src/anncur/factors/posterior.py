"""A Gaussian posterior over a query's vector: estimates of all scores, given the exact ones so far.

An item has an offset and a vector (`items.py`), a query a vector of its own, and

    score = offset + item vector . query vector + noise.

A query may have columns of its own beside the items' vectors, with coefficients that are unknown like its vector. Its
vector has a standard normal distribution, as those of the anchor queries have: that is the prior. Exact scores turn it
into the posterior, which is least squares regularised by the prior, and so never ill-conditioned.

Feeds `search/posterior_search.py` and `least_squares.py`. Pure NumPy: no files, no models. Systems are solved in
float64; products are in float32 where the noise is far above its rounding."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from anncur.arrays import FloatMatrix, FloatVector, Positions
from anncur.factors.items import ItemModel

SAFE_NOISE = 1e-4  # of the largest variance of an item; float32 rounds products to about 1e-6 of it


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

    def misfit(self, weights: FloatMatrix | None = None, *, n_first: int | None = None) -> FloatVector:
        """The mean squared innovation of each query, drawn towards the 1 that the model expects. (n_queries,)

        `weights` are those of the sides, (n_queries, n_sides); by default 1. With `n_first`, of as many items that were
        observed first."""
        weight = 5.0  # observations that the expectation counts for
        sides = np.ones(self._innovations.shape[::2]) if weights is None else weights
        innovations = self._innovations[:, :n_first]
        squares = np.square((innovations @ sides[..., None])[..., 0]).sum(axis=1)
        misfit: FloatVector = (weight + squares) / (weight + innovations.shape[1])
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
