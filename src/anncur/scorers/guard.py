"""Calls a scorer carefully: retries, caps the spend, checks the answer, and turns it so that higher is better.

Every call to foreign scoring code goes through `GuardedScorer.score`. Budgets per query are the meter's business."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from anncur.arrays import FloatVector
from anncur.errors import AnncurError, DeadlineError, InputError, ScorerError, ScorerOutputError, SpendCapError
from anncur.items import Item, Query
from anncur.scorers.base import Scorer


@dataclass(frozen=True)
class CallRules:
    """How to call a scorer.

    `batch_size` is the most pairs in one call. A call that raises is tried again up to `retries` times, after
    `retry_wait` seconds, doubled each time and at most `max_wait`, with jitter. `max_calls` caps the pairs that the
    scorer is ever asked for through this object, retries included: the cap on spend."""

    higher_is_better: bool = True
    batch_size: int = 128
    retries: int = 0
    retry_wait: float = 0.5
    max_wait: float = 30.0
    max_calls: int | None = None

    def __post_init__(self) -> None:
        _at_least(1, batch_size=self.batch_size)
        _at_least(0, retries=self.retries, retry_wait=self.retry_wait, max_wait=self.max_wait)
        if self.max_calls is not None:
            _at_least(1, max_calls=self.max_calls)


class Deadline:
    """A moment after which no more calls are started."""

    def __init__(self, seconds: float, *, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._end = clock() + seconds

    @property
    def seconds_left(self) -> float:
        """Below zero once it has passed."""
        return self._end - self._clock()


class GuardedScorer:
    """A scorer with its rules; safe to share between threads if the scorer is."""

    def __init__(self, scorer: Scorer, rules: CallRules, *, sleep: Callable[[float], None] = time.sleep) -> None:
        self._scorer = scorer
        self._sleep = sleep
        self._jitter = random.Random()
        self._lock = threading.Lock()
        self._calls_made = 0
        self.rules = rules

    @property
    def fingerprint(self) -> str:
        """Names the scorer that gives the scores."""
        return self._scorer.fingerprint

    @property
    def calls_made(self) -> int:
        """Pairs that the scorer has been asked for through this object, retries included."""
        return self._calls_made

    @property
    def sign(self) -> float:
        """What our scores (higher is better) are multiplied with to give the scorer's own."""
        return 1.0 if self.rules.higher_is_better else -1.0

    def score(self, query: Query, items: Sequence[Item], *, deadline: Deadline | None = None) -> FloatVector:
        """One finite float64 per item, higher is better."""
        answer = self._call_with_retries(query, items, deadline)
        return self.sign * checked_scores(answer, n_items=len(items), fingerprint=self.fingerprint)

    def _call_with_retries(self, query: Query, items: Sequence[Item], deadline: Deadline | None) -> Any:
        for attempt in range(self.rules.retries + 1):
            self._spend(len(items))
            try:
                return self._scorer.score(query, items)
            except AnncurError:
                raise
            except Exception as error:  # foreign code: anything may come out of it
                failure = error
            if attempt < self.rules.retries:
                self._wait(attempt, deadline)
        raise ScorerError(
            f"the scorer {self.fingerprint} failed on {len(items)} pairs after {self.rules.retries + 1} "
            f"attempt(s): {type(failure).__name__}: {failure}"
        ) from failure

    def _spend(self, n_calls: int) -> None:
        cap = self.rules.max_calls
        with self._lock:
            if cap is not None and self._calls_made + n_calls > cap:
                raise SpendCapError(
                    f"{n_calls} more calls would exceed the cap of {cap} calls to {self.fingerprint} "
                    f"({self._calls_made} made); raise max_calls to go on"
                )
            self._calls_made += n_calls

    def _wait(self, attempt: int, deadline: Deadline | None) -> None:
        wait = min(self.rules.max_wait, self.rules.retry_wait * 2**attempt)
        wait *= self._jitter.uniform(0.5, 1.0)  # so that parallel clients don't come back in step
        if deadline is not None and wait >= deadline.seconds_left:
            raise DeadlineError(f"the next try of the scorer would come {wait:.1f} s from now, after the deadline")
        self._sleep(wait)


def checked_scores(answer: Any, *, n_items: int, fingerprint: str) -> FloatVector:
    """The scorer's answer as float64, or an error that says what is wrong with it."""
    problem = f"the scorer {fingerprint} must return one finite number per pair"
    try:
        scores = _as_floats(answer)
    except (TypeError, ValueError) as error:
        raise ScorerOutputError(f"{problem}, got {_described(answer)}: {error}") from error
    if scores.ndim == 2 and scores.shape[1] == 1:
        scores = scores[:, 0]
    if scores.ndim != 1:
        raise ScorerOutputError(
            f"{problem}, got an array of shape {scores.shape}; of a model with several outputs, pick one"
        )
    if len(scores) != n_items:
        raise ScorerOutputError(f"{problem}, got {len(scores)} numbers for {n_items} pairs")
    if not np.isfinite(scores).all():
        where = int(np.flatnonzero(~np.isfinite(scores))[0])
        raise ScorerOutputError(f"{problem}, got {scores[where]} for pair {where} of {n_items}")
    return scores


def _as_floats(answer: Any) -> FloatVector:
    if hasattr(answer, "detach"):  # a torch tensor, perhaps on a GPU, perhaps bfloat16
        answer = answer.detach().cpu().double().numpy()
    elif not isinstance(answer, np.ndarray):
        answer = list(answer)
    array = np.asarray(answer)
    if array.dtype.kind == "O":
        array = np.array([float(value) for value in _numbers_only(array)], dtype=np.float64)
    if array.dtype.kind not in "fiub":
        raise TypeError("not numbers")
    return array.astype(np.float64)


def _numbers_only(values: Any) -> Any:
    for value in values:
        if value is None or isinstance(value, (str, bytes)):
            raise TypeError(f"{value!r} is not a number")
        yield value


def _described(answer: Any) -> str:
    shown = repr(answer)
    return f"{type(answer).__name__} {shown if len(shown) <= 80 else shown[:79] + '…'}"


def _at_least(least: float, **values: float) -> None:
    for name, value in values.items():
        if not value >= least:
            raise InputError(f"{name} must be at least {least}, got {value}")
