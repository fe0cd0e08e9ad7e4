"""Cores that may be used: no more than the machine, the affinity or the quota gives."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from anncur import threads
from anncur.threads import usable_cores


@pytest.fixture(autouse=True)
def _eight_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "_physical_cores", lambda: 8)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("max 100000\n", 8),
        ("200000 100000\n", 2),
        ("150000 100000\n", 2),
        ("50000 100000\n", 1),
        ("1600000 100000\n", 8),
        ("", 8),
        ("nonsense", 8),
        ("100000 0", 8),
    ],
)
def test_a_quota_caps_the_cores(tmp_path: Path, content: str, expected: int) -> None:
    quota = tmp_path / "cpu.max"
    quota.write_text(content)
    assert usable_cores(quota=quota) == expected


def test_without_a_quota_all_cores_count(tmp_path: Path) -> None:
    assert usable_cores(quota=tmp_path / "none") == 8


@pytest.mark.parametrize(("asked", "expected"), [("3", 3), ("64", 8), ("", 8), ("4,2", 8), ("0", 1)])
def test_the_environment_may_ask_for_fewer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked: str, expected: int
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", asked)
    assert usable_cores(quota=tmp_path / "none") == expected


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="this system has no affinity")
def test_only_cores_that_this_process_may_use_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 3})
    siblings = tmp_path / "cpu{}"
    for cpu, content in enumerate(["0-1", "0-1", "2-3", "2-3"]):
        Path(str(siblings).format(cpu)).write_text(content)
    monkeypatch.setattr(threads, "SIBLINGS", str(siblings))
    assert usable_cores(quota=tmp_path / "none") == 2, "two threads of one core count once"
    monkeypatch.setattr(threads, "SIBLINGS", str(tmp_path / "unknown{}"))
    assert usable_cores(quota=tmp_path / "none") == 4
