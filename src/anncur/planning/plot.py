"""A picture of what an index finds with how many pairs, drawn from its recall curves alone. Needs the extra `plots`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from anncur.arrays import Positions
from anncur.errors import InputError
from anncur.planning.advice import LEAST_TUNED, rerank_name
from anncur.search.posterior import Posterior
from anncur.search.settings import KS, RecallCurve, Tuned

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SUFFIXES = (".png", ".svg", ".pdf")
OURS = "#0072B2"
OTHERS = ("#D55E00", "#009E73", "#CC79A7", "#E69F00", "#000000")  # of Okabe and Ito, as is OURS
DASHES = ((5, 2), (2, 2), (8, 2, 2, 2), (1, 1), (5, 1, 1, 1, 1, 1))  # so that lines differ also without colours
LEAST_CALLS = 10  # that are drawn: with fewer, nobody searches
TICKS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000)


def draw_recall(tuned: Tuned, file: Path) -> Path:
    """Draw the expected recall against the budget, a panel for each k: adaptive search, and re-ranking dashed."""
    if file.suffix.lower() not in SUFFIXES:
        raise InputError(f"a picture's name must end in one of {', '.join(SUFFIXES)}, got {file.name!r}")
    depth = tuned.curve.found_after.shape[1]
    ks = [k for k in KS if k <= depth]
    if not ks:
        raise InputError(
            f"there is nothing to draw yet; run `anncur tune`, with at least {LEAST_TUNED} anchor queries, or "
            "index.calibrate(queries)"
        )
    try:
        from matplotlib.figure import Figure
    except ModuleNotFoundError as error:
        raise InputError(f"drawing needs {error.name}; run pip install 'anncur[plots]'") from error

    figure = Figure(figsize=(9, 6.5), layout="constrained")
    panels = figure.subplots(-(-len(ks) // 2), min(2, len(ks)), sharex=True, sharey=True, squeeze=False)
    for k, axes in zip(ks, panels.flat, strict=False):
        _draw_panel(axes, tuned, k)
    for axes in panels.flat[len(ks) :]:
        axes.set_visible(False)
    for axes in panels[-1]:
        axes.set_xlabel("pairs scored for a query")
    lines, names = panels.flat[0].get_legend_handles_labels()
    figure.legend(lines, names, loc="outside lower center", ncols=min(4, len(names)), frameon=False)
    n_held_out = len(tuned.curve.found_after)
    figure.suptitle(f"Share of the scorer's true top k that is found ({n_held_out} held-out queries)")
    figure.savefig(file, dpi=120)
    return file


def _draw_panel(axes: Axes, tuned: Tuned, k: int) -> None:
    most_calls = tuned.curve.most_calls
    least_calls = min(LEAST_CALLS, most_calls)
    budgets = np.unique(np.geomspace(max(k, least_calls), max(k, most_calls), 120).round().astype(np.int64))
    _draw_line(axes, tuned.curve, k, budgets, color=OURS, label=Posterior.name, linewidth=2.2)
    for place, (name, curve) in enumerate(tuned.rerank_curves.items()):
        color, dashes = OTHERS[place % len(OTHERS)], DASHES[place % len(DASHES)]
        _draw_line(axes, curve, k, budgets, color=color, label=rerank_name(name), dashes=dashes, linewidth=1.6)
    axes.set_title(f"top {k}")
    axes.set_xscale("log")
    axes.set_xlim(0.9 * least_calls, 1.1 * most_calls)
    ticks = [tick for tick in TICKS if least_calls <= tick <= most_calls]
    axes.set_xticks(ticks, [f"{tick:,}" for tick in ticks])
    axes.minorticks_off()
    axes.set_ylim(0, 1.02)
    axes.yaxis.set_major_formatter(lambda share, _: f"{share:.0%}")
    axes.grid(alpha=0.3)


def _draw_line(axes: Axes, curve: RecallCurve, k: int, budgets: Positions, **style: Any) -> None:
    known = [(budget, recall) for budget in budgets.tolist() if (recall := curve.recall(k, budget)) is not None]
    axes.plot([budget for budget, _ in known], [recall for _, recall in known], **style)
