"""The best guesses over all items: a matrix product, block by block, that keeps only the top.

Reads vectors, feeds policies. Memory stays the same for any number of items or queries in a block."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from anncur.arrays import FloatMatrix, Positions
from anncur.ranking import RunningTop
from anncur.search.base import Proposal

GUESSES_AT_ONCE = 2**21  # numbers in one product, 8 MB: small enough to stay in cache, large enough for BLAS


def best_guesses(
    item_vectors: FloatMatrix, query_vectors: FloatMatrix, *, n_best: int, exclude: Sequence[Positions]
) -> list[Proposal]:
    """For each query the `n_best` items by dot product, best first, without those in its `exclude`."""
    query_vectors = query_vectors.astype(item_vectors.dtype)  # (n_queries, width)
    tops = [RunningTop(n_best, np.sort(excluded)) for excluded in exclude]
    n_items = len(item_vectors)
    step = max(1, GUESSES_AT_ONCE // max(len(tops), 16))
    for start in range(0, n_items, step):
        guesses = query_vectors @ item_vectors[start : start + step].T  # (n_queries, up to step)
        for top, row in zip(tops, guesses, strict=True):
            top.add(row, start)
    return [Proposal(top.positions, top.scores) for top in tops]
