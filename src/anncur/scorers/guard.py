"""Asks a scorer carefully: keeps its limits, retries, caps the spend, checks the answer, and turns it so that higher is
better.

Every request to foreign scoring code goes through `GuardedScorer.ask`. Which pairs go into a request is decided in
`payment.py`; budgets per query are the meter's business."""

from __future__ import annotations

import logging
import math
import random
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from anncur.arrays import FloatVector
from anncur.errors import (
    AnncurError,
    DeadlineError,
    FingerprintError,
    InputError,
    RequestTooLargeError,
    ScorerBusyError,
    ScorerError,
    ScorerOutputError,
    ScorerRefusedError,
    SpendCapError,
)
from anncur.items import Item, Query
from anncur.numbers import number, whole_number
from anncur.scorers.base import Pair, PairScorer, Scorer, text_pairs
from anncur.scorers.cache import ScoreCache
from anncur.scorers.noise import Noise
from anncur.scorers.pace import Pace, RateLimit, Slots
from anncur.waiting import BLOCKING, Waiting, is_async, run

LOG = logging.getLogger("anncur")
NOT_WORTH_RETRYING = (SpendCapError, FingerprintError, ScorerRefusedError, RequestTooLargeError)
PREPARED_AT_ONCE = 2048  # items; enough for a tokeniser to use its threads well


@dataclass(frozen=True)
class CallRules:
    """How to ask a scorer.

    `batch_size` is the most pairs in one request, and `concurrency` the most requests at once. A request that raises is
    tried again up to `retries` times, after `retry_wait` seconds, doubled each time and at most `max_wait`, with
    jitter, or when the scorer asks for it. `max_calls` caps the pairs that the scorer is ever asked for, retries
    included: the cap on spend. `requests_per_minute` and `pairs_per_minute` are never exceeded. A scorer
    that answers differently to the same pair is asked `repeats` times for the best items of a search."""

    higher_is_better: bool = True
    batch_size: int = 128
    retries: int = 0
    retry_wait: float = 0.5
    max_wait: float = 30.0
    max_calls: int | None = None
    concurrency: int = 1
    requests_per_minute: float | None = None
    pairs_per_minute: float | None = None
    repeats: int = 1

    def __post_init__(self) -> None:
        if not isinstance(self.higher_is_better, bool):
            raise InputError(f"higher_is_better must be True or False, got {self.higher_is_better!r}")
        least = {"batch_size": 1, "retries": 0, "max_calls": 1, "concurrency": 1, "repeats": 1}
        for name in least.keys() - self._unlimited:  # kept as plain numbers, which any format can hold
            object.__setattr__(self, name, int(whole_number(name, getattr(self, name), least=least[name])))
        lowest = {"retry_wait": 0, "max_wait": 0, "requests_per_minute": 0.01, "pairs_per_minute": 1}
        for name in lowest.keys() - self._unlimited:
            object.__setattr__(self, name, number(name, getattr(self, name), least=lowest[name]))

    @property
    def _unlimited(self) -> set[str]:
        limits = ("max_calls", "requests_per_minute", "pairs_per_minute")
        return {name for name in limits if getattr(self, name) is None}


class Deadline:
    """A moment after which no more requests are started."""

    def __init__(self, seconds: float, *, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._end = clock() + seconds

    @property
    def seconds_left(self) -> float:
        """Below zero once it has passed."""
        return self._end - self._clock()

    def check(self) -> None:
        """Refuse to continue after it."""
        if self.seconds_left <= 0:
            raise DeadlineError("the deadline has passed")

    def extend(self, seconds: float) -> None:
        """Let it come later."""
        self._end += seconds


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


class Shared:
    """What counts for a scorer, whatever rules it is seen through: spend, pace, noise, limits, how much at once."""

    def __init__(self) -> None:
        self.spend = Spend()
        self.pace = Pace()
        self.noise = Noise()
        self.slots = Slots()
        self._limits: dict[tuple[str, float], RateLimit] = {}
        self.most_pairs: float = math.inf  # in a request; fewer after one was too large

    def limit(self, name: str, per_minute: float) -> RateLimit:
        """The one limit of this kind."""
        return self._limits.setdefault((name, per_minute), RateLimit(per_minute))

    def __reduce__(self) -> tuple[type[Shared], tuple[()]]:
        return Shared, ()  # another process counts for itself


class GuardedScorer:
    """A scorer with its rules; safe to share between threads if the scorer is."""

    def __init__(
        self,
        scorer: Scorer | PairScorer,
        rules: CallRules,
        *,
        name: str = "",
        fingerprint: str | None = None,
        shared: Shared | None = None,
        cache: ScoreCache | None = None,
    ) -> None:
        self._scorer: Any = scorer
        self.name = name  # to load it by again, if it has one
        self._fingerprint = fingerprint
        self._jitter = random.Random()
        self._shared = shared or Shared()
        self.cache = cache
        self.rules = rules

    def with_rules(
        self, rules: CallRules, *, fingerprint: str | None = None, cache: ScoreCache | None = None
    ) -> GuardedScorer:
        """The same scorer under other rules; what it was asked for before still counts."""
        return GuardedScorer(
            self._scorer,
            rules,
            name=self.name,
            fingerprint=fingerprint or self._fingerprint,
            shared=self._shared,
            cache=self.cache if cache is None else cache,
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
        return self._shared.spend.n_pairs

    @property
    def calls_left(self) -> float:
        """Pairs that the cap on spend still allows; infinite without a cap."""
        return math.inf if self.rules.max_calls is None else self.rules.max_calls - self._shared.spend.n_pairs

    @property
    def sign(self) -> float:
        """What our scores (higher is better) are multiplied with to give the scorer's own."""
        return 1.0 if self.rules.higher_is_better else -1.0

    @property
    def cache_path(self) -> Path | None:
        """Of the cache of its scores, if it has one."""
        return None if self.cache is None else self.cache.path

    @property
    def spent(self) -> dict[str, float]:
        """What an endpoint has billed, in its own units; empty where it tells nothing."""
        return dict(getattr(self._scorer, "spent", {}))

    @property
    def pace(self) -> Pace:
        """How fast it answers."""
        return self._shared.pace

    @property
    def noise(self) -> Noise:
        """How much its answers to the same pair differ."""
        return self._shared.noise

    @property
    def most_pairs(self) -> int:
        """The most pairs for one request, at least one."""
        most = min(self.rules.batch_size, self._shared.most_pairs, self.calls_left)
        return max(1, int(most if self.rules.pairs_per_minute is None else min(most, self.rules.pairs_per_minute)))

    def ask_for_fewer(self, n_pairs: int) -> None:
        """Let later requests hold no more pairs than this: larger ones were refused."""
        self._shared.most_pairs = min(self._shared.most_pairs, n_pairs)

    @property
    def mixes_queries(self) -> bool:
        """Whether a request may hold pairs of several queries."""
        return callable(getattr(self._scorer, "score_pairs", None))

    def score(self, query: Query, items: Sequence[Item], *, deadline: Deadline | None = None) -> FloatVector:
        """One finite float64 per item, higher is better."""
        return run(self.ask([(query, item) for item in items], waiting=BLOCKING, deadline=deadline))

    async def ask(self, pairs: Sequence[Pair], *, waiting: Waiting, deadline: Deadline | None = None) -> FloatVector:
        """The exact scores of the pairs of one request: a finite float64 each, higher is better."""
        for attempt in range(self.rules.retries):
            try:
                return await self._request(pairs, waiting, deadline)
            except NOT_WORTH_RETRYING:
                raise
            except ScorerError as failure:
                await self._wait(attempt, failure, waiting, deadline)
        return await self._request(pairs, waiting, deadline)

    def cached(self, pairs: Sequence[Pair]) -> list[float | None]:
        """The exact scores that the cache has, higher is better."""
        if self.cache is None or not pairs:
            return [None] * len(pairs)
        found = self.cache.get(self.fingerprint, text_pairs(pairs))
        return [None if score is None else self.sign * score for score in found]

    def prepare(self, items: Sequence[Item]) -> list[bytes]:
        """What the scorer makes of items once, a value for each; empty values if it can't prepare."""
        if not callable(getattr(self._scorer, "prepare", None)):
            return [b""] * len(items)
        starts = range(0, len(items), PREPARED_AT_ONCE)
        return [value for start in starts for value in self._prepare(items[start : start + PREPARED_AT_ONCE])]

    def _prepare(self, items: Sequence[Item]) -> list[bytes]:
        with self._foreign(f"to prepare {len(items)} items"):
            values = list(self._scorer.prepare(items))
        if len(values) != len(items) or not all(isinstance(value, bytes) for value in values):
            kinds = ", ".join(sorted({type(value).__name__ for value in values}))
            raise ScorerOutputError(
                f"prepare(items) of the scorer {self.fingerprint} must return one bytes value per item, "
                f"got {len(values)} values ({kinds}) for {len(items)} items"
            )
        return values

    async def _request(self, pairs: Sequence[Pair], waiting: Waiting, deadline: Deadline | None) -> FloatVector:
        remedy = "" if self.rules.retries else "; if it fails only now and then, pass load_scorer(…, retries=3)"
        check = (lambda: None) if deadline is None else deadline.check
        async with self._shared.slots.taken(self._most_at_once(waiting), waiting, check):
            await self._keep_to_limits(len(pairs), waiting, deadline)
            self._shared.spend.add(len(pairs), cap=self.rules.max_calls, fingerprint=self.fingerprint)
            started = time.perf_counter()
            with self._foreign(f"on {_described_pairs(pairs)}", remedy):
                answer = await waiting.call(*self._asking(pairs))
                if isinstance(answer, Iterator):
                    answer = list(answer)  # here, because a generator fails only when it is asked
                found = checked_scores(answer, pairs, fingerprint=self.fingerprint)
            self._shared.pace.observe(len(pairs), time.perf_counter() - started)
        self._shared.noise.observe(found)
        if self.cache is not None:
            await waiting.finish(self.cache.put, self.fingerprint, text_pairs(pairs), found.tolist())
        return self.sign * found

    def _asking(self, pairs: Sequence[Pair]) -> tuple[Any, ...]:
        """The function to call, and its arguments."""
        if self.mixes_queries:
            return self._scorer.score_pairs, list(pairs)
        return self._scorer.score, pairs[0][0], [item for _, item in pairs]

    def _most_at_once(self, waiting: Waiting) -> float:
        """Requests under way. Whoever blocks has threads of his own if he wants several at once; a scorer that blocks
        while others await may not be made for threads."""
        if self.rules.concurrency > 1:
            return self.rules.concurrency
        function = self._scorer.score_pairs if self.mixes_queries else self._scorer.score
        is_alone = waiting is not BLOCKING and not is_async(getattr(self._scorer, "asked", function))
        return 1 if is_alone else math.inf

    async def _keep_to_limits(self, n_pairs: int, waiting: Waiting, deadline: Deadline | None) -> None:
        for name, n_passing in (("requests_per_minute", 1), ("pairs_per_minute", n_pairs)):
            if (most := getattr(self.rules, name)) is not None:
                left = math.inf if deadline is None else deadline.seconds_left
                seconds = self._shared.limit(name, most).wait(n_passing, at_most=left)
                if seconds is None:
                    raise DeadlineError(f"the deadline comes before {name} allows another request")
                if seconds > 0:
                    await waiting.sleep(seconds)

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

    async def _wait(self, attempt: int, failure: ScorerError, waiting: Waiting, deadline: Deadline | None) -> None:
        asked = failure.retry_after if isinstance(failure, ScorerBusyError) else None
        backoff = min(self.rules.max_wait, self.rules.retry_wait * 2**attempt)
        backoff *= self._jitter.uniform(0.5, 1.0)  # so that parallel clients don't come back in step
        LOG.warning("trying again in %.1f s: %s", wait := max(backoff, asked or 0.0), failure)
        if deadline is not None and wait >= deadline.seconds_left:
            raise DeadlineError("the deadline comes before the next try of the scorer") from failure
        await waiting.sleep(wait)


def checked_scores(answer: Any, pairs: Sequence[Pair], *, fingerprint: str) -> FloatVector:
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
    if len(scores) != len(pairs):
        raise ScorerOutputError(f"{problem}, got {len(scores)} numbers for {len(pairs)} {_pairs(len(pairs))}")
    if not np.isfinite(scores).all():
        where = int(np.flatnonzero(~np.isfinite(scores))[0])
        query, item = pairs[where]
        raise ScorerOutputError(
            f"{problem}, got {scores[where]} for item {item.id!a:.60} and query {query.marked_text!a:.60}"
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


def _described_pairs(pairs: Sequence[Pair]) -> str:
    texts = {query.marked_text for query, _ in pairs}
    of = f"{texts.pop()!a:.60}" if len(texts) == 1 else f"{len(texts)} queries"
    return f"{len(pairs)} {_pairs(len(pairs))} of {of}"


def _described(answer: Any) -> str:
    shown = repr(answer)
    return f"{type(answer).__name__} {shown if len(shown) <= 80 else shown[:79] + '…'}"
