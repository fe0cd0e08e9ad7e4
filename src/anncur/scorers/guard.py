"""Asks a scorer carefully: keeps its limits, retries, caps the spend, checks the answer, and turns it so that higher is
better.

Every request to foreign scoring code goes through `GuardedScorer.ask`. Which pairs go into a request is decided in
`payment.py`; budgets per query are the meter's business."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, SupportsIndex

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
    TextTooLongError,
)
from anncur.items import Item, Query
from anncur.scorers.answers import checked_scores, described_pairs
from anncur.scorers.base import Pair, PairScorer, Scorer
from anncur.scorers.cache import ScoreCache
from anncur.scorers.collector import Order, Room
from anncur.scorers.limits import Shared
from anncur.scorers.noise import Noise
from anncur.scorers.pace import Deadline, Pace
from anncur.scorers.rules import CallRules
from anncur.tracing import span
from anncur.waiting import BLOCKING, Waiting, is_async, run

LOG = logging.getLogger("anncur")
NOT_WORTH_RETRYING = (SpendCapError, FingerprintError, ScorerRefusedError, RequestTooLargeError)
LONGEST_ASKED = 600.0  # seconds that a scorer may ask to wait before the next try
PREPARED_AT_ONCE = 2048  # items; enough for a tokeniser to use its threads well


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
        load_again: Callable[[], GuardedScorer] | None = None,
    ) -> None:
        self._scorer: Any = scorer
        self.name = name  # to load it by again, if it has one
        self._fingerprint = fingerprint
        self._shared = shared or Shared()
        self.cache = cache
        if cache is not None:
            _check_name(self.fingerprint)
        self.rules = rules
        self._load_again = load_again  # by its name, in another process

    def __reduce_ex__(self, protocol: SupportsIndex) -> str | tuple[Any, ...]:
        if self._load_again is None:
            return super().__reduce_ex__(protocol)
        return _loaded_again, (self._load_again, self.rules, self._fingerprint, self.cache)

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
            load_again=self._load_again,
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

    def count(self, n_pairs: int) -> None:
        """Count pairs that other processes have asked it for."""
        self._shared.spend.add(n_pairs, cap=None, fingerprint=self.fingerprint)

    @property
    def calls_left(self) -> float:
        """Pairs that the cap on spend still allows; infinite without a cap."""
        return math.inf if self.rules.max_calls is None else self.rules.max_calls - self._shared.spend.n_pairs

    @property
    def sign(self) -> float:
        """What our scores (higher is better) are multiplied with to give the scorer's own."""
        return 1.0 if self.rules.higher_is_better else -1.0

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
        if self.rules.shares_requests and self.mixes_queries:
            order = Order(pairs, deadline)
            room = Room(self.most_pairs, self.rules.at_once, self.pace)
            return await self._shared.collector.ask(order, self._ask_alone, room=room, waiting=waiting)
        return await self._ask_alone(pairs, waiting, deadline)

    async def _ask_alone(self, pairs: Sequence[Pair], waiting: Waiting, deadline: Deadline | None) -> FloatVector:
        try:
            return await self._ask(pairs, waiting, deadline)
        except TextTooLongError:
            if deadline is not None:
                deadline.check()
            return await self._ask(pairs, waiting, deadline)

    async def _ask(self, pairs: Sequence[Pair], waiting: Waiting, deadline: Deadline | None) -> FloatVector:
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
        found = self.cache.get(self.fingerprint, _keys(pairs))
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
        remedy = "" if self.rules.retries else "; if it fails only now and then, allow retries, such as 3"
        async with self._shared.slots.taken(self._most_at_once(waiting), waiting, at_most=_seconds_left(deadline)):
            passing = self.rules.passing(len(pairs))
            await self._shared.limits.keep(passing, waiting, at_most=_seconds_left(deadline))
            self._shared.spend.add(len(pairs), cap=self.rules.max_calls, fingerprint=self.fingerprint)
            started = time.perf_counter()
            asking = span("anncur.scorer_request", **{"anncur.pairs": len(pairs)})
            with asking, self._foreign(f"on {described_pairs(pairs)}", remedy):
                answer = await waiting.call(*self._asking(pairs))
                if isinstance(answer, Iterator):
                    answer = list(answer)  # here, because a generator fails only when it is asked
                found = checked_scores(answer, pairs, fingerprint=self.fingerprint)
            self._shared.pace.observe(len(pairs), time.perf_counter() - started)
        self._shared.noise.observe(found)
        if self.cache is not None:
            await waiting.finish(self.cache.put, self.fingerprint, _keys(pairs), found.tolist())
        return self.sign * found

    def _asking(self, pairs: Sequence[Pair]) -> tuple[Any, ...]:
        """The function to call, and its arguments."""
        if self.mixes_queries:
            return self._scorer.score_pairs, list(pairs)
        return self._scorer.score, pairs[0][0], [item for _, item in pairs]

    def _most_at_once(self, waiting: Waiting) -> float:
        """Requests under way. Whoever blocks has threads of his own if he wants several at once; a scorer that blocks
        while others await may not be made for threads."""
        if self.rules.concurrency is not None:
            return self.rules.concurrency
        function = self._scorer.score_pairs if self.mixes_queries else self._scorer.score
        is_alone = waiting is not BLOCKING and not is_async(getattr(self._scorer, "asked", function))
        return 1 if is_alone else math.inf

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
        asked = (failure.retry_after if isinstance(failure, ScorerBusyError) else None) or 0.0
        seconds = max(self.rules.backoff(attempt), asked)
        if deadline is not None and seconds >= deadline.seconds_left:
            raise DeadlineError("the deadline comes before the next try of the scorer") from failure
        if asked > LONGEST_ASKED:
            raise ScorerBusyError(
                f"{failure}; it asks to wait {asked:g} s, and no more than {LONGEST_ASKED:g} s are waited for: run the "
                "same again then",
                retry_after=asked,
            ) from failure
        LOG.warning("trying again in %.1f s: %s", seconds, failure)
        await waiting.sleep(seconds)


def _check_name(fingerprint: str) -> None:
    """Refuse to cache scores by a name that other scorers may have too: their scores would be taken for this one's."""
    if fingerprint.startswith("__main__:") or "<lambda>" in fingerprint or "<locals>" in fingerprint:
        raise InputError(
            f"a cache keeps scores by the scorer's fingerprint, and {fingerprint} may be that of any script's scorer; "
            "pass load_scorer(scorer, fingerprint='my-scorer-v1', cache=…), or define the scorer in a module"
        )


def _loaded_again(
    load: Callable[[], GuardedScorer], rules: CallRules, fingerprint: str | None, cache: ScoreCache | None
) -> GuardedScorer:
    """What a pickled scorer becomes that has a name."""
    return load().with_rules(rules, fingerprint=fingerprint, cache=cache)


def _keys(pairs: Sequence[Pair]) -> list[tuple[str, str]]:
    """What tells pairs apart, for a cache: a scorer may read a mention otherwise than brackets in a text."""
    return [(query.key, item.full_text) for query, item in pairs]


def _seconds_left(deadline: Deadline | None) -> float:
    return math.inf if deadline is None else deadline.seconds_left
