"""What a search may spend: calls, time, and when it has found enough."""

from __future__ import annotations

from dataclasses import dataclass

from anncur.errors import InputError
from anncur.numbers import number, whole_number
from anncur.scorers.guard import Deadline
from anncur.search.base import Knowledge, Policy
from anncur.search.posterior import Posterior

DEFAULT_BUDGET = 200
LEEWAY = 3  # times the budget that held-out queries needed on average: some queries are harder


@dataclass(frozen=True)
class Limits:
    """As the user gave them, checked when they are used."""

    budget: int | None = None
    target_recall: float | None = None
    max_budget: int | None = None
    deadline_ms: float | None = None

    def __post_init__(self) -> None:
        if self.budget is not None:
            whole_number("budget", self.budget, least=1)
        if self.target_recall is not None:
            number("target_recall", self.target_recall, least=0, most=1)
            if self.budget is not None:
                raise InputError("budget says how much to spend, target_recall how much to find; give one of them")
        if self.max_budget is not None:
            whole_number("max_budget", self.max_budget, least=1)
            if self.target_recall is None:
                raise InputError("max_budget goes with target_recall; without it, give budget")

    def budget_for(self, policy: Policy, knowledge: Knowledge, k: int) -> int:
        """The most calls for one query; at most the number of items."""
        n_items = knowledge.n_items
        if self.target_recall is not None:
            return min(self.max_budget or self._enough(policy, knowledge, k), n_items)
        default = n_items if policy.is_exact else DEFAULT_BUDGET
        return min(default if self.budget is None else whole_number("budget", self.budget, least=1), n_items)

    def target_for(self, policy: Policy) -> float | None:
        """The recall at which to stop, for a policy that can tell."""
        return self.target_recall if isinstance(policy, Posterior) else None

    def deadline(self) -> Deadline | None:
        """The moment after which no call is begun."""
        if self.deadline_ms is None:
            return None
        return Deadline(number("deadline_ms", self.deadline_ms, least=0) / 1000)

    def _enough(self, policy: Policy, knowledge: Knowledge, k: int) -> int:
        assert self.target_recall is not None
        curve = knowledge.beliefs.tuned.curve
        needed = curve.budget(k, self.target_recall) or curve.most_calls or knowledge.n_items
        return LEEWAY * needed
