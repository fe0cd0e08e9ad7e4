"""The meter: one query's exact scores, each paid for once, within a budget.

Fed by `payment.py`, which asks the scorer, and feeds the search loop and the build. Whatever was paid for stays in the
meter, also when the scorer fails half-way."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from anncur.arrays import NO_POSITIONS, NO_SCORES, FloatVector, Positions
from anncur.errors import BudgetError, ScorerError
from anncur.items import Items, Query


class Meter:
    """The exact scores of one query so far, and what it may still ask for."""

    def __init__(self, query: Query, items: Items, *, budget: int) -> None:
        self.query = query
        self.items = items
        self.budget = budget
        self.n_cached = 0  # pairs that the cache answered
        self.n_requests = 0  # requests with a pair of this query that were answered
        self.n_repeated = 0  # pairs that were scored again, each time they were
        self.failure: ScorerError | None = None  # error of the last request, where the scorer answers other queries
        self._scored: dict[int, float] = {}  # position -> exact score
        self._batches: list[tuple[Positions, FloatVector]] = []  # positions and exact scores, in the order of payment
        self._latest: dict[int, float] = {}  # position -> answer when it was asked for again
        self._means: dict[int, tuple[float, int]] = {}  # position -> mean of several answers, and their number

    @property
    def calls(self) -> int:
        """Distinct items scored."""
        return len(self._scored)

    @property
    def remaining(self) -> int:
        """Pairs that the budget still allows."""
        return self.budget - self.calls - self.n_repeated

    @property
    def positions(self) -> Positions:
        """Everything scored, in the order of payment."""
        return np.concatenate([NO_POSITIONS, *(positions for positions, _ in self._batches)])

    @property
    def exact_scores(self) -> FloatVector:
        """The scores of `positions`."""
        return np.concatenate([NO_SCORES, *(exact_scores for _, exact_scores in self._batches)])

    def unscored(self, positions: Positions) -> list[int]:
        """Those of these items that must be paid for, each once; more than the budget allows are refused."""
        new = [position for position in dict.fromkeys(positions.tolist()) if position not in self._scored]
        if len(new) > self.remaining:
            raise BudgetError(
                f"{len(new)} more pairs asked for, but only {self.remaining} of the budget of {self.budget} are left"
            )
        return new

    def scores_of(self, positions: Positions) -> FloatVector:
        """The exact scores of items that were scored."""
        return np.array([self._scored[position] for position in positions.tolist()], dtype=np.float64)

    def average(self, positions: Positions, exact_scores: FloatVector) -> tuple[FloatVector, FloatVector]:
        """Take in other answers to pairs that were scored; from now on their mean counts.

        Returns the answers before and these, for pairs that were asked for again before: by the first answer they were
        chosen, so that it is a lucky one."""
        self.n_repeated += len(positions)
        before, again = [], []
        for position, score in zip(positions.tolist(), exact_scores.tolist(), strict=True):
            mean, n_answers = self._means.get(position, (self._scored[position], 1))
            self._means[position] = (mean * n_answers + score) / (n_answers + 1), n_answers + 1
            if position in self._latest:
                before.append(self._latest[position])
                again.append(score)
            self._latest[position] = score
        return np.array(before), np.array(again)

    def averaged(self) -> tuple[FloatVector, FloatVector]:
        """The mean answer to each of `positions`, and how many there were."""
        both = [self._means.get(position, (score, 1)) for position, score in self._ordered()]
        return np.array([mean for mean, _ in both]), np.array([n_answers for _, n_answers in both], dtype=np.float64)

    def _ordered(self) -> Iterator[tuple[int, float]]:
        for positions, exact_scores in self._batches:
            yield from zip(positions.tolist(), exact_scores.tolist(), strict=True)

    def record(self, positions: list[int], exact_scores: list[float], *, is_cached: bool = False) -> None:
        """Take in exact scores: those of a request, or what the cache had."""
        if not positions:
            return
        self.n_cached += len(positions) if is_cached else 0
        self.n_requests += not is_cached
        self._scored.update(zip(positions, exact_scores, strict=True))
        self._batches.append((np.array(positions, dtype=np.int64), np.array(exact_scores, dtype=np.float64)))
