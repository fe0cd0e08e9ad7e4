"""What all who ask a scorer share: how many at once, how often, and how much in all.

Kept by `guard.py`, whatever rules a scorer is seen through. Limits per minute are kept ahead of time, so that an
endpoint has nothing to refuse; what was reserved for a request that isn't sent is free again."""

from __future__ import annotations

import math
import os
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import TypeAlias

from anncur.errors import DeadlineError, SpendCapError
from anncur.scorers.answers import pair_or_pairs
from anncur.scorers.collector import Collector
from anncur.scorers.noise import Noise
from anncur.scorers.pace import Pace
from anncur.waiting import Signal, Waiting

MINUTE = 60.0

Passing: TypeAlias = Mapping[tuple[str, float], int]  # a limit's name and number per minute -> how many pass at once


class Shared:
    """What counts for a scorer, whatever rules it is seen through: spend, pace, noise, limits, how much at once."""

    def __init__(self) -> None:
        self.spend = Spend()
        self.pace = Pace()
        self.noise = Noise()
        self.slots = Slots()
        self.collector = Collector()
        self.limits = RateLimits()
        self.most_pairs: float = math.inf  # in a request; fewer after one was too large

    def __reduce__(self) -> tuple[type[Shared], tuple[()]]:
        return Shared, ()  # another process counts for itself


class Spend:
    """Counts the pairs that a scorer was asked for, whatever rules it is seen through."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.n_pairs = 0

    def add(self, n_pairs: int, *, cap: int | None, fingerprint: str) -> None:
        """Count more pairs, unless they would exceed the cap."""
        with self._lock:
            if cap is not None and self.n_pairs + n_pairs > cap:
                were = "was" if self.n_pairs == 1 else "were"
                raise SpendCapError(
                    f"{n_pairs} more {pair_or_pairs(n_pairs)} would exceed the cap of {cap} {pair_or_pairs(cap)} for "
                    f"{fingerprint} ({self.n_pairs} {were} scored); raise max_calls to continue"
                )
            self.n_pairs += n_pairs

    def __reduce__(self) -> tuple[type[Spend], tuple[()]]:
        return Spend, ()  # another process counts for itself


class Slots:
    """Places for requests that are under way, shared by all searches of a process. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pid = os.getpid()
        self._holders: set[Signal] = set()
        self._queue: dict[Signal, float] = {}  # who waits, in turn -> the most holders that there may be then

    @asynccontextmanager
    async def taken(self, most: float, waiting: Waiting, *, at_most: float = math.inf) -> AsyncIterator[None]:
        """Hold one of `most` places, after waiting in turn; `DeadlineError` where that takes longer than `at_most`
        seconds."""
        turn = self._enter(most)
        try:
            if not turn.is_given:
                await waiting.wait(turn, at_most)
            if not turn.is_given:
                raise DeadlineError("the deadline comes before the end of the requests that are under way")
            yield
        finally:
            self._leave(turn)

    def _enter(self, most: float) -> Signal:
        turn = Signal()
        with self._lock:
            if self._pid != os.getpid():  # requests of the process before a fork are not ours
                self._pid, self._holders, self._queue = os.getpid(), set(), {}
            self._queue[turn] = most
            self._admit()
        return turn

    def _leave(self, turn: Signal) -> None:
        with self._lock:
            self._queue.pop(turn, None)
            self._holders.discard(turn)
            self._admit()

    def _admit(self) -> None:
        for turn, most in list(self._queue.items()):
            if len(self._holders) < most:
                del self._queue[turn]
                self._holders.add(turn)
                turn.give()


class RateLimits:
    """The limits per minute of one scorer; a request counts in all of them at the moment when it passes.

    Thread-safe."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._limits: dict[tuple[str, float], RateLimit] = {}

    async def keep(self, passing: Passing, waiting: Waiting, *, at_most: float = math.inf) -> None:
        """Wait until a request may pass all limits; `DeadlineError` where that is longer than `at_most` seconds."""
        moment = self.reserve(passing, at_most=at_most)
        try:
            if (seconds := moment - self._clock()) > 0:
                await waiting.sleep(seconds)
        except BaseException:  # cancelled or stopped
            self.release(passing, moment)
            raise

    def reserve(self, passing: Passing, *, at_most: float = math.inf) -> float:
        """The first moment that all limits allow, at which these now count as passed."""
        with self._lock:
            now = self._clock()
            limits = [(self._limits.setdefault(key, RateLimit(key[1])), n_wanted) for key, n_wanted in passing.items()]
            moment = max([now, *(limit.earliest(n_wanted, now) for limit, n_wanted in limits)])
            if moment > now and moment - now >= at_most:
                raise DeadlineError(f"the deadline comes before {_names(passing)} allow another request")
            for limit, n_wanted in limits:
                limit.add(moment, n_wanted)
            return moment

    def release(self, passing: Passing, moment: float) -> None:
        """Count no longer what was reserved and doesn't pass."""
        with self._lock:
            for key, n_wanted in passing.items():
                self._limits[key].remove(moment, n_wanted)


class RateLimit:
    """Lets at most `per_minute` pass in any minute; if that is below one, one in as many minutes as it takes."""

    def __init__(self, per_minute: float) -> None:
        self._most, self._window = max(1.0, per_minute), MINUTE / min(1.0, per_minute)
        self._passed: deque[tuple[float, int]] = deque()  # when, and how many, within the last window; some to come
        self._n_passed = 0

    def earliest(self, n_wanted: int, now: float) -> float:
        """When these may pass, after all that were added. More than a minute allows pass alone."""
        while self._passed and self._passed[0][0] <= now - self._window:
            self._n_passed -= self._passed.popleft()[1]
        moment, n_left = now, self._n_passed
        for when, n_passed in self._passed:
            if n_left + n_wanted <= self._most:
                break
            moment, n_left = when + self._window, n_left - n_passed
        return max(moment, now, self._passed[-1][0] if self._passed else now)

    def add(self, moment: float, n_passing: int) -> None:
        """Count these, at a moment that isn't before the earliest."""
        self._passed.append((moment, n_passing))
        self._n_passed += n_passing

    def remove(self, moment: float, n_passing: int) -> None:
        """Count these no longer, unless they are forgotten already."""
        if (moment, n_passing) in self._passed:
            self._passed.remove((moment, n_passing))
            self._n_passed -= n_passing


def _names(passing: Passing) -> str:
    return " and ".join(name for name, _ in passing)
