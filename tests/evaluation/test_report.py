"""The report of one's own data: pages and figures from rows alone, and honesty about the default method."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from anncur.errors import InputError
from anncur.evaluation.experiments import EXPERIMENTS, choose_experiments, run_experiments
from anncur.evaluation.intervals import clustered_interval, leads, recall_interval
from anncur.evaluation.page import Exhibit, Picture, Section, write_pages
from anncur.evaluation.plots import COLOURS
from anncur.evaluation.report import latest_rows, write_report
from anncur.evaluation.rows import Cell, Row, RowFile, read_rows
from anncur.evaluation.scoreboard import DOCUMENTS
from toy_studies import make_study, scoreboard_rows

pytestmark = pytest.mark.slow  # the whole of it takes seconds

pytest.importorskip("matplotlib")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report of the scores and their distribution, and a scoreboard."""
    where = tmp_path_factory.mktemp("report")
    file = RowFile(where / "rows.jsonl")
    run_experiments(make_study(), file, choose_experiments(EXPERIMENTS, ["spectrum", "histogram", "depth"]))
    for row in scoreboard_rows({"posterior": [[4, 3, 2, 1]], "ADACUR": [[4, 4, 4, 4]]}):
        file.append(row)
    write_report(read_rows(file.path), where)
    return where


def test_no_page_mentions_the_paper(folder: Path) -> None:
    for page in ("report.md", "report.html"):
        assert "paper" not in (folder / page).read_text(encoding="utf-8").lower()


def test_every_figure_of_the_markdown_page_is_there_and_none_is_missing(folder: Path) -> None:
    shown = re.findall(r"\]\((figures/[^)]+)\)", (folder / "report.md").read_text())
    drawn = {f"figures/{file.name}" for file in (folder / "figures").iterdir()}
    assert set(shown) == drawn
    for kind in ("scoreboard", "depth", "histogram"):
        assert any(f"figures/{kind}-" in name for name in drawn), kind


def test_the_html_page_is_one_file_with_its_figures_inside(folder: Path) -> None:
    page = (folder / "report.html").read_text(encoding="utf-8")
    assert page.count("data:image/png;base64,") == len(list((folder / "figures").iterdir()))
    assert "figures/" not in page


def test_the_report_says_how_many_components_explain_the_scores(folder: Path) -> None:
    page = (folder / "report.md").read_text()
    assert "| world | scorer | matrix | 90% of the variance | 95% of the variance | 99% of the variance |" in page
    assert re.search(r"\| toy \| toy-emb \| 60 x 150 \| \d+ \| \d+ \| \d+ \|", page)


def test_the_report_says_where_the_default_method_is_not_the_best(folder: Path) -> None:
    assert "top 4 with 50 pairs: ADACUR by 37.5 points" in (folder / "report.md").read_text()


def test_the_best_method_of_a_column_is_in_bold(folder: Path) -> None:
    text = (folder / "report.md").read_text()
    assert re.search(r"\| ADACUR \| \*\*100\.0", text)
    assert re.search(r"\| posterior \| 62\.5", text)


def test_where_the_default_is_best_the_report_says_so(tmp_path: Path) -> None:
    write_report(scoreboard_rows({"posterior": [[4, 4, 4, 3]], "ADACUR": [[4, 4, 4, 2]]}), tmp_path)
    assert "posterior, is the best in every cell" in (tmp_path / "report.md").read_text()


def test_the_best_is_in_bold_however_its_mean_was_summed_up(tmp_path: Path) -> None:
    text = write_report(scoreboard_rows({"posterior": [[5, 4, 2, 2]]}, k=7), tmp_path)[0].read_text()
    assert "| posterior | **46.4" in text


def test_a_scoreboard_has_its_number_of_items(tmp_path: Path) -> None:
    text = write_report(scoreboard_rows({"posterior": [[4, 4, 4, 2], [4, 4, 4, 4]]}), tmp_path)[0].read_text()
    assert "9 anchor queries, 1,000 items, 2 seeds" in text


def test_before_the_default_is_measured_the_report_says_so(tmp_path: Path) -> None:
    rows = scoreboard_rows({"ADACUR": [[4, 4, 4, 2]]})
    assert "posterior, has not been measured yet" in write_report(rows, tmp_path)[0].read_text()
    assert "scoreboard-" not in write_report(rows[:1], tmp_path / "documents alone")[0].read_text()


def test_a_report_of_nothing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no rows to report"):
        write_report([], tmp_path)


def test_a_report_of_rows_that_it_does_not_show_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no rows of scoreboard, .* pass --claims"):
        write_report([Row(Cell("heatmap", "toy", "ANNCUR"), {"recall": 1.0})], tmp_path)


def test_a_lead_within_chance_is_not_called_clear() -> None:
    clear = scoreboard_rows({"posterior": [[0, 1, 0, 1]] * 3, "ADACUR": [[4, 4, 4, 4]] * 3})
    chance = scoreboard_rows({"posterior": [[4, 0, 4, 0]] * 3, "ADACUR": [[0, 4, 4, 1]] * 3})
    assert [lead.is_clear for lead in leads(clear)] == [True]
    assert [lead.is_clear for lead in leads(chance)] == [False]


def test_differences_are_taken_query_by_query() -> None:
    rows = scoreboard_rows({"posterior": [[0, 1, 2, 3]], "ADACUR": [[1, 2, 3, 4]]})
    (lead,) = leads(rows)
    assert lead.difference.low == pytest.approx(lead.difference.high) == pytest.approx(0.25)


def test_intervals_are_those_over_documents_of_all_seeds() -> None:
    rows = scoreboard_rows({"posterior": [[4, 3, 2, 1], [4, 4, 0, 0]]})
    found = recall_interval([row for row in rows if row.cell.method != DOCUMENTS], rows[:2])
    same = clustered_interval(np.array([1, 0.75, 0.5, 0.25, 1, 1, 0, 0]), [0, 0, 1, 1, 0, 0, 1, 1])
    assert found == same


def test_rows_of_scores_that_were_replaced_are_left_out(tmp_path: Path) -> None:
    rows = [
        Row(Cell("spectrum", "toy", "scorer", part=part, n_items=9, data=data), {"n_components": n, "n_queries": 9})
        for part, data, n in (("first", "old", 111), ("first", "new", 222), ("second", "", 333))
    ]
    assert latest_rows(rows) == rows[1:]
    text = write_report(rows, tmp_path)[0].read_text()
    assert "| 222 | 333 |" in text
    assert "111" not in text


def test_a_page_is_written_as_markdown_and_as_html(tmp_path: Path) -> None:
    (tmp_path / "one.png").write_bytes(b"picture")
    exhibit = Exhibit("Some `code` and **more** < less.", ["a", "<b>"], [["1", "**2**"], ["x|y", "</td>"]])
    sections = [Section("A <title>", [exhibit], [Picture(tmp_path / "one.png", 'What is "shown".')])]
    markdown, page = (path.read_text() for path in write_pages(sections, tmp_path, "page"))
    assert "# A <title>" in markdown
    assert "| 1 | **2** |\n| x\\|y | </td> |" in markdown
    assert '![What is "shown".](one.png)' in markdown
    assert "<h1>A &lt;title&gt;</h1>" in page
    assert "<code>code</code> and <b>more</b> &lt; less" in page
    assert "<th>&lt;b&gt;</th>" in page
    assert "<td><b>2</b></td>" in page
    assert "<td>&lt;/td&gt;</td>" in page
    assert 'alt="What is &#34;shown&#34;."' in page


def test_rows_of_a_run_that_is_not_finished_can_be_reported(tmp_path: Path) -> None:
    file = RowFile(tmp_path / "rows.jsonl")
    run_experiments(make_study(), file, choose_experiments(EXPERIMENTS, ["histogram", "depth"]))
    some = [row for place, row in enumerate(file.rows) if place % 7 == 0]
    assert write_report(some, tmp_path)[0].is_file()


def test_the_judges_tables_stand_beside_the_recall_of_the_scorers_own_best(tmp_path: Path) -> None:
    values = {10: {"nDCG@10": 0.3, "R@100": 0.2, "recall": 0.1}, 20: {"nDCG@10": 0.25, "R@100": 0.5, "recall": 0.9}}
    rows = [Row(Cell("depth", "toy", "posterior", k=10, cost=cost), found) for cost, found in values.items()]
    page = write_report(rows, tmp_path)[0].read_text(encoding="utf-8")
    for what, line in {"nDCG@10 by": "30.0 | 25.0", "R@100 by": "20.0 | 50.0", "own top 10": "10.0 | 90.0"}.items():
        assert f"| posterior | {line} |" in page.split(what)[1].split("\n\n")[1]


def test_figures_keep_the_colours_of_lines(tmp_path: Path) -> None:
    import matplotlib.colors
    from PIL import Image

    write_report(
        scoreboard_rows({f"method {place}": [[4, 3, 2, place % 4]] for place in range(len(COLOURS))}), tmp_path
    )
    (file,) = (tmp_path / "figures").glob("scoreboard-*.png")
    drawn = np.array(Image.open(file).convert("RGB").getcolors(maxcolors=1 << 24), dtype=object)[:, 1].tolist()
    for colour in COLOURS:
        wanted = np.array(matplotlib.colors.to_rgb(colour)) * 255
        assert np.abs(np.array(drawn) - wanted).max(axis=1).min() <= 4, colour
