"""Says what to use for an index, and when plain re-ranking serves better: plain sentences with the numbers.

Reads what tuning left behind on held-out anchor queries, feeds `anncur info`. Decides nothing for anybody."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from anncur.arrays import FloatVector
from anncur.index.build import Learned
from anncur.index.report import Cell, cells_for
from anncur.search.beliefs import RecallCurve, Tuned
from anncur.search.calibration import KS
from anncur.search.lesson import LEAST_ANCHORS
from anncur.search.limits import DEFAULT_BUDGET

FEW_ITEMS = 1000
USUAL = (10, DEFAULT_BUDGET)  # the k and budget of a search that asks for neither
CLEARLY = 0.02  # a difference of recall that matters to anybody
N_ERRORS = 2.0  # standard errors of a difference that is more than chance
ENOUGH = 0.9  # recall
SHOWN_EXCEPTIONS = 2
UNTUNED = f"nothing is known of adaptive search: run `anncur tune`, with at least {2 * LEAST_ANCHORS} anchor queries"


def advise(learned: Learned, *, n_items: int) -> list[str]:
    """What to use, in plain sentences with the numbers."""
    tuned = learned.tuned
    advice = [score_them_all(n_items)] if n_items <= FEW_ITEMS else []
    cells = [cell for cell in cells_for(n_items) if tuned.curve.recall(*cell) is not None]
    if tuned.settings is None:
        return [*advice, UNTUNED]
    if not cells:
        return advice
    rival = _strongest(tuned, cells)
    if rival is None:
        shown = _found(tuned.curve, *_usual(cells))
        advice.append(f"use posterior, the default: on held-out anchor queries it finds {shown}")
    else:
        advice.extend(_compare(tuned, rival, cells))
    advice.extend(_one_shot_is_better(learned, cells))
    return [*advice, _budgets(tuned.curve, n_items)]


def score_them_all(n_items: int) -> str:
    """The advice for few items."""
    return f"with {n_items:,} items, scoring them all for each query may be simpler (--method exhaustive)"


def _strongest(tuned: Tuned, cells: Sequence[Cell]) -> str | None:
    """The retriever that is best to re-rank with."""
    curves = tuned.rerank_curves
    return max(curves, key=lambda name: _by_query(curves[name], cells).mean(), default=None)


def _compare(tuned: Tuned, retriever: str, cells: Sequence[Cell]) -> Iterator[str]:
    """Adaptive search or plain re-ranking, and where it is the other way round."""
    ours, theirs = tuned.curve, tuned.rerank_curves[retriever]
    k, budget = _usual(cells)
    both = f"of the scorer's top {k} with {budget} calls, on held-out anchor queries"
    our_recall, their_recall = ours.recall(k, budget) or 0.0, theirs.recall(k, budget) or 0.0
    if _is_ahead(ours, theirs, cells):
        needed = theirs.budget(k, our_recall) or 0
        yield (
            f"use posterior, the default: it finds {our_recall:.0%} {both}; re-ranking {retriever} finds "
            f"{their_recall:.0%}" + (f", and would need {needed:,} calls to find as much" if needed > budget else "")
        )
        yield from _exceptions(theirs, ours, cells, f"plain re-ranking with {retriever} serves better")
    elif _is_ahead(theirs, ours, cells):
        yield (
            f'plain re-ranking serves you better (method=anncur.Rerank("{retriever}")): {retriever} finds '
            f"{their_recall:.0%} {both}, posterior {our_recall:.0%}; more anchor queries may turn this around"
        )
        yield from _exceptions(ours, theirs, cells, "posterior serves better")
    elif abs(_lead(ours, theirs, cells).mean()) <= CLEARLY:
        yield (
            f"plain re-ranking serves you as well: {retriever} finds {their_recall:.0%} {both}, posterior "
            f"{our_recall:.0%}, and re-ranking needs no anchor queries; more of these may turn this around"
        )
    else:
        yield (
            f"use more anchor queries: {len(ours.found_after)} are too few to tell posterior from re-ranking "
            f"{retriever}, which find {our_recall:.0%} and {their_recall:.0%} {both}"
        )


def _exceptions(ahead: RecallCurve, behind: RecallCurve, cells: Sequence[Cell], told: str) -> Iterator[str]:
    """Where the one that is behind overall is ahead."""
    found = [cell for cell in cells if _is_ahead(ahead, behind, [cell])]
    found.sort(key=lambda cell: -_lead(ahead, behind, [cell]).mean())
    shown = [
        f"the top {k} with {budget} calls ({ahead.recall(k, budget):.0%} against {behind.recall(k, budget):.0%})"
        for k, budget in found[:SHOWN_EXCEPTIONS]
    ]
    if shown:
        yield f"{told} for {' and '.join(shown)}"


def _one_shot_is_better(learned: Learned, cells: Sequence[Cell]) -> Iterator[str]:
    """Where the paper's method is ahead of ours, which it hardly ever is."""
    k, budget = _usual(cells)
    theirs = learned.splits.highest_recall(k=k, budget=budget) or 0.0
    ours = learned.tuned.curve.recall(k, budget) or 0.0
    if theirs > ours + CLEARLY:
        yield f"compare with --method anncur, which finds {theirs:.0%} of the top {k} with {budget} calls"


def _budgets(curve: RecallCurve, n_items: int) -> str:
    """What a good answer costs."""
    depth = curve.found_after.shape[1]
    needed = {k: curve.budget(k, ENOUGH) for k in KS if k < n_items and k <= depth}
    told = [f"{calls or f'more than {curve.most_calls}'} for the top {k}" for k, calls in needed.items()]
    return f"calls in which posterior finds {ENOUGH:.0%}: {', '.join(told)}"


def _found(curve: RecallCurve, k: int, budget: int) -> str:
    return f"{curve.recall(k, budget):.0%} of the scorer's top {k} with {budget} calls"


def _usual(cells: Sequence[Cell]) -> Cell:
    """The nearest to what a search asks for that asks for nothing special."""
    return min(cells, key=lambda cell: (abs(cell[0] - USUAL[0]), abs(cell[1] - USUAL[1])))


def _is_ahead(ours: RecallCurve, theirs: RecallCurve, cells: Sequence[Cell]) -> bool:
    """Whether one finds more on average, by a difference that matters and is more than chance.

    Both curves are of the same queries, so that what is hard for both doesn't count as chance."""
    difference = _lead(ours, theirs, cells)
    error = difference.std(ddof=1) / np.sqrt(len(difference)) if len(difference) > 1 else np.inf
    return bool(difference.mean() > max(CLEARLY, N_ERRORS * error))


def _lead(ours: RecallCurve, theirs: RecallCurve, cells: Sequence[Cell]) -> FloatVector:
    """How much more one finds for each query, (n_held_out,)."""
    lead: FloatVector = _by_query(ours, cells) - _by_query(theirs, cells)
    return lead


def _by_query(curve: RecallCurve, cells: Sequence[Cell]) -> FloatVector:
    """The mean recall over cells, (n_held_out,)."""
    found = [by_query for k, budget in cells if (by_query := curve.recall_by_query(k, budget)) is not None]
    mean: FloatVector = np.mean(found, axis=0)
    return mean
