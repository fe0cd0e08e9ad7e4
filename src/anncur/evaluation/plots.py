"""Figures of experiments, drawn from rows alone. Feeds the report. Needs the extra `bench`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from anncur.evaluation.board import interval_of
from anncur.evaluation.experiments.matrix import LINKS, N_MOMENTS
from anncur.evaluation.experiments.scoreboard import DOCUMENTS
from anncur.evaluation.judgements import MEASURES
from anncur.evaluation.panels import add_legend, draw_line, finish_axes, line_name, line_names, line_styles, new_panels
from anncur.evaluation.paper import best_splits
from anncur.evaluation.rows import Row, distinct, grouped, mean, select
from anncur.evaluation.study import DISTILLED
from anncur.search.methods import Exhaustive

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colors import Normalize
    from matplotlib.figure import Figure

N_COLOURS = 128  # of a figure in its file

Draw: TypeAlias = Callable[[Sequence[Row]], "Figure | None"]  # None where a run that was stopped left nothing to show


@dataclass(frozen=True)
class Sheet:
    """A kind of figure: the experiment whose rows it shows, a figure for each value of some columns."""

    name: str
    experiment: str
    draw: Draw
    columns: tuple[str, ...]
    caption: str


@dataclass(frozen=True)
class Picture:
    """A figure in a file, and what it shows."""

    file: Path
    sheet: str
    caption: str


def draw_all(rows: Sequence[Row], folder: Path) -> list[Picture]:
    """A figure for every experiment, world and scorer that there are rows of."""
    folder.mkdir(parents=True, exist_ok=True)
    return [picture for sheet in SHEETS for picture in _draw(sheet, rows, folder)]


def _draw(sheet: Sheet, rows: Sequence[Row], folder: Path) -> Iterator[Picture]:
    for key, some in grouped(select(rows, experiment=sheet.experiment), *sheet.columns).items():
        file = folder / f"{_safe('-'.join(map(str, (sheet.name, *key))))}.png"
        figure, title = sheet.draw(some), _title(some, sheet.columns)
        if figure is None:
            continue
        _put_title(figure, title)
        _save(figure, file)
        yield Picture(file, sheet.name, f"{title}. {sheet.caption}")


def _save(figure: Figure, file: Path) -> None:
    """As a PNG with a palette that keeps the colours of lines, which is a third as large."""
    from PIL import Image

    drawn = BytesIO()
    figure.savefig(drawn, format="png", dpi=110)
    with Image.open(drawn) as image:
        image.convert("RGB").quantize(N_COLOURS, method=Image.Quantize.FASTOCTREE).save(file, optimize=True)


def _put_title(figure: Figure, title: str) -> None:
    """Above all panels; above a single one it is part of the panel's own, so that both have the same middle."""
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


def _safe(name: str) -> str:
    return "".join(sign if sign.isalnum() or sign in "-.@" else "-" for sign in name)


def draw_depths(rows: Sequence[Row]) -> Figure | None:
    """Recall against items retrieved."""
    return _panels_by_k(rows, "n_rerank", "items retrieved and re-ranked")


def draw_costs(rows: Sequence[Row]) -> Figure | None:
    """Recall against cost, with the best split of each cost."""
    return _panels_by_k(best_splits(rows), "cost", "calls of the scorer for a query")


def draw_scoreboard(rows: Sequence[Row]) -> Figure | None:
    """Recall against budget, with intervals over documents."""
    documents = select(rows, method=DOCUMENTS)
    measured = [row for row in rows if row.cell.method not in (DOCUMENTS, Exhaustive.name)]

    def band(axes: Axes, some: Sequence[Row], style: dict[str, Any]) -> None:
        found = [interval_of(cell, documents) for cell in grouped(some, "cost").values()]
        low = [100 * max(each.low, 0) for each in found]
        high = [100 * min(each.high, 1) for each in found]
        axes.fill_between(
            [cost for (cost,) in grouped(some, "cost")], low, high, color=style["color"], alpha=0.12, lw=0
        )

    return _panels_by_k(measured, "cost", "calls of the scorer for a query", band)


def _panels_by_k(
    rows: Sequence[Row],
    column: str,
    label: str,
    also: Callable[[Axes, Sequence[Row], dict[str, Any]], None] | None = None,
) -> Figure | None:
    """A panel for each k with a line for each method."""
    ks = distinct(rows, "k")
    if not ks:
        return None
    figure, panels = new_panels(len(ks), legend=len(line_names(rows)))
    styles = line_styles(line_names(rows))
    for k, axes in zip(ks, panels, strict=True):
        for name, style in styles.items():
            some = [row for row in select(rows, k=k) if line_name(row) == name]
            draw_line(axes, some, column, style, label=name)
            if also is not None and some:
                also(axes, some, style)
        axes.set_title(f"top {k}")
        finish_axes(axes, label, distinct(select(rows, k=k), column))
    add_legend(figure, panels[0])
    return figure


def draw_anchor_queries(rows: Sequence[Row]) -> Figure:
    """Recall at one cost against the number of anchor queries."""
    return _one_panel(best_splits(rows), "n_anchor_queries", "anchor queries")


def draw_world_sizes(rows: Sequence[Row]) -> Figure:
    """Recall at one cost against the number of items."""
    return _one_panel(best_splits(rows), "n_items", "items of the world")


def _one_panel(rows: Sequence[Row], column: str, label: str) -> Figure:
    figure, (axes,) = new_panels(1, legend=len(line_names(rows)))
    names = dict.fromkeys(
        row.cell.method.partition(DISTILLED)[0] for row in rows
    )  # distilled encoders of all sizes are one line
    for name, style in line_styles(list(names)).items():
        draw_line(
            axes, [row for row in rows if row.cell.method.partition(DISTILLED)[0] == name], column, style, label=name
        )
    axes.set_title(f"top {rows[0].cell.k} at a cost of {rows[0].cell.cost}")
    finish_axes(axes, label, distinct(rows, column))
    add_legend(figure, axes)
    return figure


def draw_heatmap(rows: Sequence[Row]) -> Figure:
    """Recall and approximation error over anchor queries and anchor items, a column of panels for each link matrix."""
    from matplotlib.colors import LogNorm, Normalize
    from matplotlib.figure import Figure

    recall, error = Normalize(0, 100), LogNorm(1e-3, 1)
    methods = [name for name in LINKS if select(rows, method=name)]
    figure = Figure(figsize=(4.3 * len(methods), 7.6), layout="constrained")
    panels = figure.subplots(2, len(methods), squeeze=False)
    for name, column in zip(methods, panels.T, strict=True):
        some = select(rows, method=name)
        k, depth = some[0].cell.k, some[0].cell.n_rerank
        _heat(
            column[0], _grid(some, "recall", 100), f"{name}\nrecall of the top {k} among {depth}, %", recall, digits=0
        )
        _heat(column[1], _grid(some, "error", 1), "relative error", error, digits=3)
        for axes in column:
            grid = distinct(some, "n_anchor_queries"), distinct(some, "n_anchor_items")
            axes.set_yticks(range(len(grid[0])), grid[0])
            axes.set_xticks(range(len(grid[1])), grid[1])
            axes.set_xlabel("anchor items")
            axes.set_ylabel("anchor queries")
    return figure


def _grid(rows: Sequence[Row], name: str, scale: float) -> np.ndarray[Any, Any]:
    """Means over seeds, (anchor queries, anchor items)."""
    return np.array(
        [
            [
                scale * mean(select(rows, n_anchor_queries=n_queries, n_anchor_items=n_items), name)
                for n_items in columns
            ]
            for columns in [distinct(rows, "n_anchor_items")]
            for n_queries in distinct(rows, "n_anchor_queries")
        ]
    )


def _heat(axes: Axes, values: np.ndarray[Any, Any], title: str, norm: Normalize, *, digits: int) -> None:
    """Numbers in the cells, dark on light and light on dark."""
    axes.imshow(values, norm=norm, cmap="cividis", aspect="auto")
    for (row, column), value in np.ndenumerate(values):
        colour = "black" if norm(value) > 0.5 else "white"
        shown = "" if np.isnan(value) else f"{value:.{digits}f}"
        axes.text(column, row, shown, color=colour, ha="center", va="center")
    axes.set_title(title, fontsize=10)


def draw_histogram(rows: Sequence[Row]) -> Figure:
    """How scores are distributed, on a logarithmic scale."""
    figure, (axes,) = new_panels(1, legend=len(line_names(rows)))
    bins = [row for row in rows if row.cell.part not in N_MOMENTS]
    for name, style in line_styles(line_names(bins)).items():
        some = select(bins, method=name)
        shares = [row["share"] or np.nan for row in some]  # a logarithm of nothing is not drawn
        axes.plot([row["score"] for row in some], shares, label=name, **{**style, "markersize": 3})
    axes.set_yscale("log")
    axes.set_ylabel("share of all pairs")
    axes.set_xlabel("standard deviations from the mean score")
    axes.grid(alpha=0.3)
    add_legend(figure, axes)
    return figure


def draw_judged(rows: Sequence[Row]) -> Figure:
    """The task's own metrics, and the recall of the scorer's top 10, against the items scored."""
    figure, panels = new_panels(len(MEASURES) + 1, legend=len(line_names(rows)))
    for measure, axes in zip((*MEASURES, "recall"), panels, strict=True):
        for name, style in line_styles(line_names(rows)).items():
            draw_line(axes, select(rows, method=name), "cost", style, label=name, value=measure)
        axes.set_title("recall of the scorer's own top 10" if measure == "recall" else measure)
        finish_axes(axes, "items scored for a query", distinct(rows, "cost"), f"{measure}, %")
    add_legend(figure, panels[-1])
    return figure


def draw_splits(rows: Sequence[Row]) -> Figure | None:
    """Recall against the share of a cost that is spent on anchor items, a panel for each k."""
    split = [row for row in rows if row.cell.n_anchor_items]
    ks = distinct(split, "k")
    if not ks:
        return None
    figure, panels = new_panels(len(ks), legend=len(distinct(split, "cost")))
    styles = line_styles([f"cost {cost}" for cost in distinct(split, "cost")])
    for k, axes in zip(ks, panels, strict=True):
        for cost, style in zip(distinct(split, "cost"), styles.values(), strict=True):
            some = sorted(select(split, k=k, cost=cost), key=lambda row: row.cell.n_anchor_items or 0)
            shares = [100 * (row.cell.n_anchor_items or 0) / cost for row in some]
            axes.plot(shares, [100 * row["recall"] for row in some], label=f"cost {cost}", **style)
        axes.axvspan(40, 60, color="black", alpha=0.06, lw=0)
        axes.set_title(f"top {k}")
        axes.set_xlabel("% of the cost spent on anchor items")
        axes.set_ylabel("recall, %")
        axes.set_ylim(-2, 102)
        axes.grid(alpha=0.3)
    add_legend(figure, panels[-1])
    return figure


WORLD = ("world", "scorer")
BY_ANCHORS = (*WORLD, "n_anchor_queries")
SHEETS = (
    Sheet(
        "scoreboard",
        "scoreboard",
        draw_scoreboard,
        BY_ANCHORS,
        "All methods in the sound protocol; the bands are 95% intervals over documents.",
    ),
    Sheet(
        "recall-at-depth",
        "recall-at-depth",
        draw_depths,
        BY_ANCHORS,
        "Recall against items retrieved in the paper's protocol, what anchor items cost left out.",
    ),
    Sheet(
        "recall-at-cost",
        "recall-at-cost",
        draw_costs,
        BY_ANCHORS,
        "Recall against cost in the paper's protocol: ANNCUR with the best split of each cost, chosen on test.",
    ),
    Sheet(
        "splits",
        "recall-at-cost",
        draw_splits,
        BY_ANCHORS,
        "ANNCUR with all splits of a cost in the paper's protocol; grey is the share that the paper found best.",
    ),
    Sheet(
        "anchor-queries",
        "anchor-queries",
        draw_anchor_queries,
        WORLD,
        "Recall at one cost against the number of anchor queries, in the paper's protocol.",
    ),
    Sheet(
        "world-size",
        "world-size",
        draw_world_sizes,
        WORLD,
        "Recall at one cost in nested worlds, in the paper's protocol.",
    ),
    Sheet(
        "item-item",
        "item-item",
        draw_depths,
        WORLD,
        "Baselines that compare items with items, beside ANNCUR, in the paper's protocol; no anchors are charged.",
    ),
    Sheet(
        "heatmap",
        "heatmap",
        draw_heatmap,
        WORLD,
        "Means over seeds of recall and of the relative error, on all queries that are no anchors.",
    ),
    Sheet(
        "histogram",
        "histogram",
        draw_histogram,
        WORLD,
        "The scores of all pairs; what is more than 20 standard deviations above the mean is not shown.",
    ),
    Sheet("depth", "depth", draw_judged, WORLD, "The task's own metrics as more items are scored."),
)
