"""What a build costs beyond the scorer, how its memory grows, and how fast an index opens.

    python benchmarks/build_cost.py

1. Time outside the scorer, as a share of a build with a scorer of 1 ms per pair: the scorer only pretends to take that
   long, so that the share can be measured in minutes instead of hours.
2. Peak memory of a build of 10,000 against 200,000 items, each in a process of its own.
3. Opening an index of a million items and 200 anchor queries, every file checked, against hashing its files."""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import anncur
from anncur.errors import UnstableScorerWarning
from anncur.scores import StoredChunks
from anncur.storage.files import record_file, writer_lock
from anncur.storage.segments import begin_segment
from common import new_parser, write_rows

SECONDS_PER_PAIR = 0.001


class TimedScorer:
    """A number per pair from the texts' lengths, and the time that took."""

    fingerprint = "timed"

    def __init__(self) -> None:
        self.seconds = 0.0
        self.n_pairs = 0

    def score(self, query: anncur.Query, items: Sequence[anncur.Item]) -> Any:
        """Cheap and fixed."""
        started = time.perf_counter()
        phase = len(query.text)
        scores = np.sin([int(item.id) % 9973 * phase for item in items])
        self.seconds += time.perf_counter() - started
        self.n_pairs += len(items)
        return scores


def main() -> None:
    """Measure all three, print them, and write rows."""
    parser = new_parser(__doc__, "build_cost.jsonl")
    parser.add_argument("--only-build", type=int, help=argparse.SUPPRESS)  # the child process of the second part
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        if arguments.only_build:
            build(Path(folder) / "x.anncur", arguments.only_build, n_queries=50)
            status = Path("/proc/self/status").read_text()
            print(re.search(r"VmHWM:\s+(\d+) kB", status)[1])  # of this process alone, unlike getrusage
            return
        rows = [time_outside_the_scorer(Path(folder)), *peak_memory(), opening(Path(folder))]
    for row in rows:
        print(row)
    write_rows(arguments.out, [{"seed": 0, **row} for row in rows])


def items(n_items: int) -> Iterator[anncur.Item]:
    """Short texts, streamed."""
    for number in range(n_items):
        yield anncur.Item(str(number), f"the text of item {number}, about as long as a gloss of a dictionary is")


def queries(n_queries: int) -> list[str]:
    """Queries of different lengths."""
    return ["q" * (number + 1) for number in range(n_queries)]


def build(path: Path, n_items: int, *, n_queries: int) -> tuple[float, TimedScorer]:
    """The seconds of a build, and its scorer."""
    scorer = TimedScorer()
    started = time.perf_counter()
    anncur.Index.build(items(n_items), scorer, queries(n_queries), path=path)
    return time.perf_counter() - started, scorer


def time_outside_the_scorer(folder: Path) -> dict[str, Any]:
    """200 anchor queries x 20,000 items."""
    seconds, scorer = build(folder / "outside.anncur", 20_000, n_queries=200)
    outside = seconds - scorer.seconds
    pretended = scorer.n_pairs * SECONDS_PER_PAIR
    return {"what": "time outside the scorer", "seconds": outside, "share": outside / (outside + pretended)}


def peak_memory() -> Iterator[dict[str, Any]]:
    """Of a process that builds and ends."""
    for n_items in (10_000, 200_000):
        command = [sys.executable, __file__, "--only-build", str(n_items)]
        shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        yield {"what": "peak memory of a build", "n_items": n_items, "peak_mb": int(shown) / 1024}


def opening(folder: Path) -> dict[str, Any]:
    """A million items and 200 anchor queries, with random scores written straight into the matrix."""
    path, scorer = folder / "large.anncur", anncur.load_scorer(TimedScorer())
    parsed = [anncur.Query(text) for text in queries(200)]
    with writer_lock(path):
        segment = begin_segment(
            path, items(1_000_000), parsed, scorer, dtype="float32", items_per_chunk=None, is_first=True
        )
        chunks = StoredChunks(str(path / "segments" / segment.name / "scores"), segment.spec)
        rng = np.random.default_rng(0)
        for chunk in range(segment.spec.n_chunks):
            start, stop = segment.spec.chunk_range(chunk)
            chunks.write(chunk, rng.normal(size=(stop - start, 200)).astype(np.float32))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UnstableScorerWarning)  # random scores are not those of this scorer
        anncur.Index.build(items(1_000_000), scorer, parsed, path=path)
    hashing, opened = [], []
    for _ in range(3):
        started = time.perf_counter()
        for file in path.rglob("*"):
            if file.is_file():
                record_file(file)
        hashing.append(time.perf_counter() - started)
        started = time.perf_counter()
        anncur.Index.open(path, scorer)
        opened.append(time.perf_counter() - started)
    ratio = min(opened) / min(hashing)
    return {"what": "opening", "open_seconds": min(opened), "hash_seconds": min(hashing), "ratio": ratio}


if __name__ == "__main__":
    main()
