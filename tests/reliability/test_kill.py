"""Whatever moment a process is killed at, what it paid for stays, and doing the same again gives the same index."""

from __future__ import annotations

import os
import random
import shutil
import signal
import stat
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import count
from pathlib import Path

import pytest

import anncur
import programs
from programs import Outcome, Task

pytestmark = pytest.mark.processes


SECONDS_PER_REQUEST = 0.002  # so that most kills come while it scores
some_or_all = pytest.mark.parametrize("step", [13, pytest.param(1, marks=pytest.mark.slow)])
needs_seccomp = pytest.mark.skipif(
    not programs.can_forbid_system_calls(), reason="needs seccomp, on Linux on x86_64 or aarch64"
)


@pytest.mark.parametrize("n_kills", [6, pytest.param(200, marks=pytest.mark.slow)])
def test_killed_again_and_again_it_gives_the_same_index_and_scores_at_most_a_chunk_more_per_kill(
    n_kills: int, tmp_path: Path
) -> None:
    rng, kills = random.Random(n_kills), 0
    undisturbed = programs.build(tmp_path / "undisturbed")
    programs.add(undisturbed)
    for number in count():
        path, log = tmp_path / f"{number}.anncur", tmp_path / f"{number}.log"
        kills_here = _kill_until_it_ends(
            Task(str(path), "grow", log=str(log), seconds_per_request=SECONDS_PER_REQUEST), rng
        )
        index = programs.open_index(path)
        assert index.digest() == undisturbed.digest()
        assert index.verify() == []
        assert programs.n_lines(log) - _pairs_needed() <= kills_here * programs.PAIRS_PER_CHUNK + _checks(kills_here)
        kills += kills_here
        if kills >= n_kills:
            break


@some_or_all
def test_a_build_killed_at_a_file_call_resumes_to_the_same_index(step: int, tmp_path: Path) -> None:
    expected = programs.build(tmp_path / "undisturbed").digest()
    for path in _killed_at_file_calls("build", tmp_path, step):
        index = programs.build(path)
        assert index.digest() == expected
        assert index.verify() == []


@some_or_all
@pytest.mark.parametrize("operation", [programs.add, programs.upsert, programs.remove])
def test_an_operation_killed_at_a_file_call_has_wholly_happened_or_not_at_all(
    operation: Callable[[anncur.Index], None], step: int, tmp_path: Path
) -> None:
    before = programs.build(tmp_path / "before")
    after = programs.build(tmp_path / "after")
    operation(after)
    for path in _killed_at_file_calls(operation.__name__, tmp_path, step, start_from=tmp_path / "before"):
        index = programs.open_index(path)
        assert index.digest() in {before.digest(), after.digest()}
        if index.digest() == before.digest():
            operation(index)
        assert index.digest() == after.digest()
        assert programs.open_index(path).verify() == []


@some_or_all
def test_a_compaction_killed_at_a_file_call_changes_no_answer_and_leaves_nothing_that_gc_keeps(
    step: int, tmp_path: Path
) -> None:
    before = programs.build(tmp_path / "before")
    programs.add(before)
    programs.remove(before)
    for path in _killed_at_file_calls("compact", tmp_path, step, start_from=tmp_path / "before"):
        index = programs.open_index(path)
        assert index.digest() == before.digest()
        assert index.verify() == []
        index.gc()
        assert len(list((path / "segments").iterdir())) == index.info.n_segments
        index.compact()
        assert index.digest() == before.digest()
        assert programs.open_index(path).verify() == []


@pytest.mark.parametrize(("n_kills", "n_steps"), [(4, 8), pytest.param(120, 30, marks=pytest.mark.slow)])
def test_upserts_and_merges_killed_again_and_again_lose_nothing_and_pay_at_most_a_chunk_more_per_kill(
    n_kills: int, n_steps: int, tmp_path: Path
) -> None:
    rng, kills = random.Random(n_kills), 0
    programs.build(tmp_path / "before")
    while kills < n_kills:
        path, log = tmp_path / f"{kills}.anncur", tmp_path / f"{kills}.log"
        shutil.copytree(tmp_path / "before", path)
        task = Task(str(path), "change", log=str(log), seconds_per_request=SECONDS_PER_REQUEST, n_steps=n_steps)
        kills_here = _kill_until_it_ends(task, rng, check=partial(_holds_one_step, path))
        index = programs.open_index(path)
        assert (programs.step_of(index), index.info.n_segments) == (n_steps, 1)
        assert programs.n_lines(log) <= (2 * n_steps + 2 * kills_here) * programs.N_QUERIES
        kills += kills_here


def _holds_one_step(path: Path) -> None:
    """Check that an index holds what all upserts up to one made of it, and answers with that."""
    index = programs.open_index(path)
    expected = {item.id: item for item in programs.make_world().items[: programs.N_BUILT]}
    for step in range(1, programs.step_of(index) + 1):
        for item in programs.items_of_step(step):
            if expected[item.id] != item:
                del expected[item.id]
                expected[item.id] = item
    assert list(index.items) == list(expected.values())
    assert index.verify() == []
    assert len(index.search(programs.make_world().queries[0], k=200, method="exhaustive")) == len(expected)


@needs_seccomp
@pytest.mark.parametrize("system_call", ["writev", "fsync", "rename"])
@pytest.mark.parametrize(
    "chunks", [[programs.N_CHUNKS // 2], pytest.param(range(programs.N_CHUNKS), marks=pytest.mark.slow)]
)
def test_a_build_killed_inside_the_write_of_a_chunk_scores_just_that_chunk_again(
    chunks: list[int], system_call: str, tmp_path: Path
) -> None:
    expected = programs.build(tmp_path / "undisturbed").digest()
    for chunk in chunks:
        path, log = tmp_path / f"{chunk}.anncur", tmp_path / f"{chunk}.log"
        killed = programs.run(Task(str(path), log=str(log), forbid=(system_call,), forbid_at=chunk))
        assert killed == Outcome(-signal.SIGSYS)
        assert programs.n_lines(log) == (chunk + 1) * programs.PAIRS_PER_CHUNK - _pairs_lacking(chunk)
        assert programs.run(Task(str(path), log=str(log))) == Outcome(0, expected)
        pairs = programs.N_BUILT * programs.N_QUERIES + programs.PAIRS_PER_CHUNK + programs.STABILITY_CHECKS
        assert programs.n_lines(log) == pairs - _pairs_lacking(chunk)
        assert programs.open_index(path).verify() == []


def test_the_name_of_every_published_file_and_folder_is_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced = _watch_synced_names(monkeypatch)
    path = tmp_path / "indexes" / "new.anncur"
    programs.add(programs.build(path))
    files = [file for file in path.rglob("*") if file.is_file() and file.name != "lock"]
    on_the_way = {step for file in files for step in (file, *file.parents) if step.is_relative_to(tmp_path / "indexes")}
    assert on_the_way - synced == set()


def _kill_until_it_ends(task: Task, rng: random.Random, *, check: Callable[[], None] = lambda: None) -> int:
    """Start a task and kill it at a random moment, until it ends by itself; returns the number of kills."""
    for kills in count():
        with programs.start(task) as process:
            time.sleep(rng.uniform(0.0, 0.2 + 0.05 * kills))  # longer and longer, for the sake of slow machines
            process.kill()
            outcome = programs.finish(process)
        check()
        if outcome.code != -signal.SIGKILL:
            assert outcome.code == 0, outcome.message
            return kills
    raise AssertionError


def _killed_at_file_calls(operation: str, folder: Path, step: int, *, start_from: Path | None = None) -> Iterator[Path]:
    """Indexes whose writers were killed before and after their file calls, until there are no more such calls."""
    for moment in count(step=step):
        number, after = 1 + moment // 2, moment % 2 == 1
        path = folder / f"{operation}-{moment}"
        if start_from is not None:
            shutil.copytree(start_from, path)
        outcome = programs.run(Task(str(path), operation, die_at=number, die_after=after))
        if outcome.code == 0:
            assert number > 5, "the file calls were not seen"
            return
        assert outcome == Outcome(-signal.SIGKILL)
        yield path


def _pairs_needed() -> int:
    return (programs.N_BUILT + programs.N_ADDED) * programs.N_QUERIES


def _checks(kills: int) -> int:
    return (kills + 1) * programs.STABILITY_CHECKS


def _pairs_lacking(chunk: int) -> int:
    """How much smaller than the others a chunk is: the last one isn't full."""
    is_last = chunk == programs.N_CHUNKS - 1
    return (programs.N_CHUNKS * programs.ITEMS_PER_CHUNK - programs.N_BUILT) * programs.N_QUERIES if is_last else 0


def _watch_synced_names(monkeypatch: pytest.MonkeyPatch) -> set[Path]:
    """What is in a folder whenever the folder is synced: only then does it survive a loss of power."""
    synced: set[Path] = set()
    sync = os.fsync

    def watched(handle: int) -> None:
        if stat.S_ISDIR(os.fstat(handle).st_mode):
            synced.update(Path(os.readlink(f"/proc/self/fd/{handle}")).iterdir())
        sync(handle)

    monkeypatch.setattr(os, "fsync", watched)
    return synced
