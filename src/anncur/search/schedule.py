"""How many rounds a search takes: as many as serve recall, as few as the scorer's latency demands.

Reads how long a round of pairs takes; feeds methods, which ask before each round. Where nothing is known of the scorer
yet, a method has the rounds that it wants."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

LEAST_ROUNDS = 3  # unless the user or a deadline allows fewer: below, recall falls by points
SLOWDOWN = 3.0  # times as long as one round of all pairs: what more rounds may cost
NEGLIGIBLE = 0.1  # seconds that more rounds may always cost each query
CONSIDERED = range(40, 1, -1)  # numbers of rounds
UNLIMITED = 2**31


def _unknown(n_pairs: int) -> float | None:
    return None


def _no_hurry() -> float:
    return math.inf


@dataclass(frozen=True)
class Schedule:
    """What limits the rounds of a block of `n_queries`.

    `round_seconds` tells how long a round of n pairs for each query takes, where it is known, and `seconds_left` the
    time until the deadline."""

    n_queries: int = 1
    max_rounds: int | None = None
    round_seconds: Callable[[int], float | None] = _unknown
    seconds_left: Callable[[], float] = _no_hurry

    def n_pairs(self, wanted: int, *, n_scored: int, n_rounds: int, budget: int) -> int:
        """The size of the next round: as wanted, unless that would make too many rounds of what is left."""
        n_left = budget - n_scored
        return min(n_left, max(wanted, math.ceil(n_left / self._rounds_left(n_left, n_rounds, budget))))

    def at_most(self, n_rounds: int) -> int:
        """As many rounds as a method wants, but no more than the user allows."""
        return n_rounds if self.max_rounds is None else min(n_rounds, self.max_rounds)

    def _rounds_left(self, n_left: int, n_rounds: int, budget: int) -> int:
        at_once = self.round_seconds(budget)
        most = self._most_rounds(at_once, budget) - n_rounds
        if at_once is not None:
            most = min(most, self._within(self.seconds_left(), n_left))
        return max(1, most)

    def _most_rounds(self, at_once: float | None, budget: int) -> int:
        """As the user has it, else as many as take little more time than all pairs at once."""
        if self.max_rounds is not None:
            return self.max_rounds
        if at_once is None:
            return UNLIMITED
        patience = max(SLOWDOWN * at_once, at_once + NEGLIGIBLE * self.n_queries)
        return max(LEAST_ROUNDS, self._within(patience, budget))

    def _within(self, seconds: float, n_pairs: int) -> int:
        """The most rounds for `n_pairs` that take no longer than this; at least one."""
        if self._seconds(CONSIDERED[0], n_pairs) <= seconds:
            return UNLIMITED
        return next((n for n in CONSIDERED if self._seconds(n, n_pairs) <= seconds), 1)

    def _seconds(self, n_rounds: int, n_pairs: int) -> float:
        return n_rounds * (self.round_seconds(math.ceil(n_pairs / n_rounds)) or 0.0)
