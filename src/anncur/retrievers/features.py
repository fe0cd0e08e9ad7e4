"""How retriever scores predict a scorer's: features of them, and coefficients regressed on anchor queries.

A retriever's scores are standardised for each query, so that long and short queries have the same scale, and the
part above two standard deviations counts once more: retrievers are often right about their few best items and vague
about the others. Reads retrievers and exact scores, feeds the prior mean of `search/posterior.py`."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from anncur.arrays import FloatMatrix, FloatVector, Positions
from anncur.items import Query
from anncur.retrievers.base import Retriever

HINGE = 2.0  # standard deviations
N_FEATURES = 2  # of each retriever
RIDGE = 1e-2  # of a feature's own variance, which is 1
DEFAULT_RETRIEVER_WEIGHT = 0.5  # below 1, because a posterior can't correct what retrievers get wrong
USUAL_SPREAD = 0.3  # of a coefficient or level, in units of the spread of residuals
USUAL_WEIGHT = 2.0  # queries that this counts for beside those that were measured
ROWS_AT_ONCE = 16

Coefficients = Mapping[str, tuple[float, ...]]  # by the name of a retriever, one for each feature
NamedCoefficients = tuple[tuple[str, tuple[float, ...]], ...]  # the same as a value that can be hashed and stored


@dataclass(frozen=True, eq=False)
class Scale:
    """How a retriever's scores become features, for each query: means and spreads over all items, (n_queries, 1).

    A spread of infinity marks a row without any, whose feature is 0."""

    mean: FloatMatrix
    spread: FloatMatrix
    hinge_mean: FloatMatrix
    hinge_spread: FloatMatrix

    @classmethod
    def of(cls, retriever_scores: FloatMatrix) -> Scale:
        """That of scores of all items, (n_queries, n_items)."""
        return cls.of_rows(np.array([_scale_of(row) for row in retriever_scores], dtype=np.float32).reshape(-1, 4))

    def features(self, retriever_scores: FloatMatrix) -> FloatMatrix:
        """(n_queries, N_FEATURES, n) from the scores of some items, (n_queries, n)."""
        found = np.empty((len(retriever_scores), N_FEATURES, retriever_scores.shape[1]), dtype=np.float32)
        standard, hinge = found[:, 0], found[:, 1]
        np.subtract(retriever_scores, self.mean, out=standard, casting="same_kind")
        standard /= self.spread
        np.maximum(standard - np.float32(HINGE), 0, out=hinge)
        hinge -= self.hinge_mean
        hinge /= self.hinge_spread
        return found

    def keep(self, rows: Positions) -> Scale:
        """That of some of the queries only."""
        return Scale(self.mean[rows], self.spread[rows], self.hinge_mean[rows], self.hinge_spread[rows])

    @classmethod
    def joined(cls, parts: Sequence[Scale]) -> Scale:
        """That of all queries of some parts."""
        return cls.of_rows(np.concatenate([part.rows() for part in parts]))

    def rows(self) -> FloatMatrix:
        """Its four numbers for each query, (n_queries, 4)."""
        return np.hstack([self.mean, self.spread, self.hinge_mean, self.hinge_spread])

    @classmethod
    def of_rows(cls, rows: FloatMatrix) -> Scale:
        """From what `rows` gave."""
        return cls(*rows.T[..., None])


def features(retriever_scores: FloatMatrix) -> FloatMatrix:
    """(N_FEATURES, n_queries, n_items) from a retriever's scores, (n_queries, n_items)."""
    return Scale.of(retriever_scores).features(retriever_scores).swapaxes(0, 1)


class Prediction(NamedTuple):
    """What retrievers predict of some items' scores, (n_items, n_queries), and the scales of what they gave."""

    fitted: FloatMatrix
    scales: dict[str, Scale]  # by the name of a retriever


def predict_items(
    retrievers: Mapping[str, Retriever],
    coefficients: Coefficients,
    queries: Sequence[Query],
    items: slice,
    *,
    scales: Mapping[str, Scale] | None = None,
) -> Prediction | None:
    """The part of some items' scores that retrievers account for; None where no retriever is used.

    Their scores are standardised over all items, or by `scales` that were found earlier."""
    if not coefficients or not queries:
        return None
    columns: list[FloatMatrix] = []
    found: dict[str, list[Scale]] = {name: [] for name in coefficients}
    for start in range(0, len(queries), ROWS_AT_ONCE):
        some = slice(start, min(start + ROWS_AT_ONCE, len(queries)))
        total: FloatMatrix = np.zeros((some.stop - some.start, 1), dtype=np.float32)
        for name, of_one in coefficients.items():
            scores = retrievers[name].scores(queries[some])
            scale = Scale.of(scores) if scales is None else scales[name].keep(np.arange(some.start, some.stop))
            found[name].append(scale)
            weighted = np.tensordot(np.array(of_one), scale.features(scores[:, items]), axes=(0, 1))
            total = total + weighted.astype(np.float32)
        columns.append(total)
    return Prediction(np.concatenate(columns).T, {name: Scale.joined(parts) for name, parts in found.items()})


def sampled_features(
    retrievers: Mapping[str, Retriever], queries: Sequence[Query], items: Positions
) -> dict[str, FloatMatrix]:
    """Features of some items, standardised over all of them, by retriever: (N_FEATURES, n_queries, n_sampled)."""
    return {name: np.concatenate(list(_taken(of, queries, items)), axis=1) for name, of in retrievers.items()}


def features_of_pairs(
    retrievers: Mapping[str, Retriever], queries: Sequence[Query], items: Sequence[Positions]
) -> list[FloatMatrix]:
    """Features of some items for each query, those of all retrievers side by side: (n_items of it, all features)."""
    found: list[FloatMatrix] = []
    for start in range(0, len(queries), ROWS_AT_ONCE):
        some = queries[start : start + ROWS_AT_ONCE]
        stacked = [features(retriever.scores(some)) for retriever in retrievers.values()]
        for row, positions in enumerate(items[start : start + len(some)]):
            columns = [of_one[:, row, positions] for of_one in stacked]
            found.append(np.concatenate(columns).T if columns else np.empty((len(positions), 0)))
    return found


@dataclass(frozen=True)
class Regression:
    """Coefficients of retriever features: their mean over queries, and the spread of each query's own around it."""

    coefficients: NamedCoefficients
    spreads: NamedCoefficients
    level_spread: float


def regress(exact_scores: FloatMatrix, by_retriever: Mapping[str, FloatMatrix]) -> Regression:
    """Of the scores' differences from their mean over queries, by least squares, held back a little.

    `exact_scores` is (n_queries, n_items), each retriever's features (N_FEATURES, n_queries, n_items)."""
    if not by_retriever or len(exact_scores) < 2:
        return Regression((), (), 0.0)
    stacked = np.concatenate(list(by_retriever.values())).astype(np.float64)
    centred = stacked - stacked.mean(axis=1, keepdims=True)
    columns = centred.reshape(len(centred), -1)  # (all features, queries x items)
    target = (exact_scores - exact_scores.mean(axis=0)).astype(np.float64)
    squares = columns @ columns.T + RIDGE * columns.shape[1] * np.eye(len(columns))
    mean = np.linalg.solve(squares, columns @ target.ravel())
    residuals = target - np.tensordot(mean, centred, axes=1)  # (n_queries, n_items)
    spreads, level_spread = _spreads(residuals, stacked)
    return Regression(named_coefficients(by_retriever, mean), named_coefficients(by_retriever, spreads), level_spread)


def _spreads(residuals: FloatMatrix, stacked: FloatMatrix) -> tuple[FloatVector, float]:
    """The spread over queries of the coefficients that fit each query's residuals best, and of their level."""
    n_queries, n_items = residuals.shape
    own = []
    for row, of_query in zip(residuals, stacked.swapaxes(0, 1), strict=True):
        design = np.vstack([of_query, np.ones(n_items)])  # (n_features + 1, n_items)
        squares = design @ design.T + RIDGE * n_items * np.eye(len(design))
        own.append(np.linalg.solve(squares, design @ row))
    usual = USUAL_SPREAD**2 * float(residuals.var())
    found = np.sqrt((np.square(own).sum(axis=0) + USUAL_WEIGHT * usual) / (n_queries + USUAL_WEIGHT))
    return found[:-1], float(found[-1])


def named_coefficients(names: Iterable[str], flat: FloatVector) -> NamedCoefficients:
    """Those of one row, (all features,), by retriever."""
    by_retriever = flat.reshape(-1, N_FEATURES)
    return tuple((name, tuple(of_one.tolist())) for name, of_one in zip(names, by_retriever, strict=True))


def flat_coefficients(coefficients: NamedCoefficients) -> FloatVector:
    """All in one row, (all features,)."""
    return np.array([value for _, of_one in coefficients for value in of_one])


def scaled(coefficients: Coefficients, weight: float) -> Coefficients:
    """All coefficients times a number."""
    return {name: tuple(weight * value for value in of_one) for name, of_one in coefficients.items()}


def predict_sample(by_retriever: Mapping[str, FloatMatrix], coefficients: Coefficients) -> FloatMatrix:
    """What `coefficients` make of features that were taken before, (n_queries, n_sampled)."""
    parts = [np.tensordot(np.array(of_one), by_retriever[name], axes=1) for name, of_one in coefficients.items()]
    fitted: FloatMatrix = np.sum(parts, axis=0)
    return fitted


def _taken(retriever: Retriever, queries: Sequence[Query], items: Positions) -> Iterator[FloatMatrix]:
    for start in range(0, len(queries), ROWS_AT_ONCE):
        yield features(retriever.scores(queries[start : start + ROWS_AT_ONCE]))[..., items]


def _scale_of(row: FloatVector) -> tuple[float, float, float, float]:
    """The mean and spread of one query's scores, and those of their standardised part above the hinge."""
    mean = float(row.mean(dtype=np.float64))
    centred = row - row.dtype.type(mean)
    spread = _spread(float(np.dot(centred, centred)) / len(row), largest=float(np.abs(row).max()))
    above = centred[centred > HINGE * spread].astype(np.float64) / spread - HINGE
    hinge_mean = float(above.sum()) / len(row)
    hinge_spread = _spread(float(np.dot(above, above)) / len(row) - hinge_mean**2, largest=1.0)
    return mean, spread, hinge_mean, hinge_spread


def _spread(variance: float, *, largest: float) -> float:
    """Infinite where it is nothing but rounding."""
    spread = math.sqrt(max(0.0, variance))
    return spread if spread > 1e-6 * largest + 1e-30 else math.inf
