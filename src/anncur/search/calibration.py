"""Turns the posterior's own estimate of recall into one that held-out anchor queries bear out.

The posterior is optimistic: it trusts the model. A logistic curve for each k, fitted in `tuning/calibration.py` to what
was really found for queries that the model had not seen, corrects it; a threshold for each target tells when to stop.
Plain numbers, so that an index can store them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from anncur.arrays import FloatMatrix, FloatVector

TARGETS = (0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.95, 0.98)
NEVER_ENOUGH = (1.0, 1e9)  # an estimate and a number of pairs for a target of 1, which nothing can promise
ROUNDING = 1e-9
EXTREME = 0.002  # estimates nearer to 0 or 1 than this are taken as this


@dataclass(frozen=True)
class Calibration:
    """Weights of the logistic curve for each k; and for each k and target, when to stop: (estimate, pairs)."""

    ks: tuple[int, ...] = ()
    weights: tuple[tuple[float, ...], ...] = ()
    stops: tuple[tuple[tuple[float, float], ...], ...] = ()

    def around(self, k: int) -> tuple[int, ...]:
        """The calibrated ks that features are needed for: those next to `k`, or just `k` where it is calibrated."""
        below, above, _ = self._neighbours(k)
        return self.ks[below : above + 1]

    def apply(self, features: FloatMatrix, *, k: int, n_scored: int) -> FloatVector:
        """The recall to expect for `k` after `n_scored` pairs, from features for the ks `around` it.

        `features` is (n_queries, number of these ks, N_RECALL_FEATURES)."""
        below, above, share = self._neighbours(k)
        lower, upper = self._estimate(below, features[:, 0], n_scored), self._estimate(above, features[:, -1], n_scored)
        return (1 - share) * lower + share * upper

    def is_enough(self, features: FloatMatrix, *, target: float, k: int, n_scored: int) -> NDArray[np.bool_]:
        """Which queries may stop, so that their mean recall is the target: (n_queries,).

        For a calibrated k, an estimate or a number of pairs suffices, whichever comes first; where estimates tell
        little, it is a fixed budget. Another k must wait until both ks `around` it have enough; beyond the largest, the
        number of pairs grows with k. None stops before k items are scored: fewer can't hold the top k."""
        *places, _ = self._neighbours(k)
        if n_scored < max(k, self.ks[places[1]]):
            return np.zeros(len(features), dtype=np.bool_)
        n_scaled = n_scored / max(1.0, k / self.ks[-1])
        enough: list[NDArray[np.bool_]] = []
        for side, place in ((0, places[0]), (-1, places[1])):
            stops = (*self.stops[place], NEVER_ENOUGH)
            threshold, n_pairs = (np.interp(target, (*TARGETS, 1.0), column) for column in zip(*stops, strict=True))
            enough.append((self._estimate(place, features[:, side], n_scored) >= threshold) | (n_scaled >= n_pairs))
        return enough[0] & enough[1]

    def _estimate(self, place: int, features: FloatMatrix, n_scored: int) -> FloatVector:
        inputs = logistic_inputs(features, np.full(len(features), n_scored))
        return sigmoid(inputs @ np.array(self.weights[place]))

    def _neighbours(self, k: int) -> tuple[int, int, float]:
        """The places of the calibrated ks around `k`, and how far it is from the lower to the upper one."""
        place = float(np.interp(np.log(k), np.log(self.ks), np.arange(len(self.ks))))
        below, above = int(np.floor(place + ROUNDING)), int(np.ceil(place - ROUNDING))
        return below, above, place - below


def logistic_inputs(features: FloatMatrix, n_scored: FloatVector) -> FloatMatrix:
    """(n, 5): a constant, the logit of the raw estimate, the log of the pairs around 100, and the other features."""
    raw = np.clip(features[:, 0], EXTREME, 1 - EXTREME)
    scale = np.log(np.maximum(n_scored, 1) / 100)
    return np.column_stack([np.ones(len(raw)), np.log(raw / (1 - raw)), scale, features[:, 1:]])


def sigmoid(values: FloatVector) -> FloatVector:
    """The logistic function."""
    return 1 / (1 + np.exp(-np.clip(values, -30, 30)))
