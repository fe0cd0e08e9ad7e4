"""The best guesses over all items: a matrix product, block by block, that keeps only the top.

Reads vectors and prior means, feeds policies. Memory stays the same for any number of items or queries in a block."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from anncur.arrays import FloatMatrix, Positions
from anncur.ranking import RunningTop
from anncur.search.base import Proposal

GUESSES_AT_ONCE = 2**21  # numbers in one product, 8 MB: small enough to stay in cache, large enough for BLAS


class Means(Protocol):
    """What is added to products, asked for block by block: what is guessed without them, or noise to draw with."""

    def between(self, start: int, stop: int, /) -> FloatMatrix:
        """Of the items from one position up to another, as far as there are any; (n_queries or 1, n_items between)."""
        ...


def best_guesses(
    item_vectors: FloatMatrix,
    query_vectors: FloatMatrix,
    *,
    n_best: int,
    exclude: Sequence[Positions],
    prior: Means | None = None,
) -> list[Proposal]:
    """For each query the `n_best` items by prior mean and dot product, best first, without those in its `exclude`."""
    query_vectors = query_vectors.astype(item_vectors.dtype)  # (n_queries, width)
    tops = [RunningTop(n_best, np.sort(excluded)) for excluded in exclude]
    n_items, is_begun = len(item_vectors), bool(query_vectors.any())  # in a first round nothing is known of a query
    step = max(1, GUESSES_AT_ONCE // max(len(tops), 16))
    for start in range(0, n_items, step):
        some = item_vectors[start : start + step]
        if is_begun:
            with np.errstate(invalid="ignore"):  # some processors' BLAS raises this flag by numbers that it leaves out
                guesses = query_vectors @ some.T
        else:
            guesses = np.zeros((len(tops), len(some)), dtype=some.dtype)
        if prior is not None:
            guesses += prior.between(start, start + step)
        for top, row in zip(tops, guesses, strict=True):
            top.add(row, start)
    return [Proposal(top.positions, top.scores) for top in tops]
