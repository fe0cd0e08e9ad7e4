"""The one search loop: ask the method, pay the scorer through the meters, send the scores back, and again.

Reads methods and meters, feeds the index with what was found. The answer is the top k of everything that was paid
for, by exact score. Where queries are logged, a few items are scored at random after the method has ended, within the
budget: the feedback model needs scores of items that a method would never look at."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from anncur.arrays import NO_SCORES, FloatVector, Positions
from anncur.errors import DeadlineError, ScorerError
from anncur.ranking import Round, top_k
from anncur.scorers.meter import Meter
from anncur.search.base import Knowledge, Method, Proposal, QueryBlock
from anncur.threads import blas_threads_for

USUAL_WIDTH = 256  # of item vectors, which embeddings have without any anchor query
TRIES = 4  # random draws per wanted item, before all that is left is listed


@dataclass
class Run:
    """One query in the loop: its meter, its rounds so far, whether it was cut short, and its estimated recall."""

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


def run_rounds(method: Method, block: QueryBlock, knowledge: Knowledge, runs: Sequence[Run]) -> None:
    """Carry a block of queries through all rounds of a method; `runs` holds what came of each query.

    When the deadline passes, the loop ends; when the scorer fails, the error goes up, and so it does when a failing
    scorer used up all the time. Either way the runs keep what was paid for, and those with budget left are marked as
    cut."""
    rounds = method.rounds(block, knowledge)
    n_products = len(block.queries) * knowledge.n_items * max(USUAL_WIDTH, knowledge.factors.n_anchor_queries)
    is_finished = False
    try:
        for run in runs:
            run.meter.check_deadline()
        with blas_threads_for(n_products):  # not while the scorer works, which may need more
            proposals = next(rounds)
        while True:
            exact_scores = [_pay(run, proposal) for run, proposal in zip(runs, proposals, strict=True)]
            with blas_threads_for(n_products):
                proposals = rounds.send(exact_scores)
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


def n_explored(budget: int, share: float) -> int:
    """How many pairs of a budget are for exploring; the method has at least one."""
    return min(round(share * budget), budget - 1)


def explore(runs: Sequence[Run], *, n_items: int, share: float, seed: int) -> None:
    """Let each run score items at random: all that a method with no budget left has left over, else `share` of all its
    pairs. What the deadline cuts off is left."""
    for run in runs:
        meter = run.meter
        wanted = min(_n_wanted(meter, share), n_items - meter.calls)
        if run.is_cut or wanted <= 0:
            continue
        calls_before = meter.calls
        positions = _draw(wanted, n_items, meter.positions, _generator(seed, meter.query.marked_text))
        try:
            meter.score(positions)
        except DeadlineError:
            return
        finally:
            paid, exact_scores = meter.positions[calls_before:], meter.exact_scores[calls_before:]
            if len(paid):
                run.trace.append(Round(paid, None, exact_scores, is_exploring=True))


def _n_wanted(meter: Meter, share: float) -> int:
    """How many pairs are for exploring, after what the method took: none of the budget is lost to rounding."""
    if meter.calls >= meter.budget - n_explored(meter.budget, share):
        return meter.remaining
    return min(round(share * meter.calls / (1 - share)), meter.remaining)


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


def _generator(seed: int, text: str) -> np.random.Generator:
    """Of a query alone, so that it is answered the same among others and by itself."""
    digest = hashlib.sha256(text.encode()).digest()
    return np.random.default_rng([seed, int.from_bytes(digest[:8], "little")])


def _draw(n_wanted: int, n_items: int, scored: Positions, rng: np.random.Generator) -> Positions:
    """Distinct items that weren't scored. Without listing all items, unless most of them were."""
    if TRIES * (n_wanted + len(scored)) >= n_items:
        return rng.choice(np.setdiff1d(np.arange(n_items), scored), n_wanted, replace=False)
    found = dict.fromkeys(rng.integers(n_items, size=TRIES * (n_wanted + 8)).tolist())
    taken = set(scored.tolist())
    drawn = [position for position in found if position not in taken][:n_wanted]
    return np.array(drawn, dtype=np.int64)
