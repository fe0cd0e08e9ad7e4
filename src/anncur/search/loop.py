"""The one search loop: ask the method, pay the scorer through the meters, send the scores back, and again.

Reads methods and meters, feeds the index with what was found. The answer is the top k of everything that was paid
for, by exact score. Where queries are logged, a few items are scored at random after the method has ended, within the
budget: the feedback model needs scores of items that a method would never look at."""

from __future__ import annotations

import hashlib
import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain, repeat

import numpy as np

from anncur.arrays import FloatVector, Positions
from anncur.candidates import Candidates
from anncur.errors import AnncurWarning, DeadlineError, InputError, ScorerError
from anncur.ranking import Round, top_k
from anncur.scorers.meter import Meter
from anncur.scorers.noise import agreement
from anncur.scorers.payment import Payments
from anncur.search.base import Estimates, Knowledge, Method, Proposal, QueryBlock
from anncur.threads import one_blas_thread
from anncur.tracing import span

AGAIN_PER_K = 2  # items that are scored again for each of the k, where a scorer is noisy


@dataclass
class Run:
    """One query in the loop: its meter, its rounds so far, whether it was cut short, estimated recall and drift."""

    meter: Meter
    trace: list[Round] = field(default_factory=list)
    is_cut: bool = False
    estimated_recall: float | None = None
    drift: float | None = None

    def best(self, k: int, *, least: float | None = None) -> tuple[Positions, FloatVector]:
        """The top k of everything paid for, and its exact scores; without what is below `least`. Where the scorer was
        asked several times, the mean of its answers counts."""
        by_position = np.argsort(self.meter.positions)  # ties go to the lower position
        positions, exact_scores = self.meter.positions[by_position], self.meter.averaged()[0][by_position]
        ranked = top_k(exact_scores, k)
        if least is not None:
            ranked = ranked[exact_scores[ranked] >= least]
        return positions[ranked], exact_scores[ranked]


async def run_rounds(
    method: Method, block: QueryBlock, knowledge: Knowledge, runs: Sequence[Run], payments: Payments
) -> None:
    """Carry a block of queries through all rounds of a method; `runs` holds what came of each query.

    When the deadline passes, the loop ends. A query that the scorer fails for has its meter's `failure`, and the others
    are answered; if it fails altogether, or used up all the time by failing, the error goes up. Either way the runs
    keep what was paid for, and those with budget left are marked as cut."""
    rounds = _Rounds(method, block, knowledge)
    try:
        payments.check_deadline()
        proposals = await payments.waiting.compute(rounds.begin, payments)
        while proposals is not None:
            check_candidates(proposals, block, method)
            n_pairs = sum(len(proposal.positions) for proposal in proposals)
            with span("anncur.round", **{"anncur.queries": len(runs), "anncur.pairs": n_pairs}):
                exact_scores = await _pay(runs, proposals, payments)
                if all(run.meter.failure is not None for run in runs):
                    break
                proposals = await payments.waiting.compute(rounds.advance, exact_scores)
    except DeadlineError as error:  # what was found until now is the answer
        if isinstance(error.__cause__, ScorerError) and not any(run.meter.calls for run in runs):
            raise error.__cause__ from error
        await payments.waiting.compute(rounds.cut, error)
    finally:
        rounds.close()
        found = (chain(values, repeat(None)) for values in (rounds.estimates.recalls, rounds.estimates.drifts))
        for run, recall, drift in zip(runs, *found, strict=False):
            run.estimated_recall, run.drift = _known(recall), _known(drift)
            run.is_cut = run.meter.remaining > 0 and (not rounds.are_finished or run.meter.failure is not None)


def check_candidates(proposals: Sequence[Proposal], block: QueryBlock, method: Method) -> None:
    """Refuse a method of the user's that takes no notice of filters: nothing is paid for items that don't pass."""
    if block.passing is not None and not all(_are_in(block.passing, one.positions) for one in proposals):
        raise InputError(
            f"the method {method.name} proposed items that don't pass the filter; let it choose among "
            "block.candidates(knowledge)"
        )


def _are_in(passing: Positions, positions: Positions) -> bool:
    places = np.minimum(np.searchsorted(passing, positions), len(passing) - 1)
    return bool((passing[places] == positions).all())


class _Rounds:
    """A method's generator, and what it returned."""

    def __init__(self, method: Method, block: QueryBlock, knowledge: Knowledge) -> None:
        self._rounds = method.rounds(block, knowledge)
        self._knowledge = knowledge
        self.estimates = Estimates()
        self.are_finished = False

    def begin(self, payments: Payments) -> Sequence[Proposal] | None:
        """The first proposals. What an index makes on first use takes no time from the deadline."""
        started = time.perf_counter()
        proposals = self.advance(None)
        if not self._knowledge.is_used.is_set():
            self._knowledge.is_used.set()
            payments.extend_deadline(time.perf_counter() - started)
        return proposals

    def advance(self, exact_scores: Sequence[FloatVector] | None) -> Sequence[Proposal] | None:
        """The next proposals, given the exact scores of the last ones; None at the end."""
        try:
            with one_blas_thread():  # not while the scorer works, which may need more
                return next(self._rounds) if exact_scores is None else self._rounds.send(exact_scores)
        except StopIteration as end:
            self.are_finished = True
            self._end(end.value)
            return None

    def cut(self, error: DeadlineError) -> None:
        """Let the method estimate what it has found, if it can."""
        try:
            self._rounds.throw(error)
        except StopIteration as end:
            self._end(end.value)
        except DeadlineError:
            pass

    def _end(self, returned: Sequence[float] | Estimates | None) -> None:
        self.estimates = (
            returned if isinstance(returned, Estimates) else Estimates(() if returned is None else returned)
        )

    def close(self) -> None:
        self._rounds.close()


def _known(value: float | None) -> float | None:
    return None if value is None or np.isnan(value) else value


def n_repeated(k: int, budget: int, repeats: int) -> int:
    """How many of the best items are scored again each time: twice k, but at most half of the budget is for that, and
    k items are scored in any case."""
    return min(AGAIN_PER_K * k, budget // 2 // (repeats - 1), max(0, budget - k) // (repeats - 1)) if repeats > 1 else 0


async def repeat_best(runs: Sequence[Run], payments: Payments, *, n_best: int, n_times: int) -> list[Run]:
    """Have the best items of each run scored again, so that no lucky answer decides; the runs for which all was scored.
    What the deadline cuts off or the scorer fails for is left: an answer is complete with the scores that came."""
    whole = [run for run in runs if not run.is_cut and run.meter.calls and run.meter.failure is None]
    for _ in range(n_times if n_best else 0):
        try:
            failures = await payments.pay_again([(run.meter, run.best(n_best)[0]) for run in whole])
        except DeadlineError:
            return []
        except ScorerError as error:
            _warn_of_repeats([error])
            return []
        _warn_of_repeats(failures)
        whole = [run for run, failure in zip(whole, failures, strict=True) if failure is None]
    return whole


def _warn_of_repeats(failures: Sequence[ScorerError | None]) -> None:
    first = next((failure for failure in failures if failure is not None), None)
    if first is not None:
        warnings.warn(
            f"the best items weren't scored again as often as repeats=… asks for: {first}", AnncurWarning, stacklevel=2
        )


def expect_noise(runs: Sequence[Run], k: int, *, n_items: int, noise: float) -> None:
    """Lower estimates of recall by what noise costs: the best by noisy scores aren't all the truly best."""
    for run in runs:
        if run.meter.calls == n_items:
            run.estimated_recall = 1.0
        if noise and run.estimated_recall is not None:
            means, n_answers = run.meter.averaged()
            run.estimated_recall *= agreement(means, noise / n_answers, k)


def n_explored(budget: int, share: float) -> int:
    """How many pairs of a budget are for exploring; the method has at least one."""
    return min(round(share * budget), budget - 1)


async def explore(runs: Sequence[Run], payments: Payments, *, among: Candidates, share: float, seed: int) -> None:
    """Let each run score items at random: all that a method with no budget left has left over, else `share` of all its
    pairs. What the deadline cuts off is left."""
    drawn = []
    for run in runs:
        wanted = min(_n_wanted(run.meter, share), len(among) - run.meter.calls)
        if not run.is_cut and run.meter.failure is None and wanted > 0:
            rng = _generator(seed, run.meter.query.marked_text)
            drawn.append((run, among.draw(wanted, rng, scored=run.meter.positions)))
    calls_before = [run.meter.calls for run, _ in drawn]
    try:
        await payments.pay([(run.meter, positions) for run, positions in drawn])
    except DeadlineError:
        return
    finally:
        for (run, _), n_before in zip(drawn, calls_before, strict=True):
            paid, exact_scores = run.meter.positions[n_before:], run.meter.exact_scores[n_before:]
            if len(paid):
                run.trace.append(Round(paid, None, exact_scores, is_exploring=True))


def _n_wanted(meter: Meter, share: float) -> int:
    """How many pairs are for exploring, after what the method took: none of the budget is lost to rounding."""
    if meter.calls >= meter.budget - n_explored(meter.budget, share):
        return meter.remaining
    return min(round(share * meter.calls / (1 - share)), meter.remaining)


async def _pay(runs: Sequence[Run], proposals: Sequence[Proposal], payments: Payments) -> list[FloatVector]:
    """The exact scores of what is proposed for each query; for one that the scorer fails for, what can be had."""
    both = [(run, proposal) for run, proposal in zip(runs, proposals, strict=True) if len(proposal.positions)]
    asked = [(run, proposal, run.meter.calls) for run, proposal in both if run.meter.failure is None]
    try:
        await payments.pay([(run.meter, proposal.positions) for run, proposal, _ in asked])
    finally:
        for run, proposal, calls_before in asked:
            run.trace.append(_round(run.meter, calls_before, proposal))
    return [_exact_scores(run.meter, proposal) for run, proposal in zip(runs, proposals, strict=True)]


def _exact_scores(meter: Meter, proposal: Proposal) -> FloatVector:
    if meter.failure is None:
        return meter.scores_of(proposal.positions)
    return np.zeros(len(proposal.positions)) if proposal.guesses is None else proposal.guesses  # nobody will see them


def _round(meter: Meter, calls_before: int, proposal: Proposal) -> Round:
    """What this round paid for, which is less than was proposed if it was cut short or some was paid before."""
    paid, exact_scores = meter.positions[calls_before:], meter.exact_scores[calls_before:]
    if proposal.guesses is None:
        return Round(paid, None, exact_scores)
    by_position = np.argsort(proposal.positions)
    places = by_position[np.searchsorted(proposal.positions, paid, sorter=by_position)]
    explanation = None if proposal.explanation is None else proposal.explanation.take(places)
    return Round(paid, proposal.guesses[places], exact_scores, explanation=explanation)


def _generator(seed: int, text: str) -> np.random.Generator:
    """Of a query alone, so that it is answered the same among others and by itself."""
    digest = hashlib.sha256(text.encode()).digest()
    return np.random.default_rng([seed, int.from_bytes(digest[:8], "little")])
