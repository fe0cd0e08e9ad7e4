"""The bounded queue: first come, first served; refused at once when it is full; a place is never lost."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from anncur.service.admission import Admission, ExpiredError
from anncur.service.problems import ProblemError


async def hold(admission: Admission, until: asyncio.Event, done: list[int], number: int) -> None:
    async with admission.place():
        await until.wait()
        done.append(number)


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(work, 10))


def test_no_more_run_or_wait_than_there_are_places() -> None:
    async def work() -> None:
        admission, end, done = Admission(2, 3), asyncio.Event(), list[int]()
        tasks = [asyncio.create_task(hold(admission, end, done, number)) for number in range(5)]
        await asyncio.sleep(0)
        assert (admission.n_running, admission.n_waiting) == (2, 3)
        with pytest.raises(ProblemError) as refused:
            async with admission.place():
                pass
        assert refused.value.kind.status == 429
        assert refused.value.all_headers()["Retry-After"].isdigit()
        end.set()
        await asyncio.gather(*tasks)
        assert done == [0, 1, 2, 3, 4]
        assert (admission.n_running, admission.n_waiting) == (0, 0)

    run(work())


def test_who_is_cancelled_leaves_no_place_taken() -> None:
    async def work() -> None:
        admission, end, done = Admission(1, 5), asyncio.Event(), list[int]()
        tasks = [asyncio.create_task(hold(admission, end, done, number)) for number in range(4)]
        await asyncio.sleep(0)
        tasks[0].cancel()  # runs
        tasks[2].cancel()  # waits
        await asyncio.sleep(0)
        tasks[1].cancel()  # its turn has just come
        await asyncio.sleep(0)
        end.set()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert done == [3]
        assert (admission.n_running, admission.n_waiting) == (0, 0)

    run(work())


def test_who_waits_for_too_long_leaves_the_queue() -> None:
    async def work() -> None:
        admission, end, done = Admission(1, 5), asyncio.Event(), list[int]()
        task = asyncio.create_task(hold(admission, end, done, 0))
        await asyncio.sleep(0)
        with pytest.raises(ExpiredError) as refused:
            async with admission.place(seconds=0.01):
                pass
        assert refused.value.kind.status == 429
        assert (admission.n_running, admission.n_waiting) == (1, 0)
        end.set()
        await task
        async with admission.place(seconds=-1.0):  # one that is free needs no time
            assert admission.n_running == 1

    run(work())


def test_an_error_frees_its_place() -> None:
    async def work() -> None:
        admission = Admission(1, 0)
        for _ in range(3):
            with pytest.raises(KeyError):
                async with admission.place():
                    raise KeyError
        assert admission.n_running == 0

    run(work())


def test_without_a_queue_the_next_is_refused() -> None:
    async def work() -> None:
        admission = Admission(1, 0)
        async with admission.place() as waited:
            assert waited == 0
            with pytest.raises(ProblemError):
                async with admission.place():
                    pass
        async with admission.place():
            pass

    run(work())
