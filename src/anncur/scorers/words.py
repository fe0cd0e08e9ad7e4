"""Late interaction over word vectors: a small real scorer, good for trying things out without a neural network.

Every word of the query looks for its best match among the words of the item; the matches are added up, rare words and
the mention counting more. The vectors come from a file; a word that is not in it matches nothing."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from anncur.arrays import FloatMatrix, FloatVector
from anncur.items import Item, Query
from anncur.texts import WORD, words

MENTION_WEIGHT = 3.0


class WordScorer:
    """Scores by the best match of every word of the query. `vectors` are at unit length, one row per word."""

    def __init__(
        self, vocabulary: Sequence[str], vectors: FloatMatrix, weights: FloatVector, *, fingerprint: str
    ) -> None:
        self._rows: Mapping[str, int] = {word: row for row, word in enumerate(vocabulary)}
        self._vectors = np.vstack([vectors, np.zeros(vectors.shape[1])]).astype(np.float32)  # the last: no match
        self._weights = weights
        self._item_rows: dict[str, list[int]] = {}  # by text, because the same items come again and again
        self.fingerprint = fingerprint

    @classmethod
    def load(cls, path: Path) -> WordScorer:
        """Read an .npz file of `words`, `vectors` (int8) and `weights`."""
        with np.load(path, allow_pickle=False) as stored:
            vectors = stored["vectors"].astype(np.float32)
            vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
            digest = hashlib.sha256(path.read_bytes()).hexdigest()
            return cls(stored["words"].tolist(), vectors, stored["weights"], fingerprint=f"words:{digest[:16]}")

    def score(self, query: Query, items: Sequence[Item]) -> FloatVector:
        query_vectors, query_weights = self._query(query)
        item_rows = [self._rows_of(item.full_text) for item in items]
        starts = np.cumsum([0, *(len(rows) for rows in item_rows[:-1])])
        flat = self._vectors[[row for rows in item_rows for row in rows]]  # (words of all items, width)
        best_matches = np.maximum.reduceat(query_vectors @ flat.T, starts, axis=1)  # (words of query, items)
        scores: FloatVector = query_weights @ best_matches / query_weights.sum()
        return scores

    def _query(self, query: Query) -> tuple[FloatMatrix, FloatVector]:
        """The vectors and weights of its words; without any that we know, one that matches nothing."""
        found = [
            (self._rows[word.group()], word.start())
            for word in WORD.finditer(query.text.lower())
            if word.group() in self._rows
        ]
        if not found:
            return self._vectors[-1:], np.ones(1)
        start, end = query.mention or (0, 0)
        rows = [row for row, _ in found]
        boosts = [MENTION_WEIGHT if start <= place < end else 1.0 for _, place in found]
        return self._vectors[rows], self._weights[rows] * boosts

    def _rows_of(self, text: str) -> list[int]:
        rows = self._item_rows.get(text)
        if rows is None:
            rows = [self._rows[word] for word in words(text) if word in self._rows] or [-1]
            self._item_rows[text] = rows
        return rows
