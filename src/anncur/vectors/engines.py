"""The engines by the names that users call them: who ranks all items of an index.

exact             every item, in single precision (the default)
exact:float16     the same in half of the memory
faiss             every item, in half precision and by faiss (extra `ann`): half of the memory, and faster
faiss:ivf         the items of the nearest cells: for millions of items
faiss:hnsw        along a graph"""

from __future__ import annotations

import threading
import warnings
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from anncur.arrays import FloatVector, Positions
from anncur.errors import AnncurWarning, InputError
from anncur.vectors.base import VectorIndex
from anncur.vectors.exact import ExactVectors
from anncur.vectors.faiss import FLAT, FaissVectors, check_faiss

EXACT = "exact"
LEAST_ITEMS = 4000  # fewer are ranked exactly, whatever the engine
NAMES = (EXACT, "exact:float16", "faiss", "faiss:ivf", "faiss:hnsw")


@dataclass(frozen=True)
class Engine:
    """How items are ranked."""

    name: str = EXACT

    def __post_init__(self) -> None:
        if self.name not in NAMES:
            raise InputError(f"vectors must be one of {', '.join(NAMES)}, got {self.name!r}")

    @classmethod
    def wanted(cls, name: str) -> Engine:
        """One that a user asks for; an error where it needs what isn't installed."""
        engine = cls(name)
        if engine.is_approximate:
            check_faiss(name)
        return engine

    def at_hand(self) -> Engine:
        """The same, or where what it needs isn't installed, the exact one with a warning."""
        try:
            return Engine.wanted(self.name)
        except InputError as error:
            warnings.warn(f"{error}; until then all items are ranked exactly", AnncurWarning, stacklevel=2)
            return Engine()

    def is_worth(self, n_items: int) -> bool:
        """Whether this number of items is ranked by another than the exact one."""
        return self.is_approximate and n_items >= LEAST_ITEMS

    @property
    def precision(self) -> np.dtype[np.floating[Any]]:
        """Of the vectors that are kept."""
        return np.dtype(np.float32 if self.name == EXACT else np.float16)

    @property
    def is_approximate(self) -> bool:
        """Whether it ranks by copies of its own of the vectors, and so may find others than the very best."""
        return not self.name.startswith(EXACT)

    def index(self, vectors: ExactVectors, offsets: FloatVector | None = None) -> FaissVectors:
        """These vectors, ready to be ranked; with `offsets`, these are one more coordinate of each."""
        return FaissVectors(vectors, self.name.partition(":")[2] or FLAT, offsets=offsets)


class Identity(NamedTuple):
    """By what vectors are known over versions and processes: the `space` that they are in, and the key of each.

    The same key in the same space is the same vector. A later version has the keys of an earlier one, less those of
    items that are gone, and behind them those of new items."""

    space: str
    keys: Positions  # (n_items,), ascending


class KeptIndex:
    """What an engine made of the vectors of one version, kept to make that of the next version from it. Thread-safe."""

    def __init__(self) -> None:
        self._made: tuple[Engine, Identity, FaissVectors] | None = None
        self._making = threading.Lock()

    def get(self, engine: Engine, vectors: ExactVectors, offsets: FloatVector, identity: Identity) -> VectorIndex:
        """The index of these vectors, each with its offset behind it."""
        with self._making:
            gone = self._gone(engine, identity)
            if self._made is None or gone is None:
                made = engine.index(vectors, offsets)
            else:
                made = self._made[2].following(vectors, offsets, gone=gone)
            self._made = engine, identity, made
            return made

    def _gone(self, engine: Engine, identity: Identity) -> Positions | None:
        """The positions of items that are no longer there; None where this isn't a later version of what was made."""
        if self._made is None or (self._made[0], self._made[1].space) != (engine, identity.space):
            return None
        before = self._made[1].keys
        is_there = np.isin(before, identity.keys)
        is_later = np.array_equal(before[is_there], identity.keys[: int(is_there.sum())])
        return np.flatnonzero(~is_there) if is_later else None

    def __reduce__(self) -> tuple[type[KeptIndex], tuple[()]]:
        return type(self), ()
