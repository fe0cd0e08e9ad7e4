"""How fast a scorer answers, how often it may be asked, and by how many at once.

A request takes `latency + pairs x seconds per pair`; both are estimated from the requests so far. Limits per minute are
kept ahead of time, so that an endpoint has nothing to refuse."""

from __future__ import annotations

import math
import os
import threading
import time
from bisect import bisect_right
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import numpy as np

from anncur.waiting import Waiting

DECAY = 0.9  # weight of what was known before each new request
SAME_SIZE = 1e-3  # variance of sizes, in squared sizes, up to which they tell nothing of latency
OUTLIER = 3.0  # times the expected time
MINUTE = 60.0
SLOT_SECONDS = 0.002  # between looks for a free place; little beside a request that is worth several at once


class Pace:
    """Estimates the time of a request from those before. Thread-safe.

    The first one of a process may have loaded a model: it counts only until there is another. One that took much longer
    than expected counts as much as `OUTLIER` allows: it was somebody else who kept the machine busy, unless it happens
    again."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._first: tuple[int, float] | None = None
        self._sums = np.zeros(5)  # decayed: of 1, pairs, seconds, pairs squared, pairs x seconds

    def observe(self, n_pairs: int, seconds: float) -> None:
        """Take in a request that was answered."""
        with self._lock:
            if self._first is None:
                self._first = (n_pairs, seconds)
                return
            if self._sums[0]:
                seconds = min(seconds, OUTLIER * self._expected(n_pairs))
            new = np.array([1.0, n_pairs, seconds, n_pairs * n_pairs, n_pairs * seconds])
            self._sums = DECAY * self._sums + new

    def seconds(self, n_pairs: int) -> float | None:
        """What a request of `n_pairs` would take, where anything is known.

        Until requests of several sizes were seen, twice as many pairs count as twice the time, and half as many as the
        same time."""
        with self._lock:
            return None if self._first is None else self._expected(n_pairs)

    def _expected(self, n_pairs: int) -> float:
        assert self._first is not None
        weight, *sums = self._sums.tolist()
        if not weight:
            mean_pairs, mean_seconds, variance = float(self._first[0]), self._first[1], 0.0
        else:
            mean_pairs, mean_seconds, mean_square, mean_product = (total / weight for total in sums)
            variance = mean_square - mean_pairs**2
        if variance <= SAME_SIZE * mean_pairs**2:
            return mean_seconds * max(1.0, n_pairs / mean_pairs)
        slope = (mean_product - mean_pairs * mean_seconds) / variance
        slope = min(max(slope, 0.0), mean_seconds / mean_pairs)  # neither latency nor pairs take negative time
        return mean_seconds + slope * (n_pairs - mean_pairs)

    def affordable(self, most: int, seconds: float) -> int | None:
        """The most pairs, up to `most`, of a request that takes no longer than `seconds`, where it is known."""
        if self.seconds(1) is None:
            return None
        return bisect_right(range(1, most + 1), seconds, key=lambda n_pairs: self.seconds(n_pairs) or 0.0)

    def __reduce__(self) -> tuple[type[Pace], tuple[()]]:
        return Pace, ()  # another process measures for itself


class Slots:
    """Places for requests that are under way, shared by all searches of a process. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pid = os.getpid()
        self._n_taken = 0

    @asynccontextmanager
    async def taken(self, most: float, waiting: Waiting, check: Callable[[], None]) -> AsyncIterator[None]:
        """Hold one of `most` places, after waiting for it; `check` may refuse to wait any longer."""
        while not self._take(most):
            check()
            await waiting.sleep(SLOT_SECONDS)
        try:
            yield
        finally:
            with self._lock:
                self._n_taken -= 1

    def _take(self, most: float) -> bool:
        with self._lock:
            if self._pid != os.getpid():  # requests of the process before a fork are not ours
                self._pid, self._n_taken = os.getpid(), 0
            is_free = self._n_taken < most
            self._n_taken += is_free
            return is_free


class RateLimit:
    """Lets at most `per_minute` pass in any minute; if that is below one, one in as many minutes as it takes.
    Thread-safe."""

    def __init__(self, per_minute: float, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.per_minute = per_minute
        self._most, self._window = max(1.0, per_minute), MINUTE / min(1.0, per_minute)
        self._clock = clock
        self._lock = threading.Lock()
        self._passed: deque[tuple[float, int]] = deque()  # when, and how many, within the last window
        self._n_passed = 0

    def wait(self, n_wanted: int, *, at_most: float = math.inf) -> float | None:
        """Seconds to wait before these may pass, which then count as passed at that moment; None, and nothing counts,
        where that is longer than `at_most`. More than a minute allows pass alone."""
        with self._lock:
            now = self._clock()
            while self._passed and self._passed[0][0] <= now - self._window:
                self._n_passed -= self._passed.popleft()[1]
            moment, n_left = now, self._n_passed
            for when, n_passed in self._passed:
                if n_left + n_wanted <= self._most:
                    break
                moment, n_left = when + self._window, n_left - n_passed
            moment = max(moment, now, self._passed[-1][0] if self._passed else now)
            if moment - now >= at_most:
                return None
            self._passed.append((moment, n_wanted))
            self._n_passed += n_wanted
            return moment - now

    def __reduce__(self) -> tuple[type[RateLimit], tuple[float]]:
        return RateLimit, (self.per_minute,)
