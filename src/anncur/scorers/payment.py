"""Pays for what the meters of several queries want, in as few requests as the scorer's rules allow.

Reads a guarded scorer, feeds meters. A scorer that takes pairs of several queries gets them together. Several requests
are under way at once where the rules say so. Under a deadline, a request is only as large as the scorer's pace allows
it to be. A request that fails is blamed on its query: the others' pairs are asked for without it."""

from __future__ import annotations

import functools
import math
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from itertools import chain, zip_longest
from typing import TypeAlias, TypeVar

import numpy as np

from anncur.arrays import FloatVector, Positions
from anncur.errors import (
    DeadlineError,
    FingerprintError,
    RequestTooLargeError,
    ScorerAccessError,
    ScorerError,
    SpendCapError,
)
from anncur.items import Items, Query
from anncur.scorers.base import Pair
from anncur.scorers.guard import Deadline, GuardedScorer
from anncur.scorers.meter import Meter
from anncur.waiting import BLOCKING, Job, Waiting, run

FIRST_TIMED_BATCH = 8  # pairs; small, because before it nothing is known of the scorer's pace
SHARE_OF_TIME_LEFT = 0.8  # most of the time left that a request is expected to take: estimates may be wrong
FAILURES_IN_A_ROW = 3  # queries, after which it is the scorer that fails
FATAL = (SpendCapError, FingerprintError, ScorerAccessError)  # no other query would be answered

T = TypeVar("T")
Want: TypeAlias = tuple[Meter, Positions]
Wanted: TypeAlias = tuple[Meter, int]  # one pair


async def answers(
    scorer: GuardedScorer,
    query: Query,
    items: Items,
    positions: Positions,
    waiting: Waiting,
    *,
    uses_cache: bool = True,
) -> FloatVector:
    """The exact scores of some items, higher is better, in as many requests as they take."""
    meter = Meter(query, items, budget=len(positions))
    await Payments(scorer, waiting=waiting, uses_cache=uses_cache).pay([(meter, positions)])
    if meter.failure is not None:
        raise meter.failure
    return meter.scores_of(positions)


async def answer_again(
    scorer: GuardedScorer, query: Query, items: Items, positions: Positions, waiting: Waiting
) -> FloatVector:
    """What the scorer itself gives for some items now, whatever the cache has."""
    return await answers(scorer, query, items, positions, waiting, uses_cache=False)


def score_again(scorer: GuardedScorer, query: Query, items: Items, positions: Positions) -> FloatVector:
    """The same for callers that block."""
    return run(answer_again(scorer, query, items, positions, BLOCKING))


class Payments:
    """Asks one scorer on behalf of meters, until a deadline if there is one."""

    def __init__(
        self,
        scorer: GuardedScorer,
        *,
        deadline: Deadline | None = None,
        waiting: Waiting = BLOCKING,
        uses_cache: bool = True,
    ) -> None:
        self._scorer = scorer
        self._uses_cache = uses_cache and scorer.cache is not None
        self._deadline = deadline
        self.waiting = waiting
        self._n_failed = 0  # queries in a row
        self._has_scored = False
        self._recording = threading.Lock()  # requests may be answered at once

    def check_deadline(self) -> None:
        """Refuse to continue after the deadline."""
        if self._deadline is not None:
            self._deadline.check()

    def extend_deadline(self, seconds: float) -> None:
        """Let the deadline come later, where there is one."""
        if self._deadline is not None:
            self._deadline.extend(seconds)

    def round_seconds(self, n_queries: int, n_pairs: int) -> float | None:
        """How long it takes to have `n_pairs` scored for each query, where anything is known of the pace."""
        most, n_in_all = self._scorer.most_pairs, n_queries * n_pairs
        by_query = n_queries * math.ceil(n_pairs / most)
        n_requests = math.ceil(n_in_all / most) if self._scorer.mixes_queries else by_query
        seconds = self._scorer.pace.seconds(math.ceil(n_in_all / n_requests))
        return None if seconds is None else math.ceil(n_requests / self._scorer.rules.at_once) * seconds

    def seconds_left(self) -> float:
        """Until the deadline; infinite without one."""
        return math.inf if self._deadline is None else self._deadline.seconds_left

    async def pay(self, wants: Sequence[Want]) -> None:
        """Have the meters' new positions scored. What fails for a query is its meter's `failure`; what fails for one
        query after the other goes up."""
        by_meter = [[(meter, position) for position in meter.unscored(positions)] for meter, positions in wants]
        missing = await self.waiting.compute(self._from_cache, list(chain.from_iterable(by_meter)))
        queue = deque(_in_turns(missing) if self._deadline is not None and self._scorer.mixes_queries else missing)
        if not queue:
            return
        n_requests = math.ceil(len(queue) / self._scorer.most_pairs) if self._scorer.mixes_queries else len(queue)
        at_once = min(self._scorer.rules.at_once, n_requests)
        await self.waiting.each(self._jobs(queue), at_once=at_once)

    async def pay_again(self, wants: Sequence[Want]) -> list[ScorerError | None]:
        """Have the scorer answer again to pairs that were scored, past any cache; what fails for each query."""
        again = [(Meter(meter.query, meter.items, budget=len(positions)), positions) for meter, positions in wants]
        try:
            await Payments(self._scorer, deadline=self._deadline, waiting=self.waiting, uses_cache=False).pay(again)
        finally:
            for (meter, _), (answered, _) in zip(wants, again, strict=True):
                meter.n_requests += answered.n_requests
                self._scorer.noise.observe_again(*meter.average(answered.positions, answered.exact_scores))
        return [answered.failure for answered, _ in again]

    def _from_cache(self, wanted: Sequence[Wanted]) -> list[Wanted]:
        """Record what the cache has; the others."""
        if not self._uses_cache:
            return list(wanted)
        found = list(zip(wanted, self._scorer.cached(_pairs(wanted)), strict=True))
        known = [(pair, score) for pair, score in found if score is not None]
        _record([pair for pair, _ in known], [score for _, score in known], is_cached=True)
        return [pair for pair, score in found if score is None]

    def _jobs(self, queue: deque[Wanted]) -> Iterator[Job]:
        while queue:
            n_pairs = self._request_size(len(queue))
            batch = [queue.popleft()]
            while queue and len(batch) < n_pairs and (self._scorer.mixes_queries or queue[0][0] is batch[0][0]):
                batch.append(queue.popleft())
            yield functools.partial(self._request, batch)

    def _request_size(self, n_left: int) -> int:
        """The most pairs for the next request; under a deadline as many as the scorer can answer in time."""
        most = min(n_left, self._scorer.most_pairs)
        if self._deadline is None:
            return math.ceil(n_left / math.ceil(n_left / most)) if self._scorer.rules.at_once > 1 else most
        self.check_deadline()
        first = min(most, FIRST_TIMED_BATCH)
        time_left = SHARE_OF_TIME_LEFT * self._deadline.seconds_left
        affordable = self._scorer.pace.affordable(most, time_left)
        if affordable is None or (affordable < first and not self._has_scored):
            return first
        if not affordable:
            raise DeadlineError("the deadline comes before another request would be answered")
        return affordable

    async def _request(self, batch: Sequence[Wanted]) -> None:
        batch = [(meter, position) for meter, position in batch if meter.failure is None]
        if not batch:
            return
        self.check_deadline()
        try:
            pairs = await self.waiting.compute(_pairs, batch)
            exact_scores = await self._scorer.ask(pairs, waiting=self.waiting, deadline=self._deadline)
        except RequestTooLargeError as error:
            await (self._split(batch) if len(batch) > 1 else self._blame(batch, error))
        except FATAL:
            raise
        except ScorerError as error:
            await self._blame(batch, error)
        else:
            with self._recording:
                self._n_failed, self._has_scored = 0, True
                _record(batch, exact_scores.tolist(), is_cached=False)

    async def _split(self, batch: Sequence[Wanted]) -> None:
        """Ask for both halves of a batch that was too large. Where one fails, a single pair may be to blame, and later
        requests stay as large as they are."""
        middle = len(batch) // 2
        for half in (batch[:middle], batch[middle:]):
            await self._request(half)
        if all(meter.failure is None for meter, _ in batch):
            self._scorer.ask_for_fewer(len(batch) - middle)

    async def _blame(self, batch: Sequence[Wanted], error: ScorerError) -> None:
        """Find out which query it is that fails."""
        by_meter = _by_meter(batch)
        if len(by_meter) > 1:
            for meter, positions in by_meter:
                await self._request([(meter, position) for position in positions])
            return
        with self._recording:
            meter = by_meter[0][0]
            self._n_failed += meter.failure is None
            meter.failure = error
        if self._n_failed >= FAILURES_IN_A_ROW:
            raise error


def _pairs(wanted: Sequence[Wanted]) -> list[Pair]:
    """The pairs with their items, which are taken from storage meter by meter."""
    items = {
        id(meter): iter(meter.items.take(np.array(positions, dtype=np.int64))) for meter, positions in _by_meter(wanted)
    }
    return [(meter.query, next(items[id(meter)])) for meter, _ in wanted]


def _record(wanted: Sequence[Wanted], exact_scores: Sequence[float], *, is_cached: bool) -> None:
    scored = [(meter, (position, score)) for (meter, position), score in zip(wanted, exact_scores, strict=True)]
    for meter, some in _by_meter(scored):
        positions, scores = zip(*some, strict=True)
        meter.record(list(positions), list(scores), is_cached=is_cached)


def _by_meter(rows: Sequence[tuple[Meter, T]]) -> list[tuple[Meter, list[T]]]:
    found: dict[int, tuple[Meter, list[T]]] = {}
    for meter, value in rows:
        found.setdefault(id(meter), (meter, []))[1].append(value)
    return list(found.values())


def _in_turns(wanted: Sequence[Wanted]) -> Iterator[Wanted]:
    """One of each meter, then the next of each: what a deadline cuts off, it cuts off for all alike."""
    by_meter = [[(meter, position) for position in positions] for meter, positions in _by_meter(wanted)]
    return (pair for turn in zip_longest(*by_meter) for pair in turn if pair is not None)
