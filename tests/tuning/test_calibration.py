"""Estimates of recall are corrected by what was truly found."""

from __future__ import annotations

import numpy as np
import pytest

from anncur.arrays import FloatMatrix
from anncur.search.calibration import Calibration
from anncur.tuning.calibration import calibrate

N_SCORED = np.array([20.0, 50.0, 100.0, 200.0])


def optimist(n_queries: int, seed: int = 0) -> tuple[FloatMatrix, FloatMatrix]:
    """Features whose raw estimate is too high, and the true recalls, for k = 1 and 10."""
    rng = np.random.default_rng(seed)
    ease = rng.normal(size=n_queries)
    truth = 1 / (1 + np.exp(-(ease + np.log(N_SCORED / 80)[:, None])))  # (n_rounds, n_queries)
    raw = 1 / (1 + np.exp(-(1.5 + ease + np.log(N_SCORED / 80)[:, None])))
    features = np.stack([raw, np.zeros_like(raw), np.zeros_like(raw)], axis=2)
    return np.stack([features] * 2, axis=2), np.stack([truth] * 2, axis=2)


def twice(features: FloatMatrix) -> FloatMatrix:
    """Features of a calibrated k, which is both of the ks around itself."""
    return np.stack([features, features], axis=1)


def test_an_optimistic_estimate_is_brought_down_to_the_truth() -> None:
    calibration = calibrate(*optimist(200), N_SCORED, (1, 10))
    features, truth = optimist(100, seed=1)
    for number, n_scored in enumerate(N_SCORED.tolist()):
        estimate = calibration.apply(twice(features[number, :, 1]), k=10, n_scored=int(n_scored))
        assert estimate.mean() == pytest.approx(truth[number, :, 1].mean(), abs=0.03)
        assert np.abs(estimate - truth[number, :, 1]).mean() < 0.05


def test_stopping_when_it_is_enough_gives_the_target_on_average() -> None:
    calibration = calibrate(*optimist(400), N_SCORED, (1, 10))
    features, truth = optimist(400, seed=1)
    rounds = zip(features[:, :, 1], N_SCORED.tolist(), strict=True)
    is_enough = np.stack(
        [calibration.is_enough(twice(row), target=0.7, k=10, n_scored=int(n_scored)) for row, n_scored in rounds]
    )
    stops = np.where(is_enough.any(axis=0), is_enough.argmax(axis=0), len(N_SCORED) - 1)
    assert truth[stops, np.arange(400), 1].mean() == pytest.approx(0.7, abs=0.05)


def test_estimates_that_are_all_certain_and_often_wrong_end_at_the_mean() -> None:
    """Newton's method would leap off to where everything is 0."""
    features = np.zeros((4, 50, 1, 3))
    features[..., 0] = 1.0
    recall = np.tile((np.arange(50) % 5 > 0)[None, :, None], (4, 1, 1)).astype(float)
    calibration = calibrate(features, recall, N_SCORED, (1,))
    estimate = calibration.apply(twice(features[0, :, 0]), k=1, n_scored=100)
    assert estimate == pytest.approx(np.full(50, 0.8), abs=0.03)


@pytest.fixture
def at_1_and_100() -> Calibration:
    """Estimates about 0.1 for k = 1 and 0.9 for k = 100, whatever the features; never enough by these alone."""
    weights = ((-2.0, 0.0, 0.0, 0.0, 0.0), (2.0, 0.0, 0.0, 0.0, 0.0))
    return Calibration((1, 100), weights, (((0.5, 50),) * 8, ((0.9, 250),) * 8))


def test_a_k_between_two_calibrated_ones_is_estimated_between_them(at_1_and_100: Calibration) -> None:
    features = np.zeros((1, 2, 3))
    below, between, above = (at_1_and_100.apply(features, k=k, n_scored=50)[0] for k in (1, 10, 100))
    assert below < between < above
    assert at_1_and_100.apply(features, k=5000, n_scored=9000)[0] == above


@pytest.mark.parametrize(("k", "least"), [(1, 50), (10, 250), (100, 250), (200, 500)])
def test_a_k_stops_when_both_calibrated_ones_around_it_do_and_later_beyond_the_largest(
    at_1_and_100: Calibration, k: int, least: int
) -> None:
    features = np.zeros((1, 2, 3))
    before, then = (
        at_1_and_100.is_enough(features, target=0.8, k=k, n_scored=n_scored)[0] for n_scored in (least - 1, least)
    )
    assert not before
    assert then


def test_where_estimates_are_all_the_same_a_target_is_a_fixed_budget() -> None:
    features = np.full((4, 100, 1, 3), 0.5)
    recall = np.tile(np.array([0.2, 0.5, 0.85, 1.0])[:, None, None], (1, 100, 1))
    calibration = calibrate(features, recall, N_SCORED, (1,))
    same = twice(features[0, :, 0])
    is_enough = [calibration.is_enough(same, target=0.8, k=1, n_scored=n).all() for n in (20, 50, 100, 200)]
    assert is_enough == [False, False, True, True]
