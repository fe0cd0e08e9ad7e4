"""Retrieval by words: BM25 (by bm25s) and TF-IDF as in the paper.

Both are a sum over the query's words of weight in the query times weight in the item, so both keep the items' weights
as postings, one list of items per word. Words alone don't show what is marked, so both look for a query's mention, if
it has one. Reads texts; refuses to stem or to drop words."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import bm25s
import numpy as np
from numpy.typing import NDArray

from anncur.arrays import FloatMatrix, FloatVector
from anncur.items import Item, Query

WORD = re.compile(r"\w+")


@dataclass(frozen=True)
class Postings:
    """Weights of items by word: word w stands in `items[starts[w]:starts[w + 1]]` with the `weights` beside it."""

    starts: NDArray[np.integer]
    items: NDArray[np.integer]
    weights: FloatVector
    n_items: int

    def scores(self, query_weights: Mapping[int, float]) -> FloatVector:
        """The sum of query weight times item weight, for every item. (n_items,)"""
        total = np.zeros(self.n_items, dtype=np.float32)
        for word, weight in query_weights.items():
            posting = slice(self.starts[word], self.starts[word + 1])
            total[self.items[posting]] += np.float32(weight) * self.weights[posting]
        return total


class BM25:
    """Okapi BM25 with Lucene's weights, k1 = 1.5 and b = 0.75."""

    name = "bm25"

    def fit(self, items: Iterable[Item]) -> None:
        item_words = [words(item.full_text) for item in items]
        self._vocabulary = _vocabulary(item_words)
        self._postings = self._weigh([[self._vocabulary[word] for word in ws] for ws in item_words])

    def scores(self, queries: Sequence[Query]) -> FloatMatrix:
        return np.stack([self._postings.scores(_known_counts(query, self._vocabulary)) for query in queries])

    def _weigh(self, item_words: list[list[int]]) -> Postings:
        if not self._vocabulary:  # bm25s divides by the mean length
            return _postings([], n_words=0, n_items=len(item_words))
        index = bm25s.BM25(method="lucene")
        index.index((item_words, self._vocabulary), create_empty_token=False, show_progress=False)
        weights = index.scores
        return Postings(weights["indptr"], weights["indices"], weights["data"], len(item_words))


class TfIdf:
    """TF-IDF with smooth idf fitted on the items, both sides L2-normalised, and a dot product."""

    name = "tfidf"

    def fit(self, items: Iterable[Item]) -> None:
        counts = [Counter(words(item.full_text)) for item in items]
        self._vocabulary = _vocabulary(counts)
        n_with_word = np.zeros(len(self._vocabulary))
        for count in counts:
            n_with_word[[self._vocabulary[word] for word in count]] += 1
        self._idf = np.log((1 + len(counts)) / (1 + n_with_word)) + 1
        rows = [self._normalised({self._vocabulary[word]: n for word, n in count.items()}) for count in counts]
        self._postings = _postings(rows, n_words=len(self._vocabulary), n_items=len(rows))

    def scores(self, queries: Sequence[Query]) -> FloatMatrix:
        weights = [self._normalised(_known_counts(query, self._vocabulary)) for query in queries]
        return np.stack([self._postings.scores(query_weights) for query_weights in weights])

    def _normalised(self, counts: Mapping[int, int]) -> dict[int, float]:
        weights = {word: count * float(self._idf[word]) for word, count in counts.items()}
        length = sum(weight**2 for weight in weights.values()) ** 0.5
        return {word: weight / length for word, weight in weights.items()}


def words(text: str) -> list[str]:
    """Runs of letters, digits and underscores, in lower case."""
    return WORD.findall(text.lower())


def _vocabulary(words_of_items: Iterable[Iterable[str]]) -> dict[str, int]:
    """A number for every word, in the order of their appearance."""
    distinct = dict.fromkeys(word for item_words in words_of_items for word in item_words)
    return {word: number for number, word in enumerate(distinct)}


def _known_counts(query: Query, vocabulary: Mapping[str, int]) -> Counter[int]:
    return Counter(vocabulary[word] for word in words(query.mention_alone().text) if word in vocabulary)


def _postings(rows: Sequence[Mapping[int, float]], *, n_words: int, n_items: int) -> Postings:
    """Turn the words of every item into the items of every word."""
    word_of = np.array([word for row in rows for word in row], dtype=np.int64)
    item_of = np.repeat(np.arange(len(rows)), [len(row) for row in rows])
    weight_of = np.array([weight for row in rows for weight in row.values()], dtype=np.float32)
    by_word = np.argsort(word_of, kind="stable")
    starts = np.concatenate([[0], np.cumsum(np.bincount(word_of, minlength=n_words))]).astype(np.int64)
    return Postings(starts, item_of[by_word], weight_of[by_word], n_items)
