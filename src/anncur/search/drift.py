"""Tells queries that are unlike the anchor queries by their exact scores: surprising ones, or low ones.

Before a pair is paid for, the model has a distribution for its score. The mean squared distance of exact scores from
it, in standard deviations, is a query's surprise. Where nothing fits a query, nothing need be a surprise, but its best
scores are low. Both have a rank among those of queries that the model was tried on, held-out anchor queries or the ones
that it was calibrated on. Written by `tuning/`, stored by `storage/codecs.py`, read by `posterior.py` and `index/`.
Plain numbers."""

from __future__ import annotations

import hashlib
import threading
import warnings
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from anncur.arrays import FloatMatrix, FloatVector, Positions
from anncur.errors import DriftWarning
from anncur.ranking import UNLIKE_ANCHORS

PAIRS_COMPARED = (10, 20, 50, 100, 200, 500)  # the first so many pairs of a search are compared with those of others
N_BEST = 10  # exact scores, whose mean tells how well the items fit a query
EQUAL = 2.0**-10  # of the largest best score: smaller differences may come from scores that are stored as float16
LEAST_QUERIES = 20  # whose mean tells anything
MOST_QUERIES = 200  # the latest ones, which are looked at together
LEAST_SHARE = 0.25  # of queries unlike the anchor queries; queries like them, but of new documents, came to 0.16
LEAST_ERRORS = 3.0  # standard errors of the mean drift above that of queries like the anchor queries
ADVICE = (
    "add queries like these to the anchor queries and build again, or fit the query log with index.learn() or "
    "`anncur learn`; estimates of recall hold for them after index.calibrate(queries)"
)


@dataclass(frozen=True)
class DriftReference:
    """How surprising the first pairs of the queries were that the model was tried on, and how high their best scores.

    `surprises` and `best_scores` have a row for each number of `n_pairs`, in ascending order, with a value for each
    query; older indexes have no `best_scores`. `n_feedback_queries` is what the feedback model was fitted to that the
    model had then: another one has other surprises."""

    n_pairs: tuple[int, ...] = ()
    surprises: tuple[tuple[float, ...], ...] = ()
    best_scores: tuple[tuple[float, ...], ...] = ()
    n_feedback_queries: int = 0

    @classmethod
    def of(cls, surprises: FloatMatrix, best_scores: FloatMatrix, *, n_feedback_queries: int = 0) -> DriftReference:
        """From those of some queries, both (number of `PAIRS_COMPARED` that there were enough items for, n)."""
        rows = [tuple(tuple(row.tolist()) for row in values) for values in (surprises.round(5), best_scores)]
        return cls(PAIRS_COMPARED[: len(surprises)], rows[0], rows[1], n_feedback_queries)

    @property
    def n_queries(self) -> int:
        return len(self.surprises[0]) if self.surprises else 0

    @cached_property
    def identity(self) -> str:
        """A short name of these numbers: drifts are compared only where they have the same."""
        numbers = (self.surprises, self.best_scores) if self.best_scores else self.surprises
        return hashlib.sha256(repr(numbers).encode()).hexdigest()[:8]

    def n_compared(self, n_scored: int) -> int:
        """How many of the first pairs are compared after this many; 0 where they are too few to tell anything."""
        return max((n for n in self.n_pairs if n <= n_scored), default=0)

    def drifts(self, surprises: FloatVector, best_scores: FloatVector | None = None, *, n_compared: int) -> FloatVector:
        """The share of queries that were less unusual, each of these itself counted among them. (n_queries,)

        A query is as unusual as the higher of its two ranks; among equals, the other one decides. All ranks are among
        the others and the query itself, so that one like them reaches 0.95 in at most 5 of 100 cases, however few they
        are. Without `best_scores`, surprise alone counts."""
        row = self.n_pairs.index(n_compared)
        ranks = [_pooled_ranks(np.array(self.surprises[row]), np.round(surprises, 5))]
        if best_scores is not None and self.best_scores:
            of_others = np.array(self.best_scores[row])
            ranks.append(_pooled_ranks(-of_others, -best_scores, equal=EQUAL * np.abs(of_others).max()))
        n_all = self.n_queries + 1
        unusual = np.max(ranks, axis=0) + np.min(ranks, axis=0) / n_all
        found: FloatVector = (unusual[:, 1:] < unusual[:, :1]).sum(axis=1) / n_all
        return found


def _pooled_ranks(others: FloatVector, values: FloatVector, *, equal: float = 0.0) -> Positions:
    """How many are lower than each value, and than each of the others once that is one of them. (n, 1 + n_others)

    Differences of at most `equal` are none."""
    own = (others < values[:, None] - equal).sum(axis=1)
    of_others = np.searchsorted(np.sort(others), others - equal) + (values[:, None] < others - equal)
    return np.column_stack([own, of_others])


@dataclass(frozen=True)
class DriftSummary:
    """How unlike the anchor queries the latest `n_queries` were.

    `share_unlike` is the share of them with `hits.is_unlike_anchors`, of which 0.05 is to be expected; `is_drifting`
    where they are clearly more, and `advice` what to do then."""

    n_queries: int
    mean_drift: float
    share_unlike: float
    is_drifting: bool
    advice: str

    @property
    def text(self) -> str:
        """A sentence on what was found and, if need be, what to do."""
        n_queries = f"{self.n_queries} queries are" if self.n_queries > 1 else "query is"
        shares = f"{self.share_unlike:.0%} of the last {n_queries} unlike the anchor queries"
        expected = f"about {1 - UNLIKE_ANCHORS:.0%} is to be expected"
        if not self.is_drifting:
            return f"{shares}; {expected}"
        return f"{shares}, where {expected}: less may be found than estimated; {self.advice}"

    @classmethod
    def of(cls, drifts: Sequence[float], *, n_reference: int) -> DriftSummary:
        """Of some queries, compared with as many as `n_reference`; queries count once, so pass each once."""
        mean, share = float(np.mean(drifts)), float(np.mean(np.array(drifts) >= UNLIKE_ANCHORS))
        is_drifting = (
            len(drifts) >= LEAST_QUERIES and share >= LEAST_SHARE and _is_clear(mean, len(drifts), n_reference)
        )
        return cls(len(drifts), mean, share, is_drifting, ADVICE if is_drifting else "")


def _is_clear(mean: float, n_queries: int, n_reference: int) -> bool:
    """Whether two samples of one distribution hardly ever have such ranks: Mann and Whitney's test."""
    expected = 0.5 * n_reference / (n_reference + 1)
    error = np.sqrt((n_queries + n_reference + 1) / (12 * n_queries * n_reference))
    return bool(mean > expected + LEAST_ERRORS * error)


class DriftWatch:
    """Remembers the drifts of the latest queries of one index, each query once; warns once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._latest: OrderedDict[str, float] = OrderedDict()
        self._reference = DriftReference()
        self._has_warned = False

    def observe(self, drifts: Mapping[str, float], reference: DriftReference) -> None:
        """Take in the drifts of queries by their text; those with another reference are forgotten."""
        with self._lock:
            if reference.identity != self._reference.identity:
                self._latest.clear()
                self._reference = reference
            for text, drift in drifts.items():
                self._latest[text] = drift
                self._latest.move_to_end(text)
            while len(self._latest) > MOST_QUERIES:
                self._latest.popitem(last=False)
            found = self._summary()
            warns = found is not None and found.is_drifting and not self._has_warned
            self._has_warned = self._has_warned or warns
        if warns and found is not None:
            warnings.warn(found.text, DriftWarning, stacklevel=2)

    @property
    def is_empty(self) -> bool:
        """Whether no drift was ever known."""
        return not self._latest

    def summary(self, reference: DriftReference) -> DriftSummary | None:
        """Of all that is remembered; None where there is nothing, or it was compared with others than these."""
        with self._lock:
            return self._summary() if reference.identity == self._reference.identity else None

    def _summary(self) -> DriftSummary | None:
        if not self._latest:
            return None
        return DriftSummary.of(list(self._latest.values()), n_reference=self._reference.n_queries)
