"""Whatever moment a process is killed at that logs its searches and learns from them, the query log is whole.

Run as a program, `python test_query_log_kill.py MOMENT` is such a process."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from itertools import count
from pathlib import Path
from typing import Any

import pytest

import anncur
from anncur.storage.query_log import FolderQueryLog
from programs import die_at_file_call
from worlds import World, low_rank_scores

pytestmark = pytest.mark.processes


MOST = 4


def make_world() -> World:
    return World(low_rank_scores(12, 30, rank=3, noise=0.1))


def work(index: anncur.Index, world: World) -> None:
    """Search more than is logged, and learn twice."""
    for number, query in enumerate(world.queries[:8]):
        index.search(query, budget=10)
        if number % 4 == 3:
            index.learn()


def open_index(path: Path) -> anncur.Index:
    return anncur.Index.open(path, make_world().scorer, log_queries=MOST)


def run(path: Path, **moment: Any) -> int:
    """Work in a process of its own, killed at a moment; returns how it ended."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    task = json.dumps({"path": str(path), **moment})
    return subprocess.run([sys.executable, __file__, task], env=environment, check=False).returncode


def check(path: Path) -> None:
    """What was logged are whole searches in a row, and logging resumes from there; a warning would be an error."""
    world = make_world()
    logged = [search.query.text for search in FolderQueryLog(path).read()]
    assert len(logged) <= MOST
    assert " ".join(logged) in " ".join(world.queries)
    index = open_index(path)
    assert index.verify() == []
    index.search(world.queries[9], budget=10)
    after = FolderQueryLog(path).read()
    assert after[-1].query.text == world.queries[9]
    assert all(len(search.scores) == 10 for search in after)
    assert index.learn() == len(after)
    assert open_index(path).verify() == []


@pytest.mark.parametrize("step", [17, pytest.param(1, marks=pytest.mark.slow)])
def test_killed_at_a_file_call_it_leaves_whole_searches_and_a_whole_index(step: int, tmp_path: Path) -> None:
    for moment in count(step=step):
        path = tmp_path / f"{moment}.anncur"
        world = make_world()
        anncur.Index.build(world.items, world.scorer, [], path=path)
        code = run(path, die_at=1 + moment // 2, after=moment % 2 == 1)
        check(path)
        if code == 0:
            assert moment > 30, "the file calls were not seen"
            break
        assert code == -signal.SIGKILL


@pytest.mark.parametrize("number", [1, 3])
def test_killed_in_the_middle_of_a_record_it_drops_that_one_alone(number: int, tmp_path: Path) -> None:
    path, world = tmp_path / "x.anncur", make_world()
    anncur.Index.build(world.items, world.scorer, [], path=path)
    assert run(path, tear=number) == -signal.SIGKILL
    assert len(FolderQueryLog(path).read()) == number - 1
    check(path)


def tear_write(number: int) -> None:
    """Kill this process half-way through its n-th write to a file."""
    n_writes, write = 0, os.write

    def torn(handle: int, content: bytes) -> int:
        nonlocal n_writes
        n_writes += 1
        if n_writes == number:
            write(handle, content[: len(content) // 2])
            os.kill(os.getpid(), signal.SIGKILL)
        return write(handle, content)

    os.write = torn  # type: ignore[assignment]


def main() -> None:
    """Open, arrange the kill, work."""
    task = json.loads(sys.argv[1])
    index = open_index(Path(task["path"]))
    if "tear" in task:
        tear_write(task["tear"])
    else:
        die_at_file_call(task["die_at"], after=task["after"])
    work(index, make_world())


if __name__ == "__main__":
    main()
