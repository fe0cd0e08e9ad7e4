"""Item vectors from sparse scores: of each anchor query, only the items that a cheap retriever likes best.

Reads exact scores of some pairs, feeds `search/axn.py`. Pure NumPy in float64: no files, no models, no
randomness; `gated.py` is the other way to item vectors.

The vectors are fitted by alternating least squares rather than by gradient descent: with the queries held fixed every
item has a least-squares problem of its own, and the other way round. Each step is solved exactly, so there is no step
size to choose, nothing is drawn at random, and sweeps over tens of thousands of scores take seconds without torch."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from anncur.arrays import FloatMatrix, FloatVector, Positions

N_SWEEPS = 10  # over queries and items; the loss hardly moves after five
ITEMS_AT_ONCE = 8192


@dataclass(frozen=True, eq=False)
class SparseScores:
    """Scores of some pairs: row q has those of the items `items[q]` under anchor query q."""

    items: Positions  # (n_queries, n_scored), each row without repetitions
    scores: FloatMatrix  # (n_queries, n_scored)

    def seen(self) -> Positions:
        """The items that any row has, ascending."""
        return np.unique(self.items)


@dataclass(frozen=True, eq=False)
class Start:
    """Where a factorisation begins, and what it is pulled towards."""

    queries: FloatMatrix  # (n_queries, width)
    items: FloatMatrix  # (n_items, width)


def straight_line(cheap_scores: FloatMatrix, exact_scores: FloatMatrix) -> tuple[float, float]:
    """Intercept and slope of exact scores over a retriever's, for scores of the same pairs.

    The slope is not negative: a retriever that is against the scorer is not used."""
    cheap, exact = cheap_scores.astype(np.float64), exact_scores.astype(np.float64)
    centred = cheap - cheap.mean()
    spread = float(np.square(centred).sum())
    slope = max(0.0, float((centred * exact).sum()) / spread) if spread > 0 else 0.0
    return float(exact.mean() - slope * cheap.mean()), slope


def singular_start(sparse: SparseScores, n_items: int, *, width: int) -> Start:
    """The truncated singular value decomposition of the sparse matrix, its values shared between both sides.

    What was not scored counts as 0, and items that no row has get zeros. By way of the rows' products with each other,
    a small matrix, so that no dense one is needed but for some items at once."""
    n_queries = len(sparse.items)
    seen = sparse.seen()
    products = np.zeros((n_queries, n_queries))
    for start in range(0, len(seen), ITEMS_AT_ONCE):
        dense = _dense(sparse, seen[start : start + ITEMS_AT_ONCE])
        products += dense @ dense.T
    squares, components = np.linalg.eigh(products)
    is_kept = squares > 1e-10 * squares.max(initial=0.0)  # below, a component is rounding: 1e-5 of the largest value
    kept = np.flatnonzero(is_kept)[::-1][:width]
    roots = squares[kept] ** 0.25
    items = np.zeros((n_items, len(kept)))
    for start in range(0, len(seen), ITEMS_AT_ONCE):
        some = seen[start : start + ITEMS_AT_ONCE]
        items[some] = _dense(sparse, some).T @ (components[:, kept] / roots)
    return Start(components[:, kept] * roots, items)


def factorise(sparse: SparseScores, start: Start, *, pull: float, n_sweeps: int = N_SWEEPS) -> FloatMatrix:
    """Item vectors, (n_items, width) in float32, whose products with free query vectors fit the scores.

    Both are pulled towards where they start, with the weight of `pull` scores of average items and queries; items that
    no row has stay there."""
    seen = sparse.seen()
    among_seen = SparseScores(np.searchsorted(seen, sparse.items), sparse.scores)
    initial = start.items[seen].astype(np.float64)
    query_pull = pull * (_mean_square(initial) or 1.0)
    queries = _fit_queries(among_seen, initial, start.queries, query_pull)
    item_pull = pull * (_mean_square(queries) or 1.0)
    items, by_item = initial.copy(), _by_item(among_seen)
    for _ in range(n_sweeps):
        for item, (rows, scores) in enumerate(by_item):
            items[item] = _ridge(queries[rows], scores, towards=initial[item], pull=item_pull)
        queries = _fit_queries(among_seen, items, start.queries, query_pull)
    fitted = start.items.astype(np.float32)
    fitted[seen] = items
    return fitted


def _fit_queries(sparse: SparseScores, items: FloatMatrix, towards: FloatMatrix, pull: float) -> FloatMatrix:
    fitted = [
        _ridge(items[scored], scores, towards=start, pull=pull)
        for scored, scores, start in zip(sparse.items, sparse.scores, towards, strict=True)
    ]
    return np.stack(fitted)


def _ridge(vectors: FloatMatrix, scores: FloatVector, *, towards: FloatVector, pull: float) -> FloatVector:
    """The vector of least squares whose distance from another one costs `pull` times its square. (width,)"""
    n_scores, width = vectors.shape
    missed = scores - vectors @ towards
    if n_scores < width:  # the smaller of two systems with the same solution
        dual = np.linalg.solve(vectors @ vectors.T + pull * np.eye(n_scores), missed)
        return np.asarray(towards + vectors.T @ dual)
    return np.asarray(towards + np.linalg.solve(vectors.T @ vectors + pull * np.eye(width), vectors.T @ missed))


def _by_item(sparse: SparseScores) -> list[tuple[Positions, FloatVector]]:
    """The rows that have each of the items, and its scores there; every item from 0 on is in some row."""
    items = sparse.items.ravel()
    order = np.argsort(items, kind="stable")
    rows = np.repeat(np.arange(len(sparse.items)), sparse.items.shape[1])[order]
    scores = sparse.scores.ravel()[order].astype(np.float64)
    bounds = np.cumsum(np.bincount(items))[:-1]
    return list(zip(np.split(rows, bounds), np.split(scores, bounds), strict=True))


def _dense(sparse: SparseScores, items: Positions) -> FloatMatrix:
    """The columns of some items, given in ascending order, with 0 where nothing was scored. (n_queries, n_items)"""
    dense = np.zeros((len(sparse.items), len(items)))
    places = np.minimum(np.searchsorted(items, sparse.items), len(items) - 1)
    rows, columns = np.nonzero(items[places] == sparse.items)
    dense[rows, places[rows, columns]] = sparse.scores[rows, columns]
    return dense


def _mean_square(vectors: FloatMatrix) -> float:
    return float(np.einsum("ij,ij->", vectors, vectors) / max(1, len(vectors)))
