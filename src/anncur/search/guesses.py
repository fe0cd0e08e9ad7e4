"""The best guesses over all items: a matrix product, block by block, that keeps only the top.

Reads vectors, feeds policies. Memory stays the same for any number of items or queries in a block."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from anncur.arrays import NO_POSITIONS, FloatMatrix, FloatVector, Positions
from anncur.ranking import top_k
from anncur.search.base import Proposal

GUESSES_AT_ONCE = 2**21  # numbers in one product, 8 MB: small enough to stay in cache, large enough for BLAS


def best_guesses(
    item_vectors: FloatMatrix, query_vectors: FloatMatrix, *, n_best: int, exclude: Sequence[Positions]
) -> list[Proposal]:
    """For each query the `n_best` items by dot product, best first, without those in its `exclude`."""
    query_vectors = query_vectors.astype(item_vectors.dtype)  # (n_queries, width)
    tops = [_Top(n_best, np.sort(excluded)) for excluded in exclude]
    n_items = len(item_vectors)
    step = max(1, GUESSES_AT_ONCE // max(len(tops), 16))
    for start in range(0, n_items, step):
        guesses = query_vectors @ item_vectors[start : start + step].T  # (n_queries, up to step)
        for top, row in zip(tops, guesses, strict=True):
            top.add(row, start)
    return [top.proposal() for top in tops]


class _Top:
    """The best items seen so far for one query; what comes later loses ties, because its position is higher."""

    def __init__(self, n_best: int, excluded: Positions) -> None:
        self._n_best = n_best
        self._excluded = excluded
        self._positions = NO_POSITIONS
        self._guesses: FloatVector = np.empty(0, dtype=np.float32)

    def add(self, guesses: FloatVector, start: int) -> None:
        """Take in the guesses for the items from `start` on; overwrites those for excluded items."""
        first, last = np.searchsorted(self._excluded, [start, start + len(guesses)])
        guesses[self._excluded[first:last] - start] = -np.inf
        better = self._better(guesses)
        if len(better):
            positions = np.concatenate([self._positions, start + better])
            merged = np.concatenate([self._guesses, guesses[better]])
            order = top_k(merged, self._n_best)  # ties by place, and places are in the order of positions
            self._positions, self._guesses = positions[order], merged[order]

    def _better(self, guesses: FloatVector) -> Positions:
        """Those that may belong to the best, in an order that keeps ties by position."""
        if len(self._guesses) < self._n_best:
            best = top_k(guesses, self._n_best)
            return best[guesses[best] > -np.inf]  # without the excluded
        return np.flatnonzero(guesses > self._guesses[-1]) if self._n_best else NO_POSITIONS

    def proposal(self) -> Proposal:
        return Proposal(self._positions, self._guesses)
