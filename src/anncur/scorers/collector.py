"""Continuous batching: searches that run at the same time share requests to their scorer.

Whoever asks while a request is under way waits in a queue; when it is answered, one of those who wait sends the next
request, with all their pairs that go into it. So one search alone never waits, and many fill requests by themselves.
Kept by `limits.py` for all who ask a scorer, used by `guard.py`. Nobody's deadline is risked by another's pairs, and
where a shared request fails, each asks alone: an error is never another query's."""

from __future__ import annotations

import copy
import math
import os
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import TypeAlias

from anncur.arrays import FloatVector
from anncur.errors import AnncurError, DeadlineError, FingerprintError, ScorerAccessError, ScorerBusyError
from anncur.scorers.base import Pair
from anncur.scorers.pace import Deadline, Pace
from anncur.waiting import Signal, Waiting

SHARE_OF_TIME_LEFT = 0.8  # most of the time left that a request with others' pairs is expected to take
EVERYBODYS = (FingerprintError, ScorerAccessError, ScorerBusyError)  # errors that each would meet alone too

Send: TypeAlias = Callable[[Sequence[Pair], Waiting, Deadline | None], Awaitable[FloatVector]]


class State(Enum):
    """Where an order is."""

    WAITING = auto()  # in the queue
    TAKEN = auto()  # in somebody's request
    LEADING = auto()  # it sends the next request
    DONE = auto()


class Order:
    """The pairs that one search wants scored now, until when, and what came of it."""

    def __init__(self, pairs: Sequence[Pair], deadline: Deadline | None) -> None:
        self.pairs = pairs
        self.deadline = deadline
        self.state = State.WAITING
        self.is_alone = False  # after a shared request failed
        self.turn = Signal()  # it leads, or is done
        self.exact_scores: FloatVector | None = None
        self.error: AnncurError | None = None

    @property
    def seconds_left(self) -> float:
        return math.inf if self.deadline is None else self.deadline.seconds_left


@dataclass(frozen=True)
class Room:
    """What goes into a request, and how many of them at once."""

    most_pairs: int
    at_once: int
    pace: Pace

    def holds(self, batch: Sequence[Order], another: Order) -> bool:
        """Whether another order's pairs go into a request without risk for anybody's deadline."""
        n_pairs = sum(len(order.pairs) for order in batch) + len(another.pairs)
        if n_pairs > self.most_pairs:
            return False
        seconds_left = min(order.seconds_left for order in (*batch, another))
        return seconds_left == math.inf or (self.pace.seconds(n_pairs) or 0.0) <= SHARE_OF_TIME_LEFT * seconds_left


class Collector:
    """Gathers what searches ask for into shared requests. Thread-safe, for callers that block and that await."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pid = os.getpid()
        self._queue: deque[Order] = deque()
        self._n_leading = 0

    async def ask(self, order: Order, send: Send, *, room: Room, waiting: Waiting) -> FloatVector:
        """The exact scores of an order's pairs."""
        self._enter(order, room)
        try:
            await self._wait(order, waiting)
            while order.state is State.LEADING:
                await self._lead(order, send, room, waiting)
        except BaseException:
            self._withdraw(order, room)
            raise
        if order.error is not None:
            raise order.error
        assert order.exact_scores is not None, "done, and without an error"
        return order.exact_scores

    def _enter(self, order: Order, room: Room) -> None:
        with self._lock:
            if self._pid != os.getpid():  # orders of the process before a fork are not ours
                self._pid, self._queue, self._n_leading = os.getpid(), deque(), 0
            self._queue.append(order)
            self._promote(room)

    async def _wait(self, order: Order, waiting: Waiting) -> None:
        """Until it leads or is done. The deadline is for the beginning of a request: one under way is waited for."""
        if not order.turn.is_given:
            await waiting.wait(order.turn, max(0.0, order.seconds_left))
        with self._lock:
            if order.state is State.WAITING:
                raise DeadlineError("the deadline comes before the end of the requests that are under way")
        if not order.turn.is_given:
            await waiting.wait(order.turn, math.inf)

    async def _lead(self, order: Order, send: Send, room: Room, waiting: Waiting) -> None:
        """Send a request for an order and whoever waits with it."""
        batch = self._take(order, room)
        pairs = [pair for one in batch for pair in one.pairs]
        earliest = min(batch, key=lambda one: one.seconds_left).deadline
        try:
            exact_scores = await send(pairs, waiting, earliest)
        except AnncurError as error:
            if len(batch) == 1 or isinstance(error, EVERYBODYS):
                self._fail(batch, error)
            else:
                self._put_back(batch[1:], are_alone=True)
                order.is_alone = True
                return
        except BaseException:  # whoever leads was cancelled, or something of ours failed: the others go on without it
            self._put_back(batch[1:], are_alone=False)
            raise
        else:
            self._deliver(batch, exact_scores)
        self._step_down(room)

    def _take(self, leader: Order, room: Room) -> list[Order]:
        batch = [leader]
        with self._lock:
            for order in list(self._queue) if not leader.is_alone else ():
                if not order.is_alone and room.holds(batch, order):
                    self._queue.remove(order)
                    order.state = State.TAKEN
                    batch.append(order)
        return batch

    def _deliver(self, batch: Sequence[Order], exact_scores: FloatVector) -> None:
        start = 0
        for order in batch:
            order.exact_scores = exact_scores[start : start + len(order.pairs)]
            start += len(order.pairs)
            self._finish(order)

    def _fail(self, batch: Sequence[Order], error: AnncurError) -> None:
        for order in batch:
            order.error = error if len(batch) == 1 else _copied(error)  # which holds what its own search has paid for
            self._finish(order)

    def _finish(self, order: Order) -> None:
        with self._lock:
            order.state = State.DONE
        order.turn.give()

    def _put_back(self, orders: Sequence[Order], *, are_alone: bool) -> None:
        with self._lock:
            for order in reversed(orders):
                if order.state is State.TAKEN:  # else its search was cancelled
                    order.state, order.is_alone = State.WAITING, order.is_alone or are_alone
                    self._queue.appendleft(order)

    def _withdraw(self, order: Order, room: Room) -> None:
        """Leave, at any moment; others take over what it led."""
        with self._lock:
            if order.state is State.WAITING:
                self._queue.remove(order)
            was_leading, order.state = order.state is State.LEADING, State.DONE
        if was_leading:
            self._step_down(room)

    def _step_down(self, room: Room) -> None:
        with self._lock:
            self._n_leading -= 1
            self._promote(room)

    def _promote(self, room: Room) -> None:
        """Let those lead who have waited longest, while there is room for requests."""
        while self._queue and self._n_leading < room.at_once:
            order = self._queue.popleft()
            order.state = State.LEADING
            self._n_leading += 1
            order.turn.give()


def _copied(error: AnncurError) -> AnncurError:
    found = copy.copy(error)
    found.__cause__ = error
    return found
