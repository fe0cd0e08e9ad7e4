"""Vectors as engines get them: centred, scaled, and lengthened where an engine looks for nearest neighbours.

Centring and scaling change no order: half precision has little range, and a level that all items share would drown
their differences. One more coordinate makes all vectors equally long, so that the nearest are those of the largest
product; that of a query is 0. Reads vectors of items, feeds `faiss.py` and `database.py`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from anncur.arrays import NO_POSITIONS, FloatMatrix, FloatVector, Positions
from anncur.vectors.half import single
from anncur.vectors.local import LocalVectors

ROWS_AT_ONCE = 65_536


@dataclass(frozen=True, eq=False)
class Transform:
    """What vectors are centred and scaled by, and how long they become when they are lengthened."""

    mean: FloatVector  # (width,)
    scale: float
    longest: float  # squared, after both

    def apply(self, rows: FloatMatrix) -> FloatMatrix:
        """Vectors that are centred and scaled."""
        prepared: FloatMatrix = (rows - self.mean) * np.float32(self.scale)
        return prepared

    def lengthen(self, prepared: FloatMatrix) -> FloatMatrix:
        """Those with one more coordinate, so that all are equally long; of one that is longer by itself, it is 0."""
        squares = np.einsum("ij,ij->i", prepared, prepared)
        return np.hstack([prepared, np.sqrt(np.maximum(0, self.longest - squares))[:, None]])

    def with_headroom(self, factor: float) -> Transform:
        """The same with room for vectors that are longer, by a factor."""
        return replace(self, longest=self.longest * factor**2)

    def for_queries(self, query_vectors: FloatMatrix) -> FloatMatrix:
        """Query vectors with a 0 behind them, as long as lengthened items: their order is that of products."""
        lengths = np.linalg.norm(query_vectors, axis=1, keepdims=True)
        scaled = query_vectors * (np.sqrt(self.longest) / np.where(lengths > 0, lengths, 1.0))
        return np.hstack([scaled, np.zeros((len(scaled), 1))]).astype(np.float32)


class Prepared:
    """Vectors of items, seen through a transform; by default one that is fitted to them."""

    def __init__(self, vectors: LocalVectors, transform: Transform | None = None) -> None:
        self._vectors = vectors
        self.transform = self._fit() if transform is None else transform

    def __len__(self) -> int:
        return len(self._vectors)

    @property
    def width(self) -> int:
        return self._vectors.width

    def take(self, positions: Positions) -> FloatMatrix:
        return self.transform.apply(single(self._vectors.take(positions)))

    def lengthened(self, rows: FloatMatrix) -> FloatMatrix:
        """Prepared vectors with one more coordinate, so that all are as long as the longest."""
        return self.transform.lengthen(rows)

    def blocks(self, start: int = 0) -> Iterator[FloatMatrix]:
        """All from a position on."""
        return (self.transform.apply(rows) for rows in self._raw_blocks(start))

    def too_long(self, start: int = 0) -> Positions:
        """Vectors from a position on that are longer than lengthened ones: others than the transform was fitted to."""
        limit = self.transform.longest * (1 + 1e-5)
        are_longer = [np.einsum("ij,ij->i", rows, rows) > limit for rows in self.blocks(start)]
        return start + np.flatnonzero(np.concatenate(are_longer)) if are_longer else NO_POSITIONS

    def _raw_blocks(self, start: int = 0) -> Iterator[FloatMatrix]:
        for first in range(start, len(self), ROWS_AT_ONCE):
            yield single(self._vectors.take(np.arange(first, min(first + ROWS_AT_ONCE, len(self)))))

    def _fit(self) -> Transform:
        """Centred, with the longest about 1."""
        total = sum(rows.sum(axis=0, dtype=np.float64) for rows in self._raw_blocks())
        mean = np.asarray(total / len(self), dtype=np.float32)
        centred = (rows - mean for rows in self._raw_blocks())
        longest = max(float(np.einsum("ij,ij->i", rows, rows).max()) for rows in centred)
        scale = float(2.0 ** -np.round(np.log2(longest) / 2)) if longest > 0 else 1.0
        return Transform(mean, scale, longest * scale**2)
