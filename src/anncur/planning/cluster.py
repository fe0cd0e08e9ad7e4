"""How long a build takes on a cluster, what it costs, and how many workers are best: simulated from measured times.

The model follows `engines/ray_driver.py`, event by event. A worker starts and loads the scorer, then takes chunk after
chunk; chunks are handed out one at a time by one process. A worker is lost at a constant rate, whatever it does. That
is noticed after a while; then it loads again, and what was left of its chunk waits behind all others: a chunk is
written every two seconds, so that no more than these are done twice. Workers are paid for from the start of the cluster
to the end of the last chunk. Not in the model: reading items before, tuning after, machines that are slower than
others, and storage that is too slow for all that write to it."""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from anncur.errors import InputError
from anncur.filling import SECONDS_AT_STAKE
from anncur.numbers import number, whole_number

HOUR = 3600.0
MOST_EVENTS = 200_000  # chunks that are simulated for each number of workers; more runs where there are few
MOST_RUNS = 20
WORTHWHILE = 0.8  # share of the paid time that workers score: more of them would mostly wait
MOST_LOADS = 4.0  # mean times between losses that loading may take: above, hardly a worker ever scores
SIZES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024)


@dataclass(frozen=True)
class Cluster:
    """What a cluster is like.

    `price_per_hour` is that of one worker, in dollars. Each is lost `losses_per_hour` times an hour, which is
    noticed after `notice_seconds` (a killed process after one, a machine after 17). The cluster is there after
    `start_seconds`, and a worker has its process after `process_seconds`; how long it then loads the scorer is
    measured, unless `load_seconds` is given. Handing out a chunk takes `handing_seconds`. With `deadline_hours`, the
    best number of workers is the cheapest that is done by then; without, the most whose time is mostly spent on
    scoring."""

    most_workers: int = 64
    price_per_hour: float = 0.0
    losses_per_hour: float = 0.0
    deadline_hours: float | None = None
    load_seconds: float | None = None
    notice_seconds: float = 17.0
    start_seconds: float = 4.0
    process_seconds: float = 2.0
    handing_seconds: float = 0.006

    def __post_init__(self) -> None:
        whole_number("most_workers", self.most_workers, least=1)
        for name in ("price_per_hour", "losses_per_hour", "notice_seconds", "start_seconds", "process_seconds"):
            number(name, getattr(self, name), least=0)
        number("handing_seconds", self.handing_seconds, least=0)
        if self.load_seconds is not None:
            number("load_seconds", self.load_seconds, least=0)
        if self.deadline_hours is not None and not number("deadline_hours", self.deadline_hours, least=0) > 0:
            raise InputError(f"deadline_hours must be above 0, got {self.deadline_hours}")


@dataclass(frozen=True)
class ClusterCost:
    """What a number of workers takes, on average over runs.

    `share_scoring` is the share of the workers' time in which chunks are scored for the first time."""

    n_workers: int
    seconds: float
    price: float
    share_scoring: float
    n_lost: float


@dataclass(frozen=True)
class ClusterPlan:
    """What a build takes with more and more workers. `best` is None where none of them meets the deadline."""

    n_chunks: int
    chunk_seconds: float  # mean
    load_seconds: float
    costs: tuple[ClusterCost, ...]
    best: int | None


def plan_cluster(
    chunk_seconds: Sequence[float], cluster: Cluster, *, load_seconds: float, seed: int = 0
) -> ClusterPlan:
    """Simulate a build of these chunks with more and more workers; `load_seconds` is what a worker takes to load."""
    _check(chunk_seconds, cluster, load_seconds)
    costs = [
        cluster_cost(chunk_seconds, cluster, n_workers, load_seconds=load_seconds, seed=seed)
        for n_workers in _sizes(cluster, len(chunk_seconds))
    ]
    return ClusterPlan(
        n_chunks=len(chunk_seconds),
        chunk_seconds=float(np.mean(chunk_seconds)),
        load_seconds=load_seconds,
        costs=tuple(costs),
        best=_best(costs, cluster),
    )


def cluster_cost(
    chunk_seconds: Sequence[float], cluster: Cluster, n_workers: int, *, load_seconds: float, seed: int = 0
) -> ClusterCost:
    """The mean of some runs with one number of workers."""
    n_runs = 1 if not cluster.losses_per_hour else max(2, min(MOST_RUNS, MOST_EVENTS // len(chunk_seconds)))
    runs = [
        simulate(chunk_seconds, cluster, n_workers, load_seconds=load_seconds, rng=np.random.default_rng([seed, run]))
        for run in range(n_runs)
    ]
    seconds, n_lost = (float(np.mean(values)) for values in zip(*runs, strict=True))
    return ClusterCost(
        n_workers=n_workers,
        seconds=seconds,
        price=cluster.price_per_hour * n_workers * seconds / HOUR,
        share_scoring=sum(chunk_seconds) / (n_workers * seconds),
        n_lost=n_lost,
    )


def simulate(
    chunk_seconds: Sequence[float],
    cluster: Cluster,
    n_workers: int,
    *,
    load_seconds: float,
    rng: np.random.Generator,
) -> tuple[float, int]:
    """The seconds until the last chunk is done, and how many workers were lost by then."""
    losses = _Losses(cluster, load_seconds, rng)
    waiting = deque(chunk_seconds)
    free = [(losses.ready_after(cluster.start_seconds), number) for number in range(n_workers)]
    later: list[tuple[float, float]] = []  # when what is left of a lost worker's chunk is noticed, and how much it is
    heapq.heapify(free)
    handed_until = end = cluster.start_seconds
    while waiting or later:
        now, number = heapq.heappop(free)
        while later and later[0][0] <= now:
            waiting.append(heapq.heappop(later)[1])
        if not waiting:
            heapq.heappush(free, (later[0][0], number))
            continue
        handed_until = max(handed_until, now) + cluster.handing_seconds
        chunk = waiting.popleft()
        until_loss = losses.next()
        if until_loss >= chunk:
            end = max(end, handed_until + chunk)
            heapq.heappush(free, (handed_until + chunk, number))
            continue
        losses.n_lost += 1
        noticed = handed_until + until_loss + cluster.notice_seconds
        kept = math.floor(until_loss / SECONDS_AT_STAKE) * SECONDS_AT_STAKE
        heapq.heappush(later, (noticed, chunk - kept))
        heapq.heappush(free, (losses.ready_after(noticed), number))
    return end, losses.n_lost


class _Losses:
    """When workers are lost: at a constant rate, however long they were there."""

    def __init__(self, cluster: Cluster, load_seconds: float, rng: np.random.Generator) -> None:
        self._mean = HOUR / cluster.losses_per_hour if cluster.losses_per_hour else math.inf
        self._notice_seconds = cluster.notice_seconds
        self._ready_seconds = cluster.process_seconds + load_seconds
        self._rng = rng
        self.n_lost = 0

    def next(self) -> float:
        """Seconds until a worker is lost."""
        return math.inf if self._mean == math.inf else float(self._rng.exponential(self._mean))

    def ready_after(self, moment: float) -> float:
        """When a worker that is started at a moment has loaded, though it may be lost meanwhile."""
        while (until_loss := self.next()) < self._ready_seconds:
            self.n_lost += 1
            moment += until_loss + self._notice_seconds
        return moment + self._ready_seconds


def chunk_times(
    n_items: int,
    items_per_chunk: int,
    item_seconds: Sequence[float],
    *,
    requests_per_chunk: int = 1,
    seed: int = 0,
) -> list[float]:
    """The seconds of each chunk, put together of measured ones: `item_seconds` are those of an item, in some requests.

    The more requests a chunk has, the less chunks differ."""
    rng = np.random.default_rng(seed)
    sizes = np.array([min(items_per_chunk, n_items - start) for start in range(0, n_items, items_per_chunk)])
    drawn = rng.choice(np.asarray(item_seconds, dtype=np.float64), size=(len(sizes), requests_per_chunk)).mean(axis=1)
    return [float(seconds) for seconds in sizes * drawn]


def _check(chunk_seconds: Sequence[float], cluster: Cluster, load_seconds: float) -> None:
    """Refuse times that are none, and a cluster that would never be done."""
    if not len(chunk_seconds):
        raise InputError("chunk_seconds must hold the seconds of one chunk at least, got none")
    for seconds in chunk_seconds:
        number("chunk_seconds", seconds, least=0)
    number("load_seconds", load_seconds, least=0)
    until_ready = cluster.process_seconds + load_seconds + SECONDS_AT_STAKE  # and something is written
    if cluster.losses_per_hour * until_ready > MOST_LOADS * HOUR:
        raise InputError(
            f"with {cluster.losses_per_hour:g} losses per hour a worker is lost every "
            f"{HOUR / cluster.losses_per_hour:.1f} seconds, and it takes {until_ready:.0f} until its first scores are "
            "written: the build would never end; keep workers longer, or let them load sooner"
        )


def _sizes(cluster: Cluster, n_chunks: int) -> list[int]:
    """Numbers of workers that are tried: no more than there are chunks."""
    most = min(cluster.most_workers, n_chunks)
    return sorted({most, *(size for size in SIZES if size < most)})


def _best(costs: Sequence[ClusterCost], cluster: Cluster) -> int | None:
    if cluster.deadline_hours is not None:
        in_time = [cost for cost in costs if cost.seconds <= cluster.deadline_hours * HOUR]
        return min(in_time, key=lambda cost: (cost.price, cost.seconds)).n_workers if in_time else None
    worthwhile = [cost.n_workers for cost in costs if cost.share_scoring >= WORTHWHILE]
    return max(worthwhile, default=1)
