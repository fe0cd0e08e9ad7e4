"""What to use for an index, and when plain re-ranking serves better: plain sentences with the numbers.

Reads what tuning found on held-out queries, feeds `suitability.py`. Decides nothing for anybody; `worth.py` does the
same for a plan."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from anncur.arrays import FloatVector
from anncur.search.feedback import LEAST_ANCHORS
from anncur.search.limits import DEFAULT_BUDGET
from anncur.search.methods import Rerank
from anncur.search.settings import KS, RecallCurve, Tuned
from anncur.tuning.derive import Derived

BUDGETS = (50, 100, 200, 500)  # that expected recall is reported for
FEW_ITEMS = 1000
USUAL = (10, DEFAULT_BUDGET)  # the k and budget of a search that asks for neither
CLEARLY = 0.02  # a difference of recall that matters to anybody
N_ERRORS = 2.0  # standard errors of a difference that is more than chance
ENOUGH = 0.9  # recall
SHOWN_EXCEPTIONS = 2
LEAST_TUNED = 2 * LEAST_ANCHORS  # anchor queries
UNTUNED = "adaptive search was not tuned: run `anncur tune`"
FROM_THE_FIRST = (
    f"with fewer than {LEAST_TUNED} anchor queries, this index searches from the first query on, by its retrievers and "
    "by what each search scores"
)
UNCALIBRATED = "estimates of recall need queries that are scored on all items: index.calibrate(queries)"
MORE_ANCHORS = "anchor queries may raise recall: `anncur plan` tells how far"

Point = tuple[int, int]  # k and budget


def reported(n_items: int) -> list[Point]:
    """Every k and budget that recall is reported for, short of scoring everything."""
    return [(k, budget) for k in KS for budget in BUDGETS if k < budget < n_items]


def rerank_name(retriever: str) -> str:
    """What re-ranking with a retriever is called in a report."""
    return f"{Rerank.name} {retriever}"


def advise(derived: Derived, *, n_items: int) -> list[str]:
    """What to use, in plain sentences with the numbers."""
    tuned = derived.tuned
    advice = [score_them_all(n_items)] if n_items <= FEW_ITEMS else []
    has_anchors = tuned.settings is not None or bool(derived.splits.splits)
    if not has_anchors:
        advice.append(FROM_THE_FIRST)
    points = [point for point in reported(n_items) if tuned.curve.recall(*point) is not None]
    if points:
        advice.extend(_compare_methods(derived, points))
        advice.append(_budgets(tuned.curve, n_items))
    elif tuned.settings is None:
        advice.append(UNTUNED if has_anchors else UNCALIBRATED)
    return advice if has_anchors else [*advice, MORE_ANCHORS]


def score_them_all(n_items: int) -> str:
    """The advice for few items."""
    return f"with {n_items:,} items, scoring them all for each query may be simpler (--method exhaustive)"


def _compare_methods(derived: Derived, points: Sequence[Point]) -> Iterator[str]:
    """Adaptive search, re-ranking and the method anncur."""
    tuned = derived.tuned
    rival = _strongest(tuned, points)
    if rival is None:
        yield f"use posterior, the default: {_on(tuned)} it finds {_found(tuned.curve, *_usual(points))}"
    else:
        yield from _compare(tuned, rival, points)
    yield from _anncur_is_better(derived, points)


def _on(tuned: Tuned) -> str:
    """Which queries recall was measured on: without anchor queries, those that an index was calibrated with."""
    return "on held-out queries" if tuned.settings is None else "on held-out anchor queries"


def _strongest(tuned: Tuned, points: Sequence[Point]) -> str | None:
    """The retriever that is best to re-rank with."""
    curves = tuned.rerank_curves
    return max(curves, key=lambda name: _by_query(curves[name], points).mean(), default=None)


def _compare(tuned: Tuned, retriever: str, points: Sequence[Point]) -> Iterator[str]:
    """Adaptive search or plain re-ranking, and where it is the other way round."""
    ours, theirs = tuned.curve, tuned.rerank_curves[retriever]
    k, budget = _usual(points)
    both = f"of the scorer's top {k} with {budget} pairs, {_on(tuned)}"
    more = "anchor queries" if tuned.settings is None else "more anchor queries"
    our_recall, their_recall = ours.recall(k, budget) or 0.0, theirs.recall(k, budget) or 0.0
    if _is_ahead(ours, theirs, points):
        needed = theirs.budget(k, our_recall) or 0
        yield (
            f"use posterior, the default: it finds {our_recall:.0%} {both}; re-ranking {retriever} finds "
            f"{their_recall:.0%}" + (f", and would need {needed:,} pairs to find as much" if needed > budget else "")
        )
        yield from _exceptions(theirs, ours, points, f"plain re-ranking with {retriever} serves better")
    elif _is_ahead(theirs, ours, points):
        yield (
            f'plain re-ranking serves you better (method=anncur.Rerank("{retriever}")): {retriever} finds '
            f"{their_recall:.0%} {both}, posterior {our_recall:.0%}; {more} may turn this around"
        )
        yield from _exceptions(ours, theirs, points, "posterior serves better")
    elif abs(_lead(ours, theirs, points).mean()) <= CLEARLY:
        yield (
            f"plain re-ranking serves you as well: {retriever} finds {their_recall:.0%} {both}, posterior "
            f"{our_recall:.0%}; {more} may turn this around"
        )
    else:
        use_more = "calibrate with more queries" if tuned.settings is None else "use more anchor queries"
        yield (
            f"{use_more}: {len(ours.found_after)} are too few to tell posterior from re-ranking "
            f"{retriever}, which find {our_recall:.0%} and {their_recall:.0%} {both}"
        )


def _exceptions(ahead: RecallCurve, behind: RecallCurve, points: Sequence[Point], serves_better: str) -> Iterator[str]:
    """Where the one that is behind overall is ahead."""
    found = [point for point in points if _is_ahead(ahead, behind, [point])]
    found.sort(key=lambda point: -_lead(ahead, behind, [point]).mean())
    shown = [
        f"the top {k} with {budget} pairs ({ahead.recall(k, budget):.0%} against {behind.recall(k, budget):.0%})"
        for k, budget in found[:SHOWN_EXCEPTIONS]
    ]
    if shown:
        yield f"{serves_better} for {' and '.join(shown)}"


def _anncur_is_better(derived: Derived, points: Sequence[Point]) -> Iterator[str]:
    """Where the paper's method is ahead of ours, which it hardly ever is."""
    k, budget = _usual(points)
    theirs = derived.splits.highest_recall(k=k, budget=budget) or 0.0
    ours = derived.tuned.curve.recall(k, budget) or 0.0
    if theirs > ours + CLEARLY:
        yield f"compare with --method anncur, which finds {theirs:.0%} of the top {k} with {budget} pairs"


def _budgets(curve: RecallCurve, n_items: int) -> str:
    """What a good answer costs."""
    depth = curve.found_after.shape[1]
    needed = {k: curve.budget(k, ENOUGH) for k in KS if k < n_items and k <= depth}
    parts = [f"{pairs or f'more than {curve.most_calls}'} for the top {k}" for k, pairs in needed.items()]
    return f"pairs in which posterior finds {ENOUGH:.0%}: {', '.join(parts)}"


def _found(curve: RecallCurve, k: int, budget: int) -> str:
    return f"{curve.recall(k, budget):.0%} of the scorer's top {k} with {budget} pairs"


def _usual(points: Sequence[Point]) -> Point:
    """The nearest to what a search asks for that asks for nothing special."""
    return min(points, key=lambda point: (abs(point[0] - USUAL[0]), abs(point[1] - USUAL[1])))


def _is_ahead(ours: RecallCurve, theirs: RecallCurve, points: Sequence[Point]) -> bool:
    return matters(_lead(ours, theirs, points))


def matters(lead: FloatVector) -> bool:
    """Whether one finds more on average, by a difference that matters and is more than chance; from how much more it
    finds for each query.

    Both are of the same queries, so that what is hard for both doesn't count as chance."""
    error = lead.std(ddof=1) / np.sqrt(len(lead)) if len(lead) > 1 else np.inf
    return bool(lead.mean() > max(CLEARLY, N_ERRORS * error))


def _lead(ours: RecallCurve, theirs: RecallCurve, points: Sequence[Point]) -> FloatVector:
    """How much more one finds for each query, (n_held_out,)."""
    lead: FloatVector = _by_query(ours, points) - _by_query(theirs, points)
    return lead


def _by_query(curve: RecallCurve, points: Sequence[Point]) -> FloatVector:
    """The mean recall over points, (n_held_out,)."""
    found = [by_query for k, budget in points if (by_query := curve.recall_by_query(k, budget)) is not None]
    mean: FloatVector = np.mean(found, axis=0)
    return mean
