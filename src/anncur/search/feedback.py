"""The feedback model: offsets and vectors of items, fitted to the query log together with the anchor queries.

Reads exact scores of searches and of anchor queries, feeds `posterior.py`. Costs no pairs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from anncur.arrays import FloatMatrix, FloatVector, Positions
from anncur.factors.items import mean_square
from anncur.factors.partial import PartialFit, PartialRows, fit_partial
from anncur.items import Query
from anncur.retrievers.base import Retriever
from anncur.retrievers.features import (
    Coefficients,
    NamedCoefficients,
    features_of_pairs,
    flat_coefficients,
    named_coefficients,
    predict_items,
)

LEAST_ANCHORS = 2  # queries; a single one has no spread


@dataclass(frozen=True, eq=False)
class ScoredQuery:
    """A query, and the exact scores that a search paid for."""

    query: Query
    positions: Positions
    exact_scores: FloatVector


@dataclass(frozen=True, eq=False)
class FeedbackModel:
    """Offsets and vectors of items, side by side in `item_rows`; those of an item that was never scored are the
    `prior_mean`.

    They are for residuals: scores less what retrievers predict with these `coefficients`. It was fitted to `n_queries`
    of the query log."""

    item_rows: FloatMatrix  # (n_items, 1 + width), float32
    prior_mean: FloatVector  # (1 + width,), float32
    noise: float
    coefficients: NamedCoefficients
    n_queries: int

    @property
    def offsets(self) -> FloatVector:
        """(n_items,)"""
        return self.item_rows[:, 0]

    @property
    def vectors(self) -> FloatMatrix:
        """(n_items, width)"""
        return self.item_rows[:, 1:]

    @property
    def variance(self) -> float:
        """The mean variance of a residual."""
        return mean_square(self.vectors) + self.noise

    def take(self, rows: Positions) -> FeedbackModel:
        """That of some of the items; those past the last have the prior mean."""
        n_more = max(0, int(rows.max(initial=-1)) + 1 - len(self.item_rows))
        grown = np.concatenate([self.item_rows, np.tile(self.prior_mean, (n_more, 1))])
        return replace(self, item_rows=grown[rows])

    def put(self, rows: Positions, n_rows: int) -> FeedbackModel:
        """The same with its items at these rows of `n_rows`, the others at the prior mean."""
        item_rows = np.tile(self.prior_mean, (n_rows, 1))
        item_rows[rows] = self.item_rows
        return replace(self, item_rows=item_rows)


def fit_feedback(
    scored: Sequence[ScoredQuery],
    *,
    anchor_scores: FloatMatrix,
    anchor_queries: Sequence[Query],
    retrievers: Mapping[str, Retriever],
    coefficients: NamedCoefficients,
    seed: int = 0,
) -> FeedbackModel:
    """Fit offsets and vectors to what searches scored, together with the anchor queries' full rows.

    `coefficients` are those regressed on the anchor queries; with fewer than two of these, those of all retrievers are
    fitted to the searches."""
    rng = np.random.default_rng(seed)
    n_items = len(anchor_scores)
    if len(anchor_queries) < LEAST_ANCHORS:
        everything = np.arange(n_items)
        whole = [
            ScoredQuery(query, everything, anchor_scores[:, place].astype(np.float64))
            for place, query in enumerate(anchor_queries)
        ]
        fit = fit_partial(_rows([*scored, *whole], retrievers), np.empty((n_items, 0)), rng=rng)
        coefficients = named_coefficients(retrievers, fit.coefficients)
    else:
        chosen = {name: retrievers[name] for name, _ in coefficients}
        residuals = anchor_residuals(anchor_scores, anchor_queries, retrievers, dict(coefficients))
        fit = fit_partial(_residuals(_rows(scored, chosen), coefficients), residuals, rng=rng)
    return _model(fit, n_items, coefficients, len(scored))


def feedback_part(feedback: FeedbackModel, residuals: FloatMatrix) -> FloatMatrix:
    """What a feedback model predicts for full rows of residuals; both are (n_items, n_queries)."""
    vectors = feedback.vectors.astype(np.float64)
    centred = residuals - feedback.offsets[:, None]
    squares = vectors.T @ vectors + feedback.noise * np.eye(vectors.shape[1])
    query_vectors = np.linalg.solve(squares, vectors.T @ centred)  # (width, n_queries)
    part: FloatMatrix = (feedback.offsets[:, None] + vectors @ query_vectors).astype(np.float32)
    return part


def anchor_residuals(
    anchor_scores: FloatMatrix,
    anchor_queries: Sequence[Query],
    retrievers: Mapping[str, Retriever],
    coefficients: Coefficients,
) -> FloatMatrix:
    """The anchor queries' scores less what retrievers predict, (n_items, n_anchor_queries)."""
    found = predict_items(retrievers, coefficients, anchor_queries, slice(0, len(anchor_scores)))
    return anchor_scores if found is None else anchor_scores - found.fitted


def _rows(scored: Sequence[ScoredQuery], retrievers: Mapping[str, Retriever]) -> PartialRows:
    positions = [one.positions for one in scored]
    features = features_of_pairs(retrievers, [one.query for one in scored], positions)
    return PartialRows.of(positions, [one.exact_scores for one in scored], features)


def _residuals(rows: PartialRows, coefficients: NamedCoefficients) -> PartialRows:
    """The rows less what retrievers predict."""
    flat = flat_coefficients(coefficients)
    return replace(rows, scores=rows.scores - rows.features @ flat, features=np.empty((len(rows.scores), 0)))


def _model(fit: PartialFit, n_items: int, coefficients: NamedCoefficients, n_queries: int) -> FeedbackModel:
    prior_mean = fit.prior_mean.astype(np.float32)
    seen = FeedbackModel(fit.posterior_means.astype(np.float32), prior_mean, fit.noise, coefficients, n_queries)
    return seen.put(fit.items, n_items)
