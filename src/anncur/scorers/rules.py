"""How to ask a scorer: the rules that a user sets, as one value.

Read by `guard.py`, which keeps them, and by `payment.py`, which sizes requests by them. Asks nothing itself."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from typing import Any

from anncur.errors import InputError
from anncur.numbers import number, whole_number
from anncur.scorers.limits import Passing

JITTER = random.SystemRandom()  # without a state that forks or pickled copies would share, or a user has seeded


@dataclass(frozen=True)
class CallRules:
    """How to ask a scorer.

    `batch_size` is the most pairs in one request, and `concurrency` the most requests at once in all searches of the
    process; where it is None, there is one in each search. A request that raises is tried again up to `retries` times,
    after `retry_wait` seconds, doubled each time and at most `max_wait`, with jitter, or when the scorer asks for it.
    `max_calls` caps the pairs that the scorer is ever asked for, retries included: the cap on spend.
    `requests_per_minute` and `pairs_per_minute` are never exceeded. A scorer that answers differently to the same pair
    is asked `repeats` times for the best items of a search. With `shares_requests`, pairs of all searches of the
    process go into one request where the scorer takes them: those that come in while others are under way."""

    higher_is_better: bool = True
    batch_size: int = 128
    retries: int = 0
    retry_wait: float = 0.5
    max_wait: float = 30.0
    max_calls: int | None = None
    concurrency: int | None = None
    requests_per_minute: float | None = None
    pairs_per_minute: float | None = None
    repeats: int = 1
    shares_requests: bool = False

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
        limits = ("max_calls", "concurrency", "requests_per_minute", "pairs_per_minute")
        return {name for name in limits if getattr(self, name) is None}

    @property
    def at_once(self) -> int:
        """The most requests at once for one search."""
        return self.concurrency or 1

    def passing(self, n_pairs: int) -> Passing:
        """What a request of `n_pairs` counts for in the limits per minute that there are."""
        counts = {"requests_per_minute": 1, "pairs_per_minute": n_pairs}
        return {(name, getattr(self, name)): n for name, n in counts.items() if name not in self._unlimited}

    def divided(self, n_workers: int) -> CallRules:
        """The rules for each of several processes, so that all together keep these.

        A cap on spend can't be divided: a process that was lost took with it what it had counted."""
        if self.max_calls is not None:
            raise InputError(
                f"max_calls={self.max_calls} is counted by one process, and can't be kept by several that may be lost; "
                "leave it out, or take engine='local'"
            )
        if self.concurrency is not None and self.concurrency < n_workers:
            raise InputError(
                f"concurrency={self.concurrency} is for all workers together, and there are {n_workers}; take at most "
                f"{self.concurrency} of them, or raise it"
            )
        shares: dict[str, Any] = {"concurrency": self.concurrency and self.concurrency // n_workers}
        for name in {"requests_per_minute", "pairs_per_minute"} - self._unlimited:
            shares[name] = getattr(self, name) / n_workers
        return replace(self, **shares)

    def backoff(self, attempt: int) -> float:
        """Seconds before another try; they differ, so that parallel clients don't come back in step."""
        return min(self.max_wait, self.retry_wait * 2.0**attempt) * JITTER.uniform(0.5, 1.0)
