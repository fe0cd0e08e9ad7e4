"""How much a scorer's answers to the same pair differ: a judge that samples, or a model with dropout.

Fed with pairs that were answered again: by builds, by queries that come again, and by searches that ask for their best
items several times. Feeds searches, which then trust no single answer more than it deserves."""

from __future__ import annotations

import threading

import numpy as np

from anncur.arrays import FloatVector
from anncur.scorers.stability import TOLERANCE

LEAST_REPEATED = 4  # pairs, before a difference is taken for noise
N_DRAWS = 64  # random draws of true scores


class Noise:
    """Estimates the variance of a scorer's answers to one pair. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._n_repeated = 0
        self._squares = 0.0
        self._scores = np.zeros(3)  # sums of 1, scores, squared scores: how far scores of different pairs are apart

    def observe(self, exact_scores: FloatVector) -> None:
        """Take in answers to different pairs."""
        with self._lock:
            self._scores += [len(exact_scores), exact_scores.sum(), np.square(exact_scores).sum()]

    def observe_again(self, before: FloatVector, again: FloatVector) -> None:
        """Take in two answers to each of some pairs."""
        with self._lock:
            self._n_repeated += len(before)
            self._squares += float(np.square(again - before).sum())

    @property
    def variance(self) -> float:
        """Of the answers to one pair; 0 where they differ by no more than rounding, or too few were repeated."""
        with self._lock:
            if self._n_repeated < LEAST_REPEATED:
                return 0.0
            found = self._squares / (2 * self._n_repeated)  # a difference of two answers has the noise of both
            return found if found > TOLERANCE**2 * self._spread() else 0.0

    @property
    def share(self) -> float:
        """The noise's variance as a share of the variance over different pairs."""
        variance, spread = self.variance, self._spread()
        return min(1.0, variance / spread) if spread else 0.0

    def _spread(self) -> float:
        n_scores, total, squares = self._scores.tolist()
        return max(0.0, squares / n_scores - (total / n_scores) ** 2) if n_scores else 0.0

    def __reduce__(self) -> tuple[type[Noise], tuple[()]]:
        return Noise, ()  # another process estimates for itself


def agreement(scores: FloatVector, variances: FloatVector, k: int) -> float:
    """The share of the best k by noisy scores that is to be expected among the best k by true ones."""
    if k >= len(scores):
        return 1.0
    best = np.argsort(-scores, kind="stable")[:k]
    drawn = scores + np.sqrt(variances) * np.random.default_rng(0).standard_normal((N_DRAWS, len(scores)))
    kth = np.partition(drawn, -k, axis=1)[:, -k, None]
    return float((drawn[:, best] >= kth).mean())
