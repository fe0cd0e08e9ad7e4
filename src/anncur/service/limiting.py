"""How many searches may run at once so that those who are let in stay quick.

Pure arithmetic over times that `admission.py` passes in: no clock, nobody waits here. A service is in one of three
states:

    calm ──► doubt: somebody must wait; in a moment it shows why
      ▲        ├──► open: a few clients, each with one request at a time: all places are theirs
      │        └──► pressed: requests outpace answers, or were refused
      └── when it has been quiet for a while

Pressed, a high quantile of the time of searches, waiting included, is compared with the same quantile of searches
alone, and the number of places shrinks by a factor or grows by one, so that the slowdown stays within a bound."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum, auto

HEADROOM = 0.8  # share of the bound that is aimed at: the slowest percent is slower than the quantile that is watched
WAITING_HEADROOM = 0.65  # the same for those who would wait, so that waiting takes no places away
N_WATCHED = 20  # latest searches that decide about the number of places
N_LATE = 2  # of these, from which on places are too many
N_REMEMBERED = 64  # times of searches alone, of each kind
HIGH_QUANTILE = 0.9
FIRST_PLACES = 2  # before anything is known of how searches slow each other down
SHORTEST_DOUBT, LONGEST_DOUBT = 0.02, 1.0  # seconds, of which a doubt takes two times as many
OUTPACED = 2.0  # requests that come for each that is answered, from which on it is no set of a few clients
OPEN_SECONDS, PRESSED_SECONDS = 0.5, 3.0  # of quiet, after which it is calm again
MOST_PREDICTED = 0.9  # share of the bound up to which another place is tried
FIRST_RETRY = 30.0  # seconds until a number of places is tried again that was too many, doubled each time
MOST_FAILED = 5  # times that it is doubled


@dataclass(frozen=True)
class Work:
    """What a request asks for: pairs, in a search of some kind. Those of one kind and size take about the same time."""

    kind: tuple[object, ...]
    n_pairs: int

    @property
    def size(self) -> int:
        """The power of two above the pairs."""
        return self.n_pairs.bit_length()


@dataclass(frozen=True)
class Finished:
    """A search that was answered: when it came, how long it waited and ran, and how many ran then, on average."""

    work: Work
    came: float
    waited: float
    ran: float
    n_running: float
    was_alone: bool


class State(Enum):
    """What a service is going through."""

    CALM = auto()
    OPEN = auto()
    PRESSED = auto()


@dataclass
class Doubt:
    """Somebody waits: what has come and gone since then, and how many were there half-way."""

    seconds: float  # half of what it takes
    due: float  # when to look at it
    n_came: int = 0
    n_left: int = 0
    n_half_way: int | None = None


@dataclass
class AloneTimes:
    """What searches take that run alone, by kind and size."""

    _times: dict[tuple[object, ...], dict[int, deque[float]]] = field(default_factory=dict)

    def add(self, work: Work, seconds: float) -> None:
        """Remember one."""
        sizes = self._times.setdefault(work.kind, {})
        sizes.setdefault(work.size, deque(maxlen=N_REMEMBERED)).append(seconds)

    def quantile(self, work: Work, share: float) -> float | None:
        """A quantile for such work; from the nearest size where this one is new, and None for a new kind."""
        sizes = self._times.get(work.kind)
        if not sizes:
            return None
        size = min(sizes, key=lambda known: abs(known - work.size))
        return quantile(sizes[size], share) * 2.0 ** (work.size - size)


class SlowdownLimit:
    """Decides how many run, who may wait, and when it is too much: `max_slowdown` is how many times longer than alone
    a search may take while requests press.

    While they don't, up to `max_running` run and `max_waiting` wait; who comes as more than a few waits for a moment,
    until it shows whether that will stay so."""

    def __init__(self, max_running: int, max_waiting: int, max_slowdown: float) -> None:
        self.max_running = max_running
        self.max_waiting = max_waiting
        self.max_slowdown = max_slowdown
        self.state = State.CALM
        self.limit = min(FIRST_PLACES, max_running)  # places that keep searches within the bound, as far as is known
        self._alone = AloneTimes()
        self._was_set = False
        self._watched: deque[float] = deque(maxlen=N_WATCHED)  # slowdowns with this number of places
        self._latest: deque[float] = deque(maxlen=N_WATCHED)  # slowdowns of whatever was answered, without waiting
        self._watched_since = -math.inf
        self._busy_at = self._refused_at = -math.inf
        self._too_many, self._n_failed, self._retry_at = max_running + 1, 0, -math.inf
        self._doubt: Doubt | None = None

    @property
    def places(self) -> int:
        """How many may run now."""
        return self.max_running if self.state is State.OPEN or self._knows_nothing else self.limit

    @property
    def is_pressed(self) -> bool:
        """Whether requests are more than can be answered within the bound."""
        return self.state is State.PRESSED

    @property
    def serves_newest_first(self) -> bool:
        """In doubt, so that those who can still be answered in time are, while the others wait for what it shows."""
        return self._doubt is not None

    @property
    def due(self) -> float | None:
        """When to look again, even if nobody comes or leaves."""
        return None if self._doubt is None else self._doubt.due

    @property
    def slowdown(self) -> float:
        """A high quantile of how many times longer than alone the latest searches took, waiting aside; 0 if unknown."""
        return quantile(self._latest, HIGH_QUANTILE) if self._latest else 0.0

    def come(self, now: float, n_here: int, *, is_waiting: bool) -> None:
        """A request has come; `n_here` others run or wait."""
        self.look(now, n_here, is_waiting=is_waiting)
        if self._doubt is not None:
            self._doubt.n_came += 1

    def may_wait(self, work: Work, *, waited: float, n_before: int, n_here: int) -> bool:
        """Whether a request may wait, or go on waiting, behind `n_before` others: pressed, only if it will probably be
        answered within the bound."""
        if not self.is_pressed:
            return n_here < self.max_running + self.max_waiting
        alone, high = self._alone.quantile(work, 0.5), self._alone.quantile(work, HIGH_QUANTILE)
        if alone is None or high is None or n_before >= self.max_waiting:
            return False
        ran = alone * (quantile(self._latest, 0.5) if self._latest else 1.0)
        return waited + ran * (n_before + 1) / self.limit + ran <= WAITING_HEADROOM * self.max_slowdown * high

    def wait(self, now: float, work: Work) -> None:
        """A request waits."""
        if self.state is State.CALM and self._doubt is None:
            alone = self._alone.quantile(work, 0.5) or LONGEST_DOUBT
            seconds = min(max(alone, SHORTEST_DOUBT), LONGEST_DOUBT)
            self._doubt = Doubt(seconds, now + seconds)

    def refuse(self, now: float) -> None:
        """A request was refused."""
        self._refused_at = now
        self._press(now)

    def leave(self) -> None:
        """A place is free, whatever came of it."""
        if self._doubt is not None:
            self._doubt.n_left += 1

    def finish(self, now: float, done: Finished) -> None:
        """A search was answered: learn from it."""
        if done.was_alone:
            self._alone.add(done.work, done.ran)
        alone, high = self._alone.quantile(done.work, 0.5), self._alone.quantile(done.work, HIGH_QUANTILE)
        if alone and high:
            self._latest.append(done.ran / alone)
        if self.is_pressed and done.came >= self._watched_since:
            # as long as nothing is known, searches are taken to slow each other down in full
            self._judge(now, (done.waited + done.ran) / high if high else done.n_running)

    def look(self, now: float, n_here: int, *, is_waiting: bool) -> None:
        """See what the state is now; `n_here` run or wait."""
        if n_here > self.limit:
            self._busy_at = now
        if (self.state is State.OPEN and now - self._busy_at >= OPEN_SECONDS) or (
            self.state is State.PRESSED and now - self._refused_at >= PRESSED_SECONDS
        ):
            self.state = State.CALM
        elif self._doubt is not None and not is_waiting:
            self._doubt = None
        elif self._doubt is not None and now >= self._doubt.due:
            self._settle(now, self._doubt, n_here)

    def _settle(self, now: float, doubt: Doubt, n_here: int) -> None:
        """A few clients send the next request when one is answered; whoever is outpaced by others has more and more."""
        if doubt.n_half_way is None:
            doubt.n_half_way, doubt.due = n_here, now + doubt.seconds
        elif n_here > doubt.n_half_way and doubt.n_came >= OUTPACED * max(1, doubt.n_left):
            if n_here > self.max_running:
                self._refused_at = now
                self._press(now)
            else:  # as many clients as there are places may come one after the other
                self._doubt = Doubt(doubt.seconds, now + doubt.seconds, n_half_way=n_here)
        else:
            self._doubt, self.state, self._busy_at = None, State.OPEN, now

    def _press(self, now: float) -> None:
        if not self.is_pressed:
            self.state, self._doubt = State.PRESSED, None
            self._set_limit(now, self.limit)

    def _judge(self, now: float, slowdown: float) -> None:
        """Fewer places as soon as too many searches are late, one more when all have been quick for a while."""
        self._watched.append(slowdown)
        limit, high = self.limit, sorted(self._watched)[-N_LATE:][0]
        if sum(each > self._target for each in self._watched) >= N_LATE:
            self._shrink(now, max(0.5, self._target / high))
        elif len(self._watched) == N_WATCHED and self._may_grow(now, high):
            if limit >= self._too_many:
                self._n_failed = 0
            self._set_limit(now, limit + 1)

    def _shrink(self, now: float, factor: float) -> None:
        limit = self.limit
        if limit > 1:
            self._too_many, self._retry_at = limit, now + FIRST_RETRY * 2**self._n_failed
            self._n_failed = min(self._n_failed + 1, MOST_FAILED)
        self._set_limit(now, max(1, min(limit - 1, int(factor * limit))))

    def _may_grow(self, now: float, slowdown: float) -> bool:
        """Whether another place is worth trying: not soon after it was too many, nor where the bound is near."""
        limit = self.limit
        if limit >= self.max_running or (limit + 1 >= self._too_many and now < self._retry_at):
            return False
        predicted = 1 + (slowdown - 1) * limit / (limit - 1) if limit > 1 else slowdown
        return predicted <= MOST_PREDICTED * self.max_slowdown

    def _set_limit(self, now: float, limit: int) -> None:
        self.limit, self._watched_since, self._was_set = limit, now, True
        self._watched.clear()

    @property
    def _target(self) -> float:
        return max(1.0, HEADROOM * self.max_slowdown)

    @property
    def _knows_nothing(self) -> bool:
        return not self._was_set and not self._latest


def quantile(values: Iterable[float], share: float) -> float:
    """A quantile, the lower of two where it falls between them; there must be some values."""
    found = sorted(values)
    return found[int(share * (len(found) - 1))]
