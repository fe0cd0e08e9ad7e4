"""Least squares for query vectors that are brought up to date with every round of exact scores.

It is the posterior of `posterior.py` with hardly any noise, corrected once: no pseudo-inverse is ever computed, and
what the earlier rounds cost is not paid again. Feeds `search/regression.py`. Pure NumPy in float64."""

from __future__ import annotations

import numpy as np

from anncur.arrays import FloatMatrix, Positions
from anncur.factors.items import ItemModel
from anncur.factors.posterior import QueryPosterior

LEAST_CUTOFF = 1e-6  # its square, the noise, stays above the rounding errors of products in float64


def least_squares_items(vectors: FloatMatrix, *, cutoff: float, level: float = 0.0) -> ItemModel:
    """Items for least squares: all offsets are `level`, and there is hardly any noise.

    Principal components of the scored items that are shorter than `cutoff` times the longest item vector are taken for
    noise; they are damped, not cut off. The longest of all items, because rounding errors grow with it and must stay
    below the noise."""
    squares = np.einsum("ij,ij->i", vectors, vectors, dtype=np.float64)
    noise = cutoff**2 * (float(squares.max(initial=0.0)) or 1.0)
    return ItemModel.of(np.full(len(vectors), level), vectors, noise)


class LeastSquares:
    """The query vectors of least length among those that fit the exact scores of a block of queries best."""

    def __init__(self, n_queries: int, model: ItemModel) -> None:
        self._model = model
        self._posterior = QueryPosterior(n_queries, model)
        self._vectors = np.zeros((n_queries, 0, model.width))  # of the scored items
        self._scores = np.zeros((n_queries, 0))  # theirs, less the offsets
        self.query_vectors: FloatMatrix = np.zeros((n_queries, model.width))

    def observe(self, positions: Positions, exact_scores: FloatMatrix) -> None:
        """Take in new exact scores; both are (n_queries, n_new)."""
        scores = exact_scores - self._model.offsets[positions]
        self._posterior.observe(positions, scores)
        self._vectors = np.concatenate([self._vectors, self._model.vectors.take(positions)], axis=1)
        self._scores = np.concatenate([self._scores, scores], axis=1)
        self.query_vectors = self._corrected(self._posterior.query_vectors)

    def _corrected(self, query_vectors: FloatMatrix) -> FloatMatrix:
        """The same regression of what these leave unfitted, added: it takes away what noise and rounding did."""
        residuals = self._scores - (self._vectors @ query_vectors[..., None])[..., 0]
        gradients = (self._vectors.mT @ residuals[..., None])[..., 0]
        correction = self._posterior.posterior_covariance_times(gradients) / self._model.noise
        corrected: FloatMatrix = query_vectors + correction
        return corrected
