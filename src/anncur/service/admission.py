"""Who may run now, who waits, and who is refused: a bounded queue in front of searches.

Feeds the routes. Runs on one event loop, so that no lock is needed. How many places there are under pressure is
decided in `limiting.py`."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from anncur.service.limiting import Finished, SlowdownLimit, Work
from anncur.service.problems import TOO_BUSY, ProblemError

LONGEST_RETRY = 60.0  # seconds
WEIGHT = 0.1  # of the latest search in the mean time of searches
UNKNOWN = Work((), 0)


class ExpiredError(ProblemError):
    """No place was free before a deadline."""


@dataclass(frozen=True, eq=False)
class Turn:
    """Somebody in the queue."""

    work: Work
    came: float
    begins: asyncio.Future[None]


class Admission:
    """Places for what runs at once, and a queue for a few others, first come, first served.

    With a `limit`, there are fewer places while requests press, and only those wait who will be answered soon."""

    def __init__(self, max_running: int, max_waiting: int, limit: SlowdownLimit | None = None) -> None:
        self.max_running = max_running
        self.max_waiting = max_waiting
        self.limit = limit
        self.n_running = 0
        self.n_refused = 0
        self._n_started = 0
        self._queue: deque[Turn] = deque()
        self._mean_seconds = 0.0
        self._timer: asyncio.TimerHandle | None = None

    @property
    def places(self) -> int:
        """How many may run now."""
        return self.max_running if self.limit is None else self.limit.places

    @property
    def n_waiting(self) -> int:
        """Those in the queue."""
        return len(self._queue)

    @property
    def n_here(self) -> int:
        """Those who run or wait."""
        return self.n_running + self.n_waiting

    @asynccontextmanager
    async def place(self, work: Work = UNKNOWN, *, seconds: float | None = None) -> AsyncIterator[float]:
        """Hold a place for some work; gives the seconds that were waited for it. Refused at once where there is no
        room to wait, later where others press, and when it has waited for `seconds`."""
        loop = asyncio.get_running_loop()
        came = loop.time()
        started = await self._enter(work, came, seconds)
        self._n_started += 1
        number, n_running = self._n_started, self.n_running
        try:
            yield started - came
            was_alone = n_running == 1 and number == self._n_started
            n_beside = (n_running + self.n_running) / 2
            self._observe(Finished(work, came, started - came, loop.time() - started, n_beside, was_alone), loop.time())
        finally:
            self._leave()

    async def _enter(self, work: Work, came: float, seconds: float | None) -> float:
        """Wait for a place; when it was had."""
        if self.limit is not None:
            self.limit.come(came, self.n_here, is_waiting=bool(self._queue))
            self._act()
        if self.n_running < self.places and not self._queue:
            self.n_running += 1
            return came
        if not self._may_wait(work, waited=0.0, n_before=self.n_waiting):
            error = self._refusal()
            self._act()
            raise error
        turn = Turn(work, came, asyncio.get_running_loop().create_future())
        self._queue.append(turn)
        if self.limit is not None:
            self.limit.wait(came, work)
            self._act()
        try:
            async with asyncio.timeout(seconds):
                await self._wait(turn)
        except TimeoutError:
            detail = "no place was free before the deadline"
            raise ExpiredError(TOO_BUSY, detail, retry_after=self._retry_after()) from None
        return asyncio.get_running_loop().time()

    async def _wait(self, turn: Turn) -> None:
        try:
            await turn.begins
        except asyncio.CancelledError:
            if turn.begins.done() and not turn.begins.cancelled():
                if turn.begins.exception() is None:
                    self._leave()  # the place came together with the cancellation
            elif turn in self._queue:
                self._queue.remove(turn)
            raise

    def _leave(self) -> None:
        self.n_running -= 1
        if self.limit is not None:
            self.limit.leave()
            self.limit.look(asyncio.get_running_loop().time(), self.n_here, is_waiting=bool(self._queue))
        self._act()

    def _act(self) -> None:
        """Let those begin who may, refuse those who would wait in vain, and look again when it is due."""
        while self._queue and self.n_running < self.places:
            newest_first = self.limit is not None and self.limit.serves_newest_first
            turn = self._queue.pop() if newest_first else self._queue.popleft()
            if not turn.begins.done():
                self.n_running += 1
                turn.begins.set_result(None)
        if self.limit is None:
            return
        if self.limit.is_pressed:
            self._shed()
        if self._timer is not None:
            self._timer.cancel()
        due = self.limit.due
        self._timer = None if due is None else asyncio.get_running_loop().call_at(due, self._look)

    def _look(self) -> None:
        assert self.limit is not None, "nothing else is due"
        self.limit.look(asyncio.get_running_loop().time(), self.n_here, is_waiting=bool(self._queue))
        self._act()

    def _shed(self) -> None:
        now, turns = asyncio.get_running_loop().time(), list(self._queue)
        self._queue.clear()
        for turn in turns:
            if self._may_wait(turn.work, waited=now - turn.came, n_before=self.n_waiting):
                self._queue.append(turn)
            elif not turn.begins.done():
                turn.begins.set_exception(self._refusal())

    def _may_wait(self, work: Work, *, waited: float, n_before: int) -> bool:
        if self.limit is None:
            return n_before < self.max_waiting
        return self.limit.may_wait(work, waited=waited, n_before=n_before, n_here=self.n_here)

    def _refusal(self) -> ProblemError:
        retry_after = self._retry_after()
        self.n_refused += 1
        if self.limit is not None:
            self.limit.refuse(asyncio.get_running_loop().time())
        return ProblemError(TOO_BUSY, "come again when others have been served", retry_after=retry_after)

    def _observe(self, done: Finished, now: float) -> None:
        self._mean_seconds = (1 - WEIGHT) * self._mean_seconds + WEIGHT * done.ran if self._mean_seconds else done.ran
        if self.limit is not None:
            self.limit.finish(now, done)

    def _retry_after(self) -> float:
        """When those before will probably have been served."""
        return min(LONGEST_RETRY, self._mean_seconds * (1 + self.n_waiting) / self.places)
