"""Notices a scorer that answers differently to the same pair.

Fed by the index with the exact scores of every search; remembers the latest ones and compares when a query comes again.
Costs no pairs of its own: a build scores a few pairs twice, so that there is something to compare."""

from __future__ import annotations

import threading
import warnings
from collections import OrderedDict
from dataclasses import dataclass

import numpy as np

from anncur.arrays import NO_POSITIONS, FloatVector, Positions
from anncur.errors import UnstableScorerWarning
from anncur.items import Query

TOLERANCE = 1e-3


@dataclass(frozen=True)
class Stability:
    """What repeated pairs have shown so far."""

    n_repeated: int
    n_different: int
    largest_difference: float


def n_different(before: FloatVector, now: FloatVector, *, lowest: float, highest: float, dtype: str = "float32") -> int:
    """How many scores differ by more than rounding.

    Rounding is `TOLERANCE` of the spread of all scores, because padding and the order of a batch move a neural scorer's
    last digits, and what the `dtype` that scores are stored as can't hold."""
    of_storing = 4 * float(np.finfo(dtype).eps) * max(abs(lowest), abs(highest))
    rounding = TOLERANCE * (highest - lowest) + of_storing
    return int((np.abs(now - before) > rounding).sum())


class StabilityWatch:
    """Compares the scores of queries that come again; warns once.

    Remembers the latest queries, with at most `capacity` scores in all. Scores may have been stored as `dtype`."""

    def __init__(self, *, capacity: int = 200_000, dtype: str = "float32") -> None:
        self._capacity = capacity
        self._dtype = dtype
        self._lock = threading.Lock()
        self._latest: OrderedDict[tuple[int, str], tuple[Positions, FloatVector]] = OrderedDict()
        self._n_remembered = 0
        self._lowest, self._highest = np.inf, -np.inf
        self.report = Stability(0, 0, 0.0)

    def observe(
        self, query: Query, positions: Positions, exact_scores: FloatVector, *, version: int = 0
    ) -> tuple[FloatVector, FloatVector] | None:
        """Take in the scores that one search has paid for; the scores then and now of pairs that came again.

        In another version of an index, positions mean other items."""
        key = (version, query.key)
        with self._lock:
            self._lowest = min(self._lowest, float(exact_scores.min(initial=np.inf)))
            self._highest = max(self._highest, float(exact_scores.max(initial=-np.inf)))
            before = self._latest.get(key)
            again = None if before is None else self._compare(before, (positions, exact_scores))
            self._remember(key, positions, exact_scores)
            return again

    def _remember(self, key: tuple[int, str], positions: Positions, exact_scores: FloatVector) -> None:
        forgotten, _ = self._latest.pop(key, (NO_POSITIONS, None))
        self._latest[key] = (positions, exact_scores)
        self._n_remembered += len(positions) - len(forgotten)
        while self._n_remembered > self._capacity:
            _, (forgotten, _) = self._latest.popitem(last=False)
            self._n_remembered -= len(forgotten)

    def _compare(
        self, before: tuple[Positions, FloatVector], now: tuple[Positions, FloatVector]
    ) -> tuple[FloatVector, FloatVector] | None:
        repeated, places_before, places_now = np.intersect1d(before[0], now[0], return_indices=True)
        if not len(repeated):
            return None
        then, again = before[1][places_before], now[1][places_now]
        differences = np.abs(again - then)
        n_changed = n_different(then, again, lowest=self._lowest, highest=self._highest, dtype=self._dtype)
        was_stable = self.report.n_different == 0
        self.report = Stability(
            self.report.n_repeated + len(repeated),
            self.report.n_different + n_changed,
            max(self.report.largest_difference, float(differences.max())),
        )
        if was_stable and n_changed:
            _warn(self.report)
        return then, again if n_changed else then  # what rounding changes is no noise


def _warn(report: Stability) -> None:
    warnings.warn(
        f"the scorer answered differently to the same pair: {report.n_different} of {report.n_repeated} repeated "
        f"pairs, by up to {report.largest_difference:.3g}; its top k is not well defined. Turn off sampling "
        "(temperature, dropout), or pass load_scorer(…, repeats=3), which averages answers for the best items",
        UnstableScorerWarning,
        stacklevel=2,
    )
