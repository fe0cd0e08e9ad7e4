"""The exact scores of the anchor queries on all items: what an index is made of, and what costs money.

Asks the scorer for what is missing, feeds `factors/` and the index. Held in memory, items in rows so that a row is an
item's vector, and turned so that higher is better; NaN marks what has not been scored."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from anncur.arrays import FloatMatrix, FloatVector, Positions
from anncur.errors import FingerprintError, InputError, ScorerOutputError
from anncur.items import Corpus, Query, digest_texts
from anncur.progress import Progress, silent
from anncur.scorers.guard import GuardedScorer
from anncur.scorers.metered import Meter

ITEMS_PER_CHUNK = 512


class ScoreMatrix:
    """Exact scores, items in rows and queries in columns, bound to the scorer and the texts that they belong to."""

    def __init__(self, values: FloatMatrix, *, fingerprint: str, higher_is_better: bool, digest: str) -> None:
        self.values = values
        self.fingerprint = fingerprint
        self.higher_is_better = higher_is_better
        self._digest = digest

    @classmethod
    def empty(cls, scorer: GuardedScorer, queries: Sequence[Query], corpus: Corpus) -> ScoreMatrix:
        """A matrix in which nothing has been scored yet."""
        values = np.full((len(corpus), len(queries)), np.nan, dtype=np.float32)
        return cls(
            values,
            fingerprint=scorer.fingerprint,
            higher_is_better=scorer.rules.higher_is_better,
            digest=_digest(queries, corpus),
        )

    @property
    def n_missing(self) -> int:
        """Pairs that are still to be scored."""
        return int(np.isnan(self.values).sum())

    def check_fits(self, scorer: GuardedScorer, queries: Sequence[Query], corpus: Corpus) -> None:
        """Refuse another scorer, other queries or other items than those that the scores belong to."""
        if self.fingerprint != scorer.fingerprint:
            raise FingerprintError(
                f"these exact scores came from the scorer {self.fingerprint}, not from {scorer.fingerprint}; "
                "use that one, or score anew"
            )
        if self.higher_is_better != scorer.rules.higher_is_better:
            raise InputError(
                f"these exact scores were made with higher_is_better={self.higher_is_better}; load the scorer like that"
            )
        if self.values.shape != (len(corpus), len(queries)) or self._digest != _digest(queries, corpus):
            raise InputError(
                "these exact scores belong to other items or anchor queries, or to another order of them; "
                "pass the same ones, or score anew"
            )

    def fill(
        self, scorer: GuardedScorer, queries: Sequence[Query], corpus: Corpus, *, progress: Progress = silent
    ) -> None:
        """Score what is missing; what was paid for stays in the matrix, also when something fails."""
        total = self.values.size
        done = total - self.n_missing
        for positions, column in self._missing_parts():
            self._score(Meter(scorer, queries[column], corpus, budget=len(positions)), positions, column)
            done += len(positions)
            progress("scoring anchor queries", done, total)

    def _missing_parts(self) -> Iterator[tuple[Positions, int]]:
        """What is missing, chunk of items by chunk and column by column."""
        n_items, n_queries = self.values.shape
        for start in range(0, n_items, ITEMS_PER_CHUNK):
            for column in range(n_queries):
                missing = np.flatnonzero(np.isnan(self.values[start : start + ITEMS_PER_CHUNK, column]))
                if len(missing):
                    yield start + missing, column

    def _score(self, meter: Meter, positions: Positions, column: int) -> None:
        try:
            meter.score(positions)
        finally:  # whatever happened, keep what was paid for
            self._keep(meter.positions, column, meter.exact_scores)

    def _keep(self, positions: Positions, column: int, exact_scores: FloatVector) -> None:
        with np.errstate(over="ignore"):
            stored = exact_scores.astype(np.float32)
        fits = np.isfinite(stored)
        self.values[positions[fits], column] = stored[fits]
        if not fits.all():
            raise ScorerOutputError(
                f"the scorer {self.fingerprint} gave {exact_scores[~fits][0]:.3g}, too large for float32; "
                "scale its scores down"
            )


def _digest(queries: Sequence[Query], corpus: Corpus) -> str:
    return digest_texts([corpus.digest(), *(query.marked_text for query in queries)])
