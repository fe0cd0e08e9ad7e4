"""The report: pages and figures from rows alone, claims judged, and honesty about the default method."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from anncur.errors import InputError
from anncur.evaluation.board import interval_of, losses
from anncur.evaluation.claims import CLAIMS
from anncur.evaluation.experiments.scoreboard import DOCUMENTS
from anncur.evaluation.experiments.suite import run_experiments
from anncur.evaluation.intervals import clustered_interval
from anncur.evaluation.page import Heading, Image, Paragraph, Table, write_pages
from anncur.evaluation.panels import COLOURS
from anncur.evaluation.report import latest_data, write_report
from anncur.evaluation.rows import Cell, Row, RowFile, read_rows
from toy_studies import make_study, other_head

pytest.importorskip("matplotlib")
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


def board(found: dict[str, list[list[int]]], k: int = 4) -> list[Row]:
    """What each method found for the queries of each seed, four queries of two documents."""
    n_seeds = len(next(iter(found.values())))
    sizes = {"n_anchor_queries": 9, "n_items": 1000}
    cells = [Cell("scoreboard", "toy", DOCUMENTS, seed=seed, **sizes) for seed in range(n_seeds)]
    rows = [Row(cell, {"groups": [0, 0, 1, 1]}) for cell in cells]
    for method, of_seeds in found.items():
        for seed, counts in enumerate(of_seeds):
            cell = Cell("scoreboard", "toy", method, seed=seed, k=k, cost=50, **sizes)
            rows.append(Row(cell, {"found": counts, "recall": sum(counts) / (4 * k), "calls": 50, "seconds": 0.1}))
    return rows


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report of two scorers on all experiments that need no index, and a scoreboard."""
    where = tmp_path_factory.mktemp("report")
    file = RowFile(where / "rows.jsonl")
    run_experiments(make_study(), file, QUICK)
    run_experiments(other_head(make_study()), file, ["rank", "histogram", "heatmap"])
    for row in board({"posterior": [[4, 3, 2, 1]], "ADACUR": [[4, 4, 4, 4]]}):
        file.append(row)
    write_report(read_rows(file.path), where)
    return where


def test_both_pages_tell_every_claim_and_its_verdict(folder: Path) -> None:
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
    assert "top 4 with 50 calls: ADACUR by 37.5 points" in (folder / "report.md").read_text()


def test_the_best_method_of_a_column_is_in_bold(folder: Path) -> None:
    text = (folder / "report.md").read_text()
    assert re.search(r"\| ADACUR \| \*\*100\.0", text)
    assert re.search(r"\| posterior \| 62\.5", text)


def test_where_the_default_is_best_the_report_says_so(tmp_path: Path) -> None:
    write_report(board({"posterior": [[4, 4, 4, 3]], "ADACUR": [[4, 4, 4, 2]]}), tmp_path)
    assert "posterior, is the best in every cell" in (tmp_path / "report.md").read_text()


def test_the_best_is_in_bold_however_its_mean_was_summed_up(tmp_path: Path) -> None:
    text = write_report(board({"posterior": [[5, 4, 2, 2]]}, k=7), tmp_path)[0].read_text()
    assert "| posterior | **46.4" in text


def test_a_board_tells_how_many_items_it_is_of(tmp_path: Path) -> None:
    text = write_report(board({"posterior": [[4, 4, 4, 2], [4, 4, 4, 4]]}), tmp_path)[0].read_text()
    assert "9 anchor queries, 1,000 items, 2 seeds" in text


def test_before_the_default_is_measured_nothing_is_said_of_it(tmp_path: Path) -> None:
    rows = board({"ADACUR": [[4, 4, 4, 2]]})
    assert "posterior, has not been measured yet" in write_report(rows, tmp_path)[0].read_text()
    assert "scoreboard-" not in write_report(rows[:1], tmp_path / "documents alone")[0].read_text()


def test_a_report_of_nothing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no rows to report"):
        write_report([], tmp_path)


def test_a_loss_within_chance_is_not_called_clear() -> None:
    clear = board({"posterior": [[0, 1, 0, 1]] * 3, "ADACUR": [[4, 4, 4, 4]] * 3})
    chance = board({"posterior": [[4, 0, 4, 0]] * 3, "ADACUR": [[0, 4, 4, 1]] * 3})
    assert [loss.is_clear for loss in losses(clear)] == [True]
    assert [loss.is_clear for loss in losses(chance)] == [False]


def test_differences_are_taken_query_by_query() -> None:
    rows = board({"posterior": [[0, 1, 2, 3]], "ADACUR": [[1, 2, 3, 4]]})
    (loss,) = losses(rows)
    assert loss.difference.low == pytest.approx(loss.difference.high) == pytest.approx(0.25)


def test_intervals_are_those_over_documents_of_all_seeds() -> None:
    rows = board({"posterior": [[4, 3, 2, 1], [4, 4, 0, 0]]})
    found = interval_of([row for row in rows if row.cell.method != DOCUMENTS], rows[:2])
    same = clustered_interval([1, 0.75, 0.5, 0.25, 1, 1, 0, 0], [0, 0, 1, 1, 0, 0, 1, 1])
    assert found == same


def test_rows_of_scores_that_were_replaced_are_left_out(tmp_path: Path) -> None:
    rows = [
        Row(Cell("rank", "toy", "scorer", part=part, n_items=9, data=data), {"rank": rank, "n_queries": 9})
        for part, data, rank in (("first", "old", 111), ("first", "new", 222), ("second", "", 333))
    ]
    assert latest_data(rows) == rows[1:]
    text = write_report(rows, tmp_path)[0].read_text()
    assert "| 222 | 333 |" in text
    assert "111" not in text


def test_a_page_is_written_as_markdown_and_as_html(tmp_path: Path) -> None:
    (tmp_path / "one.png").write_bytes(b"picture")
    blocks = [
        Heading("A <title>", 1),
        Paragraph("Some `code` and **more** < less."),
        Table(["a", "b"], [["1", "**2**"]]),
        Image(tmp_path / "one.png", "What is shown."),
    ]
    markdown, page = (path.read_text() for path in write_pages(blocks, tmp_path, "page"))
    assert "# A <title>" in markdown
    assert "| 1 | **2** |" in markdown
    assert "![What is shown.](one.png)" in markdown
    assert "<h1>A &lt;title&gt;</h1>" in page
    assert "<code>code</code> and <b>more</b> &lt; less" in page
    assert "<td><b>2</b></td>" in page


def test_rows_of_a_run_that_is_not_finished_can_be_reported(tmp_path: Path) -> None:
    file = RowFile(tmp_path / "rows.jsonl")
    run_experiments(make_study(), file, ["heatmap", "histogram", "item-item"])
    some = [row for place, row in enumerate(file.rows) if place % 7 == 0]
    assert write_report(some, tmp_path)[0].is_file()


def test_tables_of_a_curve_show_the_best_split_of_each_place_and_blanks_where_nothing_was_measured(
    tmp_path: Path,
) -> None:
    def row(method: str, n_anchors: int, recall: float, n_anchor_items: int | None = None) -> Row:
        at = {"k": 10, "cost": 50, "n_anchor_queries": n_anchors, "n_anchor_items": n_anchor_items}
        return Row(Cell("anchor-queries", "toy", method, **at), {"recall": recall})

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


def test_the_judges_tables_stand_beside_the_recall_of_the_scorers_own_best(tmp_path: Path) -> None:
    values = {10: {"nDCG@10": 0.3, "R@100": 0.2, "recall": 0.1}, 20: {"nDCG@10": 0.25, "R@100": 0.5, "recall": 0.9}}
    rows = [Row(Cell("depth", "toy", "posterior", k=10, cost=cost), found) for cost, found in values.items()]
    page = write_report(rows, tmp_path)[0].read_text(encoding="utf-8")
    for what, line in {"nDCG@10 by": "30.0 | 25.0", "R@100 by": "20.0 | 50.0", "own top 10": "10.0 | 90.0"}.items():
        assert f"| posterior | {line} |" in page.split(what)[1].split("\n\n")[1]


def test_figures_keep_the_colours_of_lines(tmp_path: Path) -> None:
    import matplotlib.colors
    import numpy as np
    from PIL import Image

    write_report(board({f"method {place}": [[4, 3, 2, place % 4]] for place in range(len(COLOURS))}), tmp_path)
    (file,) = (tmp_path / "figures").glob("scoreboard-*.png")
    drawn = np.array(Image.open(file).convert("RGB").getcolors(maxcolors=1 << 24), dtype=object)[:, 1].tolist()
    for colour in COLOURS:
        wanted = np.array(matplotlib.colors.to_rgb(colour)) * 255
        assert np.abs(np.array(drawn) - wanted).max(axis=1).min() <= 4, colour
