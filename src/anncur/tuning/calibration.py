"""Fits the estimate of recall to what held-out anchor queries had truly found, round by round.

Reads the features and recalls of `tuning/posterior.py`, gives a `Calibration`. Pure NumPy."""

from __future__ import annotations

import numpy as np

from anncur.arrays import FloatMatrix, FloatVector
from anncur.search.calibration import ROUNDING, TARGETS, Calibration, logistic_inputs, sigmoid

CALIBRATED_KS = (1, 2, 3, 5, 10, 15, 20, 30, 50, 100)
PSEUDO_RECALL = 0.5  # of one more query: where all found everything, the next may not
THRESHOLDS = np.array([*np.linspace(0.3, 0.9, 13), *np.linspace(0.91, 0.99, 9), 1.0])  # the last is never reached
UNLIMITED = 1e9  # pairs
PRIOR = np.array([0.0, 1.0, 0.0, 0.0, 0.0])  # the raw estimate as it is
PRIOR_STRENGTH = 1.0
N_STEPS = 60  # of Newton's method, none longer than 1: far from the solution it would leap past it

Stop = tuple[float, float]  # an estimate, and a number of pairs


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
        stops.append(_cheapest_stops(calibrated, truth, usable))
    return Calibration(ks, tuple(weights), tuple(stops))


def _cheapest_stops(estimates: FloatMatrix, truth: FloatMatrix, n_scored: FloatVector) -> tuple[Stop, ...]:
    """For each target, of the (estimate, pairs) at which stopping gives it on average, the one that costs least.

    A standard error above the target, and with one more query that did badly, because other queries may be harder than
    these. `estimates` and `truth` are (n_rounds, n_queries). Where nothing gives it, only the budget ends a search."""
    best = [(np.inf, 1.0, UNLIMITED)] * len(TARGETS)
    rounds = np.arange(len(estimates))[:, None]
    for threshold in THRESHOLDS:
        is_enough = estimates >= threshold
        first = np.where(is_enough.any(axis=0), is_enough.argmax(axis=0), len(estimates) - 1)
        stops = np.minimum(first, rounds)  # of each query, where no search takes longer than a round
        secure = _lower_bound(np.take_along_axis(truth, stops, axis=0))
        cost = n_scored[stops].mean(axis=1)
        for place, target in enumerate(TARGETS):
            reached = np.flatnonzero(secure >= target - ROUNDING)
            if len(reached):  # later rounds only cost more
                last = reached[0]
                best[place] = min(best[place], (float(cost[last]), float(threshold), float(n_scored[last])))
    return tuple((threshold, most_pairs) for _, threshold, most_pairs in best)


def _lower_bound(recalls: FloatMatrix) -> FloatVector:
    """A standard error below the mean over queries, (n_rounds,)."""
    more = np.pad(recalls, ((0, 0), (0, 1)), constant_values=PSEUDO_RECALL)
    bound: FloatVector = more.mean(axis=1) - more.std(axis=1) / np.sqrt(more.shape[1])
    return bound


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
