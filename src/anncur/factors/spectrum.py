"""How simple a scorer's scores are: the share of their variance that each principal component explains.

Reads exact scores part by part, feeds reports. Pure NumPy: the products of the queries with each other are all that is
decomposed, so that memory doesn't grow with the number of items."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from anncur.arrays import FloatMatrix
from anncur.factors.items import ITEMS_AT_ONCE, gram

DIGITS = 6  # of a share: the last ones depend on the parts that the scores came in


def spectrum(parts: Iterable[FloatMatrix]) -> tuple[float, ...]:
    """The share of variance that each principal component explains, largest first, from parts of (some items,
    n_anchor_queries).

    The variance is that of the items' differences from their own mean over the queries, which is what tells queries
    apart; so there is one component fewer than queries. Nothing, where all queries score alike."""
    total = sum(gram(centred) for part in parts for centred in _centred(part))
    variances = np.maximum(np.linalg.eigvalsh(total)[::-1][:-1], 0)
    if not variances.sum():
        return ()
    shares: list[float] = np.round(variances / variances.sum(), DIGITS).tolist()
    return tuple(shares)


def n_components(shares: tuple[float, ...], explained_variance: float) -> int:
    """How many components together explain this share of the variance."""
    explained = np.cumsum(shares)
    return int(np.searchsorted(explained, explained_variance * explained[-1] - 10.0**-DIGITS)) + 1


def _centred(part: FloatMatrix) -> Iterator[FloatMatrix]:
    """Items less their own mean, block by block; exactly zero where all queries score alike."""
    for start in range(0, len(part), ITEMS_AT_ONCE):
        block = part[start : start + ITEMS_AT_ONCE].astype(np.float64)
        apart = block - block[:, :1]
        yield apart - apart.mean(axis=1, keepdims=True)
