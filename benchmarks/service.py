"""What a running service answers in a second: to one client, to many, and to three times as many as it can serve.

    python benchmarks/service.py [--parts gpu builtin] [--seconds 10] [--overload-seconds 120]

The service is a process of its own, `anncur serve` on loopback, and so are its clients. The scorer "gpu" takes 10 ms
and 0.05 ms for each pair and sleeps, "builtin" is the built-in model on this CPU. Clients send the sample's test
queries, each the next one when it is answered. For the overload, requests come at three times the rate that 16 clients
are answered at, whether or not others were answered; accepted ones are timed, from the first on, and the others must be
429. The service runs with its default settings."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import numpy as np

from anncur.datasets.sample import SAMPLE_INDEX, sample_test_queries
from common import new_parser, write_rows

HERE = Path(__file__).parent
BUDGETS = {"gpu": 200, "builtin": 100}
SCORERS = {"gpu": "service_scorers:gpu", "builtin": "builtin"}
N_CLIENTS = 16
N_TURNS = 3
UNLOADED_SECONDS = 15.0
OVERLOAD = 3.0


def main() -> None:
    """Measure, print, and write rows."""
    parser = new_parser(__doc__, "service.jsonl")
    parser.add_argument("--parts", nargs="+", default=list(SCORERS), choices=list(SCORERS))
    parser.add_argument("--seconds", type=float, default=10.0, help="of each turn of throughput; 0 for none")
    parser.add_argument("--overload-seconds", type=float, default=120.0, help="of the overload; 0 for none")
    arguments = parser.parse_args()
    rows = [row for part in arguments.parts for row in measure(part, arguments.seconds, arguments.overload_seconds)]
    write_rows(arguments.out, rows)


def measure(part: str, seconds: float, overload_seconds: float) -> Iterator[dict[str, Any]]:
    """Rows of throughput, and of overload."""
    if seconds:
        with service(part) as (url, _):
            yield from throughput(url, part, seconds)
    if overload_seconds:
        with service(part) as (url, pid):
            yield shown({"part": part} | overload(url, pid, part, overload_seconds))


def throughput(url: str, part: str, seconds: float) -> Iterator[dict[str, Any]]:
    """What one client and many get in a second, in turns."""
    in_process(closed_loop, url, BUDGETS[part], N_CLIENTS, 3.0)  # warm
    turns = [
        {n: in_process(closed_loop, url, BUDGETS[part], n, seconds) for n in (1, N_CLIENTS)} for _ in range(N_TURNS)
    ]
    rates = {n: float(np.median([turn[n]["per_second"] for turn in turns])) for n in (1, N_CLIENTS)}
    for n, rate in rates.items():
        yield shown({"part": part, "clients": n, "per_second": rate, "ratio": rate / rates[1]} | last(turns, n))


def last(turns: list[dict[int, dict[str, float]]], n: int) -> dict[str, float]:
    """Times of the middle turn."""
    middle = sorted((turn[n] for turn in turns), key=lambda found: found["per_second"])[len(turns) // 2]
    return {name: middle[name] for name in ("p50_ms", "p99_ms")}


def overload(url: str, pid: int, part: str, seconds: float) -> dict[str, Any]:
    """What happens at three times what it can serve."""
    budget = BUDGETS[part]
    in_process(closed_loop, url, budget, N_CLIENTS, 3.0)  # warm
    unloaded = in_process(closed_loop, url, budget, 1, UNLOADED_SECONDS)
    capacity = in_process(closed_loop, url, budget, N_CLIENTS, UNLOADED_SECONDS)["per_second"]
    before = resident_mb(pid)
    found = in_process(open_loop, url, budget, OVERLOAD * capacity, seconds)
    n_answers = found["accepted"] + found["refused"] + found["other"]
    return {
        "clients": "overload",
        "seconds": seconds,
        "offered_per_second": OVERLOAD * capacity,
        "unloaded_p99_ms": unloaded["p99_ms"],
        "ratio_of_p99": found["p99_ms"] / unloaded["p99_ms"],
        "share_refused": found["refused"] / n_answers,
        "memory_before_mb": before,
        "memory_after_mb": resident_mb(pid),
        "places_at_end": places(url),
        **found,
    }


def places(url: str) -> float:
    """The searches that may run at once now."""
    lines = httpx.get(f"{url}/metrics").text.splitlines()
    return next(float(line.split()[1]) for line in lines if line.startswith("anncur_search_places "))


def shown(row: dict[str, Any]) -> dict[str, Any]:
    """Print a row on its way."""
    print(*(f"{name}={value:.4g}" if isinstance(value, float) else f"{name}={value}" for name, value in row.items()))
    return row


@contextmanager
def service(part: str, *options: str) -> Iterator[tuple[str, int]]:
    """A running service of the sample, by its URL and process."""
    with tempfile.TemporaryDirectory() as folder:
        index = Path(folder) / "animals.anncur"
        shutil.copytree(SAMPLE_INDEX, index)
        port = free_port()
        command = [sys.executable, "-c", "from anncur.cli.main import main; main()", "serve", str(index)]
        command += ["--port", str(port), "--scorer", SCORERS[part], *options]
        paths = os.pathsep.join(filter(None, [str(HERE), os.environ.get("PYTHONPATH", "")]))
        environment = {**os.environ, "PYTHONPATH": paths}
        with open(Path(folder) / "log", "wb") as log:
            process = subprocess.Popen(command, env=environment, stderr=log, stdout=log)
        try:
            url = f"http://127.0.0.1:{port}"
            wait_until_ready(url, process)
            yield url, process.pid
        finally:
            process.terminate()
            process.wait()


def wait_until_ready(url: str, process: subprocess.Popen[bytes]) -> None:
    """Until it answers."""
    while process.poll() is None:
        try:
            httpx.get(f"{url}/readyz", timeout=1).raise_for_status()
        except httpx.HTTPError:
            time.sleep(0.1)
        else:
            return
    raise RuntimeError(f"the service ended with {process.returncode}")


def in_process(function: Any, *arguments: Any) -> dict[str, float]:
    """Run clients in a process of their own, so that they don't share its lock with anybody."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        found: dict[str, float] = pool.apply(_run, (function, arguments))
    return found


def _run(function: Any, arguments: tuple[Any, ...]) -> dict[str, float]:
    return asyncio.run(function(*arguments))


async def closed_loop(url: str, budget: int, n_clients: int, seconds: float) -> dict[str, float]:
    """Clients that send the next query when one is answered."""
    times: list[float] = []
    end = time.perf_counter() + seconds
    async with httpx.AsyncClient(base_url=url, timeout=120) as client:

        async def ask(number: int) -> None:
            queries = sample_test_queries()
            while time.perf_counter() < end:
                started = time.perf_counter()
                answer = await client.post("/v1/search", json=_body(queries[number % len(queries)], budget))
                answer.raise_for_status()
                times.append(time.perf_counter() - started)
                number += n_clients

        started = time.perf_counter()
        await asyncio.gather(*(ask(number) for number in range(n_clients)))
        elapsed = time.perf_counter() - started
    return {"per_second": len(times) / elapsed, **_quantiles(times)}


async def open_loop(url: str, budget: int, per_second: float, seconds: float) -> dict[str, float]:
    """Requests that come whether or not others were answered."""
    times: list[float] = []
    statuses: list[int] = []
    queries = sample_test_queries()
    async with httpx.AsyncClient(base_url=url, timeout=120, limits=httpx.Limits(max_connections=400)) as client:

        async def ask(number: int) -> None:
            started = time.perf_counter()
            answer = await client.post("/v1/search", json=_body(queries[number % len(queries)], budget))
            statuses.append(answer.status_code)
            if answer.status_code == 200:
                times.append(time.perf_counter() - started)

        async with asyncio.TaskGroup() as group:
            started = time.perf_counter()
            for number in range(int(per_second * seconds)):
                await asyncio.sleep(max(0.0, started + number / per_second - time.perf_counter()))
                group.create_task(ask(number))
    n_other = sum(status not in {200, 429} for status in statuses)
    counts = {"accepted": len(times), "refused": statuses.count(429), "other": n_other}
    return {**counts, "per_second": len(times) / seconds, **_quantiles(times)}


def _body(query: Any, budget: int) -> dict[str, Any]:
    mention = None if query.mention is None else list(query.mention)
    return {"query": query.text, "mention": mention, "k": 10, "budget": budget}


def _quantiles(times: list[float]) -> dict[str, float]:
    p50, p99 = np.quantile(times, [0.5, 0.99]) * 1000
    return {"p50_ms": float(p50), "p99_ms": float(p99)}


def resident_mb(pid: int) -> float:
    """Memory of a process."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


if __name__ == "__main__":
    main()
