"""What a vector index is: vectors of items, ranked by their inner product with query vectors.

Rounds of a search ask it for the best of all items, each time with other query vectors, and for the vectors of the
items that were scored. Knows nothing of scorers, retrievers or files. Never changed: `add` and `remove` give another
one, so that searches that began before continue with theirs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from anncur.arrays import FloatMatrix, FloatVector, Positions, Selector
from anncur.candidates import Candidates


class Ranked(NamedTuple):
    """Items, best first, and what they were ranked by."""

    positions: Positions
    scores: FloatVector


class Means(Protocol):
    """What is added to products, asked for block by block: what is guessed without them, or noise to draw with."""

    def of_items(self, items: Selector, /) -> FloatMatrix:
        """Of neighbouring or picked items; (n_queries or 1, n)."""
        ...


class VectorIndex(Protocol):
    """Vectors of items, by position."""

    @property
    def width(self) -> int:
        """Of the vectors."""
        ...

    @property
    def recall(self) -> float:
        """The share of the very best items that it finds, for query vectors at random."""
        ...

    def __len__(self) -> int: ...

    def top(
        self, query_vectors: FloatMatrix, n_best: int, *, exclude: Sequence[Positions], among: Candidates
    ) -> list[Ranked]:
        """For each query the `n_best` candidates by inner product, best first, without those in its `exclude`.

        Fewer where there are no more, and perhaps others than the very best where an engine only approximates."""
        ...

    def take(self, positions: Positions) -> FloatMatrix:
        """The vectors of some items, in single precision or better; `positions` may have any shape, and an axis is
        added to it."""
        ...

    def add(self, vectors: FloatMatrix) -> VectorIndex:
        """The same with more items behind those that are there."""
        ...

    def remove(self, positions: Positions) -> VectorIndex:
        """The same without some items; those behind them move up."""
        ...
