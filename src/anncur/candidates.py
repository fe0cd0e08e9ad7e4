"""The items that a search may score: all of an index, or those that pass a filter.

Methods ask here for the best of a row of scores, for a draw, and for blocks of items to rank. Positions are those of
the index everywhere."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from anncur.arrays import FloatVector, Positions, Selector
from anncur.ranking import top_k

GATHERED = 0.25  # of all items: where fewer pass, they are picked out; where more do, the others are ranked in vain
TRIES = 4  # random draws per wanted item, before all that is left is listed


@dataclass(frozen=True, eq=False)
class Block:
    """Some neighbouring items of an index, and which of them no search may score."""

    items: Selector
    is_hidden: NDArray[np.bool_] | None = None

    def __len__(self) -> int:
        return self.items.stop - self.items.start if isinstance(self.items, slice) else len(self.items)


@dataclass(frozen=True, eq=False)
class Candidates:
    """`passing` are the positions that a filter leaves, in ascending order; None where there is no filter."""

    n_items: int
    passing: Positions | None = None

    def __len__(self) -> int:
        return self.n_items if self.passing is None else len(self.passing)

    @property
    def are_few(self) -> bool:
        """Whether it is best to pick them out."""
        return len(self) < GATHERED * self.n_items

    def best(self, scores: FloatVector, n_best: int) -> Positions:
        """The candidates with the highest of all items' scores, best first."""
        if self.passing is None:
            return top_k(scores, n_best)
        best: Positions = self.passing[top_k(scores[self.passing], n_best)]
        return best

    def of(self, positions: Positions) -> Positions:
        """Those of some items that are candidates, in their order."""
        return positions if self.passing is None else positions[np.isin(positions, self.passing)]

    def first(self, n: int) -> Positions:
        """The first n by position."""
        return np.arange(min(n, self.n_items)) if self.passing is None else self.passing[:n]

    def draw(self, n: int, rng: np.random.Generator, *, scored: Positions | None = None) -> Positions:
        """Distinct ones at random that weren't scored; without listing them all, unless most of them were."""
        taken = np.empty(0, dtype=np.int64) if scored is None else scored
        if TRIES * (n + len(taken)) >= len(self):
            left = np.setdiff1d(self.first(len(self)), taken)
            return rng.choice(left, min(n, len(left)), replace=False)
        found = dict.fromkeys(self._at(rng.integers(len(self), size=TRIES * (n + 8))).tolist())
        known = set(taken.tolist())
        return np.array([position for position in found if position not in known][:n], dtype=np.int64)

    def blocks(self, size: int) -> Iterator[Block]:
        """All of them, in blocks of at most `size` items."""
        if self.passing is not None and self.are_few:
            for start in range(0, len(self), size):
                yield Block(self.passing[start : start + size])
            return
        is_hidden = None if self.passing is None else _without(self.n_items, self.passing)
        for start in range(0, self.n_items, size):
            items = slice(start, min(start + size, self.n_items))
            yield Block(items, None if is_hidden is None else is_hidden[items])

    def _at(self, places: Positions) -> Positions:
        return places if self.passing is None else self.passing[places]


def _without(n_items: int, passing: Positions) -> NDArray[np.bool_]:
    is_hidden = np.ones(n_items, dtype=np.bool_)
    is_hidden[passing] = False
    return is_hidden
