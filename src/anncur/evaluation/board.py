"""What the scoreboard's rows say: intervals over documents, the best method of a cell, and differences to ours."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from anncur.arrays import FloatVector
from anncur.evaluation.experiments.scoreboard import DOCUMENTS
from anncur.evaluation.intervals import Interval, clustered_interval
from anncur.evaluation.rows import Row, grouped, mean, select
from anncur.search.methods import Exhaustive
from anncur.search.posterior import Posterior


@dataclass(frozen=True)
class Loss:
    """A cell where another method than the default is best, and by how much."""

    k: int
    cost: int
    winner: str
    difference: Interval

    @property
    def is_clear(self) -> bool:
        """Whether chance alone doesn't explain it."""
        return self.difference.low > 0


def interval_of(rows: Sequence[Row], documents: Sequence[Row]) -> Interval:
    """The interval of a method's recall in one cell, over the documents of all seeds."""
    return clustered_interval(_recalls(rows), _groups(rows, documents))


def losses(rows: Sequence[Row]) -> list[Loss]:
    """The cells of one world in which the default method is not the best."""
    documents = select(rows, method=DOCUMENTS)
    measured = [row for row in rows if row.cell.method not in (DOCUMENTS, Exhaustive.name)]
    found = []
    for (k, cost), some in grouped(measured, "k", "cost").items():
        methods = {name: rows_of for (name,), rows_of in grouped(some, "method").items()}
        winner = max(methods, key=lambda name: mean(methods[name], "recall"))
        if Posterior.name in methods and mean(methods[winner], "recall") > mean(methods[Posterior.name], "recall"):
            lead = difference(methods[winner], methods[Posterior.name], documents)
            found.append(Loss(k, cost, winner, lead))
    return found


def difference(theirs: Sequence[Row], ours: Sequence[Row], documents: Sequence[Row]) -> Interval:
    """Theirs less ours in one cell, of the same queries, so that what is hard for both is no part of the spread."""
    seeds = {row.cell.seed for row in theirs} & {row.cell.seed for row in ours}
    both = [[row for row in rows if row.cell.seed in seeds] for rows in (theirs, ours)]
    ordered = [sorted(rows, key=lambda row: row.cell.seed) for rows in both]
    return clustered_interval(_recalls(ordered[0]) - _recalls(ordered[1]), _groups(ordered[0], documents))


def _recalls(rows: Sequence[Row]) -> FloatVector:
    return np.concatenate([np.array(row["found"]) / (row.cell.k or 1) for row in rows])


def _groups(rows: Sequence[Row], documents: Sequence[Row]) -> list[int]:
    of_seed = {row.cell.seed: row["groups"] for row in documents}
    return [group for row in rows for group in of_seed[row.cell.seed]]
