"""What tests are made of: score matrices of known rank, scorers over them, and an independent counter of pairs."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

import anncur
from anncur.arrays import FloatMatrix, FloatVector
from anncur.scorers.base import Scorer
from anncur.scorers.stored import StoredScorer


class CountingScorer:
    """Counts every pair that it is asked for, in the order of asking."""

    def __init__(self, inner: Scorer) -> None:
        self._inner = inner
        self.fingerprint = inner.fingerprint
        self.pairs: list[tuple[str, str]] = []

    def score(self, query: anncur.Query, items: Sequence[anncur.Item]) -> FloatVector:
        self.pairs.extend((query.marked_text, item.id) for item in items)
        return np.asarray(self._inner.score(query, items))

    def asked_for(self, query: str) -> list[str]:
        """The ids asked for with this query."""
        return [item_id for text, item_id in self.pairs if text == query]


class FewScores:
    """Gives only five different scores, so that there are ties; counts the pairs."""

    fingerprint = "few scores"

    def __init__(self) -> None:
        self.n_pairs = 0

    def score(self, query: anncur.Query, items: Sequence[anncur.Item]) -> list[float]:
        self.n_pairs += len(items)
        return [few_score(query.text, item) for item in items]


def few_score(query: str, item: anncur.Item) -> float:
    """One of the five, by the texts alone."""
    return float(zlib.crc32(f"{query} {item.full_text}".encode()) % 5)


class World:
    """A score matrix with its queries, items and a counting scorer; the first queries are meant as anchors."""

    def __init__(self, exact_scores: FloatMatrix) -> None:
        self.exact_scores = exact_scores
        n_queries, n_items = exact_scores.shape
        self.queries = [f"query {number}" for number in range(n_queries)]
        self.items = [anncur.Item(f"i{number}", f"item {number} is a thing") for number in range(n_items)]
        self.scorer = CountingScorer(StoredScorer(exact_scores, self.queries, [item.id for item in self.items]))

    def index(self, n_anchors: int, **options: Any) -> anncur.Index:
        index = anncur.Index.build(self.items, self.scorer, self.queries[:n_anchors], **options)
        self.scorer.pairs.clear()
        return index

    def brute_force(self, query: int, k: int) -> list[str]:
        """The true top k, ties by position."""
        order = sorted(range(len(self.items)), key=lambda position: (-self.exact_scores[query, position], position))
        return [self.items[position].id for position in order[:k]]


class HashedVectors:
    """A retriever with vectors of its own, which know nothing of the scorer: each text has its own at random."""

    name = "hashed"

    def fit(self, items: Iterable[anncur.Item]) -> None:
        self._item_vectors = self._embed([item.full_text for item in items])

    def scores(self, queries: Sequence[anncur.Query]) -> FloatMatrix:
        return self._embed([query.marked_text for query in queries]) @ self._item_vectors.T

    def item_vectors(self) -> FloatMatrix:
        return self._item_vectors

    def _embed(self, texts: Sequence[str]) -> FloatMatrix:
        rows = [np.random.default_rng(zlib.crc32(text.encode())).normal(size=6) for text in texts]
        return np.stack(rows).astype(np.float32)


def low_rank_scores(n_queries: int, n_items: int, *, rank: int, noise: float = 0.0, seed: int = 0) -> FloatMatrix:
    """Scores of a given rank, with perhaps some noise on top."""
    rng = np.random.default_rng(seed)
    scores = rng.normal(size=(n_queries, rank)) @ rng.normal(size=(rank, n_items))
    return (scores + noise * rng.normal(size=scores.shape)).astype(np.float32)
