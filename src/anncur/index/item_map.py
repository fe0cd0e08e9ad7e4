"""A map of items: two principal components of the vectors that searches know them by.

Reads a snapshot, feeds stories of searches, and pages that draw them. Items that the scorer treats alike stand
together."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from anncur.arrays import FloatMatrix, FloatVector, Positions
from anncur.index.snapshot import Snapshot
from anncur.items import Item
from anncur.vectors.exact import ExactVectors

MOST_FITTED = 5_000  # items that two components are found from


@dataclass(frozen=True, eq=False)
class ItemMap:
    """Where items stand: the projection of their vectors, and the share of variance that each axis shows."""

    version: int
    vectors: ExactVectors
    centre: FloatVector  # (width,)
    axes: FloatMatrix  # (2, width)
    shares: tuple[float, float]

    @classmethod
    def of(cls, snapshot: Snapshot) -> ItemMap:
        """The map of a version, from a sample of its items."""
        model = snapshot.knowledge.posterior
        vectors = model.item_model(model.settings()).vectors
        rows = vectors.take(_drawn(len(snapshot.items), MOST_FITTED)).astype(np.float64)
        centre = rows.mean(axis=0)
        variances, axes = np.linalg.eigh((rows - centre).T @ (rows - centre))  # the largest are last
        first, second = np.append([0.0, 0.0], np.maximum(variances, 0.0))[:-3:-1].tolist()
        total = float(variances.sum()) or 1.0
        return cls(snapshot.version, vectors, centre, _two(axes.T[::-1]), (first / total, second / total))

    def at(self, positions: Positions) -> FloatMatrix:
        """The places of some items, (n, 2)."""
        places: FloatMatrix = (self.vectors.take(positions).astype(np.float64) - self.centre) @ self.axes.T
        return places


@dataclass(frozen=True, slots=True)
class MappedItem:
    """An item and its place."""

    item: Item
    x: float
    y: float


@dataclass(frozen=True, slots=True)
class MapSample:
    """Some items of a version on the map, and the share of variance that each axis shows."""

    version: int
    shares: tuple[float, float]
    items: tuple[MappedItem, ...]


def sample_map(snapshot: Snapshot, n_items: int, found: ItemMap) -> MapSample:
    """Items at random with their places."""
    drawn = _drawn(len(snapshot.items), n_items)
    both = zip(snapshot.items.take(drawn), found.at(drawn).tolist(), strict=True)
    return MapSample(snapshot.version, found.shares, tuple(MappedItem(item, *place) for item, place in both))


def _drawn(n_items: int, most: int) -> Positions:
    """Items at random, in ascending order; the same each time."""
    if n_items <= most:
        return np.arange(n_items)
    return np.sort(np.random.default_rng(0).choice(n_items, most, replace=False))


def _two(axes: FloatMatrix) -> FloatMatrix:
    """Two axes whose largest entries are positive, so that a map is the same each time; zeros where there are fewer."""
    two = np.zeros((2, axes.shape[1]))
    for place, axis in enumerate(axes[:2]):
        two[place] = axis * np.sign(axis[np.argmax(np.abs(axis))])
    return two
