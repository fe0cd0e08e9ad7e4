"""Pace: latency apart from pairs."""

from __future__ import annotations

import pytest

from anncur.scorers.pace import Pace


def paced(requests: list[int], *, latency: float, per_pair: float, first: float = 0.0) -> Pace:
    pace = Pace()
    pace.observe(1, latency + per_pair + first)
    for n_pairs in requests:
        pace.observe(n_pairs, latency + per_pair * n_pairs)
    return pace


@pytest.mark.parametrize(("latency", "per_pair"), [(0.2, 0.002), (0.0, 0.002), (0.15, 0.0)])
def test_latency_and_time_per_pair_are_found_from_requests_of_several_sizes(latency: float, per_pair: float) -> None:
    pace = paced([5, 20, 8, 13], latency=latency, per_pair=per_pair)
    for n_pairs in (1, 10, 100):
        assert pace.seconds(n_pairs) == pytest.approx(latency + per_pair * n_pairs, abs=1e-6)


def test_nothing_is_known_before_the_first_request() -> None:
    assert Pace().seconds(5) is None
    assert Pace().affordable(5, 1.0) is None


def test_from_one_size_more_pairs_count_as_more_time_and_fewer_as_the_same() -> None:
    pace = paced([10, 10], latency=0.1, per_pair=0.0)
    assert pace.seconds(20) == pytest.approx(0.2)
    assert pace.seconds(5) == pytest.approx(0.1)


def test_a_first_request_that_loads_a_model_is_forgotten_with_the_second() -> None:
    pace = paced([5, 10, 20], latency=0.1, per_pair=0.01, first=30.0)
    assert pace.seconds(10) == pytest.approx(0.2)


def test_one_slow_request_counts_little_and_many_count_in_full() -> None:
    pace = paced([5, 10, 20] * 5, latency=0.1, per_pair=0.01)
    pace.observe(10, 60.0)
    assert (pace.seconds(10) or 0) < 0.4
    for _ in range(60):
        pace.observe(10, 1.0)
    assert pace.seconds(10) == pytest.approx(1.0, rel=0.05)


def test_as_many_pairs_are_affordable_as_fit() -> None:
    pace = paced([5, 10, 20], latency=0.1, per_pair=0.01)
    assert [pace.affordable(50, seconds) for seconds in (0.05, 0.1101, 0.2001, 10.0)] == [0, 1, 10, 50]
