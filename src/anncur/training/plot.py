"""A figure of a training, drawn from its log rows alone; the door to matplotlib (extra `plots`)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from anncur.training.loop import LogRow


def draw_log(rows: Sequence[LogRow], file: Path) -> Path | None:
    """Draw loss and held-out score against steps; None where matplotlib isn't installed."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return None
    figure = Figure(figsize=(7, 5), layout="constrained")
    losses, scores = figure.subplots(2, 1, sharex=True)
    trained = [row for row in rows if row.step]
    losses.plot([row.step for row in trained], [row.loss for row in trained], color="#0072B2", marker="o")
    losses.set_ylabel("training loss")
    scores.plot([row.step for row in rows], [row.dev for row in rows], color="#D55E00", marker="o")
    best = max(rows, key=lambda row: row.dev)
    scores.annotate(f"best {best.dev:.3f}", (best.step, best.dev), textcoords="offset points", xytext=(0, -14))
    scores.set_ylabel("score on held-out data")
    scores.set_xlabel("steps")
    for axes in (losses, scores):
        axes.grid(alpha=0.3)
    figure.savefig(file, dpi=120)
    return file
