"""Draw docs/images/recall.png, the README's picture, from committed rows alone: benchmarks/results/adaptive.jsonl.

Recall of the scorer's true top 10 against the pairs scored for a query: a panel for each scorer, a line for each
method, the mean of all seeds. The numbers that it shows are also in the file, as text, so that a test can compare them
with the rows."""

from __future__ import annotations

import io
import json
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from PIL import Image
from PIL.PngImagePlugin import PngInfo

ROOT = Path(__file__).parent.parent
ROWS = ROOT / "benchmarks" / "results" / "adaptive.jsonl"
TARGET = ROOT / "docs" / "images" / "recall.png"
K = 10
N_COLOURS = 64  # of the file: enough for six lines and their edges, at a third of the size
SCORERS = {"maxsim": "late interaction", "emb2": "[EMB] cross-encoder", "cls3": "[CLS] cross-encoder"}
STYLES: dict[str, dict[str, Any]] = {  # colours of Okabe and Ito; markers and dashes tell lines apart without colours
    "posterior, 200 anchors": {"label": "anncur (posterior)", "color": "#0072B2", "marker": "o", "linewidth": 2.6},
    "ADACUR from minilm, 20 rounds": {"label": "ADACUR", "color": "#D55E00", "marker": "s", "linestyle": (0, (5, 1))},
    "AXN, 1,000 scores a row": {"label": "AXN", "color": "#CC79A7", "marker": "D", "linestyle": (0, (3, 1, 1, 1))},
    "ANNCUR": {"label": "ANNCUR, the paper's", "color": "#009E73", "marker": "^", "linestyle": (0, (6, 2))},
    "re-rank minilm": {"label": "re-rank a dual encoder", "color": "#000000", "marker": "v", "linestyle": (0, (2, 1))},
    "re-rank bm25": {"label": "re-rank BM25", "color": "#7F7F7F", "marker": "x", "linestyle": (0, (1, 1))},
}

Curves = dict[str, dict[str, dict[int, float]]]  # recall by scorer, method and pairs


def read_rows(file: Path = ROWS) -> list[dict[str, Any]]:
    """The rows of a file."""
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]


def mean_recalls(rows: Iterable[Mapping[str, Any]]) -> Curves:
    """What the picture shows: the mean recall over seeds."""
    found: dict[tuple[str, str, int], list[float]] = defaultdict(list)
    for row in rows:
        if row.get("k") == K and row["method"] in STYLES and row["scorer"] in SCORERS:
            found[row["scorer"], row["method"], row["cost"]].append(row["recall"])
    curves: Curves = {scorer: {method: {} for method in STYLES} for scorer in SCORERS}
    for (scorer, method, n_pairs), recalls in sorted(found.items()):
        curves[scorer][method][n_pairs] = round(sum(recalls) / len(recalls), 4)
    return curves


def draw(curves: Curves, file: Path) -> None:
    """Draw the picture, with its numbers in the file's description."""
    figure = Figure(figsize=(8, 3.7), layout="constrained")
    panels = figure.subplots(1, len(SCORERS), sharey=True)
    for axes, (scorer, title) in zip(panels, SCORERS.items(), strict=True):
        draw_panel(axes, curves[scorer], title)
    panels[0].set_ylabel(f"share of the true top {K} found")
    panels[1].set_xlabel("pairs scored for a query")
    lines, names = panels[0].get_legend_handles_labels()
    figure.legend(lines, names, loc="outside lower center", ncols=3, frameon=False, fontsize=10, handlelength=3.4)
    drawn, numbers = io.BytesIO(), PngInfo()
    figure.savefig(drawn, dpi=150)
    numbers.add_text("Description", json.dumps(curves))
    Image.open(drawn).convert("RGB").quantize(N_COLOURS).save(file, optimize=True, pnginfo=numbers)


def draw_panel(axes: Axes, by_method: Mapping[str, Mapping[int, float]], title: str) -> None:
    """The lines of one scorer, the most important on top."""
    for place, (method, style) in enumerate(STYLES.items()):
        points = by_method[method]
        axes.plot(
            list(points), list(points.values()), **{"linewidth": 1.6, "markersize": 5, **style}, zorder=10 - place
        )
    ticks = sorted({n_pairs for points in by_method.values() for n_pairs in points})
    axes.set_xscale("log")
    axes.set_xticks(ticks, [str(tick) for tick in ticks])
    axes.minorticks_off()
    axes.set_ylim(0, 1.03)
    axes.yaxis.set_major_formatter(lambda share, _: f"{share:.0%}")
    axes.set_title(title, fontsize=11)
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)


if __name__ == "__main__":
    draw(mean_recalls(read_rows()), TARGET)
    sys.stdout.write(f"wrote {TARGET}\n")
