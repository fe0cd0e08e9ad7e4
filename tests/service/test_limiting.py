"""Places under pressure, on simulated servers: quick for those who are let in, and nobody is refused without need."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import pytest

from anncur.service.admission import Admission
from anncur.service.limiting import AloneTimes, Finished, SlowdownLimit, Work, quantile
from anncur.service.problems import ProblemError
from simulated import simulate

WORK = Work(("things", "posterior"), 100)
STEP = 0.05  # of what a search takes alone, after which its pace is taken again


@dataclass
class Server:
    """Searches that slow each other down by `slope` for each other one; `alone` seconds by itself, a little more or
    less."""

    alone: float
    slope: float
    max_slowdown: float = 2.0
    work: Work = WORK
    rng: random.Random = field(default_factory=lambda: random.Random(0))
    times: list[float] = field(default_factory=list)
    n_refused: int = 0
    fewest_places: int = 10**9

    def __post_init__(self) -> None:
        limit = SlowdownLimit(16, 16, self.max_slowdown) if self.max_slowdown else None
        self.admission = Admission(16, 16, limit)

    async def ask(self) -> bool:
        """One search; whether it was answered."""
        loop = asyncio.get_running_loop()
        came = loop.time()
        try:
            async with self.admission.place(self.work):
                left = self.alone * self.rng.uniform(0.9, 1.1)
                while left > 0:
                    self.fewest_places = min(self.fewest_places, self.admission.places)
                    pace = 1 + self.slope * (self.admission.n_running - 1)
                    await asyncio.sleep(STEP * self.alone * pace)
                    left -= STEP * self.alone
        except ProblemError:
            self.n_refused += 1
            return False
        self.times.append(loop.time() - came)
        return True

    async def clients(self, n_clients: int, seconds: float, *, apart: float = 0.0) -> None:
        """Clients that send the next when one is answered; they begin some seconds apart."""
        end = asyncio.get_running_loop().time() + seconds

        async def client(number: int) -> None:
            await asyncio.sleep(apart * number)
            while asyncio.get_running_loop().time() < end:
                await self.ask()

        await asyncio.gather(*(client(number) for number in range(n_clients)))

    async def load(self, per_second: float, seconds: float) -> None:
        """Requests that come whether or not others were answered."""
        async with asyncio.TaskGroup() as group:
            for _ in range(int(per_second * seconds)):
                group.create_task(self.ask())
                await asyncio.sleep(1 / per_second)

    @property
    def capacity(self) -> float:
        """Searches a second, by 16 at once."""
        return 16 / (self.alone * (1 + 15 * self.slope))

    def taken(self) -> list[float]:
        """The times since this was last asked for."""
        found, self.times = self.times, []
        return found


SERVERS = [(0.15, 0.13), (0.6, 0.65), (0.6, 1.0), (0.02, 0.3), (2.0, 0.4)]


@pytest.mark.slow
@pytest.mark.parametrize(("alone", "slope"), SERVERS)
def test_at_three_times_its_capacity_the_slowest_percent_stays_within_the_bound(alone: float, slope: float) -> None:
    server = Server(alone, slope)

    async def run() -> tuple[list[float], list[float]]:
        await server.clients(1, 30 * alone)
        unloaded = server.taken()
        await server.clients(16, 10 * alone * (1 + 15 * slope))
        server.taken()
        await asyncio.sleep(1)
        await server.load(3 * server.capacity, max(30.0, 400 * alone))
        return unloaded, server.taken()

    unloaded, loaded = simulate(run())
    assert np.quantile(loaded, 0.99) <= 2 * np.quantile(unloaded, 0.99)
    assert server.n_refused > len(loaded)
    assert server.fewest_places >= 1


@pytest.mark.parametrize(("alone", "slope"), SERVERS)
def test_sixteen_clients_are_never_refused_and_lose_little_of_their_throughput(alone: float, slope: float) -> None:
    server = Server(alone, slope)
    seconds = 20 * alone * (1 + 15 * slope)

    async def run() -> int:
        await server.clients(1, 10 * alone)
        server.taken()
        await server.clients(16, seconds)
        return len(server.taken())

    n_answered = simulate(run())
    assert server.n_refused == 0
    assert n_answered / seconds >= 0.9 * server.capacity


@pytest.mark.parametrize("apart", [0.05, 0.2, 0.5, 1.5])
def test_sixteen_clients_that_come_one_after_the_other_are_never_refused(apart: float) -> None:
    server = Server(0.3, 0.4)

    async def run() -> None:
        await server.clients(1, 3)
        await server.clients(16, 30, apart=0.3 * apart)

    simulate(run())
    assert server.n_refused == 0


@pytest.mark.slow
@pytest.mark.parametrize("load", [0.1, 0.3, 0.5])
def test_a_load_that_it_can_bear_is_never_refused(load: float) -> None:
    server = Server(0.2, 0.3)

    async def run() -> None:
        await server.clients(1, 4)
        async with asyncio.TaskGroup() as group:
            for _ in range(2000):  # at random, so that some come together
                group.create_task(server.ask())
                await asyncio.sleep(server.rng.expovariate(load / 0.2))

    simulate(run())
    assert server.n_refused == 0
    assert np.median(server.times) < 0.3


def test_all_places_are_back_when_the_load_has_ended() -> None:
    server = Server(0.15, 0.13)

    async def run() -> None:
        await server.clients(1, 5)
        await server.load(3 * server.capacity, 30)
        assert server.n_refused > 0
        await asyncio.sleep(10)
        server.n_refused = 0
        await server.clients(16, 10)

    simulate(run())
    assert server.n_refused == 0
    assert server.admission.places == 16


def test_it_works_from_the_first_request_on_even_if_that_comes_with_very_many() -> None:
    server = Server(0.2, 0.5)

    async def run() -> list[float]:
        await server.load(3 * server.capacity, 60)
        server.taken()
        await server.load(3 * server.capacity, 120)
        return server.taken()

    assert np.quantile(simulate(run()), 0.99) <= 2 * 1.1 * 0.2


@pytest.mark.slow
def test_searches_that_hardly_slow_each_other_down_have_nearly_all_places_under_pressure() -> None:
    server = Server(0.2, 0.02)

    async def run() -> None:
        await server.clients(1, 5)
        await server.load(2 * server.capacity, 30)
        server.taken()
        await server.load(2 * server.capacity, 20)

    simulate(run())
    assert len(server.times) >= 0.8 * 20 * server.capacity


def test_without_a_bound_there_are_as_many_places_as_the_operator_says() -> None:
    server = Server(0.2, 0.5, max_slowdown=0)
    simulate(server.load(3 * server.capacity, 20))
    assert server.fewest_places == 16
    assert np.median(server.times) > 1.0


def test_a_few_who_come_at_once_are_all_answered_within_a_moment() -> None:
    """They wait until it shows that no others follow."""
    server = Server(0.2, 0.0)

    async def run() -> None:
        await server.clients(1, 3)
        server.taken()
        assert all(await asyncio.gather(*(server.ask() for _ in range(16))))

    simulate(run())
    assert max(server.times) <= 4 * 0.22


def limits_seen(limit: SlowdownLimit, times: Iterator[tuple[float, float]]) -> list[int]:
    """The limits as pressed searches of one kind are answered, at times and with slowdowns."""
    found = []
    for now, slowdown in times:
        limit.refuse(now)
        limit.finish(now, Finished(WORK, now, 0.0, slowdown, float(limit.limit), False))
        found.append(limit.limit)
    return found


def known(max_running: int = 16) -> SlowdownLimit:
    """One that knows what a search takes alone: a second."""
    limit = SlowdownLimit(max_running, 16, 2.0)
    for now in range(20):
        limit.finish(float(now), Finished(WORK, float(now), 0.0, 1.0, 1.0, True))
    return limit


def test_late_searches_take_places_away_until_one_is_left() -> None:
    seen = limits_seen(known(), ((20.0 + now, 5.0) for now in range(40)))
    assert sorted(seen, reverse=True) == seen
    assert seen[-1] == 1


def test_quick_searches_bring_places_back_one_by_one_up_to_all() -> None:
    seen = limits_seen(known(8), ((20.0 + now, 1.0) for now in range(400)))
    assert set(np.diff(seen).tolist()) <= {0, 1}
    assert seen[-1] == 8


def test_a_number_of_places_that_was_too_many_is_tried_ever_less_often() -> None:
    limit, tries, now = known(), [], 20.0
    while now < 3000:
        before = limit.limit
        limits_seen(limit, iter([(now, 1.9 if limit.limit > 2 else 1.1)]))
        if limit.limit > before:
            tries.append(now)
        now += 0.5
    gaps = np.diff(tries)
    assert len(tries) >= 4
    assert gaps[-1] > 4 * gaps[0]


def test_pressed_nobody_waits_who_would_be_late() -> None:
    limit = known(8)
    assert limit.may_wait(WORK, waited=5.0, n_before=10, n_here=20)
    limits_seen(limit, ((20.0 + now, 1.0) for now in range(300)))
    assert limit.may_wait(WORK, waited=0.0, n_before=0, n_here=9)
    assert not limit.may_wait(WORK, waited=0.5, n_before=0, n_here=9)
    assert not limit.may_wait(WORK, waited=0.0, n_before=10, n_here=19)


def test_times_of_one_size_tell_about_the_next() -> None:
    alone = AloneTimes()
    alone.add(Work(("things",), 100), 0.5)
    assert alone.quantile(Work(("things",), 120), 0.5) == 0.5
    assert alone.quantile(Work(("things",), 200), 0.5) == 1.0
    assert alone.quantile(Work(("things",), 50), 0.9) == 0.25
    assert alone.quantile(Work(("others",), 100), 0.5) is None


def test_a_quantile_is_one_of_the_values() -> None:
    assert quantile([3.0, 1.0, 2.0], 0.5) == 2.0
    assert quantile([1.0, 9.0], 0.9) == 1.0
    assert quantile(range(100), 0.9) == 89
