"""Notices a scorer that answers differently to the same pair.

Fed by the meter with every exact score that is paid for; remembers the latest ones and compares when a pair comes
again. Costs no calls of its own: `Index.build` re-scores a few pairs so that there is something to compare."""

from __future__ import annotations

import threading
import warnings
from collections import OrderedDict
from dataclasses import dataclass

import numpy as np

from anncur.arrays import FloatVector, Positions
from anncur.errors import UnstableScorerWarning
from anncur.items import Query


@dataclass(frozen=True)
class Stability:
    """What repeated pairs have shown so far."""

    n_repeated: int
    n_different: int
    largest_difference: float


class StabilityWatch:
    """Compares scores of repeated (query, item) pairs; warns once.

    Differences up to `tolerance` times the spread of all scores seen are rounding: padding and the order of a batch
    move a neural scorer's last digits."""

    def __init__(self, *, capacity: int = 20_000, tolerance: float = 1e-3) -> None:
        self._capacity = capacity
        self._tolerance = tolerance
        self._lock = threading.Lock()
        self._latest: OrderedDict[tuple[str, int], float] = OrderedDict()
        self._lowest, self._highest = np.inf, -np.inf
        self.report = Stability(0, 0, 0.0)

    def observe(self, query: Query, positions: Positions, exact_scores: FloatVector) -> None:
        """Take in freshly paid scores."""
        text = query.marked_text
        with self._lock:
            known = [self._latest.get((text, position)) for position in positions.tolist()]
            for position, score in zip(positions.tolist(), exact_scores.tolist(), strict=True):
                self._latest[text, position] = score
            while len(self._latest) > self._capacity:
                self._latest.popitem(last=False)
            self._lowest = min(self._lowest, float(exact_scores.min(initial=np.inf)))
            self._highest = max(self._highest, float(exact_scores.max(initial=-np.inf)))
            self._compare(known, exact_scores)

    def _compare(self, known: list[float | None], exact_scores: FloatVector) -> None:
        pairs = zip(known, exact_scores.tolist(), strict=True)
        differences = np.array([abs(now - before) for before, now in pairs if before is not None])
        if not len(differences):
            return
        n_different = int((differences > self._tolerance * (self._highest - self._lowest)).sum())
        was_stable = self.report.n_different == 0
        self.report = Stability(
            self.report.n_repeated + len(differences),
            self.report.n_different + n_different,
            max(self.report.largest_difference, float(differences.max())),
        )
        if was_stable and n_different:
            _warn(self.report)


def _warn(report: Stability) -> None:
    warnings.warn(
        f"the scorer answered differently to the same pair: {report.n_different} of {report.n_repeated} repeated "
        f"pairs, by up to {report.largest_difference:.3g}; its top k is not well defined. Turn off sampling "
        "(temperature, dropout), or average several answers in the scorer",
        UnstableScorerWarning,
        stacklevel=2,
    )
