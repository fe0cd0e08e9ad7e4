"""A disk that is full or fails: a clear error, the old version answers, and the work is resumed once it is repaired."""

from __future__ import annotations

import errno
import gc
import os
import re
import subprocess
from collections.abc import Callable, Iterator
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pytest

import anncur
import programs
from anncur.errors import StorageError
from programs import N_BUILT, Outcome, Task

pytestmark = pytest.mark.processes


PAGE = 4096
needs_seccomp = pytest.mark.skipif(
    not programs.can_forbid_system_calls(), reason="needs seccomp, on Linux on x86_64 or aarch64"
)


class Disk:
    """A small disk in memory."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.index = folder / "on-disk.anncur"

    def mount(self, *, n_pages: int) -> None:
        _mount("-t", "tmpfs", "-o", f"size={n_pages * PAGE}", "tmpfs", str(self.folder))

    def resize(self, *, n_pages: int) -> None:
        _mount("-o", f"remount,size={n_pages * PAGE}", str(self.folder))

    def unmount(self) -> None:
        subprocess.run(["umount", "--lazy", str(self.folder)], check=True)  # an index keeps its files open

    def shrink_to_fit(self, *, n_free_pages: int) -> None:
        room = os.statvfs(self.folder)
        self.resize(n_pages=(room.f_blocks - room.f_bfree) * room.f_frsize // PAGE + n_free_pages)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    folder = tmp_path / "disk"
    folder.mkdir()
    made = Disk(folder)
    try:
        made.mount(n_pages=1)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"needs `mount` and the right to mount a tmpfs (CAP_SYS_ADMIN): {error}")
    try:
        yield made
    finally:
        gc.collect()
        made.unmount()


def test_a_build_on_a_disk_that_grows_too_slowly_names_what_it_needs_and_completes_in_the_end(
    disk: Disk, tmp_path: Path
) -> None:
    expected, n_failures = programs.build(tmp_path / "undisturbed").digest(), 0
    while (error := _failure(lambda: programs.build(disk.index))) is not None:
        _assert_names_path_and_bytes(error, disk.index)
        n_failures += 1
        disk.resize(n_pages=1 + n_failures)
    assert n_failures > 10
    assert programs.open_index(disk.index).digest() == expected
    assert programs.open_index(disk.index).verify() == []


@pytest.mark.slow
def test_a_build_on_a_disk_of_any_size_names_what_it_needs_and_completes_once_there_is_room(
    disk: Disk, tmp_path: Path
) -> None:
    expected = programs.build(tmp_path / "undisturbed").digest()
    for n_pages in count(1):
        gc.collect()
        disk.unmount()
        disk.mount(n_pages=n_pages)
        error = _failure(lambda: programs.build(disk.index))
        if error is None:
            break
        _assert_names_path_and_bytes(error, disk.index)
        disk.resize(n_pages=1000)
        assert programs.build(disk.index).digest() == expected
    assert n_pages > 10


def test_what_was_scored_before_the_disk_was_full_is_not_scored_again(disk: Disk, tmp_path: Path) -> None:
    world = programs.make_world()
    disk.resize(n_pages=28)
    assert _failure(lambda: programs.build(disk.index, world.scorer)) is not None
    n_stored = len(list(disk.index.glob("segments/*/scores/c/*/0")))
    assert n_stored > 0, "the disk was full too early for this test"
    world.scorer.pairs.clear()
    disk.resize(n_pages=1000)
    programs.build(disk.index, world.scorer)
    needed = N_BUILT * programs.N_QUERIES + programs.STABILITY_CHECKS
    assert len(world.scorer.pairs) == needed - n_stored * programs.PAIRS_PER_CHUNK


@pytest.mark.parametrize("operation", [programs.add, programs.remove])
def test_on_a_full_disk_the_old_version_answers_and_the_operation_completes_once_there_is_room(
    operation: Callable[[anncur.Index], None], disk: Disk, tmp_path: Path
) -> None:
    changed = programs.build(tmp_path / "undisturbed")
    operation(changed)
    disk.resize(n_pages=1000)
    before = programs.build(disk.index)
    answer = before.search("query 1", k=5, budget=40).hits
    disk.shrink_to_fit(n_free_pages=0)
    error = _failure(lambda: operation(before))
    assert error is not None
    assert str(disk.index) in str(error)
    after = programs.open_index(disk.index)
    assert after.digest() == before.digest() != changed.digest()
    assert after.search("query 1", k=5, budget=40).hits == answer
    disk.resize(n_pages=1000)
    operation(after)
    assert after.digest() == changed.digest()


def test_a_disk_without_a_single_free_byte_is_a_storage_error(disk: Disk) -> None:
    (disk.folder / "full").write_bytes(b"-" * PAGE)
    error = _failure(lambda: programs.build(disk.index))
    assert error is not None
    assert str(disk.index) in str(error)


@pytest.mark.parametrize("step", [3, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("operation", ["build", "add", "remove"])
def test_a_file_call_that_fails_is_a_storage_error_and_the_old_or_the_new_version_answers(
    operation: str, step: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, after = _digest_after("build", tmp_path / "before"), _digest_after(operation, tmp_path / "after")
    for number in count(1, step):
        path = tmp_path / f"{number}.anncur"
        if operation != "build":
            programs.build(path)
        with monkeypatch.context() as failing:
            _fail_at_file_call(failing, number)
            error = _failure(partial(programs.do, Task(str(path), operation)))
        if error is None:
            break
        assert str(tmp_path) in str(error)
        assert operation == "build" or programs.open_index(path).digest() in {before, after}
        if operation == "build" or programs.open_index(path).digest() == before:
            programs.do(Task(str(path), operation))
        assert programs.open_index(path).digest() == after
    assert number > 3, "the file calls were not seen"


@needs_seccomp
@pytest.mark.parametrize("system_call", ["writev", "fsync", "rename"])
@pytest.mark.parametrize("operation", ["build", "add"])
def test_a_chunk_that_cannot_be_written_is_a_storage_error_that_names_its_path_and_bytes(
    operation: str, system_call: str, tmp_path: Path
) -> None:
    path = tmp_path / "failing.anncur"
    if operation == "add":
        programs.build(path)
    failed = programs.run(Task(str(path), operation, forbid=(system_call,), forbid_at=1, eio=True))
    assert (failed.code, failed.error) == (1, "StorageError")
    assert re.search(rf"{path}.*Input/output error", failed.message)
    assert f"{4 * programs.PAIRS_PER_CHUNK} bytes" in failed.message
    if operation == "add":
        assert programs.open_index(path).digest() == programs.build(tmp_path / "undisturbed").digest()
    assert programs.run(Task(str(path), operation)) == Outcome(0, _digest_after(operation, tmp_path / "again"))


@needs_seccomp
@pytest.mark.parametrize(
    ("operation", "system_call"),
    [("build", "write"), ("add", "write"), ("remove", "write"), ("build", "pwrite64"), ("add", "pwrite64")],
)
def test_a_disk_that_takes_no_writes_is_a_storage_error_and_the_old_version_answers(
    operation: str, system_call: str, tmp_path: Path
) -> None:
    path = tmp_path / "failing.anncur"
    if operation != "build":
        programs.build(path)
    failed = programs.run(Task(str(path), operation, forbid=(system_call,), eio=True))
    assert (failed.code, failed.error) == (1, "StorageError")
    assert str(path) in failed.message
    if operation != "build":
        assert programs.open_index(path).digest() == programs.build(tmp_path / "undisturbed").digest()
    assert programs.run(Task(str(path), operation)) == Outcome(0, _digest_after(operation, tmp_path / "again"))


def _mount(*arguments: str) -> None:
    subprocess.run(["mount", *arguments], check=True, capture_output=True, text=True)


def _failure(operation: Callable[[], object]) -> StorageError | None:
    try:
        operation()
    except StorageError as error:
        return error
    return None


def _assert_names_path_and_bytes(error: StorageError, path: Path) -> None:
    assert str(path) in str(error)
    assert re.search(r"\d bytes", str(error)), error


def _fail_at_file_call(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """Let the number-th call that puts something on disk fail with EIO."""
    n_calls = 0

    def failing(call: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*args: Any, **options: Any) -> Any:
            nonlocal n_calls
            n_calls += 1
            if n_calls == number:
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            return call(*args, **options)

        return counted

    for name in ("fsync", "rename", "replace", "link"):
        monkeypatch.setattr(os, name, failing(getattr(os, name)))


def _digest_after(operation: str, path: Path) -> str:
    index = programs.build(path)
    if operation != "build":
        {"add": programs.add, "remove": programs.remove}[operation](index)
    return index.digest()
