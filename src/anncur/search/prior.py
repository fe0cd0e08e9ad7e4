"""What is known of a query's scores before any of them, and what is added to products of vectors once some are known.

    score = offset + level + sum over retriever features of (mean coefficient + deviation) x feature + vectors' product

Level and deviations are each query's own, with a Gaussian prior of mean 0, and are inferred together with its vector
(`factors/posterior.py`). Reads features of retriever scores, feeds `posterior.py`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np

from anncur.arrays import NO_SCORES, FloatMatrix, FloatVector, Positions, Selector
from anncur.retrievers.features import Scale, flat_coefficients
from anncur.search.settings import PosteriorSettings

ITEMS_AT_ONCE = 65_536


class Features(Protocol):
    """Features of retriever scores for a block of queries."""

    def at(self, positions: Positions, /) -> FloatMatrix:
        """Of some items for each query, (n_queries, n); (n_queries, n_features, n)."""
        ...

    def of_items(self, items: Selector, /) -> FloatMatrix:
        """Of the same items for all queries, (n_queries, n_features, n)."""
        ...

    def keep(self, rows: Positions, /) -> Features:
        """Those of some of the queries only."""
        ...


@dataclass(frozen=True, eq=False)
class StackedFeatures:
    """Features that were made before."""

    rows: FloatMatrix  # (n_queries, n_features, n_items)

    def at(self, positions: Positions) -> FloatMatrix:
        return np.take_along_axis(self.rows, positions[:, None], axis=2)

    def of_items(self, items: Selector) -> FloatMatrix:
        return self.rows[..., items]

    def keep(self, rows: Positions) -> StackedFeatures:
        return StackedFeatures(self.rows[rows])


@dataclass(frozen=True, eq=False)
class LateFeatures:
    """Features that are made of retriever scores where they are needed: all of them would be many."""

    scores: Sequence[FloatMatrix]  # of each retriever, (n_queries, n_items)
    scales: Sequence[Scale]
    used: Positions  # features of all retrievers, by place

    @classmethod
    def of(cls, scores: Sequence[FloatMatrix], used: Positions) -> LateFeatures:
        """Of the retrievers' scores of all items."""
        return cls(scores, [Scale.of(rows) for rows in scores], used)

    def at(self, positions: Positions) -> FloatMatrix:
        return self._features([np.take_along_axis(rows, positions, axis=1) for rows in self.scores])

    def of_items(self, items: Selector) -> FloatMatrix:
        return self._features([rows[:, items] for rows in self.scores])

    def keep(self, rows: Positions) -> LateFeatures:
        return LateFeatures([of[rows] for of in self.scores], [scale.keep(rows) for scale in self.scales], self.used)

    def _features(self, taken: Sequence[FloatMatrix]) -> FloatMatrix:
        found = [scale.features(rows) for scale, rows in zip(self.scales, taken, strict=True)]
        return np.concatenate(found, axis=1)[:, self.used]


@dataclass(frozen=True, eq=False)
class QueryPrior:
    """Offsets of items, and features of retriever scores whose coefficients have a mean over queries and a spread.

    `is_scale_free` marks means and spreads in units of the spread of a query's own scores, where no others are known.
    The first round ranks by the features with the coefficients `initial`, or without these by prior means."""

    offsets: FloatVector  # (n_items,)
    features: Features | None = None
    means: FloatVector = field(default_factory=lambda: NO_SCORES)  # (n_features,)
    spreads: FloatVector = field(default_factory=lambda: NO_SCORES)  # (n_features,)
    level_spread: float = 0.0
    initial: FloatVector | None = None  # (n_features,)
    is_scale_free: bool = False

    @property
    def n_columns(self) -> int:
        return len(self._varying) + (self.level_spread > 0)

    @property
    def _varying(self) -> Positions:
        """The features with a coefficient of each query's own."""
        return np.flatnonzero(self.spreads)

    def columns(self, positions: Positions) -> FloatMatrix:
        columns = []
        if self.features is not None and len(self._varying):
            taken = self.features.at(positions)[:, self._varying]
            columns.append(taken.mT * self.spreads[self._varying])
        if self.level_spread:
            columns.append(np.full((*positions.shape, 1), self.level_spread))
        return np.concatenate(columns, axis=2) if columns else np.empty((*positions.shape, 0))

    def means_at(self, positions: Positions) -> FloatMatrix:
        """Prior means of some items for each query, but for their offsets; both are (n_queries, n)."""
        if self.features is None:
            return np.zeros(positions.shape)
        return _weighted(self.features.at(positions), self.means)

    def predicted(self) -> FloatMatrix | None:
        """What retrievers predict for all items, (n_queries, n_items), where the first round ranks by it."""
        if self.features is None or self.initial is None:
            return None
        starts = range(0, len(self.offsets), ITEMS_AT_ONCE)
        blocks = (self.features.of_items(slice(start, start + ITEMS_AT_ONCE)) for start in starts)
        return np.concatenate([_weighted(block, self.initial) for block in blocks], axis=1)

    def additive(self, scale: FloatVector, deviations: FloatMatrix) -> Additive:
        """What is added to products of vectors, given the posterior means of what is the queries' own.

        `scale` is the unit of each query's prior means, `deviations` is (n_queries, n_columns)."""
        varying = self._varying
        coefficients = self.means * scale[:, None]  # (n_queries, n_features)
        coefficients[:, varying] += deviations[:, : len(varying)] * self.spreads[varying]
        return Additive(self.offsets, self.features, coefficients)

    def levels(self, deviations: FloatMatrix) -> FloatVector:
        """Each query's own level, which is the same for all items and so left out of what ranks them. (n_queries,)"""
        return self.level_spread * deviations[:, -1] if self.level_spread else np.zeros(len(deviations))

    def keep(self, rows: Positions) -> QueryPrior:
        """That of some of the queries only."""
        return self if self.features is None else replace(self, features=self.features.keep(rows))


@dataclass(frozen=True, eq=False)
class Additive:
    """What is added to products of vectors: `Means` for the best guesses."""

    offsets: FloatVector  # (n_items,)
    features: Features | None = None
    coefficients: FloatMatrix | None = None  # (n_queries, n_features)

    def of_items(self, items: Selector) -> FloatMatrix:
        features = None if self.features is None else self.features.of_items(items)
        return self._sum(self.offsets[None, items], features)

    def at(self, positions: Positions) -> FloatMatrix:
        """Of some items for each query; both are (n_queries, n)."""
        features = None if self.features is None else self.features.at(positions)
        return self._sum(self.offsets[positions], features)

    def _sum(self, offsets: FloatMatrix, features: FloatMatrix | None) -> FloatMatrix:
        if features is None or self.coefficients is None:
            return offsets
        return offsets + _weighted(features, self.coefficients.astype(np.float32))


def make_prior(
    offsets: FloatVector, features: Sequence[FloatMatrix], settings: PosteriorSettings, *, is_scale_free: bool = False
) -> QueryPrior:
    """The prior of queries from features of each of their retrievers, (N_FEATURES, n_queries, n_items)."""
    rows, used = [row for of_one in features for row in of_one], used_features(settings)
    stacked = StackedFeatures(np.stack([rows[place] for place in used], axis=1)) if len(used) else None
    return prior_of(offsets, stacked, settings, is_scale_free=is_scale_free)


def used_features(settings: PosteriorSettings) -> Positions:
    """The places of features that have a coefficient, among those of all retrievers."""
    coefficients, spreads = _coefficients(settings)
    return np.flatnonzero((coefficients != 0) | (spreads != 0))


def prior_of(
    offsets: FloatVector, features: Features | None, settings: PosteriorSettings, *, is_scale_free: bool = False
) -> QueryPrior:
    """The prior of queries with these `used_features`."""
    used = used_features(settings)
    coefficients, spreads = (values[used] for values in _coefficients(settings))
    return QueryPrior(
        offsets,
        features if len(used) else None,
        settings.retriever_weight * coefficients,
        spreads,
        settings.level_spread,
        initial=coefficients if settings.n_initial else None,
        is_scale_free=is_scale_free,
    )


def _coefficients(settings: PosteriorSettings) -> tuple[FloatVector, FloatVector]:
    coefficients = flat_coefficients(settings.coefficients)
    return coefficients, flat_coefficients(settings.spreads) if settings.spreads else np.zeros(len(coefficients))


def _weighted(features: FloatMatrix, coefficients: FloatMatrix) -> FloatMatrix:
    """The sum of features, (n_queries, n_features, n), with coefficients of all queries or of each.

    Feature by feature, so that a query gets the same number alone and among others."""
    total: FloatMatrix = np.zeros(features.shape[::2], dtype=np.float32)
    for place in range(features.shape[1]):
        total = total + coefficients[..., place, None] * features[:, place]
    return total
