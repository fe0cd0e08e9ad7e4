"""Limits: no minute with more than is allowed, no more at once, and nothing held by who doesn't ask."""

from __future__ import annotations

import asyncio
import math
import threading
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import anncur
from anncur.errors import DeadlineError
from anncur.scorers.limits import MINUTE, RateLimits, Slots
from anncur.scorers.rules import CallRules
from anncur.waiting import AWAITING, BLOCKING, Awaiting, Signal, run

PATIENCE = 20.0  # seconds, after which a test has failed


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Limited:
    """Limits on a clock of their own, and how long a request would wait for them."""

    def __init__(self, **rules: float) -> None:
        self.clock = Clock()
        self.limits = RateLimits(clock=self.clock)
        self._rules = CallRules(**rules)  # type: ignore[arg-type]

    def wait(self, n_pairs: int = 1, *, at_most: float = math.inf) -> float:
        return self.limits.reserve(self._rules.passing(n_pairs), at_most=at_most) - self.clock.now

    def release(self, n_pairs: int, moment: float) -> None:
        self.limits.release(self._rules.passing(n_pairs), moment)


def most_in_a_minute(moments: Sequence[float], counts: Sequence[int]) -> int:
    when, how_many = np.array(moments), np.array(counts)
    return max(int(how_many[(when > moment - MINUTE + 1e-6) & (when <= moment)].sum()) for moment in moments)


@given(
    st.lists(st.tuples(st.floats(0, 30), st.integers(1, 12)), min_size=1, max_size=60),
    st.integers(1, 8),
    st.integers(12, 40),
)
def test_no_minute_has_more_than_either_limit(
    asked: list[tuple[float, int]], most_requests: int, most_pairs: int
) -> None:
    limited = Limited(requests_per_minute=most_requests, pairs_per_minute=most_pairs)
    moments, counts = [], []
    for pause, n_pairs in asked:
        limited.clock.now += pause
        moments.append(limited.clock.now + limited.wait(n_pairs))
        counts.append(n_pairs)
    assert most_in_a_minute(moments, counts) <= most_pairs
    assert most_in_a_minute(moments, [1] * len(moments)) <= most_requests


def test_a_request_counts_in_both_limits_at_the_moment_when_it_passes() -> None:
    limited = Limited(requests_per_minute=2, pairs_per_minute=10)
    assert [limited.wait(10), limited.wait(5)] == [0.0, MINUTE]
    limited.clock.now = MINUTE + 1
    assert [limited.wait(1), limited.wait(1)] == [0.0, MINUTE - 1]


def test_below_the_limit_nobody_waits() -> None:
    limited = Limited(pairs_per_minute=60)
    assert [limited.wait(20) for _ in range(4)] == [0.0, 0.0, 0.0, MINUTE]
    assert [Limited().wait(20) for _ in range(3)] == [0.0, 0.0, 0.0]


def test_a_request_larger_than_a_minute_allows_passes_alone() -> None:
    limited = Limited(pairs_per_minute=10)
    assert [limited.wait(25), limited.wait(5)] == [0.0, MINUTE]


def test_a_moment_that_nobody_can_wait_for_is_not_taken() -> None:
    limited = Limited(requests_per_minute=2, pairs_per_minute=100)
    assert [limited.wait(1, at_most=0.05) for _ in range(2)] == [0.0, 0.0]
    for _ in range(3):
        with pytest.raises(DeadlineError, match="before requests_per_minute and pairs_per_minute allow another"):
            limited.wait(1, at_most=0.05)
    assert limited.wait(1) == MINUTE


def test_less_than_one_a_minute_is_one_in_several_minutes() -> None:
    limited = Limited(requests_per_minute=0.5)
    assert [limited.wait() for _ in range(3)] == [0.0, 2 * MINUTE, 4 * MINUTE]


@given(st.lists(st.booleans(), min_size=1, max_size=30))
def test_what_is_released_doesnt_count(are_kept: list[bool]) -> None:
    limited, twin = (Limited(requests_per_minute=3, pairs_per_minute=20) for _ in range(2))
    for is_kept in are_kept:
        moment = limited.wait(5)
        if is_kept:
            assert moment == twin.wait(5)
        else:
            limited.release(5, moment)
    assert limited.wait(5) == twin.wait(5)


class Instant:
    """An async scorer."""

    fingerprint = "instant"

    async def score(self, query: anncur.Query, items: Sequence[anncur.Item]) -> list[float]:
        return [0.0] * len(items)


def test_tasks_that_are_cancelled_while_they_wait_for_a_limit_keep_nobody_waiting() -> None:
    scorer = anncur.load_scorer(Instant(), requests_per_minute=1)
    pairs = [(anncur.Query("q"), anncur.Item("0", "a"))]
    waits: list[float] = []

    class Recording(Awaiting):
        async def sleep(self, seconds: float) -> None:
            waits.append(seconds)

    async def cancelled() -> None:
        tasks = [asyncio.create_task(scorer.ask(pairs, waiting=AWAITING)) for _ in range(50)]
        await tasks[0]
        for task in tasks[1:]:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await scorer.ask(pairs, waiting=Recording())

    asyncio.run(cancelled())
    assert len(waits) == 1
    assert waits[0] <= MINUTE
    assert scorer.calls_made == 2


class Counted(Awaiting):
    """Counts the waits for a signal; `all_wait` is set after `n_expected` of them."""

    def __init__(self, n_expected: int) -> None:
        self.n_waits, self._n_expected = 0, n_expected
        self.all_wait = asyncio.Event()

    async def sleep(self, seconds: float) -> None:
        raise AssertionError("whoever waits for a place doesn't look for it again and again")

    async def wait(self, signal: Signal, seconds: float) -> None:
        self.n_waits += 1
        if self.n_waits == self._n_expected:
            self.all_wait.set()
        await super().wait(signal, seconds)


def test_whoever_waits_for_a_place_is_woken_in_turn_and_once() -> None:
    async def served() -> None:
        slots, waiting, turns, most = Slots(), Counted(8), list[int](), list[int]()
        n_under_way = [0]
        is_free = asyncio.Event()

        async def request(number: int) -> None:
            async with slots.taken(2, waiting):
                n_under_way[0] += 1
                most.append(n_under_way[0])
                turns.append(number)
                await is_free.wait()
                n_under_way[0] -= 1

        tasks = [asyncio.create_task(request(number)) for number in range(10)]
        await waiting.all_wait.wait()
        is_free.set()
        async with asyncio.timeout(PATIENCE):
            await asyncio.gather(*tasks)
        assert turns == list(range(10))
        assert (max(most), waiting.n_waits) == (2, 8)

    asyncio.run(served())


def test_the_place_of_a_task_that_is_cancelled_goes_to_the_next() -> None:
    async def served() -> None:
        slots, waiting, served = Slots(), Counted(3), list[int]()

        async def request(number: int) -> None:
            async with slots.taken(1, waiting):
                served.append(number)

        async with slots.taken(1, waiting):
            tasks = [asyncio.create_task(request(number)) for number in range(3)]
            await waiting.all_wait.wait()
            tasks[0].cancel()  # before it has a place
        tasks[1].cancel()  # when it has one, and doesn't know of it yet
        async with asyncio.timeout(PATIENCE):
            await asyncio.gather(*tasks, return_exceptions=True)
        assert served == [2]

    asyncio.run(served())


def test_threads_and_tasks_wait_for_the_same_places() -> None:
    slots = Slots()
    is_held, may_end = threading.Event(), threading.Event()

    async def hold() -> None:
        async with slots.taken(1, BLOCKING):
            is_held.set()
            assert may_end.wait(PATIENCE)

    class Telling(Awaiting):
        async def wait(self, signal: Signal, seconds: float) -> None:
            may_end.set()
            await super().wait(signal, seconds)

    async def both() -> None:
        async with asyncio.timeout(PATIENCE):
            thread = asyncio.create_task(asyncio.to_thread(lambda: run(hold())))
            await asyncio.to_thread(is_held.wait, PATIENCE)
            async with slots.taken(1, Telling()):
                await thread
                is_held.clear()
                thread = asyncio.create_task(asyncio.to_thread(lambda: run(hold())))
                assert not await asyncio.to_thread(is_held.wait, 0.05)
            await thread

    asyncio.run(both())
    assert is_held.is_set()


def test_whoever_gives_up_waiting_for_a_place_leaves_it_to_others() -> None:
    async def attempt() -> None:
        slots = Slots()
        async with slots.taken(1, AWAITING):
            with pytest.raises(DeadlineError):
                async with slots.taken(1, AWAITING, at_most=0.001):
                    pass
            async with slots.taken(math.inf, AWAITING, at_most=0.0):
                pass
        async with slots.taken(1, AWAITING, at_most=0.0):
            pass

    asyncio.run(attempt())
