"""What a search may spend: pairs, time, and when it has found enough."""

from __future__ import annotations

import math
from dataclasses import dataclass

from anncur.errors import InputError
from anncur.numbers import number, whole_number
from anncur.scorers.pace import Deadline
from anncur.search.base import Knowledge, Method

DEFAULT_BUDGET = 200
LEEWAY = 3  # times the budget that held-out queries needed on average: some queries are harder


@dataclass(frozen=True)
class Limits:
    """As the user gave them, checked when they are used."""

    budget: int | None = None
    target_recall: float | None = None
    max_budget: int | None = None
    max_rounds: int | None = None
    deadline_ms: float | None = None
    min_score: float | None = None

    def __post_init__(self) -> None:
        if self.budget is not None:
            whole_number("budget", self.budget, least=1)
        if self.target_recall is not None:
            number("target_recall", self.target_recall, least=0, most=1)
            if self.budget is not None:
                raise InputError(
                    "budget limits what is spent, target_recall what is to be found; give one of them, or with "
                    "target_recall max_budget, the most to spend on it"
                )
        if self.max_budget is not None:
            whole_number("max_budget", self.max_budget, least=1)
            if self.target_recall is None:
                raise InputError("max_budget goes with target_recall; without it, give budget")
        if self.max_rounds is not None:
            whole_number("max_rounds", self.max_rounds, least=1)
        if self.min_score is not None:
            number("min_score", self.min_score, least=-math.inf)

    def budget_for(self, method: Method, knowledge: Knowledge, k: int, n_items: int) -> int:
        """The most pairs for one query; at most the number of items that may be scored."""
        if self.target_recall is not None:
            return min(self.max_budget or self._enough(knowledge, k), n_items)
        default = n_items if method.is_exact else DEFAULT_BUDGET
        return min(default if self.budget is None else whole_number("budget", self.budget, least=1), n_items)

    def check_method(self, method: Method) -> None:
        """Refuse a target for a method that can't tell when it is reached."""
        if self.target_recall is not None and not getattr(method, "estimates_recall", False):
            raise InputError(
                f"target_recall needs a method that estimates its recall, such as 'posterior', and {method.name} "
                "doesn't; give a budget instead"
            )

    def least(self, sign: float) -> float | None:
        """The lowest score of an answer, where higher is better."""
        return None if self.min_score is None else sign * self.min_score

    def deadline(self) -> Deadline | None:
        """The moment after which no request is begun."""
        if self.deadline_ms is None:
            return None
        return Deadline(number("deadline_ms", self.deadline_ms, least=0) / 1000)

    def _enough(self, knowledge: Knowledge, k: int) -> int:
        """A budget that leaves room for queries that are harder than held-out ones were on average."""
        assert self.target_recall is not None
        curve = knowledge.posterior.tuned.curve
        return LEEWAY * (curve.budget(k, self.target_recall) or curve.most_calls or knowledge.n_items)
