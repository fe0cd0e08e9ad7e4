"""Intervals for means over queries that are not independent of each other.

Queries of one document are alike, and with several seeds the same query is measured more than once: what is
independent are the documents, so the spread of the mean is taken over those."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from anncur.arrays import FloatVector


@dataclass(frozen=True)
class Interval:
    """A mean, and where the true one lies with the given confidence."""

    mean: float
    low: float
    high: float


def clustered_interval(values: FloatVector, groups: Sequence[object], *, confidence: float = 0.95) -> Interval:
    """The interval of the mean of `values`, of which those of one group are not independent.

    The variance of the mean is that of the sums of the groups' deviations (Liang and Zeger's), with the correction for
    few groups; the quantile is Student's, by Cornish and Fisher's expansion."""
    values = np.asarray(values, dtype=np.float64)
    mean = float(values.mean())
    _, group_of = np.unique(np.asarray(groups), return_inverse=True)
    sums = np.bincount(group_of, weights=values - mean)
    n_groups = len(sums)
    if n_groups < 2:
        return Interval(mean, -np.inf, np.inf)
    error = float(np.sqrt(n_groups / (n_groups - 1) * np.square(sums).sum())) / len(values)
    reach = _student(confidence, n_groups - 1) * error
    return Interval(mean, mean - reach, mean + reach)


def _student(confidence: float, freedom: int) -> float:
    """The two-sided quantile of Student's distribution."""
    z = NormalDist().inv_cdf(0.5 + confidence / 2)
    first = (z**3 + z) / (4 * freedom)
    second = (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)
    return z + first + second
