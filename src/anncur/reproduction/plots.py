"""Figures of the paper's experiments, drawn from rows alone. Feeds the report. Needs the extra `bench`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from anncur.evaluation.plots import (
    BY_ANCHORS,
    DEPTH_FIGURE,
    HISTOGRAM_FIGURE,
    PAIRS,
    SCOREBOARD_FIGURE,
    WORLD,
    FigureKind,
    Style,
    add_legend,
    draw_line,
    finish_axes,
    line_names,
    line_styles,
    new_panels,
    panels_by_k,
)
from anncur.evaluation.rows import Row, distinct, mean, select
from anncur.evaluation.study import DISTILLED
from anncur.reproduction.matrix import LINKS
from anncur.reproduction.protocol import best_splits

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colors import Normalize
    from matplotlib.figure import Figure


def draw_depths(rows: Sequence[Row]) -> Figure | None:
    """Recall against items retrieved."""
    return panels_by_k(rows, "n_rerank", "items retrieved and re-ranked", name_line=_with_anchor_items)


def _with_anchor_items(row: Row) -> str:
    """A method, with its number of anchor items where it has one."""
    n_anchor_items = row.cell.n_anchor_items
    return row.cell.method if n_anchor_items is None else f"{row.cell.method}, {n_anchor_items} anchor items"


def draw_costs(rows: Sequence[Row]) -> Figure | None:
    """Recall against cost, with the best split of each cost."""
    return panels_by_k(best_splits(rows), "cost", PAIRS)


def draw_splits(rows: Sequence[Row]) -> Figure | None:
    """Recall against the share of a cost that is spent on anchor items, a panel for each k."""
    split = [row for row in rows if row.cell.n_anchor_items]
    ks, costs = distinct(split, "k"), distinct(split, "cost")
    if not ks:
        return None
    figure, panels = new_panels(len(ks), n_lines=len(costs))
    styles = line_styles([f"cost {cost}" for cost in costs])
    for k, axes in zip(ks, panels, strict=True):
        for cost, (name, style) in zip(costs, styles.items(), strict=True):
            _draw_split(axes, select(split, k=k, cost=cost), style, label=name)
        axes.axvspan(40, 60, color="black", alpha=0.06, lw=0)
        axes.set_title(f"top {k}")
        axes.set_xlabel("% of the cost spent on anchor items")
        axes.set_ylabel("recall, %")
        axes.set_ylim(-2, 102)
        axes.grid(alpha=0.3)
    add_legend(figure, panels[-1])
    return figure


def _draw_split(axes: Axes, rows: Sequence[Row], style: Style, *, label: str) -> None:
    ordered = sorted(rows, key=lambda row: row.cell.n_anchor_items or 0)
    shares = [100 * (row.cell.n_anchor_items or 0) / (row.cell.cost or 1) for row in ordered]
    axes.plot(shares, [100 * row["recall"] for row in ordered], label=label, **style)


def draw_anchor_queries(rows: Sequence[Row]) -> Figure:
    """Recall at one cost against the number of anchor queries."""
    return _one_panel(best_splits(rows), "n_anchor_queries", "anchor queries")


def draw_world_sizes(rows: Sequence[Row]) -> Figure:
    """Recall at one cost against the number of items."""
    return _one_panel(best_splits(rows), "n_items", "items of the world")


def _one_panel(rows: Sequence[Row], column: str, label: str) -> Figure:
    figure, (axes,) = new_panels(1, n_lines=len(line_names(rows)))
    for name, style in line_styles(line_names(rows, _without_size)).items():
        draw_line(axes, [row for row in rows if _without_size(row) == name], column, style, label=name)
    axes.set_title(f"top {rows[0].cell.k} at a cost of {rows[0].cell.cost}")
    finish_axes(axes, label, distinct(rows, column))
    add_legend(figure, axes)
    return figure


def _without_size(row: Row) -> str:
    """A method, so that encoders that were distilled from more and more queries are one line."""
    return row.cell.method.partition(DISTILLED)[0]


def draw_heatmap(rows: Sequence[Row]) -> Figure:
    """Recall and approximation error over anchor queries and anchor items, a column of panels for each link matrix."""
    from matplotlib.colors import LogNorm, Normalize
    from matplotlib.figure import Figure

    methods = [name for name in LINKS if select(rows, method=name)]
    figure = Figure(figsize=(4.3 * len(methods), 7.6), layout="constrained")
    panels = figure.subplots(2, len(methods), squeeze=False)
    for name, (upper, lower) in zip(methods, panels.T, strict=True):
        some = select(rows, method=name)
        title = f"{name}\nrecall of the top {some[0].cell.k} among {some[0].cell.n_rerank}, %"
        _heat(upper, _grid(some, "recall", 100), title, Normalize(0, 100), digits=0)
        _heat(lower, _grid(some, "error", 1), "relative error", LogNorm(1e-3, 1), digits=3)
        for axes in (upper, lower):
            grid = distinct(some, "n_anchor_queries"), distinct(some, "n_anchor_items")
            axes.set_yticks(range(len(grid[0])), grid[0])
            axes.set_xticks(range(len(grid[1])), grid[1])
            axes.set_xlabel("anchor items")
            axes.set_ylabel("anchor queries")
    return figure


def _grid(rows: Sequence[Row], name: str, scale: float) -> np.ndarray[Any, Any]:
    """Means over seeds, (anchor queries, anchor items)."""
    columns = distinct(rows, "n_anchor_items")
    means = [
        [mean(select(rows, n_anchor_queries=n_queries, n_anchor_items=n_items), name) for n_items in columns]
        for n_queries in distinct(rows, "n_anchor_queries")
    ]
    return scale * np.array(means)


def _heat(axes: Axes, values: np.ndarray[Any, Any], title: str, norm: Normalize, *, digits: int) -> None:
    """Numbers in the cells, dark on light and light on dark."""
    axes.imshow(values, norm=norm, cmap="cividis", aspect="auto")
    for (row, column), value in np.ndenumerate(values):
        colour = "black" if norm(value) > 0.5 else "white"
        shown = "" if np.isnan(value) else f"{value:.{digits}f}"
        axes.text(column, row, shown, color=colour, ha="center", va="center")
    axes.set_title(title, fontsize=10)


FIGURES = (
    SCOREBOARD_FIGURE,
    FigureKind(
        "recall-at-depth",
        "recall-at-depth",
        draw_depths,
        BY_ANCHORS,
        "Recall against items retrieved in the paper's protocol, the cost of anchor items left out.",
    ),
    FigureKind(
        "recall-at-cost",
        "recall-at-cost",
        draw_costs,
        BY_ANCHORS,
        "Recall against cost in the paper's protocol: ANNCUR with the best split of each cost, chosen on test.",
    ),
    FigureKind(
        "splits",
        "recall-at-cost",
        draw_splits,
        BY_ANCHORS,
        "ANNCUR with all splits of a cost in the paper's protocol; grey is the share that the paper found best.",
    ),
    FigureKind(
        "anchor-queries",
        "anchor-queries",
        draw_anchor_queries,
        WORLD,
        "Recall at one cost against the number of anchor queries, in the paper's protocol.",
    ),
    FigureKind(
        "world-size",
        "world-size",
        draw_world_sizes,
        WORLD,
        "Recall at one cost in nested worlds, in the paper's protocol.",
    ),
    FigureKind(
        "item-item",
        "item-item",
        draw_depths,
        WORLD,
        "Baselines that compare items with items, beside ANNCUR, in the paper's protocol; no anchors are charged.",
    ),
    FigureKind(
        "heatmap",
        "heatmap",
        draw_heatmap,
        WORLD,
        "Means over seeds of recall and of the relative error, on all queries that are no anchors.",
    ),
    HISTOGRAM_FIGURE,
    DEPTH_FIGURE,
)
