"""An event loop whose time passes at once: whoever sleeps is woken in order, and a minute takes no time."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class _NoWaiting(selectors.DefaultSelector):
    """Looks at files without waiting for them, and lets the loop's clock pass instead."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def select(self, timeout: float | None = None) -> list[Any]:
        assert timeout is not None, "nothing will ever happen"
        self.now += max(0.0, timeout)
        found: list[Any] = super().select(0)
        return found


class SimulatedLoop(asyncio.SelectorEventLoop):
    """The loop; its time begins at 0."""

    def __init__(self) -> None:
        self._selected = _NoWaiting()
        super().__init__(self._selected)

    def time(self) -> float:
        return self._selected.now


def simulate(work: Coroutine[Any, Any, T]) -> T:
    """What some work gives that only waits for time and for itself."""
    with asyncio.Runner(loop_factory=SimulatedLoop) as runner:
        return runner.run(work)
