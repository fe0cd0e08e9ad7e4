"""The tables of rivals.py, from its rows alone: boards, where posterior isn't best, and the task's own metrics."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from anncur.evaluation.intervals import Interval, difference, recall_interval
from anncur.evaluation.rows import Row, distinct, grouped, mean, select
from anncur.evaluation.scoreboard import DOCUMENTS
from first_query import BUDGETS, POINTS, unpacked

OURS, EXHAUSTIVE = "posterior", "exhaustive"
TASK_K, TASK_ANCHORS = 10, 40  # anchor queries with which the task's own metrics are shown as more items are scored
TASK_BUDGETS = (20, *BUDGETS)
CLOSE = 0.005  # half a point


class Board:
    """The rows of one matrix, seen from posterior."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self.documents = select(rows, method=DOCUMENTS)
        self.measured = [unpacked(row) for row in select(rows, part="") if row.cell.method != DOCUMENTS]
        self.n_anchors: list[int] = distinct(self.measured, "n_anchor_queries")
        self.cells = grouped(self.measured, "method", "n_anchor_queries", "k", "cost")

    def methods(self, n_anchors: int) -> list[str]:
        """Those with rows for a number of anchor queries, without exhaustive search."""
        rows = select(self.measured, n_anchor_queries=n_anchors)
        return [name for (name,) in grouped(rows, "method") if name != EXHAUSTIVE]

    def recall(self, method: str, n_anchors: int, point: tuple[int, int]) -> float:
        """The mean over seeds."""
        return mean(self.cells.get((method, n_anchors, *point), []), "recall")

    def interval(self, method: str, n_anchors: int, point: tuple[int, int]) -> Interval:
        """The same, with its interval over documents."""
        return recall_interval(self.cells[method, n_anchors, *point], self.documents)

    def lead(self, n_anchors: int, point: tuple[int, int]) -> tuple[str, Interval]:
        """The best of the others, and posterior less it."""
        rivals = [name for name in self.methods(n_anchors) if name != OURS]
        best = max(rivals, key=lambda name: self.recall(name, n_anchors, point))
        ours, theirs = (self.cells[name, n_anchors, *point] for name in (OURS, best))
        return best, difference(ours, theirs, self.documents)

    def behind(self, n_anchors: int) -> Iterator[tuple[tuple[int, int], str, Interval]]:
        """Where a rival is more than half a point ahead of posterior: the best one, and posterior less it."""
        for point in POINTS:
            best, lead = self.lead(n_anchors, point)
            if lead.mean < -CLOSE:
                yield point, best, lead

    def task(self, method: str, budget: int) -> list[Row]:
        """The rows with the task's own metrics, with few anchor queries."""
        n_anchors = min(max(self.n_anchors), TASK_ANCHORS)
        return [row for row in self.cells.get((method, n_anchors, TASK_K, budget), []) if "judged" in row.values]


def show(board: Board) -> None:
    """A board for each number of anchor queries, where posterior is behind, and the task's own metrics."""
    first = board.measured[0].cell
    n_seeds, n_tests = len(distinct(board.measured, "seed")), len(board.measured[0]["found"])
    print(
        f"\n## {first.world}, {first.scorer}, {first.n_items:,} items; {n_seeds} seeds, {n_tests} test queries or more"
    )
    show_summary(board)
    for n_anchors in board.n_anchors:
        print(f"\n{n_anchors} anchor queries: recall in %, with 95% intervals over documents\n")
        print_table(
            ["k, pairs", *(f"{k}, {budget}" for k, budget in POINTS), "ms", "rounds"],
            {name: board_line(board, name, n_anchors) for name in board.methods(n_anchors)},
        )
    show_behind(board)
    show_task(board)


def show_summary(board: Board) -> None:
    """Recall of the top 10 with every number of anchor queries, and posterior less the best of the others."""
    places = [(n_anchors, (TASK_K, budget)) for n_anchors in board.n_anchors for budget in BUDGETS]
    lines = {
        name: [
            f"{100 * board.recall(name, *place):.1f}" if (name, place[0], *place[1]) in board.cells else ""
            for place in places
        ]
        for name in board.methods(board.n_anchors[-1])
    }
    lines["posterior less the best other"] = [with_interval(board.lead(*place)[1], "+.1f") for place in places]
    print("\nrecall of the top 10, in %\n")
    print_table(["anchor queries, pairs", *(f"{n_anchors}, {budget}" for n_anchors, (_, budget) in places)], lines)


def board_line(board: Board, name: str, n_anchors: int) -> list[str]:
    """Recall at every point, and a query's own milliseconds and rounds with the budget in the middle."""
    middle = board.cells.get((name, n_anchors, TASK_K, BUDGETS[1]), [])
    recall = [with_interval(board.interval(name, n_anchors, point)) for point in POINTS]
    return [*recall, f"{1000 * mean(middle, 'own_seconds'):.1f}", f"{mean(middle, 'rounds'):.0f}"]


def show_behind(board: Board) -> None:
    """The cells where posterior is neither the best nor within half a point of it."""
    found = [(n_anchors, *one) for n_anchors in board.n_anchors for one in board.behind(n_anchors)]
    n_cells = len(board.n_anchors) * len(POINTS)
    print(f"\nposterior is best or within half a point in {n_cells - len(found)} of {n_cells} cells; elsewhere:\n")
    for n_anchors, (k, budget), best, lead in found:
        low, middle, high = (100 * value for value in (lead.low, lead.mean, lead.high))
        print(f"- {n_anchors} anchor queries, k {k}, {budget} pairs: {middle:+.1f} ({low:.1f}..{high:.1f}) to {best}")


def show_task(board: Board) -> None:
    """Accuracy (a right item first), nDCG@10 and recall of the scorer's top 10 as more items are scored."""
    names = [name for name in board.methods(board.n_anchors[-1]) if board.task(name, BUDGETS[0])]
    for title, value in (("a right item first", right), ("nDCG@10", ndcg), ("recall of the top 10", recall)):
        lines = {name: [value(board.task(name, budget)) for budget in TASK_BUDGETS] for name in names}
        everything = [row for row in board.measured if row.cell.method == EXHAUSTIVE and "judged" in row.values]
        if everything:
            print(f"\n{title}, in %; all items scored: {value(everything)}\n")
            print_table(["pairs", *map(str, TASK_BUDGETS)], lines)


def right(rows: Sequence[Row]) -> str:
    """How often a right item came first."""
    return percent([float(digit) for row in rows for digit in row["right"]])


def ndcg(rows: Sequence[Row]) -> str:
    """Over the queries that were judged."""
    return percent([value for row in rows for value in row["judged"] if value is not None])


def recall(rows: Sequence[Row]) -> str:
    """Of the scorer's own best."""
    return percent([row["recall"] for row in rows])


def with_interval(interval: Interval, form: str = ".1f") -> str:
    """In %, with half of its width."""
    return f"{100 * interval.mean:{form}} ±{100 * (interval.high - interval.mean):.1f}"


def percent(values: Sequence[float]) -> str:
    """The mean."""
    return f"{100 * float(np.mean(values)):.1f}" if values else ""


def print_table(columns: Sequence[str], lines: Mapping[str, Sequence[str]]) -> None:
    """In Markdown."""
    print(f"| {' | '.join(columns)} |\n|{'---|' * len(columns)}")
    for name, values in lines.items():
        print(f"| {' | '.join([name, *values])} |")
