"""Waiting: one code for callers who block and for callers who await."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest

import anncur
from anncur.errors import InputError
from anncur.waiting import AWAITING, BLOCKING, Job, Signal, Waiting, run

LONG = 3600.0  # seconds; nobody waits for it
PATIENCE = 20.0  # seconds, after which a test has failed


def test_a_thread_comes_to_its_end_however_often_its_task_is_cancelled() -> None:
    begun, may_end = threading.Event(), threading.Event()
    found: list[str] = []

    def work() -> str:
        begun.set()
        assert may_end.wait(PATIENCE)
        return "paid"

    async def waits() -> None:
        found.append(await AWAITING.finish(work))
        await asyncio.sleep(LONG)

    async def cancelled() -> None:
        task = asyncio.create_task(waits())
        await asyncio.to_thread(begun.wait, PATIENCE)
        for number in range(3):
            task.cancel(f"scope {number}")
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            assert not task.done()
        may_end.set()
        with pytest.raises(asyncio.CancelledError, match="scope 0"):
            await task
        assert task.cancelling() == 3

    asyncio.run(cancelled())
    assert found == ["paid"]


def test_a_function_that_fails_in_a_thread_leaves_its_task_cancelled() -> None:
    begun, may_end = threading.Event(), threading.Event()

    def work() -> None:
        begun.set()
        may_end.wait(PATIENCE)
        raise ValueError("lost")

    async def cancelled() -> None:
        task = asyncio.create_task(AWAITING.finish(work))
        await asyncio.to_thread(begun.wait, PATIENCE)
        task.cancel()
        may_end.set()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancelled())


async def one_fails(waiting: Waiting, slept: list[str]) -> None:
    """One of two workers fails while the other sleeps."""
    is_asleep = Signal()

    async def sleeps() -> None:
        is_asleep.give()
        await waiting.sleep(LONG)
        slept.append("to the end")

    async def fails() -> None:
        await waiting.wait(is_asleep, PATIENCE)
        raise ValueError("the key was revoked")

    await waiting.each(iter([sleeps, fails]), at_once=2)


def test_after_a_failure_no_task_and_no_thread_sleeps_on() -> None:
    slept: list[str] = []

    async def patiently() -> None:
        async with asyncio.timeout(PATIENCE):
            await one_fails(AWAITING, slept)

    with pytest.raises(ValueError, match="revoked"):
        asyncio.run(patiently())
    with pytest.raises(ValueError, match="revoked"):
        run(one_fails(BLOCKING, slept))
    assert slept == []


def test_after_a_failure_no_task_begins_a_call() -> None:
    calls: list[str] = []

    async def asks(name: str) -> None:
        calls.append(name)

    async def one_fails_before_others_call() -> None:
        has_failed = asyncio.Event()

        async def call(*arguments: Any) -> None:
            await has_failed.wait()
            await AWAITING.call(*arguments)

        async def fails() -> None:
            has_failed.set()
            raise ValueError("the key was revoked")

        jobs: list[Job] = [partial(call, calls.append, "in a thread"), partial(call, asks, "on the loop"), fails]
        await AWAITING.each(iter(jobs), at_once=3)

    with pytest.raises(ValueError, match="revoked"):
        asyncio.run(one_fails_before_others_call())
    assert calls == []


def test_a_signal_wakes_threads_and_tasks() -> None:
    signal = Signal()

    async def woken() -> None:
        async with asyncio.timeout(PATIENCE):
            thread = asyncio.to_thread(lambda: run(BLOCKING.wait(signal, LONG)))
            await asyncio.gather(thread, AWAITING.wait(signal, LONG), asyncio.to_thread(signal.give))

    asyncio.run(woken())
    asyncio.run(woken())  # at once, since it was given


@pytest.mark.parametrize("seconds", [0.0, -1.0, 0.001])
def test_whoever_waits_for_a_signal_that_doesnt_come_gives_up_in_time(seconds: float) -> None:
    run(BLOCKING.wait(Signal(), seconds))
    asyncio.run(AWAITING.wait(Signal(), seconds))


@pytest.mark.parametrize("seconds", [1e300, float("inf")])
def test_a_wait_may_be_longer_than_any_clock_can_measure(seconds: float) -> None:
    signal = Signal()
    signal.give()
    run(BLOCKING.wait(signal, seconds))
    asyncio.run(AWAITING.wait(signal, seconds))


def test_an_async_scorer_that_blocks_for_another_one_is_refused_and_doesnt_hang() -> None:
    class Inner:
        fingerprint = "inner"

        async def score(self, query: anncur.Query, items: Sequence[anncur.Item]) -> list[float]:
            return [float(len(item.text)) for item in items]

    index = anncur.Index.build(["a", "bb", "ccc"], Inner(), retrievers=["bm25"])

    class Outer:
        fingerprint = "outer"

        async def score(self, query: anncur.Query, items: Sequence[anncur.Item]) -> list[float]:
            return [index.search(query, k=1, budget=2)[0].score for _ in items]

    errors: list[InputError] = []

    def ask() -> None:
        try:
            anncur.load_scorer(Outer()).score(anncur.Query("q"), [anncur.Item("0", "a")])
        except InputError as error:
            errors.append(error)

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(PATIENCE)
    assert "index.asearch(…) in the place of index.search(…)" in str(errors[0])
