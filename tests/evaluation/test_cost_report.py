"""The first sections of a report: the recommendation, tables of costs that agree with it, and figures."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from anncur.evaluation.cost_plots import best_curve, draw_against_costs, draw_total_cost
from anncur.evaluation.cost_report import (
    ALL_ROUNDS_NOTE,
    FEWER_ROUNDS_NOTE,
    break_even_table,
    compare,
    cost_sections,
    last_board,
    pairs_table,
    recommendations,
    seconds_table,
)
from anncur.evaluation.costs import CostModel, Offer, Point, in_pairs, in_seconds
from anncur.evaluation.recommendation import Terms, reasons, reckon
from anncur.evaluation.report import write_report
from anncur.evaluation.rows import Row
from cost_lines import BOARD, make_line, make_rows, pace_row, without

pytestmark = pytest.mark.slow  # figures take seconds

pytest.importorskip("matplotlib")
MEASURED = {
    "rerank bm25": {50: 0.5, 500: 0.95},
    "posterior, no anchor queries": {50: 0.7, 200: 0.9},
    "posterior": {50: 0.9, 200: 0.99},
    "ANNCUR": {50: 0.2, 200: 0.3},
}
ROWS = [*make_rows(MEASURED), pace_row(0.01, 0.001)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    where = tmp_path_factory.mktemp("costs")
    write_report(ROWS, where, Terms(price_per_1000=3.0, n_queries=5000))
    return where


def test_the_page_begins_with_the_recommendation(folder: Path) -> None:
    lines = (folder / "report.md").read_text().splitlines()
    assert lines[0] == "# Recommendation: toy, scored by judge"
    used = "Use adaptive search ({}, the default) with 100 anchor queries and a budget of 50 pairs"
    assert lines[2].startswith(f"**{used.format('`posterior`')}")
    assert f'<p class="answer">{used.format("<code>posterior</code>")}' in (folder / "report.html").read_text()


def test_the_page_has_the_commands_that_follow(folder: Path) -> None:
    page = (folder / "report.md").read_text()
    build = (
        "anncur build CORPUS --scorer judge --queries QUERIES --n-anchor-queries 100 --retriever bm25 --out my.anncur"
    )
    assert f'- `{build}`\n- `anncur search my.anncur "a query" --budget 50`\n' in page


@pytest.mark.parametrize(
    ("measured", "commands"),
    [
        (
            {"rerank bm25": {50: 0.9}},
            ["build CORPUS --scorer judge --retriever bm25 --out my.anncur", "--method rerank --budget 50"],
        ),
        (
            {"rerank bm25": {50: 0.1}},
            ["build CORPUS --scorer judge --out my.anncur", "--method exhaustive --budget 1000"],
        ),
        ({"ADACUR from bm25": {50: 0.9}}, []),
    ],
)
def test_commands_are_those_of_what_is_recommended(measured: dict[str, dict[int, float]], commands: list[str]) -> None:
    (found,) = recommendations([*make_rows(measured), pace_row(0.01, 0.001)], Terms(n_queries=10**6))
    assert [wanted in command for wanted, command in zip(commands, found.commands, strict=True)] == [True] * len(
        commands
    )


def test_the_page_has_seconds_of_all_cost_models_and_dollars(folder: Path) -> None:
    page = (folder / "report.md").read_text()
    header = next(line for line in page.splitlines() if "a GPU" in line)
    names = ["your scorer as measured, 10 ms + 1 ms per pair", "a GPU, 10 ms + 0.05 ms per pair"]
    names += ["an endpoint, 200 ms + 2 ms per pair", "$3 per 1,000 pairs, 1,000 queries"]
    assert [name.strip() for name in header.split("|")[2:-1]] == names
    assert "| posterior, 100 anchor queries | 100 ms | 52.5 ms | 1.1 s | $150 |" in page


def test_seconds_say_whether_fewer_rounds_were_measured() -> None:
    rows = make_rows({"rerank bm25": {50: 0.5, 100: 0.6}, "posterior": {50: 0.7, 100: 0.95}})
    limited = [Row(replace(row.cell, part="3 rounds"), row.values) for row in rows if row.cell.method == "posterior"]
    for given, note in ((rows, ALL_ROUNDS_NOTE), ([*rows, *limited], FEWER_ROUNDS_NOTE)):
        found = reckon(given, Terms(latency=0.2, seconds_per_pair=0.002))
        assert found is not None
        assert seconds_table(found, {"pairs": in_pairs()}).note.endswith(note)


def test_methods_that_do_not_find_as_much_are_named_below_the_figure(folder: Path) -> None:
    assert "because they don't find as much: ANNCUR, 100 anchor queries." in (folder / "report.md").read_text()


def test_the_figures_are_there(folder: Path) -> None:
    assert {file.name.split("-toy")[0] for file in (folder / "figures").iterdir()} >= {"total-cost", "costs"}


def test_pairs_are_those_that_each_recall_takes() -> None:
    found = reckon(ROWS)
    assert found is not None
    table = {row[0]: row[1:] for row in pairs_table(found).rows}
    assert table["posterior, 100 anchor queries"] == ["100,000", "≤ 50", "≤ 50", "110"]
    assert table["ANNCUR, 100 anchor queries"] == ["100,000", "-", "-", "-"]
    assert table["scoring everything"] == ["0", "1,000", "1,000", "1,000"]


def test_every_pair_of_methods_has_its_break_even() -> None:
    found = reckon(ROWS)
    assert found is not None
    exhibit = break_even_table(found)
    names = [offer.line.name for offer in found.offers]
    assert list(exhibit.header[1:]) == [row[0] for row in exhibit.rows] == names
    assert all(bool(cell) == (place != at) for at, row in enumerate(exhibit.rows) for place, cell in enumerate(row[1:]))


@pytest.mark.parametrize(
    ("ours", "theirs", "shown"),
    [
        ((1000, 1), (0, 3), "from 500 on"),
        ((0, 3), (1000, 1), "up to 500"),
        ((1001, 1), (0, 3), "from 510 on"),
        ((0, 3), (1001, 1), "up to 510"),
        ((0, 1), (10, 3), "always"),
        ((10, 3), (0, 1), "never"),
        ((0, 3), (10, 3), "always"),
        ((10, 3), (0, 3), "never"),
    ],
)
def test_a_comparison_tells_for_how_many_queries(
    ours: tuple[float, float], theirs: tuple[float, float], shown: str
) -> None:
    point = Point(1, 1)
    first, second = (Offer(make_line(point), point, *costs) for costs in (ours, theirs))
    assert compare(first, second) == shown
    assert compare(first, first) == ""


def test_labels_of_stages_that_are_near_each_other_do_not_overlap() -> None:
    measured = {
        "posterior, no anchor queries": {120: 0.5, 250: 0.7, 500: 0.9},
        "posterior, 10 anchor queries": {120: 0.7, 250: 0.9, 500: 0.95},
        "posterior, 40 anchor queries": {120: 0.9, 250: 0.95, 500: 0.98},
    }
    found = reckon([*make_rows(measured), pace_row(0.0, 0.001)])
    assert found is not None
    figure = draw_total_cost(found)
    figure.draw_without_rendering()
    boxes = [text.get_window_extent() for text in figure.axes[0].texts]
    assert len(boxes) == 2
    assert not boxes[0].overlaps(boxes[1])
    shown = [text.get_text().splitlines()[-1].removesuffix(" queries on") for text in figure.axes[0].texts]
    assert found.stages[-1].n_queries == 231
    assert shown == ["40", "240"], "as in the reasons"
    assert any(reason.startswith("From 40 to 240 queries") for reason in reasons(found))


def test_labels_of_an_axis_of_costs_do_not_overlap() -> None:
    line = make_line(Point(20, 0.5, rounds=1), Point(10_000, 0.9, rounds=1))
    unit = in_seconds(CostModel("slow", 0.0, 0.002))
    figure = draw_against_costs([line], dict.fromkeys(("one", "two", "three"), unit), "recall")
    assert figure is not None
    figure.draw_without_rendering()
    boxes = [label.get_window_extent() for label in figure.axes[0].get_xticklabels()]
    assert len(boxes) > 2
    assert not any(left.overlaps(right) for left, right in pairwise(boxes))


def test_wide_tables_scroll_by_themselves_on_a_small_screen(folder: Path) -> None:
    page = (folder / "report.html").read_text()
    assert '<meta name="viewport" content="width=device-width' in page
    assert page.count('<div class="scroll" tabindex="0"><table>') == page.count("<table") > 0


def test_the_best_curve_has_no_point_that_another_one_beats() -> None:
    curves = [[Point(10, 0.5), Point(30, 0.6)], [Point(20, 0.7), Point(40, 0.65), Point(50, 0.9)]]
    assert [point.pairs for point in best_curve(curves, in_pairs())] == [10, 20, 50]


def test_rows_of_earlier_versions_are_reported_in_pairs(tmp_path: Path) -> None:
    page = write_report(without(make_rows(MEASURED), "rounds", "build_calls"), tmp_path)[0].read_text()
    assert "Which costs less in all, in pairs scored" in page


def test_a_board_with_other_anchor_queries_is_not_mixed_with_the_last_one() -> None:
    earlier = [Row(replace(row.cell, n_anchor_queries=50), row.values) for row in make_rows(MEASURED)]
    assert last_board([*earlier, *ROWS]) == ROWS


def test_the_tasks_own_metric_is_drawn_against_costs_too(tmp_path: Path) -> None:
    cell = replace(BOARD, experiment="depth", method="posterior", cost=50)
    values = {"nDCG@10": 0.4, "R@100": 0.5, "recall": 0.6, "calls": 50.0, "rounds": 5.0, "seconds": 0.01}
    exhaustive = Row(replace(cell, method="exhaustive", cost=1000), {**values, "calls": 1000.0, "rounds": 1.0})
    (_, costs) = cost_sections([*ROWS, Row(cell, values), exhaustive], tmp_path)
    assert [picture.caption.partition(": ")[2] for picture in costs.pictures] == [
        "recall of the top 10 against what a query costs.",
        "nDCG@10 against what a query costs.",
        "R@100 against what a query costs.",
    ]
