"""The report of the reproduction: every claim judged, every experiment shown, from rows alone."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from anncur.evaluation.experiments import choose_experiments, run_experiments
from anncur.evaluation.rows import Cell, Row, RowFile, read_rows
from anncur.reproduction.claims import CLAIMS, judge_claims
from anncur.reproduction.experiments import EXPERIMENTS
from anncur.reproduction.report import write_report
from toy_studies import make_paper_study, other_head, scoreboard_rows

pytest.importorskip("matplotlib", reason="needs the extra `bench`")
pytestmark = pytest.mark.slow  # all experiments of a small world, and their figures
ROOT = Path(__file__).parents[2]
QUICK = [
    "recall-at-depth",
    "recall-at-cost",
    "anchor-queries",
    "world-size",
    "item-item",
    "heatmap",
    "rank",
    "histogram",
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report of two scorers on all experiments that need no index, and a scoreboard."""
    where = tmp_path_factory.mktemp("report")
    file = RowFile(where / "rows.jsonl")
    run_experiments(make_paper_study(), file, choose_experiments(EXPERIMENTS, QUICK))
    other = other_head(make_paper_study())
    run_experiments(other, file, choose_experiments(EXPERIMENTS, ["rank", "histogram", "heatmap"]))
    for row in scoreboard_rows({"posterior": [[4, 3, 2, 1]], "ADACUR": [[4, 4, 4, 4]]}):
        file.append(row)
    write_report(read_rows(file.path), where)
    return where


def test_both_pages_have_every_claim_and_its_verdict(folder: Path) -> None:
    for page in ("report.md", "report.html"):
        text = (folder / page).read_text(encoding="utf-8").replace("&gt;", ">")
        assert all(claim.text in text for claim in CLAIMS)
        assert "not measured" in text
        assert "confirmed" in text


def test_every_figure_of_the_markdown_page_is_there_and_none_is_missing(folder: Path) -> None:
    shown = re.findall(r"\]\((figures/[^)]+)\)", (folder / "report.md").read_text())
    drawn = {f"figures/{file.name}" for file in (folder / "figures").iterdir()}
    assert set(shown) == drawn
    for kind in (*QUICK, "splits", "scoreboard"):
        assert kind == "rank" or any(f"figures/{kind}-" in name for name in drawn), kind


def test_the_html_page_is_one_file_with_its_figures_inside(folder: Path) -> None:
    page = (folder / "report.html").read_text(encoding="utf-8")
    assert page.count("data:image/png;base64,") == len(list((folder / "figures").iterdir()))
    assert "figures/" not in page


def test_the_report_says_where_the_default_method_is_not_the_best(folder: Path) -> None:
    assert "top 4 with 50 pairs: ADACUR by 37.5 points" in (folder / "report.md").read_text()


def test_rows_of_a_run_that_is_not_finished_can_be_reported(tmp_path: Path) -> None:
    file = RowFile(tmp_path / "rows.jsonl")
    unfinished = choose_experiments(EXPERIMENTS, ["heatmap", "histogram", "item-item"])
    run_experiments(make_paper_study(), file, unfinished)
    some = [row for place, row in enumerate(file.rows) if place % 7 == 0]
    assert write_report(some, tmp_path)[0].is_file()


def test_tables_of_a_curve_show_the_best_split_of_each_place_and_blanks_where_nothing_was_measured(
    tmp_path: Path,
) -> None:
    def row(method: str, n_anchors: int, recall: float, n_anchor_items: int | None = None) -> Row:
        point = Cell("anchor-queries", "toy", method, k=10, cost=50)
        return Row(replace(point, n_anchor_queries=n_anchors, n_anchor_items=n_anchor_items), {"recall": recall})

    rows = [
        row("ANNCUR", 20, 0.2, 10),
        row("ANNCUR", 20, 0.4, 25),
        row("ANNCUR", 80, 0.6, 10),
        row("base+ce@80", 80, 0.5),
    ]
    page = write_report(rows, tmp_path)[0].read_text(encoding="utf-8")
    assert "recall of the top 10 at a cost of 50 in %, by anchor queries" in page
    assert "| ANNCUR | 40.0 | 60.0 |" in page
    assert "| base+ce@80 |  | 50.0 |" in page


@pytest.mark.parametrize("where", ["", "scifact"])
def test_the_committed_rows_can_be_read_and_their_figures_are_those_of_the_committed_report(where: str) -> None:
    committed = ROOT / "docs" / "reproduction" / where
    rows = read_rows(committed / "rows.jsonl.gz")
    page = (committed / "report.md").read_text(encoding="utf-8")
    drawn = {file.name for file in (committed / "figures").iterdir()}
    assert set(re.findall(r"\]\(figures/([^)]+)\)", page)) == drawn
    judged = judge_claims(rows)
    assert all(f"| {each.claim} | {each.paper} | **{each.verdict}** | {each.ours} |" in page for each in judged)
