"""Readers search on while versions are published: each answer belongs to one version, and nothing piles up."""

from __future__ import annotations

import gc
import os
import tracemalloc
from pathlib import Path

import pytest

import anncur
from readers import Readers, checksum, make_index, publish, version_of

pytestmark = pytest.mark.processes


BYTES_OF_NOISE = 256 * 1024  # far less than a version's share of memory, times the versions
STEPS = [pytest.param(10, id="quick"), pytest.param(100, id="full", marks=pytest.mark.slow)]


@pytest.mark.parametrize("n_steps", STEPS)
@pytest.mark.parametrize("is_on_disk", [True, False], ids=["disk", "memory"])
def test_every_answer_belongs_to_one_version_while_others_are_published(
    n_steps: int, is_on_disk: bool, tmp_path: Path
) -> None:
    folder = tmp_path / "index" if is_on_disk else None
    index = make_index(folder)
    with Readers(index, folder, tmp_path / "stop") as readers:
        for step in range(2 * n_steps):
            publish(index, step)
            assert version_of(index) == step + 1  # a change is seen by whoever made it, as soon as it is made
    assert min(readers.n_answers) > 0


@pytest.mark.parametrize("n_steps", STEPS)
def test_handles_and_memory_stay_flat_while_versions_are_published(n_steps: int, tmp_path: Path) -> None:
    index = make_index(tmp_path / "index")

    def publish_all(steps: range) -> tuple[int, int]:
        with Readers(index, None, tmp_path / "stop"):
            for step in steps:
                publish(index, step)
        (tmp_path / "stop").unlink()
        version_of(index)
        return resources()

    publish_all(range(2))  # what is imported or made on first use doesn't count
    tracemalloc.start()
    try:
        handles, held = publish_all(range(2, n_steps))
        handles_after, held_after = publish_all(range(n_steps, 2 * n_steps))
    finally:
        tracemalloc.stop()
    assert handles_after <= handles
    assert held_after < held + BYTES_OF_NOISE


def test_handles_and_memory_stay_flat_when_an_index_is_opened_again_and_again(tmp_path: Path) -> None:
    make_index(tmp_path)

    def open_often(n_times: int) -> tuple[int, int]:
        for _ in range(n_times):
            anncur.Index.open(tmp_path, checksum).search("a query", method="exhaustive")
        return resources()

    tracemalloc.start()
    try:
        handles, held = open_often(10)
        handles_after, held_after = open_often(100)
    finally:
        tracemalloc.stop()
    assert handles_after == handles
    assert held_after < held + BYTES_OF_NOISE


def resources() -> tuple[int, int]:
    """The open file handles, and the bytes that Python holds."""
    gc.collect()
    return len(os.listdir("/proc/self/fd")), tracemalloc.get_traced_memory()[0]
