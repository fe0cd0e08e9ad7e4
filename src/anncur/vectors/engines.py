"""The engines by the names that users call them: who ranks all items of an index.

exact             every item, in single precision (the default)
exact:float16     the same in half of the memory
faiss             every item, in half precision and by faiss (extra `ann`): half of the memory, and faster
faiss:ivf         the items of the nearest cells: for millions of items
faiss:hnsw        along a graph"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from anncur.errors import InputError
from anncur.vectors.base import VectorIndex
from anncur.vectors.exact import ExactVectors
from anncur.vectors.faiss import FLAT, FaissVectors, check_faiss

EXACT = "exact"
NAMES = (EXACT, "exact:float16", "faiss", "faiss:ivf", "faiss:hnsw")


@dataclass(frozen=True)
class Engine:
    """How items are ranked."""

    name: str = EXACT

    def __post_init__(self) -> None:
        if self.name not in NAMES:
            raise InputError(f"vectors must be one of {', '.join(NAMES)}, got {self.name!r}")
        if self.is_approximate:
            check_faiss()

    @property
    def precision(self) -> np.dtype[np.floating[Any]]:
        """Of the vectors that are kept."""
        return np.dtype(np.float32 if self.name == EXACT else np.float16)

    @property
    def is_approximate(self) -> bool:
        """Whether others than the very best may be found, because what is ranked by is rounded or not all of it."""
        return not self.name.startswith(EXACT)

    def index(self, vectors: ExactVectors) -> VectorIndex:
        """These vectors, ready to be ranked."""
        if not self.is_approximate:
            return vectors
        return FaissVectors(vectors, self.name.partition(":")[2] or FLAT)
