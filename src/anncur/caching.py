"""One kind of cache for what is made on first use and kept: bounded, and safe to share between threads."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

Made = TypeVar("Made")


class Cache(Generic[Made]):
    """Keeps the `most` values that were used last.

    A value is made once, while other threads that ask for any value wait. Locks and caches belong to a process: a copy
    or a pickle begins empty."""

    def __init__(self, most: int = 1) -> None:
        self._most = most
        self._made: dict[Hashable, Made] = {}  # the latest used is last
        self._making = threading.RLock()  # one value may need another of the same cache

    def get(self, key: Hashable, make: Callable[[], Made]) -> Made:
        """The value of a key, made now unless it is kept."""
        with self._making:
            made = self._made.pop(key) if key in self._made else make()
            self._made[key] = made
            while len(self._made) > self._most:
                del self._made[next(iter(self._made))]
            return made

    def clear(self) -> None:
        """Forget everything."""
        with self._making:
            self._made.clear()

    def __reduce__(self) -> tuple[type[Cache[Made]], tuple[int]]:
        return type(self), (self._most,)
