"""The meter: pays once, never too much, keeps what it paid for."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest

import anncur
from anncur.arrays import FloatVector, Positions
from anncur.errors import BudgetError, DeadlineError, ScorerError, SpendCapError
from anncur.scorers.guard import GuardedScorer
from anncur.scorers.meter import Meter
from anncur.scorers.pace import Deadline
from anncur.scorers.payment import Payments
from anncur.waiting import run

CORPUS = anncur.Corpus([f"item {n}" for n in range(50)])
QUERY = anncur.Query("q")


class Recorder:
    """Scores an item by its id, and remembers the batches."""

    def __init__(self, *, fail_at: int | None = None, seconds_per_pair: float = 0.0) -> None:
        self.batches: list[list[int]] = []
        self._fail_at = fail_at
        self._seconds_per_pair = seconds_per_pair

    def score(self, query: anncur.Query, items: list[anncur.Item]) -> list[float]:
        if self._fail_at == len(self.batches):
            raise ConnectionError("gone")
        time.sleep(self._seconds_per_pair * len(items))
        self.batches.append([int(item.id) for item in items])
        return [float(item.id) for item in items]


class Paying(Meter):
    """A meter that pays for what it is asked."""

    def __init__(self, scorer: GuardedScorer, *, budget: int = 50, deadline: Deadline | None = None) -> None:
        super().__init__(QUERY, CORPUS, budget=budget)
        self._payments = Payments(scorer, deadline=deadline)

    def score(self, positions: Positions) -> FloatVector:
        run(self._payments.pay([(self, positions)]))
        if self.failure is not None:
            raise self.failure
        return self.scores_of(positions)


def make_meter(recorder: Recorder, *, batch_size: int = 10, **options: Any) -> Paying:
    return Paying(anncur.load_scorer(recorder, batch_size=batch_size), **options)


def test_no_pair_is_paid_for_twice() -> None:
    recorder = Recorder()
    meter = make_meter(recorder)
    assert meter.score(np.array([3, 1, 3])).tolist() == [3.0, 1.0, 3.0]
    assert meter.score(np.array([1, 2])).tolist() == [1.0, 2.0]
    assert recorder.batches == [[3, 1], [2]]
    assert meter.calls == 3
    assert meter.positions.tolist() == [3, 1, 2]
    assert meter.exact_scores.tolist() == [3.0, 1.0, 2.0]


def test_more_than_the_budget_is_refused_before_anything_is_paid() -> None:
    recorder = Recorder()
    meter = make_meter(recorder, budget=3)
    meter.score(np.array([0, 1]))
    with pytest.raises(BudgetError, match="only 1 of the budget of 3"):
        meter.score(np.array([1, 2, 3]))
    assert recorder.batches == [[0, 1]]
    meter.score(np.array([0, 1, 2]))
    assert meter.remaining == 0


def test_batches_are_no_larger_than_the_rules_allow() -> None:
    recorder = Recorder()
    make_meter(recorder, batch_size=4).score(np.arange(10))
    assert [len(batch) for batch in recorder.batches] == [4, 4, 2]


def test_what_was_paid_before_a_failure_is_kept() -> None:
    meter = make_meter(Recorder(fail_at=2))
    with pytest.raises(ScorerError):
        meter.score(np.arange(50))
    assert meter.positions.tolist() == list(range(20))


def test_no_request_starts_after_the_deadline() -> None:
    recorder = Recorder()
    meter = make_meter(recorder, deadline=Deadline(-0.001))
    with pytest.raises(DeadlineError, match="the deadline has passed"):
        meter.score(np.arange(5))
    assert recorder.batches == []


def test_the_deadline_reaches_the_retries() -> None:
    """Else the meter would wait ten seconds for the next try."""
    scorer = anncur.load_scorer(Recorder(fail_at=0), retries=1, retry_wait=20.0)
    meter = Paying(scorer, budget=5, deadline=Deadline(1.0))
    with pytest.raises(DeadlineError, match="before the next try"):
        meter.score(np.arange(5))


def test_the_last_batch_under_a_cap_is_as_large_as_the_cap_allows() -> None:
    recorder = Recorder()
    scorer = anncur.load_scorer(recorder, batch_size=10, max_calls=25)
    meter = Paying(scorer)
    with pytest.raises(SpendCapError):
        meter.score(np.arange(50))
    assert [len(batch) for batch in recorder.batches] == [10, 10, 5]


def test_under_a_deadline_batches_shrink_to_the_scorers_pace() -> None:
    recorder = Recorder(seconds_per_pair=0.01)
    meter = make_meter(recorder, batch_size=50, deadline=Deadline(0.25))
    with pytest.raises(DeadlineError):
        meter.score(np.arange(50))
    assert len(recorder.batches[0]) == 8
    assert 8 <= meter.calls <= 25, "a quarter of a second is time for 25"
