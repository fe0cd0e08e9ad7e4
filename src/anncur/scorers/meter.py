"""The meter: one query's exact scores, paid for once each, within a budget and a deadline.

Reads a guarded scorer, feeds the search loop and the build. Whatever was paid for stays in the meter, also when the
scorer fails half-way."""

from __future__ import annotations

import time

import numpy as np

from anncur.arrays import NO_POSITIONS, NO_SCORES, FloatVector, Positions
from anncur.errors import BudgetError, DeadlineError
from anncur.items import Items, Query
from anncur.scorers.guard import Deadline, GuardedScorer

FIRST_TIMED_BATCH = 8  # pairs; small, because before it nothing is known of the scorer's pace
SHARE_OF_TIME_LEFT = 0.25  # a batch may take this much of it: four guesses at the pace may be wrong in a row


class Meter:
    """Pays for the exact scores of one query."""

    def __init__(
        self,
        scorer: GuardedScorer,
        query: Query,
        items: Items,
        *,
        budget: int,
        deadline: Deadline | None = None,
    ) -> None:
        self.query = query
        self.budget = budget
        self._scorer = scorer
        self._items = items
        self._deadline = deadline
        self._paid: dict[int, float] = {}  # position -> exact score
        self._batches: list[tuple[Positions, FloatVector]] = []  # the same, in the order of payment
        self._seconds_per_call: float | None = None

    @property
    def calls(self) -> int:
        """Distinct items paid for."""
        return len(self._paid)

    @property
    def remaining(self) -> int:
        """Pairs that the budget still allows."""
        return self.budget - self.calls

    @property
    def positions(self) -> Positions:
        """Everything paid for, in the order of payment."""
        return np.concatenate([NO_POSITIONS, *(positions for positions, _ in self._batches)])

    @property
    def exact_scores(self) -> FloatVector:
        """The scores of `positions`."""
        return np.concatenate([NO_SCORES, *(exact_scores for _, exact_scores in self._batches)])

    def score(self, positions: Positions) -> FloatVector:
        """The exact scores of these items; those scored before cost nothing."""
        asked = positions.tolist()
        new = [position for position in dict.fromkeys(asked) if position not in self._paid]
        if len(new) > self.remaining:
            raise BudgetError(
                f"{len(new)} more pairs asked for, but only {self.remaining} of the budget of {self.budget} are left"
            )
        start = 0
        while start < len(new):
            stop = start + self._batch_size()
            self._pay(np.array(new[start:stop], dtype=np.int64))
            start = stop
        return np.array([self._paid[position] for position in asked], dtype=np.float64)

    def check_deadline(self) -> None:
        """Refuse to continue after the deadline."""
        if self._deadline is not None and self._deadline.seconds_left <= 0:
            raise DeadlineError(f"the deadline passed after {self.calls} pairs")

    def _batch_size(self) -> int:
        """The most pairs for the next request; under a deadline as many as a share of the time left allows."""
        most = max(1, int(min(self._scorer.rules.batch_size, self._scorer.calls_left)))
        if self._deadline is None:
            return most
        self.check_deadline()
        if self._seconds_per_call is None:
            return min(most, FIRST_TIMED_BATCH)
        affordable = SHARE_OF_TIME_LEFT * self._deadline.seconds_left / max(self._seconds_per_call, 1e-9)
        return max(1, min(most, int(affordable)))

    def _pay(self, positions: Positions) -> None:
        started = time.perf_counter()
        exact_scores = self._scorer.score(self.query, self._items.take(positions), deadline=self._deadline)
        self._seconds_per_call = (time.perf_counter() - started) / len(positions)
        self._paid.update(zip(positions.tolist(), exact_scores.tolist(), strict=True))
        self._batches.append((positions, exact_scores))
