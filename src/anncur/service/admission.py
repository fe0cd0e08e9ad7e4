"""Who may run now, who waits, and who is refused: a bounded queue in front of searches.

Feeds the routes. Runs on one event loop, so that no lock is needed."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from anncur.service.problems import TOO_BUSY, ProblemError

LONGEST_RETRY = 60.0  # seconds
WEIGHT = 0.1  # of the latest search in the mean time of searches


class Admission:
    """Places for what runs at once, and a queue for a few others, first come, first served."""

    def __init__(self, max_running: int, max_waiting: int) -> None:
        self.max_running = max_running
        self.max_waiting = max_waiting
        self.n_running = 0
        self.n_refused = 0
        self._queue: deque[asyncio.Future[None]] = deque()
        self._mean_seconds = 0.0

    @property
    def n_waiting(self) -> int:
        """Those in the queue."""
        return len(self._queue)

    @asynccontextmanager
    async def place(self) -> AsyncIterator[float]:
        """Hold a place; gives the seconds that were waited for it. Refused at once where the queue is full."""
        waited = await self._enter()
        started = time.perf_counter()
        try:
            yield waited
        finally:
            self._observe(time.perf_counter() - started)
            self._leave()

    async def _enter(self) -> float:
        if self.n_running < self.max_running and not self._queue:
            self.n_running += 1
            return 0.0
        if len(self._queue) >= self.max_waiting:
            self.n_refused += 1
            raise ProblemError(TOO_BUSY, "come again when others have been served", retry_after=self._retry_after())
        started, turn = time.perf_counter(), asyncio.get_running_loop().create_future()
        self._queue.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self._leave()  # the place came together with the cancellation
            elif turn in self._queue:
                self._queue.remove(turn)
            raise
        return time.perf_counter() - started

    def _leave(self) -> None:
        self.n_running -= 1
        while self._queue and self.n_running < self.max_running:
            turn = self._queue.popleft()
            if not turn.done():
                self.n_running += 1
                turn.set_result(None)

    def _observe(self, seconds: float) -> None:
        self._mean_seconds = seconds if not self._mean_seconds else (1 - WEIGHT) * self._mean_seconds + WEIGHT * seconds

    def _retry_after(self) -> float:
        """When those before will probably have been served."""
        return min(LONGEST_RETRY, self._mean_seconds * (1 + self.n_waiting) / self.max_running)
