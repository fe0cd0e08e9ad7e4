"""The driver of the paper's experiments, on a small world of its own."""

from __future__ import annotations

import shlex
import shutil
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest

from anncur.evaluation.rows import Row, read_rows, select
from anncur.reproduction.experiments import EXPERIMENTS
from anncur.reproduction.models import MATCH
from anncur.scorers.onnx import BUILTIN
from toy_linking import documents, mentions, write_lines, write_zeshel

pytestmark = pytest.mark.slow

PROJECT = Path(__file__).parents[2]
BENCHMARKS, GUIDE = PROJECT / "benchmarks", PROJECT / "docs" / "reproduction" / "README.md"
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
def data(tmp_path: Path) -> Path:
    folder = write_zeshel(tmp_path / "data")
    words = [f"word{place}" for place in range(N_ENTITIES)]
    write_lines(folder / "documents" / "delta.json", documents("delta", words))
    write_lines(folder / "mentions" / "test.json", mentions("delta", words))
    return folder


@pytest.mark.filterwarnings("ignore::anncur.DriftWarning")  # mentions of such words are unlike each other
def test_the_documented_commands_make_every_row_and_make_it_once(
    driver: ModuleType, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands = documented_commands()
    assert {command[command.index("--part") + 1] for command in commands} == set(driver.PARTS)
    run_all(driver, commands, data, monkeypatch)
    rows = read_rows(tmp_path / "report" / "rows.jsonl")
    experiments = {row.cell.experiment for row in rows}
    assert experiments == {*EXPERIMENTS, "linking", "statistics"} - {"depth"}  # for which there are no judgements
    assert "noun" not in (tmp_path / "report" / "report.md").read_text(encoding="utf-8")
    check_what_was_distilled(driver, rows)

    run_all(driver, [command for command in commands if "cross-encoders" in command], data, monkeypatch)
    assert len(read_rows(tmp_path / "report" / "rows.jsonl")) == len(rows)


def documented_commands() -> list[list[str]]:
    """The words after `reproduce` in docs/reproduction/README.md."""
    block = GUIDE.read_text(encoding="utf-8").partition("reproduce() {")[2].partition("```")[0]
    lines = block.replace("\\\n", " ").splitlines()
    return [shlex.split(line)[1:] for line in lines if line.startswith("reproduce ")]


def run_all(driver: ModuleType, commands: Sequence[Sequence[str]], data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The commands with all their options but `--base`, on the small world, the built-in scorer for every model."""
    folder = data.parent
    cls_model = folder / "cls.onnx"  # its name tells its kind
    shutil.copy(BUILTIN, cls_model)
    small = {"--emb": "builtin", "--cls": cls_model, "--model": "builtin", "--items": 80, "--world": "delta"}
    fixed = {"--work": folder / "work", "--out": folder / "report", "--seeds": 2}
    for command in commands:
        options = dict(zip(command[::2], command[1::2], strict=True))
        changed = {name: small.get(name, value) for name, value in options.items() if name != "--base"}
        words = [str(word) for pair in {**fixed, **changed}.items() for word in pair]
        monkeypatch.setattr(sys, "argv", ["reproduction.py", str(data), *words])
        driver.main()


def check_what_was_distilled(driver: ModuleType, rows: list[Row]) -> None:
    """It is compared where its anchors are not tests."""
    distilled = [row for row in rows if "scratch+ce" in row.cell.method]
    curves = [row for row in distilled if row.cell.experiment in driver.CURVES]
    assert {row.cell.world for row in curves} == {"delta, split by document"}
    assert {row.cell.seed for row in select(distilled, experiment="scoreboard")} == {0}
    times = [row for row in rows if row.cell.method == MATCH]
    assert {row.cell.n_anchor_queries for row in times} == set(driver.SMALL.curve_anchors)
