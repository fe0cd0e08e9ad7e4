"""Several processes at one index: builders that share the work, builders that are refused, and readers beside them."""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Callable
from contextlib import ExitStack
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest

import anncur
import programs
from anncur.errors import FingerprintError, InputError, LockedError, ResumeError
from anncur.scorers.loading import load_scorer
from anncur.scorers.stored import StoredScorer
from programs import ITEMS_PER_CHUNK, N_BUILT, Outcome, Task
from worlds import World

pytestmark = pytest.mark.processes


SECONDS_PER_REQUEST = 0.005  # so that processes are at work at the same time


def test_a_builder_that_is_stopped_until_the_other_has_ended_completes_the_same_index(tmp_path: Path) -> None:
    path, log = tmp_path / "shared.anncur", tmp_path / "stopped.log"
    with ExitStack() as processes:
        stopped = processes.enter_context(programs.start(_shard(path, (0, 2), log=str(log))))
        programs.wait_until(lambda: programs.n_lines(log) > 0)
        stopped.send_signal(signal.SIGSTOP)
        assert programs.run(_shard(path, (1, 2))) == Outcome(0)
        with pytest.raises(InputError, match="unfinished build"):
            programs.open_index(path)
        stopped.send_signal(signal.SIGCONT)
        assert programs.finish(stopped) == Outcome(0)
    _assert_undisturbed(path, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("round", range(20))
def test_builders_of_which_one_stops_at_a_random_moment_complete_the_same_index(round: int, tmp_path: Path) -> None:
    rng, path = random.Random(round), tmp_path / "shared.anncur"
    with ExitStack() as running:
        processes = [running.enter_context(programs.start(_shard(path, (part, 2)))) for part in (0, 1)]
        time.sleep(rng.uniform(0.0, 0.4))
        stopped = rng.choice(processes)
        stopped.send_signal(signal.SIGSTOP)
        time.sleep(rng.uniform(0.0, 1.0))
        stopped.send_signal(signal.SIGCONT)
        assert [programs.finish(process) for process in processes] == [Outcome(0)] * 2
    _assert_undisturbed(path, tmp_path)


def test_shards_in_any_order_give_the_same_index(tmp_path: Path) -> None:
    for number, order in enumerate(permutations(range(3))):
        path = tmp_path / f"{number}.anncur"
        for part in order:
            programs.build(path, shard=(part, 3))
        _assert_undisturbed(path, tmp_path)


@pytest.mark.parametrize("n_rounds", [2, pytest.param(15, marks=pytest.mark.slow)])
def test_two_builders_of_the_same_shard_do_no_harm(n_rounds: int, tmp_path: Path) -> None:
    for number in range(n_rounds):
        path = tmp_path / f"{number}.anncur"
        with ExitStack() as running:
            processes = [running.enter_context(programs.start(_shard(path, (0, 1)))) for _ in range(2)]
            assert [programs.finish(process) for process in processes] == [Outcome(0)] * 2
        _assert_undisturbed(path, tmp_path)


def test_what_a_killed_builder_has_left_half_written_is_no_part_of_the_index(tmp_path: Path) -> None:
    path = tmp_path / "shared.anncur"
    programs.build(path, shard=(0, 2))
    (chunk,) = path.glob("segments/*/scores/c/0/0")
    half_written = chunk.with_name("0.__lock")  # TensorStore's name for what it will rename to 0
    half_written.write_bytes(chunk.read_bytes()[:50])
    programs.build(path, shard=(1, 2))
    half_written.unlink()
    _assert_undisturbed(path, tmp_path)


def test_a_second_builder_is_refused_with_the_process_that_is_building(tmp_path: Path) -> None:
    path, log = tmp_path / "busy.anncur", tmp_path / "pairs.log"
    with programs.start(Task(str(path), log=str(log), seconds_per_request=SECONDS_PER_REQUEST)) as builder:
        programs.wait_until(lambda: programs.n_lines(log) > 0)
        with pytest.raises(LockedError, match=rf"busy\.anncur .* process {builder.pid}\b"):
            programs.build(path)
        assert programs.finish(builder).code == 0
    _assert_undisturbed(path, tmp_path)


def test_readers_search_the_old_version_while_a_writer_is_at_work(tmp_path: Path) -> None:
    path, log = tmp_path / "busy.anncur", tmp_path / "pairs.log"
    before = programs.build(path)
    expected = before.search("query 1", k=5, budget=40)
    with programs.start(Task(str(path), "add", log=str(log), seconds_per_request=0.1)) as writer:
        programs.wait_until(lambda: programs.n_lines(log) > 0)
        reader = programs.open_index(path)
        found = reader.search("query 1", k=5, budget=40)
        with pytest.raises(LockedError, match=rf"process {writer.pid}\b"):
            programs.remove(reader)
        assert writer.poll() is None, "the writer was done before the reader"
        assert programs.finish(writer).code == 0
    assert found.hits == expected.hits
    assert len(programs.open_index(path)) == len(reader) + programs.N_ADDED


def _other_scorer(world: World) -> dict[str, Any]:
    ids = [item.id for item in world.items]
    return {"scorer": StoredScorer(world.exact_scores, world.queries, ids, fingerprint="another scorer")}


def _other_text(world: World) -> dict[str, Any]:
    changed = anncur.Item(world.items[5].id, "another text")
    return {"items": [*world.items[:5], changed, *world.items[6:N_BUILT]]}


def _worse_is_better(world: World) -> dict[str, Any]:
    return {"scorer": load_scorer(world.scorer, higher_is_better=False)}


OTHER_SPECS: dict[str, Callable[[World], dict[str, Any]]] = {
    "higher_is_better": _worse_is_better,
    "items": _other_text,
    r"items \(\d+ there, \d+ given\)": lambda world: {"items": world.items[: N_BUILT - 1]},
    "anchor queries": lambda world: {"anchor_queries": world.queries[::-1]},
    "items_per_chunk": lambda _: {"items_per_chunk": ITEMS_PER_CHUNK + 1},
    "batch_size": lambda world: {"scorer": load_scorer(world.scorer, batch_size=7)},
    "dtype": lambda _: {"dtype": "float16"},
}


@pytest.mark.parametrize("field", OTHER_SPECS)
def test_a_build_is_not_resumed_with_other_settings(field: str, tmp_path: Path) -> None:
    path = tmp_path / "unfinished.anncur"
    programs.build(path, shard=(0, 2))
    with pytest.raises(
        ResumeError, match=rf"unfinished\.anncur .* built with other {field}|built with another {field} "
    ):
        _build_otherwise(path, OTHER_SPECS[field])
    programs.build(path)
    _assert_undisturbed(path, tmp_path)


def test_a_build_is_not_resumed_with_another_scorer(tmp_path: Path) -> None:
    path = tmp_path / "unfinished.anncur"
    programs.build(path, shard=(0, 2))
    with pytest.raises(
        FingerprintError, match=r"unfinished\.anncur .* another scorer \(stored there, another scorer given\)"
    ):
        _build_otherwise(path, _other_scorer)
    programs.build(path)
    _assert_undisturbed(path, tmp_path)


def test_a_build_in_the_place_of_another_index_is_refused_and_leaves_nothing_behind(tmp_path: Path) -> None:
    path = tmp_path / "finished.anncur"
    index = programs.build(path)
    before = _files(path)
    with pytest.raises((InputError, ResumeError), match=r"finished\.anncur"):
        _build_otherwise(path, _other_text)
    assert _files(path) == before
    programs.add(index)
    assert len(index) == N_BUILT + programs.N_ADDED


def _shard(path: Path, shard: tuple[int, int], *, log: str | None = None) -> Task:
    return Task(str(path), shard=shard, log=log, seconds_per_request=SECONDS_PER_REQUEST)


def _build_otherwise(path: Path, changes: Callable[[World], dict[str, Any]]) -> None:
    world = programs.make_world()
    same: dict[str, Any] = {
        "scorer": world.scorer,
        "items": world.items[:N_BUILT],
        "anchor_queries": world.queries,
        "items_per_chunk": ITEMS_PER_CHUNK,
    }
    anncur.Index.build(path=path, **{**same, **changes(world)})


def _assert_undisturbed(path: Path, tmp_path: Path) -> None:
    index = programs.open_index(path)
    assert index.digest() == programs.build(tmp_path / "undisturbed").digest()
    assert index.verify() == []


def _files(folder: Path) -> set[Path]:
    return {path for path in folder.rglob("*") if path.is_file()}
