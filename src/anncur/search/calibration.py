"""Turns the posterior's own estimate of recall into one that held-out anchor queries bear out.

The posterior is optimistic: it trusts the model. A logistic curve for each k, fitted to what was really found for
queries that the model had not seen, corrects it by other signs; a threshold for each target says when to stop. Plain
numbers, so that an index can keep them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from anncur.arrays import FloatMatrix, FloatVector

KS = (1, 10, 50, 100)
TARGETS = (0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.95, 0.98)
THRESHOLDS = np.array([*np.linspace(0.3, 0.9, 13), *np.linspace(0.91, 0.99, 9), 1.0])  # the last is never reached
UNLIMITED = 1e9  # calls
ROUNDING = 1e-9
EXTREME = 0.002  # estimates nearer to 0 or 1 than this are taken as this
PRIOR = np.array([0.0, 1.0, 0.0, 0.0, 0.0])  # the raw estimate as it is
PRIOR_STRENGTH = 1.0
N_STEPS = 60  # of Newton's method, none longer than 1: far from the solution it would leap past it


@dataclass(frozen=True)
class Calibration:
    """Weights of the logistic curve for each k; and for each k and target, when to stop: (estimate, calls)."""

    ks: tuple[int, ...] = ()
    weights: tuple[tuple[float, ...], ...] = ()
    stops: tuple[tuple[tuple[float, float], ...], ...] = ()

    def apply(self, evidence: FloatMatrix, *, k: int, calls: int) -> FloatVector:
        """The recall to expect for `k` after so many calls, from evidence of (n_queries, n_signs)."""
        inputs = _inputs(evidence, np.full(len(evidence), calls))
        below, above, share = _neighbours(self.ks, k)
        curves = [_sigmoid(inputs @ np.array(self.weights[place])) for place in (below, above)]
        return (1 - share) * curves[0] + share * curves[1]

    def stop_at(self, target: float, *, k: int) -> tuple[float, float]:
        """The estimate and the number of calls, either of which ends a search, so that the mean recall is the target.

        Where estimates tell little, the calls decide, and it is a fixed budget."""
        below, above, share = _neighbours(self.ks, k)
        found = (1 - share) * self._stop(below, target) + share * self._stop(above, target)
        return float(found[0]), float(found[1])

    def _stop(self, place: int, target: float) -> FloatVector:
        columns = np.array(self.stops[place]).T  # estimates and calls
        return np.array([np.interp(target, TARGETS, column) for column in columns])


def calibrate(evidence: FloatMatrix, recall: FloatMatrix, calls: FloatVector, ks: tuple[int, ...]) -> Calibration:
    """From what held-out queries showed and what they had truly found, round by round.

    `evidence` is (n_rounds, n_queries, len(ks), n_signs), `recall` (n_rounds, n_queries, len(ks))."""
    weights, stops = [], []
    for place, k in enumerate(ks):
        is_usable = calls >= k
        truth = recall[is_usable, :, place]
        signs = evidence[is_usable, :, place].reshape(truth.size, -1)
        inputs = _inputs(signs, np.repeat(calls[is_usable], truth.shape[1]))
        found = _fit_logistic(inputs, truth.ravel(), n_queries=truth.shape[1])
        calibrated = _sigmoid(inputs @ found).reshape(truth.shape)
        weights.append(tuple(found.tolist()))
        stops.append(tuple(_cheapest_stop(calibrated, truth, calls[is_usable], target) for target in TARGETS))
    return Calibration(ks, tuple(weights), tuple(stops))


def _cheapest_stop(
    estimates: FloatMatrix, truth: FloatMatrix, calls: FloatVector, target: float
) -> tuple[float, float]:
    """Of the pairs of estimate and calls that give the target on average, the one with the fewest calls on average.

    A standard error above it, because other queries may be a little harder than these. `estimates` and `truth` are
    (n_rounds, n_queries). Where no pair gives it, nothing but the budget ends a search."""
    best = (np.inf, 1.0, UNLIMITED)
    queries = np.arange(truth.shape[1])
    for threshold in THRESHOLDS:
        is_enough = estimates >= threshold
        first = np.where(is_enough.any(axis=0), is_enough.argmax(axis=0), len(estimates) - 1)
        for last, most_calls in enumerate(calls.tolist()):
            stops = np.minimum(first, last)
            reached = truth[stops, queries]
            if reached.mean() - reached.std() / np.sqrt(len(queries)) >= target - ROUNDING:
                best = min(best, (float(calls[stops].mean()), float(threshold), most_calls))
                break  # more calls only cost more
    return best[1], best[2]


def _fit_logistic(inputs: FloatMatrix, shares: FloatVector, *, n_queries: int) -> FloatVector:
    """Weights of a logistic curve through shares, drawn towards the raw estimate itself.

    The rounds of a query tell much the same, so all of its rows together count as five."""
    weights, row_weight = PRIOR.copy(), 5 * n_queries / max(1, len(inputs))
    for _ in range(N_STEPS):
        curve = _sigmoid(inputs @ weights)
        slope = row_weight * inputs.T @ (shares - curve) - PRIOR_STRENGTH * (weights - PRIOR)
        bend = row_weight * (inputs.T * (curve * (1 - curve))) @ inputs + PRIOR_STRENGTH * np.eye(len(PRIOR))
        step = np.linalg.solve(bend, slope)
        weights = weights + step / max(1.0, float(np.linalg.norm(step)))
    return weights


def _inputs(evidence: FloatMatrix, calls: FloatVector) -> FloatMatrix:
    """(n, 5): a constant, the logit of the raw estimate, the log of the calls around 100, and the other signs."""
    raw = np.clip(evidence[:, 0], EXTREME, 1 - EXTREME)
    scale = np.log(np.maximum(calls, 1) / 100)
    return np.column_stack([np.ones(len(raw)), np.log(raw / (1 - raw)), scale, evidence[:, 1:]])


def _neighbours(ks: tuple[int, ...], k: int) -> tuple[int, int, float]:
    """The places of the known ks around `k`, and how far it is from the lower to the upper one."""
    place = float(np.interp(np.log(k), np.log(ks), np.arange(len(ks))))
    below = int(place)
    return below, min(below + 1, len(ks) - 1), place - below


def _sigmoid(values: FloatVector) -> FloatVector:
    return 1 / (1 + np.exp(-np.clip(values, -30, 30)))
