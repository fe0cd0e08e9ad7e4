"""What an index learnt from its searches: offsets and vectors of items, from rows that were scored in part.

Reads exact scores of searches and of anchor queries, feeds `beliefs.py`. Costs no calls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from anncur.arrays import FloatMatrix, FloatVector, Positions
from anncur.candidates.base import Retriever
from anncur.candidates.prior import N_FEATURES, Coefficients, explain_items, features_of_pairs
from anncur.factors.partial import PartialFit, PartialRows, fit_partial
from anncur.factors.posterior import ItemModel, mean_square, noise_of
from anncur.items import Query

LEAST_ANCHORS = 2  # queries; a single one has no spread


@dataclass(frozen=True, eq=False)
class ScoredQuery:
    """A query, and the exact scores that a search paid for."""

    query: Query
    positions: Positions
    exact_scores: FloatVector


@dataclass(frozen=True, eq=False)
class Lesson:
    """Offsets and vectors of items, side by side in `known`; an item of which nothing is known has the `typical` ones.

    They are for scores less what retrievers account for with these `coefficients`. `n_queries` were learnt from."""

    known: FloatMatrix  # (n_items, 1 + width), float32
    typical: FloatVector  # (1 + width,), float32
    noise: float
    coefficients: tuple[tuple[str, tuple[float, ...]], ...]
    n_queries: int

    @property
    def offsets(self) -> FloatVector:
        """(n_items,)"""
        return self.known[:, 0]

    @property
    def vectors(self) -> FloatMatrix:
        """(n_items, width)"""
        return self.known[:, 1:]

    def take(self, rows: Positions) -> Lesson:
        """That of some of the items; those behind the last that it knows are typical."""
        n_more = max(0, int(rows.max(initial=-1)) + 1 - len(self.known))
        grown = np.concatenate([self.known, np.tile(self.typical, (n_more, 1))])
        return replace(self, known=grown[rows])

    def put(self, rows: Positions, n_rows: int) -> Lesson:
        """The same with its items at these rows of so many, the others typical."""
        known = np.tile(self.typical, (n_rows, 1))
        known[rows] = self.known
        return replace(self, known=known)


def learn_lesson(
    scored: Sequence[ScoredQuery],
    *,
    anchor_scores: FloatMatrix,
    anchor_queries: Sequence[Query],
    retrievers: Mapping[str, Retriever],
    coefficients: tuple[tuple[str, tuple[float, ...]], ...],
    seed: int = 0,
) -> Lesson:
    """Fit offsets and vectors to what searches scored, together with the anchor queries' full rows.

    `coefficients` are what the anchor queries say of the retrievers; with fewer than two of these, what the searches
    say of all retrievers takes their place."""
    rng = np.random.default_rng(seed)
    n_items = len(anchor_scores)
    if len(anchor_queries) < LEAST_ANCHORS:
        everything = np.arange(n_items)
        whole = [
            ScoredQuery(query, everything, anchor_scores[:, place].astype(np.float64))
            for place, query in enumerate(anchor_queries)
        ]
        fit = fit_partial(_rows([*scored, *whole], retrievers), np.empty((n_items, 0)), rng=rng)
        coefficients = _named(fit.coefficients, list(retrievers))
    else:
        chosen = {name: retrievers[name] for name, _ in coefficients}
        rest = anchor_rest(anchor_scores, anchor_queries, retrievers, dict(coefficients))
        fit = fit_partial(_explained(_rows(scored, chosen), coefficients), rest, rng=rng)
    return _lesson(fit, n_items, coefficients, len(scored))


def join(lesson: Lesson, fitted: ItemModel, *, noise_share: float) -> ItemModel:
    """A lesson, and beside it what was fitted to what it leaves of the anchor queries' scores."""
    vectors = np.hstack([lesson.vectors, fitted.vectors])
    return ItemModel(lesson.offsets + fitted.offsets, vectors, noise_of(noise_share, mean_square(vectors)))


def lesson_part(lesson: Lesson, rest: FloatMatrix) -> FloatMatrix:
    """What a lesson accounts for in full rows, retrievers' part taken off; both are (n_items, n_queries)."""
    vectors = lesson.vectors.astype(np.float64)
    centred = rest - lesson.offsets[:, None]
    squares = vectors.T @ vectors + lesson.noise * np.eye(vectors.shape[1])
    query_vectors = np.linalg.solve(squares, vectors.T @ centred)  # (width, n_queries)
    part: FloatMatrix = (lesson.offsets[:, None] + vectors @ query_vectors).astype(np.float32)
    return part


def anchor_rest(
    anchor_scores: FloatMatrix,
    anchor_queries: Sequence[Query],
    retrievers: Mapping[str, Retriever],
    coefficients: Coefficients,
) -> FloatMatrix:
    """The anchor queries' scores without what retrievers account for, (n_items, n_anchor_queries)."""
    explained = explain_items(retrievers, coefficients, anchor_queries, len(anchor_scores))
    return anchor_scores if explained is None else anchor_scores - explained


def _rows(scored: Sequence[ScoredQuery], retrievers: Mapping[str, Retriever]) -> PartialRows:
    positions = [one.positions for one in scored]
    features = features_of_pairs(retrievers, [one.query for one in scored], positions)
    return PartialRows.of(positions, [one.exact_scores for one in scored], features)


def _explained(rows: PartialRows, coefficients: tuple[tuple[str, tuple[float, ...]], ...]) -> PartialRows:
    """The rows without what retrievers account for."""
    flat = np.array([value for _, of_one in coefficients for value in of_one])
    return replace(rows, scores=rows.scores - rows.features @ flat, features=np.empty((len(rows.scores), 0)))


def _named(flat: FloatVector, names: list[str]) -> tuple[tuple[str, tuple[float, ...]], ...]:
    by_retriever = flat.reshape(len(names), N_FEATURES)
    return tuple((name, tuple(of_one.tolist())) for name, of_one in zip(names, by_retriever, strict=True))


def _lesson(
    fit: PartialFit, n_items: int, coefficients: tuple[tuple[str, tuple[float, ...]], ...], n_queries: int
) -> Lesson:
    typical = fit.typical.astype(np.float32)
    seen = Lesson(fit.known.astype(np.float32), typical, fit.noise, coefficients, n_queries)
    return seen.put(fit.items, n_items)
