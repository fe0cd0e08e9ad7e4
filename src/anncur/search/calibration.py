"""Turns the posterior's own estimate of recall into one that held-out anchor queries bear out.

The posterior is optimistic: it trusts the model. A logistic curve for each k, fitted in `tuning/calibration.py` to what
was really found for queries that the model had not seen, corrects it; a threshold for each target tells when to stop.
Plain numbers, so that an index can store them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from anncur.arrays import FloatMatrix, FloatVector

TARGETS = (0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.95, 0.98)
ROUNDING = 1e-9
EXTREME = 0.002  # estimates nearer to 0 or 1 than this are taken as this


@dataclass(frozen=True)
class Calibration:
    """Weights of the logistic curve for each k; and for each k and target, when to stop: (estimate, pairs)."""

    ks: tuple[int, ...] = ()
    weights: tuple[tuple[float, ...], ...] = ()
    stops: tuple[tuple[tuple[float, float], ...], ...] = ()

    def apply(self, features: FloatMatrix, *, k: int, n_scored: int) -> FloatVector:
        """The recall to expect for `k` after `n_scored` pairs, from features of (n_queries, N_RECALL_FEATURES)."""
        inputs = logistic_inputs(features, np.full(len(features), n_scored))
        below, above, share = self._neighbours(k)
        curves = [sigmoid(inputs @ np.array(self.weights[place])) for place in (below, above)]
        return (1 - share) * curves[0] + share * curves[1]

    def stop_at(self, target: float, *, k: int) -> tuple[float, float]:
        """The estimate and the number of pairs, either of which ends a search, so that the mean recall is the target.

        Where estimates tell little, the number of pairs decides, and it is a fixed budget. Between two calibrated ks
        the stricter one rules; beyond the largest, the number of pairs grows with k."""
        below, above, _ = self._neighbours(k)
        stops = np.maximum(self._stop(below, target), self._stop(above, target))
        return float(stops[0]), float(stops[1] * max(1.0, k / self.ks[-1]))

    def _stop(self, place: int, target: float) -> FloatVector:
        columns = np.array(self.stops[place]).T  # estimates and pairs
        return np.array([np.interp(target, TARGETS, column) for column in columns])

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
