"""Settings of methods that learn nothing from anchor queries, chosen on these: for them, anchor queries are held out.

Grids are small, so that a scoreboard takes little longer. Reads scored worlds, feeds the scoreboard."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import TypeAlias

import numpy as np

from anncur.arrays import NO_POSITIONS
from anncur.evaluation.protocol import measure, points
from anncur.evaluation.worlds import QuerySplit, ScoredWorld
from anncur.index.index import Index
from anncur.rivals.bagel import Bagel
from anncur.rivals.gar import Gar, NeighbourGraph
from anncur.rivals.refit import Refit
from anncur.search.base import Method

MOST_HELD_OUT = 24  # anchor queries that settings are tried on
Chosen: TypeAlias = dict[tuple[int, int], Method]  # by k and budget


def choose(
    grid: Sequence[Method],
    index: Index,
    world: ScoredWorld,
    split: QuerySplit,
    *,
    ks: Sequence[int],
    budgets: Sequence[int],
) -> Chosen:
    """For every k and budget the settings that find most of the held-out queries' best items; without anchor queries,
    and of settings that find as much, the first."""
    held_out = QuerySplit(NO_POSITIONS, np.random.default_rng(0).permutation(split.anchors)[:MOST_HELD_OUT])
    if len(grid) == 1 or not len(held_out.tests):
        return dict.fromkeys(points(ks, budgets), grid[0])
    found = [measure(index, world, held_out, method, ks=ks, budgets=budgets) for method in grid]
    return {
        (same[0].k, same[0].budget): grid[int(np.argmax([outcome.recalls.mean() for outcome in same]))]
        for same in zip(*found, strict=True)
    }


def gar_grid(graph: NeighbourGraph | None, rankings: Sequence[str]) -> list[Method]:
    """GAR's settings: the ranking that it begins with, how many neighbours count, and how many items a round has."""
    sizes = ((8, 16), (4, 8), (16, 8))
    return [Gar(graph, *some, retriever=ranking) for ranking, some in product(rankings, sizes)]


def refit_grid(retriever: str) -> list[Method]:
    """ReFIT's settings: rounds, temperature, steps."""
    return [Refit(*some, retriever=retriever) for some in product((2, 5), (100, 10), (1.0, 0.3))]


def bagel_grid(retriever: str) -> list[Method]:
    """BAGEL's settings: how sharp the kernel is, and how much it explores."""
    return [
        Bagel(sharpness=sharpness, exploration=exploration, retriever=retriever)
        for sharpness, exploration in ((0.5, 0.5), (0.5, 0.0), (2.0, 0.0))
    ]
