"""Readers in threads and processes that search an index while its versions are published.

In a module of its own, so that another process can import it, and knows the scorer by the same name."""

from __future__ import annotations

import multiprocessing
import os
import time
import warnings
import zlib
from collections.abc import Callable
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path

import anncur

QUERIES = [f"anchor query {number}" for number in range(4)]
BASE = [anncur.Item(f"base{number}", f"base {number}") for number in range(6)]
N_THREADS, N_PROCESSES = 8, 2
SECONDS_TO_START = 60.0


def checksum(pairs: list[tuple[str, str]]) -> list[float]:
    return [float(zlib.crc32(f"{query} {item}".encode()) % 9973) for query, item in pairs]


def make_index(folder: Path | None) -> anncur.Index:
    return anncur.Index.build([*BASE, marker(0)], checksum, QUERIES, path=folder)


def marker(number: int) -> anncur.Item:
    return anncur.Item(f"marker{number}", f"marker {number}")


def publish(index: anncur.Index, step: int) -> None:
    """Add the next marker, or remove the last but one: version 2n holds the marker n, version 2n + 1 also n + 1."""
    if step % 2 == 0:
        index.add([marker(step // 2 + 1)])
    else:
        index.remove([f"marker{step // 2}"])
    if step % 7 == 6:
        index.gc()
    if step % 5 == 4:
        index.compact()


def version_of(index: anncur.Index) -> int:
    """The version that a search answers from, by the items that it finds; fails when they are those of no version."""
    method = ("exhaustive", "anncur")[time.monotonic_ns() % 2]
    hits = index.search("a query", k=20, method=method)
    markers = sorted(int(hit.id.removeprefix("marker")) for hit in hits if hit.id.startswith("marker"))
    assert markers in ([markers[0]], [markers[0], markers[0] + 1])
    version = 2 * markers[0] + len(markers) - 1
    items = [*BASE, *map(marker, markers)]
    assert {hit.id: (hit.item, hit.score) for hit in hits} == {
        item.id: (item, checksum([("a query", item.text)])[0]) for item in items
    }
    assert hits.calls == len(items)
    return version


class Readers:
    """Threads that search until the block ends: with the writer's index, and with a folder half of them with their own.

    With a folder there are processes too."""

    def __init__(self, index: anncur.Index, folder: Path | None, stop: Path) -> None:
        self._index, self._folder, self._stop = index, folder, stop
        self._threads = ThreadPoolExecutor(N_THREADS)
        self._processes = ProcessPoolExecutor(N_PROCESSES, mp_context=multiprocessing.get_context("spawn"))
        self._reading: list[Future[int]] = []
        self.n_answers: list[int] = []

    def __enter__(self) -> Readers:
        for number in range(N_THREADS):
            if self._folder is None or number % 2:
                self._reading.append(self._threads.submit(read, lambda: self._index, self._stop))
            else:
                self._reading.append(self._threads.submit(read_folder, self._folder, self._stop))
        if self._folder is not None:
            for _ in range(N_PROCESSES):
                self._reading.append(self._processes.submit(read_in_process, self._folder, self._stop))
            wait_for(lambda: len(list(self._stop.parent.glob("ready-*"))) == N_PROCESSES)
        return self

    def __exit__(self, *failure: object) -> None:
        self._stop.touch()
        self._threads.shutdown()
        self._processes.shutdown()
        if failure[0] is None:
            self.n_answers = [reading.result() for reading in self._reading]


def read(current: Callable[[], anncur.Index], stop: Path) -> int:
    """Search until there is a file `stop`; versions never go back."""
    n_answers, version = 0, 0
    while not stop.exists():
        found = version_of(current())
        assert found >= version
        n_answers, version = n_answers + 1, found
        time.sleep(0.002)  # else the writer hardly gets its turn
    return n_answers


def read_folder(folder: Path, stop: Path) -> int:
    """Read with an index that is refreshed all the time, and now and then opened again."""
    index = anncur.Index.open(folder, checksum)
    n_reads = 0

    def current() -> anncur.Index:
        nonlocal index, n_reads
        n_reads += 1
        if n_reads % 3 == 0:
            index = anncur.Index.open(folder, checksum)
        else:
            index.refresh()
        return index

    return read(current, stop)


def read_in_process(folder: Path, stop: Path) -> int:
    warnings.simplefilter("error")
    version_of(anncur.Index.open(folder, checksum))
    (stop.parent / f"ready-{os.getpid()}").touch()
    return read_folder(folder, stop)


def wait_for(is_done: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SECONDS_TO_START
    while not is_done():
        assert time.monotonic() < deadline
        time.sleep(0.01)
