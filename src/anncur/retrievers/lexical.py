"""Retrieval by words: BM25 with Lucene's weights, and TF-IDF as in the paper.

Both are a sum over the query's words of weight in the query times weight in the item, so both keep the items' weights
as postings, one list of items per word. What they derive from items alone are counts of words, which an index stores
once for both; weights are computed from all counts when it is opened. Both have the same vectors of items, those of
`lsa.py`. Words alone don't show what is marked, so both look for a query's mention, if it has one. Reads texts; refuses
to stem or to drop words."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anncur.arrays import FloatMatrix, FloatVector, Positions
from anncur.items import Item, Query
from anncur.retrievers import lsa
from anncur.retrievers.base import STORED_WORDS, Arrays

WORD = re.compile(r"\w+")
ITEMS_PER_PART = 16_384  # half a second of work
K1, B = 1.5, 0.75
SEPARATOR = "\n"  # which no word holds


@dataclass(frozen=True, eq=False)
class WordCounts:
    """How often each word stands in each item: word w stands in `items[starts[w]:starts[w + 1]]`, as often as `counts`
    beside it tells.

    Words are in alphabetical order, and so whatever is computed of them doesn't depend on the order of items."""

    words: list[str]
    starts: NDArray[np.int64]
    items: NDArray[np.int32]
    counts: NDArray[np.integer]
    lengths: NDArray[np.int32]  # (n_items,) words of each item

    @property
    def n_items(self) -> int:
        """Also those without words."""
        return len(self.lengths)

    @property
    def n_with(self) -> NDArray[np.int64]:
        """How many items hold each word."""
        return np.diff(self.starts)

    @property
    def word_of(self) -> NDArray[np.int64]:
        """The word of each place in `items`."""
        return np.repeat(np.arange(len(self.words)), self.n_with)

    @classmethod
    def of(cls, items: Iterable[Item]) -> WordCounts:
        """Count the words of items."""
        vocabulary: dict[str, int] = {}
        flat, lengths = [], []
        for item in items:
            found = words(item.full_text)
            lengths.append(len(found))
            flat += [vocabulary.setdefault(word, len(vocabulary)) for word in found]
        alphabetical = sorted(vocabulary)
        rank = np.empty(len(vocabulary), dtype=np.int64)
        rank[[vocabulary[word] for word in alphabetical]] = np.arange(len(vocabulary))
        item_of = np.repeat(np.arange(len(lengths)), lengths)
        n_items = max(1, len(lengths))
        pairs, counts = np.unique(rank[np.array(flat, dtype=np.int64)] * n_items + item_of, return_counts=True)
        word_of, held_by = np.divmod(pairs, n_items)
        return cls(
            alphabetical,
            _starts(word_of, len(alphabetical)),
            held_by.astype(np.int32),
            counts,
            np.array(lengths, dtype=np.int32),
        )

    @classmethod
    def joined(cls, parts: Sequence[WordCounts]) -> WordCounts:
        """The counts of all parts, whose items follow each other; words that no item holds are left out."""
        if len(parts) == 1 and parts[0].n_with.all():
            return parts[0]
        held = [list(itertools.compress(part.words, part.n_with.tolist())) for part in parts]
        vocabulary = sorted(set().union(*held))
        place = {word: number for number, word in enumerate(vocabulary)}
        word_of, item_of, offset = [], [], 0
        for part, own in zip(parts, held, strict=True):
            places = np.fromiter((place[word] for word in own), dtype=np.int64, count=len(own))
            word_of.append(np.repeat(places, part.n_with[part.n_with > 0]))
            item_of.append(part.items + np.int32(offset))
            offset += part.n_items
        all_words = np.concatenate(word_of)
        order = np.argsort(all_words, kind="stable")  # a few runs in ascending order: merged in one pass
        return cls(
            vocabulary,
            _starts(all_words, len(vocabulary)),
            np.concatenate(item_of)[order],
            np.concatenate([part.counts for part in parts])[order],
            np.concatenate([part.lengths for part in parts]),
        )

    def select(self, rows: Positions) -> WordCounts:
        """Those of some items, in the order of `rows`."""
        place = np.full(self.n_items, -1, dtype=np.int32)
        place[rows] = np.arange(len(rows), dtype=np.int32)
        is_kept = place[self.items] >= 0
        word_of, items = self.word_of[is_kept], place[self.items[is_kept]]
        order = np.lexsort((items, word_of))
        starts = _starts(word_of, len(self.words))
        return WordCounts(self.words, starts, items[order], self.counts[is_kept][order], self.lengths[rows])

    def to_arrays(self) -> dict[str, NDArray[Any]]:
        """As they are stored."""
        most = int(self.counts.max(initial=0))
        return {
            "words": np.frombuffer(SEPARATOR.join(self.words).encode(), dtype=np.uint8),
            "starts": self.starts,
            "items": self.items,
            "counts": self.counts.astype(np.uint16 if most < 2**16 else np.uint32),
            "lengths": self.lengths,
        }

    @classmethod
    def from_arrays(cls, part: Arrays) -> WordCounts:
        """Read what `to_arrays` gave."""
        text = part["words"].tobytes().decode()
        found = text.split(SEPARATOR) if text else []
        return cls(found, part["starts"], part["items"], part["counts"], part["lengths"])


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


class _Lexical:
    """What BM25 and TF-IDF share: counts of words as parts, and vectors of items."""

    stored_as = STORED_WORDS
    arrays: tuple[str, ...] = ("words", "starts", "items", "counts", "lengths")
    projected: tuple[str, ...] = ("vectors",)
    items_per_part = ITEMS_PER_PART

    _counts: WordCounts | None  # where vectors are still to be made of them
    _vectors: list[FloatMatrix] | None  # part by part

    def fingerprint(self) -> str:
        return "words 1"  # another number where texts are split into words in another way

    def encode(self, items: Sequence[Item], start: int) -> Arrays:
        return WordCounts.of(items).to_arrays()

    def continues(self, items: Sequence[Item], part: Arrays) -> bool:
        return True

    def select(self, part: Arrays, rows: Positions) -> Arrays:
        kept = WordCounts.from_arrays(part).select(rows).to_arrays()
        return kept | {"vectors": part["vectors"][rows]} if "vectors" in part else kept

    def fit_basis(self, parts: Sequence[Arrays]) -> Arrays:
        return lsa.fit_basis(_weighted(WordCounts.joined([WordCounts.from_arrays(part) for part in parts])))

    def project(self, part: Arrays, basis: Arrays) -> Arrays:
        counts = WordCounts.from_arrays(part)
        return {"vectors": lsa.project(_weighted(counts, lsa.idf_of(counts.words, basis)), basis)}

    def fit(self, items: Iterable[Item]) -> None:
        self._restore(WordCounts.of(items), None)

    def restore(self, parts: Sequence[Arrays]) -> None:
        counts = WordCounts.joined([WordCounts.from_arrays(part) for part in parts])
        has_vectors = all("vectors" in part for part in parts)
        self._restore(counts, [part["vectors"] for part in parts] if has_vectors else None)

    def item_vectors(self) -> FloatMatrix | None:
        """Projections of TF-IDF rows onto their principal components, (n_items, at most 256); None where items have no
        word in common."""
        if self._vectors is None:
            assert self._counts is not None, "a retriever is fitted or restored before it is asked"
            weighted = _weighted(self._counts)
            self._vectors = [lsa.project(weighted, lsa.fit_basis(weighted))]
            self._counts = None
        if len(self._vectors) > 1:
            self._vectors = [np.concatenate(self._vectors)]
        return self._vectors[0] if self._vectors[0].shape[1] else None

    def has_item_vectors(self) -> bool:
        """Whether items have words in common; tells it of stored vectors without making one array of them."""
        return bool(self._vectors[0].shape[1]) if self._vectors else self.item_vectors() is not None

    def _restore(self, counts: WordCounts, vectors: list[FloatMatrix] | None) -> None:
        self._counts = counts if vectors is None else None
        self._vectors = vectors
        self._vocabulary = {word: number for number, word in enumerate(counts.words)}
        self._postings = self._weigh(counts)

    def _weigh(self, counts: WordCounts) -> Postings:
        raise NotImplementedError


class BM25(_Lexical):
    """Okapi BM25 with Lucene's weights, k1 = 1.5 and b = 0.75."""

    name = "bm25"

    def scores(self, queries: Sequence[Query]) -> FloatMatrix:
        return np.stack([self._postings.scores(_known_counts(query, self._vocabulary)) for query in queries])

    def _weigh(self, counts: WordCounts) -> Postings:
        n_with = counts.n_with
        idf = np.log(1 + (counts.n_items - n_with + 0.5) / (n_with + 0.5))
        lengths = counts.lengths / max(counts.lengths.mean(dtype=np.float64), 1e-30)  # in units of the mean
        often = counts.counts.astype(np.float64)
        weights = np.repeat(idf, n_with) * often / (often + (K1 * (1 - B + B * lengths))[counts.items])
        return Postings(counts.starts, counts.items, weights.astype(np.float32), counts.n_items)


class TfIdf(_Lexical):
    """TF-IDF with smooth idf fitted on the items, both sides L2-normalised, and a dot product."""

    name = "tfidf"

    def scores(self, queries: Sequence[Query]) -> FloatMatrix:
        weights = [self._normalised(_known_counts(query, self._vocabulary)) for query in queries]
        return np.stack([self._postings.scores(query_weights) for query_weights in weights])

    def _weigh(self, counts: WordCounts) -> Postings:
        self._idf = lsa.smooth_idf(counts.n_with, counts.n_items)
        return Postings(counts.starts, counts.items, _row_weights(counts, self._idf), counts.n_items)

    def _normalised(self, counts: Mapping[int, int]) -> dict[int, float]:
        weights = {word: count * float(self._idf[word]) for word, count in counts.items()}
        length = sum(weight**2 for weight in weights.values()) ** 0.5
        return {word: weight / length for word, weight in weights.items()}


def words(text: str) -> list[str]:
    """Runs of letters, digits and underscores, in lower case."""
    return WORD.findall(text.lower())


def _known_counts(query: Query, vocabulary: Mapping[str, int]) -> Counter[int]:
    return Counter(vocabulary[word] for word in words(query.mention_alone().text) if word in vocabulary)


def _weighted(counts: WordCounts, idf: FloatVector | None = None) -> lsa.WeightedWords:
    """TF-IDF rows of items, with another idf than that of their own counts if it is given."""
    if idf is None:
        idf = lsa.smooth_idf(counts.n_with, counts.n_items)
    return lsa.WeightedWords(counts.words, counts.starts, counts.items, _row_weights(counts, idf), idf, counts.n_items)


def _row_weights(counts: WordCounts, idf: FloatVector) -> FloatVector:
    """The weight of each place in `counts.items`, so that all of an item's have the length 1."""
    weights = counts.counts * np.repeat(idf, counts.n_with)
    squares = np.bincount(counts.items, weights=weights**2, minlength=counts.n_items)
    return np.asarray(weights / np.sqrt(np.where(squares > 0, squares, 1.0))[counts.items], dtype=np.float32)


def _starts(word_of: NDArray[np.int64], n_words: int) -> NDArray[np.int64]:
    """Where each word begins, once places are in the order of words."""
    return np.concatenate([[0], np.cumsum(np.bincount(word_of, minlength=n_words))]).astype(np.int64)
