"""The driver of the paper's experiments, on a small world of its own."""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest

from anncur.evaluation.rows import Row, select
from anncur.progress import silent
from anncur.reproduction.experiments import EXPERIMENTS
from anncur.reproduction.models import MATCH
from toy_linking import documents, mentions, write_lines, write_zeshel

pytestmark = pytest.mark.slow

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
N_ENTITIES, N_QUERIES, N_TESTS = 120, 32, 12


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """`benchmarks/reproduction.py`, with sizes that take seconds."""
    monkeypatch.syspath_prepend(BENCHMARKS)
    for name in ("matrices", "late_interaction", "reproduction"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    import reproduction

    small = replace(
        reproduction.SMALL,
        fewer_anchors=(10,),
        n_anchor_queries=N_QUERIES - N_TESTS,
        grid=(5, 10, 20),
        n_tests=N_TESTS,
        budgets=(50, 60),
        depths=(1, 10, 50),
        n_anchor_items=(20,),
    )
    changed = {
        "SMALL": small,
        "WHOLE": replace(small, n_anchor_queries=12, fewer_anchors=(), grid=(5, 10), n_tests=6),
        "WORLDS": ("delta",),
        "N_TESTS": N_TESTS,
        "N_ITEM_ANCHORS": 15,
        "N_TOP": 4,
        "N_TIMED": 10,
        "TIMED_SIZES": (60, 100),
        "WORLD_SIZES": (60, 100),
        "N_LINKED": 10,
        "NEGATIVES": ("delta", 110, 60),
    }
    for name, value in changed.items():
        monkeypatch.setattr(reproduction, name, value)
    return reproduction


@pytest.fixture
def options(tmp_path: Path) -> argparse.Namespace:
    data = write_zeshel(tmp_path / "data")
    words = [f"word{place}" for place in range(N_ENTITIES)]
    write_lines(data / "documents" / "delta.json", documents("delta", words))
    write_lines(data / "mentions" / "test.json", mentions("delta", words))
    return argparse.Namespace(
        data=data,
        work=tmp_path / "work",
        out=tmp_path / "report",
        emb="builtin",
        cls=None,
        model=[Path("builtin")],
        base=None,
        items=80,
        rows=15,
        seeds=2,
        world=["delta"],
    )


def test_every_part_makes_its_rows_and_makes_them_once(driver: ModuleType, options: argparse.Namespace) -> None:
    rows = run_all_parts(driver, options)
    experiments = {row.cell.experiment for row in rows}
    assert experiments == {*EXPERIMENTS, "linking", "statistics"} - {"depth"}  # for which there are no judgements
    assert len(run_all_parts(driver, options)) == len(rows)
    check_what_was_distilled(driver, rows)


def run_all_parts(driver: ModuleType, options: argparse.Namespace) -> list[Row]:
    reproduction = driver.Reproduction(options, silent)
    for part in driver.PARTS.values():
        part(reproduction)
    return list(reproduction.file.rows)


def check_what_was_distilled(driver: ModuleType, rows: list[Row]) -> None:
    """It is compared where its anchors are not tests."""
    distilled = [row for row in rows if "scratch+ce" in row.cell.method]
    curves = [row for row in distilled if row.cell.experiment in driver.CURVES]
    assert {row.cell.world for row in curves} == {"delta, split by document"}
    assert {row.cell.seed for row in select(distilled, experiment="scoreboard")} == {0}
    times = [row for row in rows if row.cell.method == MATCH]
    assert {row.cell.n_anchor_queries for row in times} == set(driver.SMALL.curve_anchors)
