"""The items that tuning looks at: all of them, or the best of the held-out queries and some at random.

Reads exact scores part by part, so that memory doesn't grow with the number of items."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from anncur.anchors import sample_positions
from anncur.arrays import FloatMatrix, FloatVector, Positions
from anncur.ranking import RunningTop

DEPTH = 100  # true best items followed per held-out query, so the largest k that tuning knows


class ItemScores(Protocol):
    """Exact scores that may be too many for memory: a `ScoreMatrix`, or something like it."""

    @property
    def n_items(self) -> int: ...

    @property
    def n_anchor_queries(self) -> int: ...

    def parts(self) -> Iterator[tuple[int, FloatMatrix]]: ...

    def rows(self, positions: Positions, /) -> FloatMatrix: ...


@dataclass(frozen=True, eq=False)
class Sample:
    """Some items: `best` holds, by held-out query, the places here of its truly best items, best first."""

    positions: Positions  # in the corpus, ascending
    vectors: FloatMatrix  # (n_sampled, n_anchor_queries), exact scores
    best: Mapping[int, Positions]
    weights: FloatVector  # how many items of the corpus each stands for; 1 for the best ones

    @property
    def depth(self) -> int:
        """The number of best items that are known of each query."""
        return min(DEPTH, len(self.vectors))


def take_sample(scores: ItemScores, held_out: Positions, rng: np.random.Generator) -> Sample:
    """Look at all items for the best of the held-out queries, and draw others at random."""
    tops = {query: RunningTop(DEPTH) for query in held_out.tolist()}
    for start, values in scores.parts():
        for query, top in tops.items():
            top.add(values[:, query].copy(), start)
    best = np.unique(np.concatenate([top.positions for top in tops.values()]))
    drawn = np.setdiff1d(sample_positions(scores.n_items, rng), best)
    positions = np.union1d(best, drawn)
    weights = np.ones(len(positions))
    weights[np.isin(positions, drawn)] = (scores.n_items - len(best)) / max(1, len(drawn))
    places = {query: np.searchsorted(positions, top.positions) for query, top in tops.items()}
    return Sample(positions, scores.rows(positions), places, weights)
