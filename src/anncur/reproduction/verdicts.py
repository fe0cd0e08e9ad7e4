"""Turns a few numbers into a verdict on a claim: do all of them agree with it, or none?

Pure functions; feeds the claims on curves and on scorers."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import TypeAlias

import numpy as np

from anncur.evaluation.rows import Row, distinct, grouped, mean, select

CONFIRMED, REFUTED, DIFFERENT, NOT_MEASURED = "confirmed", "refuted", "different", "not measured"
Finding: TypeAlias = tuple[str, str]  # a verdict, and the numbers behind it


def all_positive(differences: Sequence[float], unit: str) -> Finding | None:
    """Whether all differences have the claim's sign."""
    if not differences:
        return None
    cells = "1 cell" if len(differences) == 1 else f"{len(differences)} cells"
    span = f"from {100 * min(differences):+.1f} to {100 * max(differences):+.1f}, {cells}"
    verdict = agreement([difference > 0 for difference in differences])
    return verdict, f"{100 * np.mean(differences):+.1f} {unit} ({span})"


def agreement(agree: Sequence[bool]) -> str:
    """Confirmed where all agree, refuted where none does."""
    return CONFIRMED if all(agree) else DIFFERENT if any(agree) else REFUTED


def trend(curves: Sequence[Sequence[float]], sign: int) -> Finding | None:
    """Whether all curves rise (or fall, for a negative sign), at every step or at least from end to end."""
    if not curves:
        return None
    steps = [sign * (later - earlier) for line in curves for earlier, later in pairwise(line)]
    wholes = [sign * (line[-1] - line[0]) for line in curves]
    n_right = sum(step > 0 for step in steps)
    shown = f"{n_right} of {len(steps)} steps, {100 * sign * np.mean(wholes):+.1f} points from the first to the last"
    if n_right == len(steps):
        return CONFIRMED, shown
    return (REFUTED if max(wholes) <= 0 else DIFFERENT), shown


def series(rows: Sequence[Row], column: str) -> list[list[float]]:
    """Recalls in the order of a column, for every world, scorer and method."""
    return [
        line for some in grouped(rows, "world", "scorer", "data", "method").values() for line in lines(some, column)
    ]


def lines(rows: Sequence[Row], column: str) -> list[list[float]]:
    """One curve of recalls, or none where there is only a point of it."""
    values = [mean(select(rows, **{column: value}), "recall") for value in distinct(rows, column)]
    return [values] if len(values) > 1 else []
