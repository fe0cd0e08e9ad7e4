"""How fast a scorer answers, and how much time there is.

A request takes `latency + pairs x seconds per pair`; both are estimated from the requests so far."""

from __future__ import annotations

import threading
import time
from bisect import bisect_right
from collections.abc import Callable

import numpy as np

from anncur.errors import DeadlineError

DECAY = 0.9  # weight of what was known before each new request
SAME_SIZE = 1e-3  # variance of sizes, in squared sizes, up to which they tell nothing of latency
OUTLIER = 3.0  # times the expected time


class Deadline:
    """A moment after which no more requests are started."""

    def __init__(self, seconds: float, *, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._end = clock() + seconds

    @property
    def seconds_left(self) -> float:
        """Below zero once it has passed."""
        return self._end - self._clock()

    def check(self) -> None:
        """Refuse to continue after it."""
        if self.seconds_left <= 0:
            raise DeadlineError("the deadline has passed")

    def extend(self, seconds: float) -> None:
        """Let it come later."""
        self._end += seconds


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
