"""Vectors that an engine has a copy of, as they are: exact rankings where the copy doesn't serve, and single vectors.

Feeds `faiss.py` and `database.py`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from anncur.arrays import FloatMatrix, FloatVector, Positions, Selector
from anncur.candidates import Candidates
from anncur.ranking import top_k
from anncur.vectors.base import Ranked
from anncur.vectors.exact import ExactVectors


@dataclass(frozen=True, eq=False)
class WeightedOffsets:
    """Offsets times what each query weighs them with: `Means` for exact rankings."""

    offsets: FloatVector  # (n_items,)
    weights: FloatVector  # (n_queries,)

    def of_items(self, items: Selector) -> FloatMatrix:
        return self.weights[:, None] * self.offsets[None, items]


@dataclass(frozen=True, eq=False)
class LocalVectors:
    """An array's vectors; with `offsets`, these are one more coordinate of each."""

    vectors: ExactVectors
    offsets: FloatVector | None = None

    def __len__(self) -> int:
        return len(self.vectors)

    @property
    def width(self) -> int:
        return self.vectors.width + (self.offsets is not None)

    def take(self, positions: Positions) -> FloatMatrix:
        vectors = self.vectors.take(positions)
        if self.offsets is None:
            return vectors
        return np.concatenate([vectors, self.offsets[positions][..., None].astype(vectors.dtype)], axis=-1)

    def top(
        self, query_vectors: FloatMatrix, n_best: int, *, exclude: Sequence[Positions], among: Candidates
    ) -> list[Ranked]:
        if self.offsets is None:
            return self.vectors.top(query_vectors, n_best, exclude=exclude, among=among)
        means = WeightedOffsets(self.offsets, query_vectors[:, -1])
        return self.vectors.top(query_vectors[:, :-1], n_best, exclude=exclude, among=among, means=means)

    def ranked(self, positions: Positions, query_vector: FloatVector, n_best: int) -> Ranked:
        """The best of some items, which come in ascending order of positions."""
        products = self.take(positions) @ query_vector.astype(np.float32)
        best = top_k(products, n_best)
        return Ranked(positions[best], products[best])

    def add(self, vectors: FloatMatrix) -> LocalVectors:
        if self.offsets is None:
            return LocalVectors(self.vectors.add(vectors))
        offsets = np.concatenate([self.offsets, vectors[:, -1]])
        return LocalVectors(self.vectors.add(vectors[:, :-1]), offsets)

    def remove(self, positions: Positions) -> LocalVectors:
        offsets = None if self.offsets is None else np.delete(self.offsets, positions)
        return LocalVectors(self.vectors.remove(positions), offsets)
