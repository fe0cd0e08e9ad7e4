"""Intervals for means over queries that are not independent of each other, and what the scoreboard's rows show.

Queries of one document are alike, and with several seeds the same query is measured more than once: only documents are
independent, so the spread of a mean is taken over documents. Reads rows, feeds the report and its figures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from anncur.arrays import FloatVector
from anncur.errors import InputError
from anncur.evaluation.distribution import SCORER
from anncur.evaluation.rows import Row, grouped, mean, select
from anncur.evaluation.scoreboard import DOCUMENTS
from anncur.search.methods import Exhaustive
from anncur.search.posterior import Posterior


@dataclass(frozen=True)
class Interval:
    """A mean, and where the true one lies with the given confidence."""

    mean: float
    low: float
    high: float


@dataclass(frozen=True)
class Lead:
    """A k and a budget where another method is ahead of the default one, and by how much."""

    k: int
    budget: int
    method: str
    difference: Interval

    @property
    def is_clear(self) -> bool:
        """Whether chance alone doesn't explain it."""
        return self.difference.low > 0


def clustered_interval(values: FloatVector, groups: Sequence[object], *, confidence: float = 0.95) -> Interval:
    """The interval of the mean of `values`, of which those of one group are not independent.

    The variance of the mean is that of the sums of the groups' deviations (Liang and Zeger's), with the correction for
    few groups; the quantile is Student's."""
    values = np.asarray(values, dtype=np.float64)
    mean_value = float(values.mean())
    _, group_of = np.unique(np.asarray(groups), return_inverse=True)
    sums = np.bincount(group_of, weights=values - mean_value)
    n_groups = len(sums)
    if n_groups < 2:
        return Interval(mean_value, -np.inf, np.inf)
    error = float(np.sqrt(n_groups / (n_groups - 1) * np.square(sums).sum())) / len(values)
    reach = _student_quantile(n_groups - 1, 0.5 + confidence / 2) * error
    return Interval(mean_value, mean_value - reach, mean_value + reach)


def _student_quantile(n_degrees: int, probability: float) -> float:
    try:
        from scipy.special import stdtrit  # here, because it takes a while to import, and only reports need it
    except ModuleNotFoundError as error:
        raise InputError(f"intervals need {error.name}; run pip install 'anncur[bench]'") from error
    return float(stdtrit(n_degrees, probability))


def recall_interval(rows: Sequence[Row], documents: Sequence[Row]) -> Interval:
    """The interval of a method's recall at one k and budget, over the documents of all seeds."""
    return clustered_interval(_recalls(rows), _groups(rows, documents))


def measured_methods(rows: Sequence[Row]) -> list[Row]:
    """The rows of methods that are compared: without exhaustive search, and the rows that list documents.

    Those of parts, such as a limit of rounds, are for costs alone."""
    return [row for row in measured_parts(rows) if not row.cell.part]


def measured_parts(rows: Sequence[Row]) -> list[Row]:
    """The rows of methods that are compared, with their parts."""
    return [row for row in rows if row.cell.method not in (DOCUMENTS, Exhaustive.name, SCORER)]


def leads(rows: Sequence[Row]) -> list[Lead]:
    """Where the default method is not the best, in the rows of one world."""
    documents = select(rows, method=DOCUMENTS)
    found = []
    for (k, budget), some in grouped(measured_methods(rows), "k", "cost").items():
        methods = {name: rows_of for (name,), rows_of in grouped(some, "method").items()}
        best = max(methods, key=lambda name: mean(methods[name], "recall"))
        if Posterior.name in methods and mean(methods[best], "recall") > mean(methods[Posterior.name], "recall"):
            lead = difference(methods[best], methods[Posterior.name], documents)
            found.append(Lead(k, budget, best, lead))
    return found


def difference(theirs: Sequence[Row], ours: Sequence[Row], documents: Sequence[Row]) -> Interval:
    """Theirs less ours at one k and budget, query by query, so that what is hard for both doesn't widen it."""
    seeds = {row.cell.seed for row in theirs} & {row.cell.seed for row in ours}
    both = [[row for row in rows if row.cell.seed in seeds] for rows in (theirs, ours)]
    ordered = [sorted(rows, key=lambda row: row.cell.seed) for rows in both]
    return clustered_interval(_recalls(ordered[0]) - _recalls(ordered[1]), _groups(ordered[0], documents))


def _recalls(rows: Sequence[Row]) -> FloatVector:
    return np.concatenate([np.array(row["found"]) / (row.cell.k or 1) for row in rows])


def _groups(rows: Sequence[Row], documents: Sequence[Row]) -> list[int]:
    of_seed = {row.cell.seed: row["groups"] for row in documents}
    return [group for row in rows for group in of_seed[row.cell.seed]]
