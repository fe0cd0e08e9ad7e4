"""Calls a scorer carefully: retries, caps the spend, checks the answer, and turns it so that higher is better.

Every call to foreign scoring code goes through `GuardedScorer.score`. Budgets per query are the meter's business."""

from __future__ import annotations

import logging
import math
import random
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from anncur.arrays import FloatVector
from anncur.errors import (
    AnncurError,
    DeadlineError,
    FingerprintError,
    InputError,
    ScorerError,
    ScorerOutputError,
    SpendCapError,
)
from anncur.items import Item, Query
from anncur.numbers import number, whole_number
from anncur.scorers.base import Scorer

LOG = logging.getLogger("anncur")
PREPARED_AT_ONCE = 2048  # items; enough for a tokeniser to use its threads well


@dataclass(frozen=True)
class CallRules:
    """How to call a scorer.

    `batch_size` is the most pairs in one request. A request that raises is tried again up to `retries` times, after
    `retry_wait` seconds, doubled each time and at most `max_wait`, with jitter. `max_calls` caps the pairs that the
    scorer is ever asked for, retries included: the cap on spend."""

    higher_is_better: bool = True
    batch_size: int = 128
    retries: int = 0
    retry_wait: float = 0.5
    max_wait: float = 30.0
    max_calls: int | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.higher_is_better, bool):
            raise InputError(f"higher_is_better must be True or False, got {self.higher_is_better!r}")
        least = {"batch_size": 1, "retries": 0} | ({} if self.max_calls is None else {"max_calls": 1})
        for name in least:  # kept as plain numbers, which any format can hold
            object.__setattr__(self, name, int(whole_number(name, getattr(self, name), least=least[name])))
        for name in ("retry_wait", "max_wait"):
            object.__setattr__(self, name, number(name, getattr(self, name), least=0))


class Deadline:
    """A moment after which no more requests are started."""

    def __init__(self, seconds: float, *, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._end = clock() + seconds

    @property
    def seconds_left(self) -> float:
        """Below zero once it has passed."""
        return self._end - self._clock()


class Spend:
    """Counts the pairs that a scorer was asked for, whatever rules it is seen through."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.n_pairs = 0

    def add(self, n_pairs: int, *, cap: int | None, fingerprint: str) -> None:
        """Count more pairs, unless they would exceed the cap."""
        with self._lock:
            if cap is not None and self.n_pairs + n_pairs > cap:
                raise SpendCapError(
                    f"{n_pairs} more {_pairs(n_pairs)} would exceed the cap of {cap} {_pairs(cap)} for {fingerprint} "
                    f"({self.n_pairs} {'was' if self.n_pairs == 1 else 'were'} scored); raise max_calls to continue"
                )
            self.n_pairs += n_pairs

    def __reduce__(self) -> tuple[type[Spend], tuple[()]]:
        return Spend, ()  # another process counts for itself


class GuardedScorer:
    """A scorer with its rules; safe to share between threads if the scorer is."""

    def __init__(
        self,
        scorer: Scorer,
        rules: CallRules,
        *,
        name: str = "",
        fingerprint: str | None = None,
        sleep: Callable[[float], None] = time.sleep,
        spend: Spend | None = None,
    ) -> None:
        self._scorer = scorer
        self.name = name  # to load it by again, if it has one
        self._fingerprint = fingerprint
        self._sleep = sleep
        self._jitter = random.Random()
        self._spend = spend or Spend()
        self.rules = rules

    def with_rules(self, rules: CallRules, *, fingerprint: str | None = None) -> GuardedScorer:
        """The same scorer under other rules; what it was asked for before still counts."""
        return GuardedScorer(
            self._scorer,
            rules,
            name=self.name,
            fingerprint=fingerprint or self._fingerprint,
            sleep=self._sleep,
            spend=self._spend,
        )

    @property
    def fingerprint(self) -> str:
        """Names the scorer that gives the scores."""
        return self._fingerprint or self._scorer.fingerprint

    @property
    def may_change(self) -> bool:
        """Whether the fingerprint is a mere name, under which the scorer may have become another."""
        return self._fingerprint is not None or bool(getattr(self._scorer, "is_known_by_name", False))

    @property
    def threads(self) -> int | None:
        """The threads that the scorer declares, if they change its scores."""
        threads = getattr(self._scorer, "threads", None)
        return threads if isinstance(threads, int) else None

    @property
    def calls_made(self) -> int:
        """Pairs that the scorer has been asked for, retries included."""
        return self._spend.n_pairs

    @property
    def calls_left(self) -> float:
        """Pairs that the cap on spend still allows; infinite without a cap."""
        return math.inf if self.rules.max_calls is None else self.rules.max_calls - self._spend.n_pairs

    @property
    def sign(self) -> float:
        """What our scores (higher is better) are multiplied with to give the scorer's own."""
        return 1.0 if self.rules.higher_is_better else -1.0

    def score(self, query: Query, items: Sequence[Item], *, deadline: Deadline | None = None) -> FloatVector:
        """One finite float64 per item, higher is better."""
        for attempt in range(self.rules.retries):
            try:
                return self._call(query, items)
            except (SpendCapError, FingerprintError):
                raise
            except ScorerError as failure:
                self._wait(attempt, deadline, failure)
        return self._call(query, items)

    def prepare(self, items: Sequence[Item]) -> list[bytes]:
        """What the scorer makes of items once, a value for each; empty values if it can't prepare."""
        if not callable(getattr(self._scorer, "prepare", None)):
            return [b""] * len(items)
        starts = range(0, len(items), PREPARED_AT_ONCE)
        return [value for start in starts for value in self._prepare(items[start : start + PREPARED_AT_ONCE])]

    def _prepare(self, items: Sequence[Item]) -> list[bytes]:
        with self._foreign(f"to prepare {len(items)} items"):
            values = list(self._scorer.prepare(items))  # type: ignore[attr-defined]
        if len(values) != len(items) or not all(isinstance(value, bytes) for value in values):
            kinds = ", ".join(sorted({type(value).__name__ for value in values}))
            raise ScorerOutputError(
                f"prepare(items) of the scorer {self.fingerprint} must return one bytes value per item, "
                f"got {len(values)} values ({kinds}) for {len(items)} items"
            )
        return values

    def _call(self, query: Query, items: Sequence[Item]) -> FloatVector:
        self._spend.add(len(items), cap=self.rules.max_calls, fingerprint=self.fingerprint)
        remedy = "" if self.rules.retries else "; if it fails only now and then, pass load_scorer(…, retries=3)"
        with self._foreign(f"on {len(items)} {_pairs(len(items))} of {query.marked_text!a:.60}", remedy):
            answer = self._scorer.score(query, items)
            if isinstance(answer, Iterator):
                answer = list(answer)  # here, because a generator fails only when it is asked
            return self.sign * checked_scores(answer, query, items, fingerprint=self.fingerprint)

    @contextmanager
    def _foreign(self, doing: str, remedy: str = "") -> Iterator[None]:
        """Around somebody else's code: anything may come out of it."""
        try:
            yield
        except AnncurError:
            raise
        except Exception as error:
            message = f"the scorer {self.fingerprint} failed {doing} with {type(error).__name__}: {error}{remedy}"
            raise ScorerError(message) from error

    def _wait(self, attempt: int, deadline: Deadline | None, failure: ScorerError) -> None:
        wait = min(self.rules.max_wait, self.rules.retry_wait * 2**attempt)
        wait *= self._jitter.uniform(0.5, 1.0)  # so that parallel clients don't come back in step
        if deadline is not None and wait >= deadline.seconds_left:
            raise DeadlineError("the deadline comes before the next try of the scorer") from failure
        LOG.warning("trying again in %.1f s: %s", wait, failure)
        self._sleep(wait)


def checked_scores(answer: Any, query: Query, items: Sequence[Item], *, fingerprint: str) -> FloatVector:
    """The scorer's answer as float64, or an error that names what is wrong with it."""
    problem = f"the scorer {fingerprint} must return one finite number per pair"
    try:
        scores = _as_floats(answer)
    except (TypeError, ValueError, OverflowError) as error:
        raise ScorerOutputError(f"{problem}, got {_described(answer)}: {error}") from error
    if scores.ndim == 2 and scores.shape[1] == 1:
        scores = scores[:, 0]
    if scores.ndim != 1:
        raise ScorerOutputError(
            f"{problem}, got an array of shape {scores.shape}; of a model with several outputs, pick one"
        )
    if len(scores) != len(items):
        raise ScorerOutputError(f"{problem}, got {len(scores)} numbers for {len(items)} {_pairs(len(items))}")
    if not np.isfinite(scores).all():
        where = int(np.flatnonzero(~np.isfinite(scores))[0])
        raise ScorerOutputError(
            f"{problem}, got {scores[where]} for item {items[where].id!a:.60} and query {query.marked_text!a:.60}"
        )
    return scores


def _as_floats(answer: Any) -> FloatVector:
    if hasattr(answer, "detach"):  # a torch tensor, perhaps on a GPU, perhaps bfloat16
        answer = answer.detach().cpu().double().numpy()
    elif isinstance(answer, (str, bytes, Mapping, Set)):
        raise TypeError("not a list of numbers")
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


def _pairs(n_pairs: int) -> str:
    return "pair" if n_pairs == 1 else "pairs"


def _described(answer: Any) -> str:
    shown = repr(answer)
    return f"{type(answer).__name__} {shown if len(shown) <= 80 else shown[:79] + '…'}"
