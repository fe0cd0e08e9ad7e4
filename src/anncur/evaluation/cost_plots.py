"""Figures of costs: what a method costs in all as more queries are served, and recall against seconds and dollars.

Drawn from a reckoning alone. Feeds the report. Needs the extra `bench`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from anncur.evaluation.costs import SECONDS, Curve, Line, Offer, Point, Unit, rounded_up
from anncur.evaluation.plots import COLOURS, MARKERS, Style, new_panels
from anncur.evaluation.recommendation import Reckoning
from anncur.planning.plot import DASHES, OURS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.text import Annotation
    from matplotlib.transforms import Bbox

SHADES = ("#9BC9E6", "#56A3D3", "#2B7FBA", OURS, "#003D66")  # of ours, the fewest anchor queries first
FAINT: Style = {"color": "#BBBBBB", "linewidth": 1.0}
SIZE = (8.4, 5.2)  # inches
POINTS = 72  # in an inch
LEAST_QUERIES, MOST_QUERIES = 5, 8  # powers of ten that the axis ends at
TIMES = {1: "1 s", 60: "1 min", 3600: "1 hour", 86400: "1 day", 30 * 86400: "1 month", 365 * 86400: "1 year"}
MOST_TICKS = 7  # of an axis of costs, so that their labels don't touch
LONG_NAME = 50  # characters, of which two don't fit side by side


def draw_total_cost(found: Reckoning) -> Figure:
    """The total cost of a recall against the queries that are served, with what is recommended in colour."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=SIZE, layout="constrained")
    axes = figure.subplots()
    counts: list[float] = np.geomspace(1, 10 ** _last_power(found), 200).tolist()
    shown = [offer for offer in found.offers if offer in found.worthwhile or offer.line.is_reranking]
    others = [offer for offer in found.offers if offer not in shown]
    for place, offer in enumerate(others):
        axes.plot(counts, list(map(offer.total, counts)), label="" if place else "other methods", **FAINT)
    for offer, style in zip(shown, line_looks([offer.line for offer in shown]), strict=True):
        axes.plot(counts, list(map(offer.total, counts)), label=_label(offer), **{**style, "marker": ""})
    labels = _mark_stages(axes, found)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.xaxis.set_major_formatter(lambda count, _: f"{count:,.0f}")
    _name_costs(axes, found.unit)
    axes.set_xlabel("queries served")
    axes.set_ylabel("time in total" if found.unit.name == SECONDS else f"{found.unit.name} in total")
    axes.set_title(f"What it costs to find {found.recall:.0%} of the scorer's top {found.k}, in total")
    axes.grid(alpha=0.3)
    _add_legend(figure, axes)
    _move_apart(figure, labels)
    return figure


def draw_against_costs(lines: Sequence[Line], units: Mapping[str, Unit], label: str) -> Figure | None:
    """What methods find against each unit of cost, a panel for each; of several limits of rounds, the best."""
    searches = [line for line in lines if not line.is_everything]
    figure, panels = new_panels(len(units), n_lines=2 * len(lines))
    is_empty = True
    for (title, unit), axes in zip(units.items(), panels, strict=True):
        for line, style in zip(searches, line_looks(searches), strict=True):
            curve = best_curve(line.curves, unit)
            is_empty = is_empty and not curve
            costs = [unit.of_query(point) for point in curve]
            axes.plot(costs, [100 * point.recall for point in curve], label=line.name, **style)
        _mark_everything(axes, lines, unit)
        axes.set_title(title, fontsize=10)
        axes.set_xscale("log")
        _put_ticks(axes, unit)
        axes.set_xlabel(f"{unit.name} a query")
        axes.set_ylabel(label)
        axes.set_ylim(-2, 102)
        axes.grid(alpha=0.3)
    _add_legend(figure, panels[0])
    return None if is_empty else figure


def best_curve(curves: Sequence[Curve], unit: Unit) -> list[Point]:
    """Of the points of all curves those that no other one beats, the cheapest first."""
    known = [point for curve in curves for point in curve if not math.isnan(unit.of_query(point))]
    best: list[Point] = []
    for point in sorted(known, key=lambda each: (unit.of_query(each), -each.recall)):
        if not best or point.recall > best[-1].recall:
            best.append(point)
    return best


def line_looks(lines: Sequence[Line]) -> list[Style]:
    """How each line looks: ours in shades of blue and thick, the others in colours and dashes of their own."""
    ours = sorted({line.n_anchor_queries for line in lines if line.is_default})
    looks: list[Style] = []
    n_others = 0
    for line in lines:
        if line.is_everything:
            looks.append({"color": "#000000", "linewidth": 1.6, "dashes": (1, 1)})
        elif line.is_default:
            place = ours.index(line.n_anchor_queries) + max(0, len(SHADES) - 1 - len(ours))
            looks.append({"color": SHADES[min(place, len(SHADES) - 1)], "marker": "o", "linewidth": 2.4})
        else:
            colour, dashes = COLOURS[n_others % len(COLOURS)], DASHES[n_others % len(DASHES)]
            marker = MARKERS[1 + n_others % (len(MARKERS) - 1)]
            looks.append({"color": colour, "dashes": dashes, "marker": marker, "linewidth": 1.5})
            n_others += 1
    return [{**look, "markersize": 4} for look in looks]


def _add_legend(figure: Figure, axes: Axes) -> None:
    """Below all panels, in two columns where names are short enough."""
    handles, names = axes.get_legend_handles_labels()
    n_columns = 1 if max(map(len, names)) > LONG_NAME else 2
    figure.legend(handles, names, loc="outside lower center", ncols=n_columns, frameon=False, fontsize=9)


def _last_power(found: Reckoning) -> int:
    """Where the axis of queries ends: beyond the last stage, and beyond the queries that will be served."""
    largest = max(found.stages[-1].n_queries, found.terms.n_queries or 1)
    return min(MOST_QUERIES, max(LEAST_QUERIES, math.ceil(math.log10(largest)) + 1))


def _label(offer: Offer) -> str:
    return f"{offer.line.name}: {offer.need.pairs:,.0f} pairs a query"


def _mark_stages(axes: Axes, found: Reckoning) -> list[Annotation]:
    """A point where another method becomes the cheapest, with the number of queries; returns the labels."""
    labels = []
    for stage in found.stages[1:]:
        place = (stage.n_queries, stage.offer.total(stage.n_queries))
        axes.axvline(stage.n_queries, color="#666666", linewidth=0.8, linestyle=":")
        axes.plot(*place, marker="o", color="#D55E00", markersize=7, zorder=5)
        line = stage.offer.line
        name = line.anchors if line.is_default else line.name
        text = f"{name}:\ncheapest from\n{rounded_up(stage.n_queries):,} queries on"
        labels.append(axes.annotate(text, place, xytext=(8, -38), textcoords="offset points", fontsize=9, zorder=6))
    if found.terms.n_queries is not None:
        axes.axvline(found.terms.n_queries, color="#009E73", linewidth=1.4)
        axes.annotate(
            f" your {found.terms.n_queries:,} queries",
            (found.terms.n_queries, 0.96),
            xycoords=("data", "axes fraction"),
            fontsize=9,
            color="#009E73",
        )
    return labels


def _move_apart(figure: Figure, labels: Sequence[Annotation]) -> None:
    """Move labels down, from the last one on, below those that they would cover."""
    figure.draw_without_rendering()  # which places them
    placed: list[Bbox] = []
    for label in reversed(labels):
        for other in placed:
            box = label.get_window_extent()
            if box.overlaps(other):
                x, y = label.xyann
                label.xyann = (x, y - (box.y1 - other.y0 + 1) * POINTS / figure.dpi)
        placed.append(label.get_window_extent())


def _name_costs(axes: Axes, unit: Unit) -> None:
    if unit.name == SECONDS:
        low, high = axes.get_ylim()
        ticks = {seconds: name for seconds, name in TIMES.items() if low <= seconds <= high}
        axes.set_yticks(list(ticks), list(ticks.values()))
        axes.minorticks_off()
    else:
        axes.yaxis.set_major_formatter(lambda cost, _: unit.show(cost))


def _put_ticks(axes: Axes, unit: Unit) -> None:
    """At 1, 2 and 5 of every power of ten, or at 1 alone where these would overlap."""
    low, high = axes.get_xlim()
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for digits in ((1, 2, 5), (1,)):
        ticks = [digit * 10.0**power for power in powers for digit in digits]
        shown = [tick for tick in ticks if low <= tick <= high]
        if len(shown) <= MOST_TICKS:
            break
    axes.set_xticks(shown, [unit.show(tick) for tick in shown], fontsize=8)
    axes.minorticks_off()


def _mark_everything(axes: Axes, lines: Sequence[Line], unit: Unit) -> None:
    for line in lines:
        if line.is_everything:
            (point,) = line.curves[0]
            axes.plot(unit.of_query(point), 100 * point.recall, "k*", markersize=9, linestyle="", label=line.name)
