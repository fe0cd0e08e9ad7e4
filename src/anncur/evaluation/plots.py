"""Figures of experiments, drawn from rows alone: panels with a line for each method, and a legend below.

Colours are those of Okabe and Ito and some of Tol's, which colour-blind people can distinguish; lines differ also by
dashes and markers. Feeds the report. Needs the extra `bench`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from anncur.evaluation.distribution import MOMENTS
from anncur.evaluation.intervals import measured_methods, recall_interval
from anncur.evaluation.judgements import MEASURES
from anncur.evaluation.page import Picture
from anncur.evaluation.rows import Row, distinct, grouped, mean, select
from anncur.evaluation.scoreboard import DOCUMENTS
from anncur.planning.plot import DASHES, OTHERS, OURS
from anncur.search.posterior import Posterior

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = (*OTHERS, "#56B4E9", "#999999", "#882255", "#332288", "#DDCC77")
MARKERS = "osD^vP*X<>p"  # one more than colours, so that lines of one colour have other markers
PANEL = (4.2, 3.2)  # inches
N_COLOURS = 128  # of a figure in its file
PAIRS = "pairs scored for a query"
WORLD = ("world", "scorer")
BY_ANCHORS = (*WORLD, "n_anchor_queries")

Draw: TypeAlias = Callable[[Sequence[Row]], "Figure | None"]  # None where a run that was stopped left nothing to show
Style: TypeAlias = dict[str, Any]
NameLine: TypeAlias = Callable[[Row], str]


@dataclass(frozen=True)
class FigureKind:
    """The experiment whose rows are drawn, with a figure for each value of some columns."""

    name: str
    experiment: str
    draw: Draw
    columns: tuple[str, ...]
    caption: str


def draw_all(kinds: Sequence[FigureKind], rows: Sequence[Row], folder: Path) -> dict[str, list[Picture]]:
    """A figure for every experiment, world and scorer that there are rows of, by the name of their kind."""
    folder.mkdir(parents=True, exist_ok=True)
    return {kind.name: list(_draw(kind, rows, folder)) for kind in kinds}


def _draw(kind: FigureKind, rows: Sequence[Row], folder: Path) -> Iterator[Picture]:
    for key, some in grouped(select(rows, experiment=kind.experiment), *kind.columns).items():
        file = folder / f"{safe_name('-'.join(map(str, (kind.name, *key))))}.png"
        figure, title = kind.draw(some), _title(some, kind.columns)
        if figure is None:
            continue
        _put_title(figure, title)
        save_figure(figure, file)
        yield Picture(file, f"{title}. {kind.caption}")


def save_figure(figure: Figure, file: Path) -> None:
    """As a PNG with a palette that keeps the colours of lines, which is a third as large."""
    from PIL import Image

    drawn = BytesIO()
    figure.savefig(drawn, format="png", dpi=110)
    with Image.open(drawn) as image:
        image.convert("RGB").quantize(N_COLOURS, method=Image.Quantize.FASTOCTREE).save(file, optimize=True)


def _put_title(figure: Figure, title: str) -> None:
    """Above all panels; above a single one it is part of the panel's own, so that both are centred alike."""
    if len(figure.axes) > 1:
        figure.suptitle(title)
    else:
        (axes,) = figure.axes
        axes.set_title(f"{title}\n{axes.get_title()}".strip())


def _title(rows: Sequence[Row], columns: Sequence[str]) -> str:
    cell = rows[0].cell
    scorer = f" with {cell.scorer}" if "scorer" in columns and cell.scorer else ""
    anchors = f", {cell.n_anchor_queries:,} anchor queries" if "n_anchor_queries" in columns else ""
    return f"{cell.world}{scorer}{anchors}"


def safe_name(name: str) -> str:
    """The same with nothing in it that a file's name can't have."""
    return "".join(sign if sign.isalnum() or sign in "-.@" else "-" for sign in name)


def draw_scoreboard(rows: Sequence[Row]) -> Figure | None:
    """Recall against budget, with intervals over documents."""
    documents = select(rows, method=DOCUMENTS)

    def band(axes: Axes, some: Sequence[Row], style: Style) -> None:
        by_budget = grouped(some, "cost")
        found = [recall_interval(at_budget, documents) for at_budget in by_budget.values()]
        low = [100 * max(each.low, 0) for each in found]
        high = [100 * min(each.high, 1) for each in found]
        axes.fill_between([budget for (budget,) in by_budget], low, high, color=style["color"], alpha=0.12, lw=0)

    return panels_by_k(measured_methods(rows), "cost", PAIRS, also=band)


def draw_judged(rows: Sequence[Row]) -> Figure:
    """The task's own metrics, and the recall of the scorer's top 10, against the pairs scored."""
    figure, panels = new_panels(len(MEASURES) + 1, n_lines=len(line_names(rows)))
    for measure, axes in zip((*MEASURES, "recall"), panels, strict=True):
        for name, style in line_styles(line_names(rows)).items():
            draw_line(axes, select(rows, method=name), "cost", style, label=name, value=measure)
        axes.set_title("recall of the scorer's own top 10" if measure == "recall" else measure)
        finish_axes(axes, PAIRS, distinct(rows, "cost"), f"{measure}, %")
    add_legend(figure, panels[-1])
    return figure


def draw_histogram(rows: Sequence[Row]) -> Figure:
    """How scores are distributed, on a logarithmic scale."""
    figure, (axes,) = new_panels(1, n_lines=len(line_names(rows)))
    bins = [row for row in rows if row.cell.part not in MOMENTS]
    for name, style in line_styles(line_names(bins)).items():
        some = select(bins, method=name)
        shares = [row["share"] or np.nan for row in some]  # zero has no place on a logarithmic scale
        axes.plot([row["score"] for row in some], shares, label=name, **{**style, "markersize": 3})
    axes.set_yscale("log")
    axes.set_ylabel("share of all pairs")
    axes.set_xlabel("standard deviations from the mean score")
    axes.grid(alpha=0.3)
    add_legend(figure, axes)
    return figure


def method_of(row: Row) -> str:
    """What a line is called by default."""
    return row.cell.method


def panels_by_k(
    rows: Sequence[Row],
    column: str,
    label: str,
    *,
    name_line: NameLine = method_of,
    also: Callable[[Axes, Sequence[Row], Style], None] | None = None,
) -> Figure | None:
    """A panel for each k with a line for each method."""
    ks, names = distinct(rows, "k"), line_names(rows, name_line)
    if not ks:
        return None
    figure, panels = new_panels(len(ks), n_lines=len(names))
    for k, axes in zip(ks, panels, strict=True):
        for name, style in line_styles(names).items():
            some = [row for row in select(rows, k=k) if name_line(row) == name]
            draw_line(axes, some, column, style, label=name)
            if also is not None and some:
                also(axes, some, style)
        axes.set_title(f"top {k}")
        finish_axes(axes, label, distinct(select(rows, k=k), column))
    add_legend(figure, panels[0])
    return figure


def new_panels(n_panels: int, *, n_lines: int) -> tuple[Figure, list[Axes]]:
    """Panels in rows of two, with room for a legend of `n_lines` below."""
    from matplotlib.figure import Figure

    n_columns = min(2, n_panels)
    n_rows = -(-n_panels // n_columns)
    height = n_rows * PANEL[1] + 0.25 * -(-n_lines // 3) + 0.4
    figure = Figure(figsize=(max(n_columns * PANEL[0], 6.5), height), layout="constrained")
    panels = list(figure.subplots(n_rows, n_columns, squeeze=False).flat)
    for axes in panels[n_panels:]:
        axes.set_visible(False)
    return figure, panels[:n_panels]


def draw_line(axes: Axes, rows: Sequence[Row], column: str, style: Style, *, label: str, value: str = "recall") -> None:
    """Means over seeds against a column."""
    places = distinct(rows, column)
    axes.plot(places, [100 * mean(select(rows, **{column: place}), value) for place in places], label=label, **style)


def finish_axes(axes: Axes, label: str, places: Sequence[int], value: str = "recall, %") -> None:
    """A logarithmic axis with ticks where something was measured, and percents from 0 to 100."""
    axes.set_xscale("log")
    axes.set_xticks(places, [f"{place:,}" for place in places], fontsize=8)
    axes.minorticks_off()
    axes.set_xlabel(label)
    axes.set_ylabel(value)
    axes.set_ylim(-2, 102)
    axes.grid(alpha=0.3)


def add_legend(figure: Figure, axes: Axes) -> None:
    """The lines of one panel, which are those of all, below them."""
    lines, names = axes.get_legend_handles_labels()
    figure.legend(lines, names, loc="outside lower center", ncols=3, frameon=False, fontsize=9)


def line_names(rows: Sequence[Row], name_line: NameLine = method_of) -> list[str]:
    """What lines are called, in the order of their appearance."""
    return list(dict.fromkeys(map(name_line, rows)))


def line_styles(names: Sequence[str]) -> dict[str, Style]:
    """How each line looks; ours is the thick one."""
    styles: dict[str, Style] = {}
    for name in names:
        place = len(styles) - (Posterior.name in styles)
        styles[name] = {
            "color": COLOURS[place % len(COLOURS)],
            "dashes": DASHES[(place // len(COLOURS) + place) % len(DASHES)],
            "marker": MARKERS[place % len(MARKERS)],
            "markersize": 4,
            "linewidth": 1.4,
        }
        if name == Posterior.name:
            styles[name] = {"color": OURS, "marker": "o", "markersize": 5, "linewidth": 2.4}
    return styles


SCOREBOARD_FIGURE = FigureKind(
    "scoreboard",
    "scoreboard",
    draw_scoreboard,
    BY_ANCHORS,
    "All methods in the sound protocol; the bands are 95% intervals over documents.",
)
HISTOGRAM_FIGURE = FigureKind(
    "histogram",
    "histogram",
    draw_histogram,
    WORLD,
    "The scores of all pairs; what is more than 20 standard deviations above the mean is not shown.",
)
DEPTH_FIGURE = FigureKind("depth", "depth", draw_judged, WORLD, "The task's own metrics as more items are scored.")
FIGURES = (SCOREBOARD_FIGURE, HISTOGRAM_FIGURE, DEPTH_FIGURE)
