"""Whatever moment a process is killed at that uses a cache of scores, no score is wrong, and what was put is there.

Run as a program, `python test_score_cache_kill.py TASK` is such a process. A put counts as done once its number stands
in the file of acknowledgements."""

from __future__ import annotations

import gc
import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from anncur.errors import AnncurWarning
from anncur.scorers.base import TextPair
from anncur.scorers.cache import LEAST_BYTES, ScoreCache

pytestmark = pytest.mark.processes


PAIRS_PER_BATCH = 150
N_BATCHES = 400
FEWEST, MOST = LEAST_BYTES, 2**26  # bytes: too few for a twentieth of all pairs, enough for all


def make_batch(number: int) -> list[TextPair]:
    return [(f"query {number}", f"item {item}") for item in range(PAIRS_PER_BATCH)]


def score_of(pair: TextPair) -> float:
    """The right score of a pair."""
    return int.from_bytes(hashlib.sha256("\0".join(pair).encode()).digest()[:6], "big") / 997


def put(cache: ScoreCache, number: int) -> None:
    cache.put("scorer", batch := make_batch(number), [score_of(pair) for pair in batch])


def n_right(cache: ScoreCache, number: int) -> int:
    """How many pairs of a batch are found; a wrong score is a failure."""
    batch = make_batch(number)
    found = cache.get("scorer", batch)
    assert all(score in (None, score_of(pair)) for pair, score in zip(batch, found, strict=True)), "a wrong score"
    return len(batch) - found.count(None)


def start(path: Path, **task: Any) -> subprocess.Popen[str]:
    """A process that will use the cache; a warning ends it."""
    return subprocess.Popen(
        [sys.executable, "-W", "error", __file__, json.dumps({"path": str(path), **task})],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        stdout=subprocess.PIPE,
        text=True,
    )


def await_ready(process: subprocess.Popen[str]) -> None:
    """Wait until a process is about to open the cache."""
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"


def acknowledged(path: Path) -> set[int]:
    """The numbers of the batches that were put."""
    log = path.with_suffix(".done")
    return {int(line) for line in log.read_text().split()} if log.exists() else set()


def check(path: Path, *, most_bytes: int) -> int:
    """Open a cache after a kill: a warning is an error, and so is a wrong score; returns how many batches were done."""
    cache, done = ScoreCache(path, most_bytes=most_bytes), acknowledged(path)
    n_found = {number: n_right(cache, number) for number in range(N_BATCHES)}
    if most_bytes == MOST:
        assert all(n_found[number] == PAIRS_PER_BATCH for number in done), "a score that was put is gone"
    assert len(cache) == sum(n_found.values())
    put(cache, 0)
    assert n_right(cache, 0) == PAIRS_PER_BATCH
    cache.close()
    return len(done)


@pytest.mark.parametrize("most_bytes", [FEWEST, MOST])
@pytest.mark.parametrize("n_rounds", [3, pytest.param(50, marks=pytest.mark.slow)])
def test_killed_at_any_moment_two_writers_leave_right_scores_and_all_that_was_put(
    n_rounds: int, most_bytes: int, tmp_path: Path
) -> None:
    rng, n_done = random.Random(most_bytes), 0
    for number in range(n_rounds):
        path = tmp_path / f"{number // 10}.cache"  # ten rounds in one file, so that it becomes old
        seconds = sorted(rng.random() * rng.choice([0.02, 0.2, 1.0]) for _ in range(2))
        with ExitStack() as stack:
            victims = [start(path, seed=2 * number + place, most_bytes=most_bytes) for place in range(2)]
            for victim in victims:
                await_ready(stack.enter_context(victim))
            for victim, wait in zip(victims, (seconds[0], seconds[1] - seconds[0]), strict=True):
                time.sleep(wait)
                victim.kill()
                assert victim.wait() == -signal.SIGKILL
        n_done = max(n_done, check(path, most_bytes=most_bytes))
    assert n_done > 0, "they were killed too early for this test"


def test_two_processes_that_make_and_fill_a_cache_at_once_lose_nothing(tmp_path: Path) -> None:
    path = tmp_path / "shared.cache"
    writers = [start(path, seed=seed, most_bytes=MOST, n_puts=40) for seed in range(4)]
    for writer in writers:
        with writer:
            assert writer.wait(timeout=120) == 0
    assert len(path.with_suffix(".done").read_text().split()) == 4 * 40
    assert check(path, most_bytes=MOST) > 60


def test_a_fork_shares_the_cache_and_loses_nothing_when_its_parent_closes_it(tmp_path: Path) -> None:
    path = tmp_path / "forked.cache"
    with start(path, seed=0, most_bytes=MOST, n_puts=4, n_forks=3) as parent:
        assert parent.wait(timeout=120) == 0
    assert len(path.with_suffix(".done").read_text().split()) == 4 * 4
    check(path, most_bytes=MOST)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "disk"
    folder.mkdir()
    try:
        mount("-t", "tmpfs", "-o", "size=600k", "tmpfs", folder)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"needs `mount` and the right to mount a tmpfs (CAP_SYS_ADMIN): {error}")
    try:
        yield folder
    finally:
        gc.collect()
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def mount(*arguments: str | Path) -> None:
    subprocess.run(["mount", *map(str, arguments)], check=True, capture_output=True, text=True)


@contextmanager
def one_warning(words: str) -> Iterator[None]:
    """Exactly one warning is given, whatever is done."""
    with pytest.warns(AnncurWarning, match=words) as caught:
        yield
    assert len(caught) == 1, [str(warning.message) for warning in caught]


def test_on_a_full_disk_it_warns_once_and_what_fits_is_right(small_disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("anncur.scorers.cache.RETRY_SECONDS", 0.0)
    cache = ScoreCache(small_disk / "scores.cache")
    with one_warning("free space on the disk"):
        for number in range(100):
            put(cache, number)
            n_right(cache, number)
    assert n_right(cache, 0) == PAIRS_PER_BATCH
    mount("-o", "remount,size=10m", small_disk)
    put(cache, 101)
    assert n_right(cache, 101) == PAIRS_PER_BATCH


@pytest.mark.parametrize("n_bytes", [0, 4096, 8192, 16384])
def test_a_disk_too_full_to_begin_on_is_one_warning(
    n_bytes: int, small_disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("anncur.scorers.cache.RETRY_SECONDS", 0.0)
    room = os.statvfs(small_disk)
    (small_disk / "full").write_bytes(b"-" * (room.f_bfree * room.f_frsize - n_bytes))
    with one_warning("free space on the disk"):
        cache = ScoreCache(small_disk / "scores.cache")
        put(cache, 1)
    (small_disk / "full").unlink()
    put(cache, 1)
    assert n_right(cache, 1) == PAIRS_PER_BATCH


def test_in_a_folder_that_cannot_be_written_it_warns_once(small_disk: Path) -> None:
    put(cache := ScoreCache(small_disk / "scores.cache"), 1)
    cache.close()
    mount("-o", "remount,ro", small_disk)
    with one_warning("check that its folder can be written"):
        put(cache, 2)
        n_right(cache, 1)
        put(cache, 2)


def work(task: dict[str, Any]) -> None:
    """Get and put batches, and acknowledge each; children put more, some of them after their parent has closed."""
    cache = ScoreCache(task["path"], most_bytes=task["most_bytes"])
    log = os.open(Path(task["path"]).with_suffix(".done"), os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    end, parents_end = os.pipe()
    children = [fork(cache, log, end, parents_end) for _ in range(task.get("n_forks", 0))]
    put_batches(cache, log, random.Random(task["seed"]), task.get("n_puts", 10**9))
    cache.close()
    os.close(parents_end)
    for child in children:
        assert os.waitpid(child, 0)[1] == 0


def put_batches(cache: ScoreCache, log: int, rng: random.Random, n_puts: int) -> None:
    for _ in range(n_puts):
        n_right(cache, rng.randrange(N_BATCHES))
        number = rng.randrange(N_BATCHES)
        put(cache, number)
        os.write(log, f"{number}\n".encode())


def fork(cache: ScoreCache, log: int, end: int, parents_end: int) -> int:
    """Start a child that puts batches through the same object, half of them after its parent has closed a pipe."""
    n_right(cache, 0)  # it is open
    child = os.fork()
    if child == 0:
        os.close(parents_end)
        put_batches(cache, log, random.Random(os.getpid()), 2)
        os.read(end, 1)
        put_batches(cache, log, random.Random(os.getpid() + 1), 2)  # too few to leave the log
        os._exit(0)
    return child


def main() -> None:
    """Do the task of the command line."""
    task = json.loads(sys.argv[1])
    os.write(sys.stdout.fileno(), b"ready\n")
    work(task)


if __name__ == "__main__":
    main()
