"""The one search loop: ask the policy, pay the scorer through the meters, tell the policy, and again.

Reads policies and meters, feeds the index with what was found. The answer is the top k of everything that was paid
for, by exact score."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from anncur.arrays import NO_SCORES, FloatVector, Positions
from anncur.errors import DeadlineError, ScorerError
from anncur.ranking import Round, top_k
from anncur.scorers.metered import Meter
from anncur.search.base import Block, Knowledge, Policy, Proposal


@dataclass
class Run:
    """One query's way through the loop: its meter, its rounds so far, whether it was cut short, and what the policy
    thinks of its recall."""

    meter: Meter
    trace: list[Round] = field(default_factory=list)
    is_cut: bool = False
    estimated_recall: float | None = None

    def best(self, k: int) -> tuple[Positions, FloatVector]:
        """The top k of everything paid for, and its exact scores."""
        by_position = np.argsort(self.meter.positions)  # ties go to the lower position
        positions, exact_scores = self.meter.positions[by_position], self.meter.exact_scores[by_position]
        ranked = top_k(exact_scores, k)
        return positions[ranked], exact_scores[ranked]


def run_rounds(policy: Policy, block: Block, knowledge: Knowledge, runs: Sequence[Run]) -> None:
    """Carry a block of queries through all rounds of a policy; `runs` holds what came of each query.

    When the deadline passes, the loop ends; when the scorer fails, the error goes up, and so it does when a failing
    scorer used up all the time. Either way the runs keep what was paid for, and those with budget left are marked as
    cut."""
    rounds = policy.rounds(block, knowledge)
    is_finished = False
    try:
        for run in runs:
            run.meter.check_deadline()
        proposals = next(rounds)
        while True:
            proposals = rounds.send([_pay(run, proposal) for run, proposal in zip(runs, proposals, strict=True)])
    except StopIteration as end:
        is_finished = True
        for run, estimate in zip(runs, end.value or (), strict=False):
            run.estimated_recall = estimate
    except DeadlineError as error:  # what was found until now is the answer
        if isinstance(error.__cause__, ScorerError) and not any(run.meter.calls for run in runs):
            raise error.__cause__ from error
    finally:
        rounds.close()
        for run in runs:
            run.is_cut = not is_finished and run.meter.remaining > 0


def _pay(run: Run, proposal: Proposal) -> FloatVector:
    calls_before = run.meter.calls
    if not len(proposal.positions):
        return NO_SCORES
    try:
        return run.meter.score(proposal.positions)
    finally:
        run.trace.append(_round(run.meter, calls_before, proposal))


def _round(meter: Meter, calls_before: int, proposal: Proposal) -> Round:
    """What this round paid for, which is less than was proposed if it was cut short or some was paid before."""
    paid, exact_scores = meter.positions[calls_before:], meter.exact_scores[calls_before:]
    if proposal.guesses is None:
        return Round(paid, None, exact_scores)
    by_position = np.argsort(proposal.positions)
    places = by_position[np.searchsorted(proposal.positions, paid, sorter=by_position)]
    return Round(paid, proposal.guesses[places], exact_scores)
