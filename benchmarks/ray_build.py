"""How fast the engine ray builds, against this process alone and against a bare loop over the same chunks.

    python benchmarks/ray_build.py [--items 600] [--queries 40] [--items-per-chunk 40] [--turns 3] [--parts waiting]

The built-in cross-encoder scores the bundled sample (repeated, with other ids) for some of its anchor queries; and a
scorer that waits a second for each chunk scores few pairs, so that it is the same on a busy machine. A bare loop gives
the scorer the pairs of each chunk, request by request, and keeps what comes back; it has one thread, as a worker has.
So a worker's throughput is compared with what one core can do, on a machine with as many cores as workers. Every build
must have the same digest. The times of chunks and of loading then go into the simulation of `anncur plan --cluster`,
whose forecasts are compared with what Ray took; the start of Ray is in both."""

from __future__ import annotations

import multiprocessing
import os
import statistics
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any
from unittest.mock import patch

import numpy as np

import anncur
from anncur.datasets.sample import sample_anchor_queries, sample_items
from anncur.filling import FillJob
from anncur.planning.cluster import Cluster, cluster_cost
from anncur.scorers.base import with_prepared
from common import new_parser, write_rows


@dataclass(frozen=True, eq=False)
class Work:
    """What is scored."""

    scorer: str
    items: Sequence[anncur.Item]
    queries: Sequence[anncur.Query]
    items_per_chunk: int

    @property
    def n_pairs(self) -> int:
        """In all."""
        return len(self.items) * len(self.queries)


def main() -> None:
    """Measure in turns, print a table, and write rows."""
    parser = new_parser(__doc__, "ray_build.jsonl")
    parser.add_argument("--items", type=int, default=600)
    parser.add_argument("--queries", type=int, default=40)
    parser.add_argument("--items-per-chunk", type=int, default=40)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--parts", nargs="+", default=["builtin", "waiting"], choices=["builtin", "waiting"])
    arguments = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"  # of this process, and of those that it starts
    os.environ["RAY_worker_niceness"] = "0"  # noqa: SIM112  # Ray's workers are more modest than a loop, where others use the machine
    found = sample_items()
    repeated = [found[place % len(found)] for place in range(arguments.items)]
    items = [replace(item, id=f"{item.id}-{place}") for place, item in enumerate(repeated)]
    queries = sample_anchor_queries()
    parts = {
        "builtin": Work("builtin", items, queries[: arguments.queries], arguments.items_per_chunk),
        "waiting": Work("ray_build:waiting", items[:40], queries[:4], 2),
    }
    rows = [row for part in arguments.parts for row in measure(parts[part], n_turns=arguments.turns)]
    columns = ("seconds", "pairs_per_second", "share_of_bare_loop", "forecast_of_scoring", "from_start", "forecast")
    print(f"{'scorer':<20}{'variant':<20}", *(f"{column:>20}" for column in columns))
    for row in rows:
        cells = ["" if row[column] is None else f"{row[column]:.3f}" for column in columns]
        print(f"{row['scorer']:<20}{row['variant']:<20}", *(f"{cell:>20}" for cell in cells))
    write_rows(arguments.out, rows)


def measure(work: Work, *, n_turns: int) -> list[dict[str, Any]]:
    """A row for each variant: the median of turns, in which all variants come one after the other."""
    variants: dict[str, Callable[[], Timing]] = {
        "bare loop": partial(bare_loops, work, 1),
        "2 bare loops": partial(bare_loops, work, 2),
        "local, 1 process": partial(local_build, work),
        "local, 2 shards": partial(shards, work, 2),
        "ray, 1 worker": partial(ray_build, work, 1),
        "ray, 2 workers": partial(ray_build, work, 2),
    }
    turns = [{name: run() for name, run in variants.items()} for _ in range(n_turns)]
    digests = {timing.digest for turn in turns for timing in turn.values() if timing.digest}
    assert len(digests) == 1, "every build is the same"
    bare = {n: statistics.median(turn[name].scoring for turn in turns) for n, name in BARE.items()}
    return [
        {
            "scorer": work.scorer,
            "variant": name,
            "n_items": len(work.items),
            "n_queries": len(work.queries),
            "items_per_chunk": work.items_per_chunk,
            "n_turns": n_turns,
            "n_workers": n_workers,
            "seconds": (seconds := statistics.median(turn[name].scoring for turn in turns)),
            "pairs_per_second": work.n_pairs / seconds,
            "share_of_bare_loop": bare[n_workers] / seconds,
            "whole_build_seconds": _median([turn[name].whole for turn in turns]),
            "forecast": _median([turn[name].forecast for turn in turns]),
            "forecast_of_scoring": _median([turn[name].forecast_of_scoring for turn in turns]),
            "from_start": _median([turn[name].from_start for turn in turns]),
            "digest": next(iter(digests)) if turns[0][name].digest else None,
        }
        for name, n_workers in zip(variants, (1, 2) * 3, strict=True)
    ]


BARE = {1: "bare loop", 2: "2 bare loops"}
CHUNK_SECONDS: list[float] = []  # of the latest bare loop
LOAD_SECONDS: list[float] = []


class Waiting:
    """Waits a second for each request; a chunk is one."""

    fingerprint = "waits a second"

    def score_pairs(self, pairs: Sequence[tuple[anncur.Query, anncur.Item]]) -> list[float]:
        """Numbers by the texts alone."""
        time.sleep(1.0)
        return [float(zlib.crc32(f"{query.text} {item.text}".encode()) % 1000) for query, item in pairs]


waiting = Waiting()


@dataclass(frozen=True)
class Timing:
    """Seconds of scoring, of the whole build, and what the simulation forecasts from the start to the last chunk."""

    scoring: float
    whole: float | None = None
    from_start: float | None = None
    forecast: float | None = None
    forecast_of_scoring: float | None = None
    digest: str | None = None


def bare_loops(work: Work, n_processes: int) -> Timing:
    """The chunks divided among processes, each with a loop over requests; the slowest counts."""
    context = multiprocessing.get_context("spawn")
    with context.Pool(n_processes) as pool:
        found = pool.map(partial(_bare_loop, work, n_processes), range(n_processes))
    if n_processes == 1:
        CHUNK_SECONDS[:], LOAD_SECONDS[:] = found[0][0], [found[0][1]]
    return Timing(max(sum(seconds) for seconds, _ in found))


def _bare_loop(work: Work, n_processes: int, part: int) -> tuple[list[float], float]:
    started = time.perf_counter()
    scorer = anncur.load_scorer(work.scorer)
    load_seconds = time.perf_counter() - started
    model, batch_size = scorer._scorer, scorer.rules.batch_size
    items = with_prepared(work.items, scorer.prepare(work.items))
    model.score_pairs([(work.queries[0], items[0])])  # so that the session is warm
    times = []
    for start in range(0, len(items), work.items_per_chunk)[part::n_processes]:
        began = time.perf_counter()
        chunk = items[start : start + work.items_per_chunk]
        pairs = [(query, item) for query in work.queries for item in chunk]
        batches = range(0, len(pairs), batch_size)
        np.concatenate([model.score_pairs(pairs[at : at + batch_size]) for at in batches])
        times.append(time.perf_counter() - began)
    return times, load_seconds


def local_build(work: Work) -> Timing:
    """A build by this process."""
    return _build(work, engine="local")


def shards(work: Work, n_shards: int) -> Timing:
    """A build by several processes, each with a shard; scoring ends with that of the last."""
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder, context.Pool(n_shards) as pool:
        found = pool.map(partial(_shard, work, n_shards, folder), range(n_shards))
        digest = anncur.Index.open(f"{folder}/index").digest()
    return Timing(max(timing.scoring for timing in found), max(timing.whole or 0.0 for timing in found), digest=digest)


def _shard(work: Work, n_shards: int, folder: str, part: int) -> Timing:
    return _build(work, engine="local", folder=folder, shard=(part, n_shards))


def ray_build(work: Work, n_workers: int) -> Timing:
    """A build by Ray, which is started for it."""
    timing = _build(work, engine=anncur.RayEngine(workers=n_workers))
    whole = cluster_cost(CHUNK_SECONDS, Cluster(), n_workers, load_seconds=LOAD_SECONDS[0])
    at_once = Cluster(start_seconds=0, process_seconds=0)
    scoring = cluster_cost(CHUNK_SECONDS, at_once, n_workers, load_seconds=0)
    return replace(timing, forecast=whole.seconds, forecast_of_scoring=scoring.seconds)


def _build(work: Work, *, engine: Any, folder: str | None = None, shard: tuple[int, int] | None = None) -> Timing:
    """Scoring is timed without the start of Ray and the loading of scorers, which `from_start` has."""
    clock = Clock()
    scorer = anncur.load_scorer(work.scorer)
    with tempfile.TemporaryDirectory() as own, clock.running():
        started = time.perf_counter()
        index = anncur.Index.build(
            work.items,
            scorer,
            work.queries,
            path=f"{folder or own}/index",
            retrievers=["bm25"],
            engine=engine,
            items_per_chunk=work.items_per_chunk,
            shard=shard,
            progress=False,
        )
        whole = time.perf_counter() - started
        digest = index.digest() if shard is None else None
    return Timing(clock.scoring, whole, clock.from_start, digest=digest)


class Clock:
    """Notes when chunks are handed out, and when they are done."""

    def __init__(self) -> None:
        self._asked: dict[int, list[float]] = {}
        self._done = 0.0

    @contextmanager
    def running(self) -> Iterator[None]:
        """While a build runs."""
        payload, finish = FillJob.payload, FillJob.finish

        def noted_payload(job: FillJob, unit: int) -> Any:
            self._asked.setdefault(unit, []).append(time.perf_counter())
            return payload(job, unit)

        def noted_finish(job: FillJob, unit: int, result: Any) -> None:
            finish(job, unit, result)
            self._done = time.perf_counter()

        with patch.object(FillJob, "payload", noted_payload), patch.object(FillJob, "finish", noted_finish):
            yield

    @property
    def scoring(self) -> float:
        """From the first chunk that a worker got to the last that was done; Ray is started after a first look at it."""
        return self._done - next(iter(self._asked.values()))[-1]

    @property
    def from_start(self) -> float:
        """From the first look at a chunk to the last that was done."""
        return self._done - min(moment for moments in self._asked.values() for moment in moments)


def _median(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


if __name__ == "__main__":
    main()
