"""A build that is killed loses the seconds since the last write and the request in flight, and nothing else."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

PROGRAM = """
import sys, time
import anncur

counted = open("paid", "a")

def slow(pairs):
    time.sleep(0.02)
    counted.write("x" * len(pairs))
    counted.flush()
    return [float(len(query) * len(item) % 7) for query, item in pairs]

scorer = anncur.load_scorer(slow, batch_size=4, fingerprint="slow")
items = [f"item {number:03}" for number in range(300)]
queries = [f"query {n}" for n in range(10)]
index = anncur.Index.build(items, scorer, queries, path="x.anncur", retrievers=["bm25"], progress=False)
print(index.info.build_calls)
"""


@pytest.mark.processes
def test_a_kill_costs_at_most_some_seconds_of_a_chunk(tmp_path: Path) -> None:
    building = subprocess.Popen([sys.executable, "-c", PROGRAM], cwd=tmp_path)
    paid = tmp_path / "paid"
    deadline = time.monotonic() + 60
    while not (paid.exists() and paid.stat().st_size >= 1_200) and time.monotonic() < deadline:
        time.sleep(0.05)
    os.kill(building.pid, signal.SIGKILL)
    building.wait()
    before = paid.stat().st_size
    assert 1_200 <= before < 3_000, "one chunk of all 3,000 pairs was killed half-way"
    resumed = subprocess.run(
        [sys.executable, "-c", PROGRAM], cwd=tmp_path, capture_output=True, text=True, check=True, timeout=120
    )
    lost = before + int(resumed.stdout) - 8 - 3_000  # the build scores eight pairs twice
    assert 0 <= lost <= before / 2, "200 pairs a second at most, for the two seconds between writes"
