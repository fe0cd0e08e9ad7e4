"""What adaptive methods by least squares share: even rounds, and an estimate of each query after every one of them.

Reads an item model, feeds `search/adacur.py` and `search/axn.py`, which choose the first items and what comes next."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np

from anncur.arrays import FloatMatrix, Positions
from anncur.factors.items import ItemModel
from anncur.factors.least_squares import LeastSquares
from anncur.search.base import Proposal, Rounds

# from query vectors, (n_queries, width), what was scored, (n_queries, n_scored), and the size of the next round
Propose: TypeAlias = Callable[[FloatMatrix, Positions, int], Sequence[Proposal]]


def even_rounds(budget: int, n_rounds: int) -> list[int]:
    """The sizes of at most `n_rounds` rounds that differ by one at most, the larger ones first."""
    size, n_larger = divmod(budget, n_rounds)
    return [size + (number < n_larger) for number in range(min(n_rounds, budget))]


def regression_rounds(model: ItemModel, first: Positions, sizes: Sequence[int], propose: Propose) -> Rounds:
    """Score the first items, (n_queries, n_first), then what `propose` makes of least squares on all exact scores so
    far, in rounds of `sizes`."""
    estimate = LeastSquares(len(first), model)
    new, scored = first, first
    proposals: Sequence[Proposal] = [Proposal(positions) for positions in first]
    for size in sizes:
        estimate.observe(new, np.stack((yield proposals)))
        proposals = propose(estimate.query_vectors, scored, size)
        new = np.stack([proposal.positions for proposal in proposals])
        scored = np.concatenate([scored, new], axis=1)
    yield proposals
    return None
