"""Lines and rows of made-up methods, whose costs are easy to reckon by hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from anncur.evaluation.costs import Line, Point
from anncur.evaluation.rows import Cell, Row
from anncur.evaluation.scoreboard import DOCUMENTS

N_ITEMS = 1000
N_TESTS = 40
BOARD = Cell("scoreboard", "toy", DOCUMENTS, scorer="judge", k=10, n_anchor_queries=100, n_items=N_ITEMS)


def make_line(*points: Point, method: str = "posterior", n_anchors: int = 0) -> Line:
    return Line(method, n_anchors, float(n_anchors * N_ITEMS), [list(points)])


def make_rows(found: Mapping[str, Mapping[int, float]], **values: Any) -> list[Row]:
    """What each method finds with each budget, the same for all test queries but for a little that isn't."""
    documents = Row(replace(BOARD, k=None), {"groups": list(range(N_TESTS))})
    rows = [documents]
    for method, by_budget in found.items():
        n_anchors = _n_anchors(method)
        for budget, recall in by_budget.items():
            counts = spread(recall)
            own = {"recall": sum(counts) / (10 * N_TESTS), "found": counts, "calls": float(budget), "seconds": 0.0}
            rounds = {"rounds": 1.0 if method.startswith("rerank") else 5.0, "build_calls": n_anchors * N_ITEMS}
            rows.append(Row(replace(BOARD, method=method, cost=budget), {**own, **rounds, **values}))
    return rows


def spread(recall: float) -> list[int]:
    """How many of ten each query finds, so that the mean is this recall."""
    total = round(10 * N_TESTS * recall)
    return [total // N_TESTS + (place < total % N_TESTS) for place in range(N_TESTS)]


def pace_row(latency: float, seconds_per_pair: float, n_corpus_items: int = N_ITEMS) -> Row:
    cell = replace(BOARD, method="scorer", k=None)
    return Row(cell, {"latency": latency, "seconds_per_pair": seconds_per_pair, "n_corpus_items": n_corpus_items})


def without(rows: Sequence[Row], *names: str) -> list[Row]:
    """Rows as they were before these values were measured."""
    return [Row(row.cell, {name: value for name, value in row.values.items() if name not in names}) for row in rows]


def _n_anchors(method: str) -> int:
    if method.startswith("rerank") or "no anchor" in method:
        return 0
    words = method.split()
    return int(words[-3]) if words[-1] == "queries" else BOARD.n_anchor_queries or 0
