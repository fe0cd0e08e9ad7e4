"""Estimates of recall are corrected by what was truly found."""

from __future__ import annotations

import numpy as np
import pytest

from anncur.search.calibration import Calibration, calibrate

CALLS = np.array([20.0, 50.0, 100.0, 200.0])


def optimist(n_queries: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Evidence whose raw estimate is too high, and the true recalls, for k = 1 and 10."""
    rng = np.random.default_rng(seed)
    ease = rng.normal(size=n_queries)
    truth = 1 / (1 + np.exp(-(ease + np.log(CALLS / 80)[:, None])))  # (n_rounds, n_queries)
    raw = 1 / (1 + np.exp(-(1.5 + ease + np.log(CALLS / 80)[:, None])))
    recall_features = np.stack([raw, np.zeros_like(raw), np.zeros_like(raw)], axis=2)
    return np.stack([recall_features] * 2, axis=2), np.stack([truth] * 2, axis=2)


def test_an_optimistic_estimate_is_brought_down_to_the_truth() -> None:
    calibration = calibrate(*optimist(200), CALLS, (1, 10))
    recall_features, truth = optimist(100, seed=1)
    for number, calls in enumerate(CALLS.tolist()):
        estimate = calibration.apply(recall_features[number, :, 1], k=10, calls=int(calls))
        assert estimate.mean() == pytest.approx(truth[number, :, 1].mean(), abs=0.03)
        assert np.abs(estimate - truth[number, :, 1]).mean() < 0.05


def test_stopping_at_the_threshold_gives_the_target_on_average() -> None:
    calibration = calibrate(*optimist(400), CALLS, (1, 10))
    recall_features, truth = optimist(400, seed=1)
    rounds = zip(recall_features[:, :, 1], CALLS.tolist(), strict=True)
    estimates = np.stack([calibration.apply(row, k=10, calls=int(calls)) for row, calls in rounds])
    enough, most_calls = calibration.stop_at(0.7, k=10)
    is_enough = (estimates >= enough) | (most_calls <= CALLS)[:, None]
    stops = np.where(is_enough.any(axis=0), is_enough.argmax(axis=0), len(CALLS) - 1)
    assert truth[stops, np.arange(400), 1].mean() == pytest.approx(0.7, abs=0.05)


def test_estimates_that_are_all_certain_and_often_wrong_end_at_the_mean() -> None:
    """Newton's method would leap off to where everything is 0."""
    recall_features = np.zeros((4, 50, 1, 3))
    recall_features[..., 0] = 1.0
    recall = np.tile((np.arange(50) % 5 > 0)[None, :, None], (4, 1, 1)).astype(float)
    calibration = calibrate(recall_features, recall, CALLS, (1,))
    assert calibration.apply(recall_features[0, :, 0], k=1, calls=100) == pytest.approx(np.full(50, 0.8), abs=0.03)


def test_a_k_between_two_known_ones_lies_between_them() -> None:
    calibration = Calibration(
        (1, 100), ((-2.0, 0.0, 0.0, 0.0, 0.0), (2.0, 0.0, 0.0, 0.0, 0.0)), (((0.5, 50),) * 8, ((0.9, 250),) * 8)
    )
    recall_features = np.zeros((1, 3))
    below, between, above = (calibration.apply(recall_features, k=k, calls=50)[0] for k in (1, 10, 100))
    assert below < between < above
    assert calibration.apply(recall_features, k=5000, calls=9000)[0] == above
    assert calibration.stop_at(0.8, k=10) == pytest.approx((0.7, 150))


def test_where_estimates_tell_nothing_a_target_is_a_fixed_budget() -> None:
    recall_features = np.full((4, 100, 1, 3), 0.5)
    recall = np.tile(np.array([0.2, 0.5, 0.8, 1.0])[:, None, None], (1, 100, 1))
    calibration = calibrate(recall_features, recall, CALLS, (1,))
    assert calibration.stop_at(0.8, k=1)[1] == 100
