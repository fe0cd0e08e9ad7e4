"""Fits the estimate of recall to what held-out anchor queries had truly found, round by round.

Reads the features and recalls of `tuning/posterior.py`, gives a `Calibration`. Pure NumPy."""

from __future__ import annotations

import numpy as np

from anncur.arrays import FloatMatrix, FloatVector
from anncur.search.calibration import ROUNDING, TARGETS, Calibration, logistic_inputs, sigmoid

CALIBRATED_KS = (1, 2, 3, 5, 7, 10, 15, 20, 30, 40, 50, 70, 100)
PSEUDO_RECALL = 0.5  # of one more query: where all found everything, the next may not
THRESHOLDS = np.array([*np.linspace(0.3, 0.9, 13), *np.linspace(0.91, 0.99, 9), 1.0])  # the last is never reached
UNLIMITED = 1e9  # pairs
PRIOR = np.array([0.0, 1.0, 0.0, 0.0, 0.0])  # the raw estimate as it is
PRIOR_STRENGTH = 1.0
N_STEPS = 60  # of Newton's method, none longer than 1: far from the solution it would leap past it


def calibrate(features: FloatMatrix, recall: FloatMatrix, n_scored: FloatVector, ks: tuple[int, ...]) -> Calibration:
    """From the features of held-out queries and what they had truly found, after `n_scored` pairs in each round.

    `features` is (n_rounds, n_queries, len(ks), N_RECALL_FEATURES), `recall` (n_rounds, n_queries, len(ks))."""
    weights, stops = [], []
    for place, k in enumerate(ks):
        is_usable = n_scored >= k
        truth, usable = recall[is_usable, :, place], n_scored[is_usable]
        inputs = logistic_inputs(features[is_usable, :, place].reshape(truth.size, -1), usable.repeat(truth.shape[1]))
        found = _fit_logistic(inputs, truth.ravel(), n_queries=truth.shape[1])
        calibrated = sigmoid(inputs @ found).reshape(truth.shape)
        weights.append(tuple(found.tolist()))
        stops.append(tuple(_cheapest_stop(calibrated, truth, usable, target) for target in TARGETS))
    return Calibration(ks, tuple(weights), tuple(stops))


def _cheapest_stop(
    estimates: FloatMatrix, truth: FloatMatrix, n_scored: FloatVector, target: float
) -> tuple[float, float]:
    """Of the (estimate, pairs) at which stopping gives the target on average, the one that costs least on average.

    A standard error above the target, and with one more query that did badly, because other queries may be harder than
    these. `estimates` and `truth` are (n_rounds, n_queries). Where nothing gives it, only the budget ends a search."""
    best = (np.inf, 1.0, UNLIMITED)
    queries = np.arange(truth.shape[1])
    for threshold in THRESHOLDS:
        is_enough = estimates >= threshold
        first = np.where(is_enough.any(axis=0), is_enough.argmax(axis=0), len(estimates) - 1)
        for last, most_pairs in enumerate(n_scored.tolist()):
            stops = np.minimum(first, last)
            reached = np.append(truth[stops, queries], PSEUDO_RECALL)
            if reached.mean() - reached.std() / np.sqrt(len(reached)) >= target - ROUNDING:
                best = min(best, (float(n_scored[stops].mean()), float(threshold), most_pairs))
                break  # later rounds only cost more
    return best[1], best[2]


def _fit_logistic(inputs: FloatMatrix, recalls: FloatVector, *, n_queries: int) -> FloatVector:
    """Weights of a logistic curve through recalls, pulled towards the raw estimate itself.

    The rounds of a query tell much the same, so all of its rows together count as five."""
    weights, row_weight = PRIOR.copy(), 5 * n_queries / max(1, len(inputs))
    for _ in range(N_STEPS):
        curve = sigmoid(inputs @ weights)
        slope = row_weight * inputs.T @ (recalls - curve) - PRIOR_STRENGTH * (weights - PRIOR)
        bend = row_weight * (inputs.T * (curve * (1 - curve))) @ inputs + PRIOR_STRENGTH * np.eye(len(PRIOR))
        step = np.linalg.solve(bend, slope)
        weights = weights + step / max(1.0, float(np.linalg.norm(step)))
    return weights
