"""Which queries and items become anchors.

Every method chooses *columns* of a score matrix and returns them in the order of their use, so that the first m are
the m anchors to take. For anchor items pass the anchor scores; for anchor queries pass the transpose. Reads exact
scores, feeds `search/anncur.py`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import numpy as np

from anncur.arrays import NO_POSITIONS, FloatMatrix, Positions
from anncur.errors import InputError

AnchorMethod: TypeAlias = Callable[[FloatMatrix, int, np.random.Generator], Positions]

MOST_CONSIDERED = 20_000  # items; beyond that a random sample of them is looked at


def choose_anchors(
    exact_scores: FloatMatrix, *, n_anchors: int, method: str = "pivoted_qr", rng: np.random.Generator
) -> Positions:
    """Up to `n_anchors` columns of `exact_scores`, chosen by a method."""
    check_method(method)
    return ANCHOR_METHODS[method](exact_scores.astype(np.float64), min(n_anchors, exact_scores.shape[1]), rng)


def order_anchors(chosen: Positions, n_items: int, rng: np.random.Generator) -> Positions:
    """All positions: first those that were chosen, then the others at random."""
    shuffled = rng.permutation(n_items)
    return np.concatenate([chosen, shuffled[~np.isin(shuffled, chosen)]])


def sample_positions(n_items: int, rng: np.random.Generator) -> Positions:
    """The items to look at when there are very many of them, in ascending order."""
    if n_items <= MOST_CONSIDERED:
        return np.arange(n_items)
    return np.sort(rng.choice(n_items, MOST_CONSIDERED, replace=False))


def check_method(method: object) -> None:
    """Refuse a method that there isn't."""
    if not isinstance(method, str) or method not in ANCHOR_METHODS:
        raise InputError(f"anchors must be one of {', '.join(ANCHOR_METHODS)}, got {method!r}")


def choose_random(columns: FloatMatrix, n_anchors: int, rng: np.random.Generator) -> Positions:
    """Columns at random, as in the paper."""
    return rng.permutation(columns.shape[1])[:n_anchors]


def choose_pivots(columns: FloatMatrix, n_anchors: int, rng: np.random.Generator, *, floor: float = 1e-7) -> Positions:
    """The pivots of a QR decomposition: each time the column with the largest residual after the chosen ones.

    Stops early when the residual of every column is below `floor` of the longest: rounding, not signal. SciPy's would
    compute all pivots, and bring a second BLAS, whose threads fight with NumPy's."""
    squared_residuals = np.einsum("ij,ij->j", columns, columns)
    least = floor**2 * squared_residuals.max(initial=0.0)
    basis = np.zeros((columns.shape[0], 0))
    chosen: list[int] = []
    while len(chosen) < min(n_anchors, columns.shape[0]):
        pivot = int(np.argmax(squared_residuals))
        if squared_residuals[pivot] <= least:
            break
        direction = columns[:, pivot]
        for _ in range(2):  # twice is enough: the second pass removes what rounding left of the basis
            direction = direction - basis @ (basis.T @ direction)
        direction /= np.linalg.norm(direction)
        basis = np.column_stack([basis, direction])
        squared_residuals -= (direction @ columns) ** 2
        squared_residuals[pivot] = -np.inf
        chosen.append(pivot)
    return np.array(chosen, dtype=np.int64)


def choose_by_leverage(
    columns: FloatMatrix, n_anchors: int, rng: np.random.Generator, *, explained_variance: float = 0.95
) -> Positions:
    """Columns drawn by their leverage: their weight in the components that explain most of the matrix."""
    _, values, right = np.linalg.svd(columns, full_matrices=False)
    held = np.cumsum(values**2) / max(float((values**2).sum()), 1e-300)
    leverage = (right[: int(np.searchsorted(held, explained_variance)) + 1] ** 2).sum(axis=0)
    waiting = rng.exponential(size=len(leverage)) / np.maximum(leverage, 1e-300)  # drawing without replacement
    return np.argsort(waiting, kind="stable")[:n_anchors]


def choose_medoids(
    columns: FloatMatrix, n_anchors: int, rng: np.random.Generator, *, n_iterations: int = 10
) -> Positions:
    """The columns nearest to the centres of a k-means clustering, the largest cluster first.

    SciPy's `kmeans2` gave worse anchors: 53 against 59% of the top 10 with 100 pairs (`benchmarks/cur_choices.py`)."""
    if n_anchors == 0:
        return NO_POSITIONS
    points = columns.T
    centres = points[rng.permutation(len(points))[:n_anchors]]
    for _ in range(n_iterations):
        nearest = _squared_distances(points, centres).argmin(axis=1)
        sizes = np.bincount(nearest, minlength=n_anchors)
        sums = np.zeros_like(centres)
        np.add.at(sums, nearest, points)
        centres = np.where(sizes[:, None] > 0, sums / np.maximum(sizes, 1)[:, None], centres)
    distances = _squared_distances(points, centres)
    sizes = np.bincount(distances.argmin(axis=1), minlength=n_anchors)
    medoids = distances.argmin(axis=0)[np.argsort(-sizes, kind="stable")]
    return np.array(list(dict.fromkeys(medoids.tolist())), dtype=np.int64)


def _squared_distances(points: FloatMatrix, centres: FloatMatrix) -> FloatMatrix:
    """(n_points, n_centres)"""
    squared: FloatMatrix = (points**2).sum(axis=1)[:, None] - 2 * points @ centres.T + (centres**2).sum(axis=1)
    return squared


ANCHOR_METHODS: dict[str, AnchorMethod] = {
    "pivoted_qr": choose_pivots,
    "random": choose_random,
    "leverage": choose_by_leverage,
    "kmeans": choose_medoids,
}
