"""The panels that figures are made of: axes, lines that can be told apart, and a legend below.

Colours are those of Okabe and Ito and some of Tol's, which colour-blind people can tell apart; lines differ also by
dashes and marks.
Reads rows, feeds `plots.py`. Needs the extra `bench`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from anncur.evaluation.rows import Row, distinct, mean, select
from anncur.planning.plot import DASHES, OTHERS, OURS
from anncur.search.posterior import Posterior

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = (*OTHERS, "#56B4E9", "#999999", "#882255", "#332288", "#DDCC77")
MARKS = "osD^vP*X<>p"  # one more than colours, so that lines of one colour have other marks
PANEL = (4.2, 3.2)  # inches


def new_panels(n_panels: int, *, legend: int) -> tuple[Figure, list[Axes]]:
    """Panels in rows of two, with room for a legend of so many lines below."""
    from matplotlib.figure import Figure

    n_columns = min(2, n_panels)
    n_rows = -(-n_panels // n_columns)
    height = n_rows * PANEL[1] + 0.25 * -(-legend // 3) + 0.4
    figure = Figure(figsize=(max(n_columns * PANEL[0], 6.5), height), layout="constrained")
    panels = list(figure.subplots(n_rows, n_columns, squeeze=False).flat)
    for axes in panels[n_panels:]:
        axes.set_visible(False)
    return figure, panels[:n_panels]


def draw_line(
    axes: Axes, rows: Sequence[Row], column: str, style: dict[str, Any], *, label: str, value: str = "recall"
) -> None:
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


def line_names(rows: Sequence[Row]) -> list[str]:
    """What lines are called, in the order of their appearance."""
    return list(dict.fromkeys(map(line_name, rows)))


def line_name(row: Row) -> str:
    """A method, with its anchor items where these are not a split of the cost."""
    cell = row.cell
    is_fixed = cell.n_anchor_items is not None and cell.experiment in ("recall-at-depth", "item-item")
    return f"{cell.method}, {cell.n_anchor_items} anchor items" if is_fixed else cell.method


def line_styles(names: Sequence[str]) -> dict[str, dict[str, Any]]:
    """How each line looks; ours is the thick one."""
    styles: dict[str, dict[str, Any]] = {}
    for name in names:
        place = len(styles) - (Posterior.name in styles)
        styles[name] = {
            "color": COLOURS[place % len(COLOURS)],
            "dashes": DASHES[(place // len(COLOURS) + place) % len(DASHES)],
            "marker": MARKS[place % len(MARKS)],
            "markersize": 4,
            "linewidth": 1.4,
        }
        if name == Posterior.name:
            styles[name] = {"color": OURS, "marker": "o", "markersize": 5, "linewidth": 2.4}
    return styles
