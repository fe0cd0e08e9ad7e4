"""What methods make of an index's knowledge when they first need it, and keep: most searches need none of it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from typing import TypeVar, cast

Made = TypeVar("Made")


class Derived:
    """The latest thing that each method made; it may be as large as the item vectors, so only one is kept of each."""

    def __init__(self) -> None:
        self._made: dict[str, tuple[Hashable, object]] = {}
        self._making = threading.Lock()

    def once(self, method: str, settings: Hashable, make: Callable[[], Made]) -> Made:
        """What `make` makes, made anew only for other settings than the last ones."""
        with self._making:
            kept = self._made.get(method)
            if kept is None or kept[0] != settings:
                kept = (settings, make())
                self._made[method] = kept
            return cast(Made, kept[1])
