"""Judges the paper's claims on recall by rows: against re-ranking, anchors, worlds, and item-item baselines.

Each function returns a verdict with the numbers behind it, or None where there are no rows to judge by."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise

import numpy as np

from anncur.evaluation.rows import Row, distinct, grouped, mean, select
from anncur.evaluation.scoreboard import ANNCUR
from anncur.evaluation.study import DISTILLED
from anncur.planning.advice import rerank_name
from anncur.reproduction.baselines import FIXED_ITEM, ITEM_CUR
from anncur.reproduction.protocol import best_splits, equally_good_splits
from anncur.reproduction.verdicts import (
    CONFIRMED,
    DIFFERENT,
    REFUTED,
    Finding,
    agreement,
    all_positive,
    lines,
    series,
    trend,
)


def ahead_at_large_cost(rows: Sequence[Row]) -> Finding | None:
    """Whether ANNCUR is ahead of re-ranking at the largest cost of each world."""
    leads = [lead for k, cost, most, lead in _leads(rows, rerank_name("")) if k >= 10 and cost == most]
    names = sorted({row.cell.method for row in _at_cost(rows)} - {ANNCUR})
    return all_positive(leads, f"points ahead of the best of {', '.join(names)} at the largest cost, k >= 10")


def behind_at_one(rows: Sequence[Row]) -> Finding | None:
    """Whether re-ranking with a dual encoder that was trained on gold links (base, base+ce) is ahead for k = 1."""
    leads = [-lead for k, _, _, lead in _leads(rows, rerank_name("base")) if k == 1]
    return all_positive(leads, "points behind the best of them, k = 1, all costs")


def level_with_scratch(rows: Sequence[Row]) -> Finding | None:
    """Whether ANNCUR is at most a point behind re-ranking with a distilled MiniLM for k = 1."""
    leads = []
    for some in grouped(_at_cost(rows), "world", "scorer", "data").values():
        cell = select(some, k=1, cost=distinct(some, "cost")[-1])
        ours, scratch = _recalls(cell, ANNCUR), _recalls(cell, rerank_name("scratch+ce"))
        if ours and scratch:
            leads.append(max(ours) - max(scratch))
    if not leads:
        return None
    return agreement([lead > -0.01 for lead in leads]), f"{100 * np.mean(leads):+.1f} points at the largest cost, k = 1"


def best_share(rows: Sequence[Row]) -> Finding | None:
    """The share of a cost for anchors that finds most; cells with several equally good splits don't count."""
    tried = _most_anchors(select(rows, experiment="recall-at-cost", method=ANNCUR))
    best = equally_good_splits([row for row in tried if (row.cell.k or 0) >= 10])
    cells = [equal[0].cell for equal in best if len(equal) == 1]
    if not cells:
        return None
    low, middle, high = np.quantile(
        [(cell.n_anchor_items or 0) / (cell.cost or 1) for cell in cells], [0.25, 0.5, 0.75]
    )
    shown = f"median {middle:.0%}, half of {len(cells)} cells between {low:.0%} and {high:.0%}"
    shown += f"; in {len(best) - len(cells)} others several splits are equally good" if len(best) > len(cells) else ""
    return (CONFIRMED if 0.4 <= middle <= 0.6 else DIFFERENT), shown


def more_anchors_help(rows: Sequence[Row]) -> Finding | None:
    """Whether recall rises with the number of anchor queries."""
    best = select(best_splits(select(rows, experiment="anchor-queries")), method=ANNCUR)
    return trend(series(best, "n_anchor_queries"), +1)


def larger_worlds_are_harder(rows: Sequence[Row]) -> Finding | None:
    """Whether recall falls with the number of items."""
    return trend(series(best_splits(select(rows, experiment="world-size")), "n_items"), -1)


def distilled_are_not_monotone(rows: Sequence[Row]) -> Finding | None:
    """Whether a dual encoder that was distilled from more queries ever finds less."""
    distilled = [row for row in select(rows, experiment="anchor-queries") if DISTILLED in row.cell.method]
    by_name: dict[tuple[str, str, str], list[Row]] = {}
    for row in distilled:
        by_name.setdefault((row.cell.world, row.cell.scorer, row.cell.method.partition(DISTILLED)[0]), []).append(row)
    curves = [line for some in by_name.values() for line in lines(some, "n_anchor_queries")]
    if not curves:
        return None
    falling = [line for line in curves if any(later < earlier for earlier, later in pairwise(line))]
    return (CONFIRMED if falling else REFUTED), f"{len(falling)} of {len(curves)} curves fall somewhere"


def item_item_order(rows: Sequence[Row]) -> Finding | None:
    """Whether recall rises from fixedITEM to itemCUR, and from that to ANNCUR."""
    differences: list[float] = []
    for some in grouped(select(rows, experiment="item-item"), "world", "scorer", "data", "k", "n_rerank").values():
        cell, fixed = some[0].cell, _recalls(some, FIXED_ITEM)
        if cell.k == 100 and (cell.n_rerank or 0) >= 100 and fixed:
            for n_anchor_items in distinct(some, "n_anchor_items"):
                same = select(some, n_anchor_items=n_anchor_items)
                item_cur, anncur = (mean(select(same, method=name), "recall") for name in (ITEM_CUR, ANNCUR))
                differences += [
                    after - before for before, after in ((fixed[0], item_cur), (item_cur, anncur)) if before < 1
                ]
    known = [difference for difference in differences if not np.isnan(difference)]
    return all_positive(known, "points from each to the next, k = 100")


def _leads(rows: Sequence[Row], beginning: str) -> list[tuple[int, int, int, float]]:
    """k, cost, the largest cost of this world, and how far ANNCUR is ahead of the best method whose name begins so."""
    found = []
    for some in grouped(_at_cost(rows), "world", "scorer", "data").values():
        most = distinct(some, "cost")[-1]
        for (k, cost), cell in grouped(some, "k", "cost").items():
            ours, others = _recalls(cell, ANNCUR), _recalls(cell, beginning)
            if ours and others:
                found.append((k, cost, most, max(ours) - max(others)))
    return found


def _recalls(rows: Iterable[Row], beginning: str) -> list[float]:
    """The recalls of methods whose names begin so."""
    return [row["recall"] for row in rows if row.cell.method.startswith(beginning)]


def _at_cost(rows: Iterable[Row]) -> list[Row]:
    """The curves over cost with the most anchor queries of each world, with the best split of each cost."""
    return best_splits(_most_anchors(select(rows, experiment="recall-at-cost")))


def _most_anchors(rows: Iterable[Row]) -> list[Row]:
    """The rows with the most anchor queries of each world."""
    return [
        row
        for some in grouped(rows, "world", "scorer", "data").values()
        for row in select(some, n_anchor_queries=distinct(some, "n_anchor_queries")[-1])
    ]
