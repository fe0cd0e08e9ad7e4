"""Retrieval by words."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np
import pytest

import anncur
from anncur.arrays import FloatMatrix, FloatVector
from anncur.errors import InputError
from anncur.retrievers.base import Retriever
from anncur.retrievers.lexical import BM25, TfIdf
from anncur.retrievers.loading import load_retrievers

ITEMS = [
    anncur.Item("a", "a small bat that eats fruit", "fruit bat"),
    anncur.Item("b", "a large cat with stripes", "tiger"),
    anncur.Item("c", "a wooden bat for baseball"),
    anncur.Item("d", ""),
]


@pytest.fixture(params=["bm25", "tfidf"])
def retriever(request: pytest.FixtureRequest) -> Retriever:
    (found,) = load_retrievers([request.param]).values()
    found.fit(ITEMS)
    return found


def scores(retriever: Retriever, *texts: str) -> list[list[float]]:
    found: list[list[float]] = retriever.scores([anncur.Query(text) for text in texts]).tolist()
    return found


def test_items_that_share_words_score_higher(retriever: Retriever) -> None:
    (found,) = scores(retriever, "Fruit BAT!")
    assert found[0] > found[2] > found[1] == found[3] == 0.0


def test_every_query_has_a_row_and_rows_do_not_mix(retriever: Retriever) -> None:
    both = scores(retriever, "bat", "tiger")
    assert both == [*scores(retriever, "bat"), *scores(retriever, "tiger")]


def test_a_mention_is_looked_for_without_its_context(retriever: Retriever) -> None:
    marked = retriever.scores([anncur.Query.marked("a tiger with stripes chased the [bat]")])
    assert marked.tolist() == scores(retriever, "bat")


def test_unknown_words_find_nothing_and_raise_nothing(retriever: Retriever) -> None:
    assert scores(retriever, "zebra ???") == [[0.0] * 4]


@pytest.mark.parametrize("kind", [BM25, TfIdf])
def test_a_corpus_without_words_is_no_problem(kind: type[BM25] | type[TfIdf]) -> None:
    retriever = kind()
    retriever.fit([anncur.Item("a", ""), anncur.Item("b", "…")])
    assert scores(retriever, "bat") == [[0.0, 0.0]]


def test_tfidf_is_the_cosine_of_smooth_idf_vectors() -> None:
    texts = ["bat eats fruit", "cat eats bat", "dog"]
    retriever = TfIdf()
    retriever.fit([anncur.Item(str(n), text) for n, text in enumerate(texts)])
    vocabulary = ["bat", "eats", "fruit", "cat", "dog"]
    idf = {word: math.log(4 / (1 + sum(word in text.split() for text in texts))) + 1 for word in vocabulary}

    def vector(text: str) -> FloatVector:
        raw = np.array([text.split().count(word) * idf[word] for word in vocabulary])
        return np.asarray(raw / np.linalg.norm(raw))

    expected = [vector("bat bat fruit") @ vector(text) for text in texts]
    np.testing.assert_allclose(scores(retriever, "bat bat fruit")[0], expected, atol=1e-6)


def test_bm25_is_lucenes_formula() -> None:
    texts = ["bat eats fruit", "cat eats bat bat", "dog"]
    retriever = BM25()
    retriever.fit([anncur.Item(str(n), text) for n, text in enumerate(texts)])
    mean_length = (3 + 4 + 1) / 3

    def weight(text: str, word: str) -> float:
        n_with, count = sum(word in t.split() for t in texts), text.split().count(word)
        idf = math.log(1 + (3 - n_with + 0.5) / (n_with + 0.5))
        return idf * count / (count + 1.5 * (0.25 + 0.75 * len(text.split()) / mean_length))

    expected = [weight(text, "bat") + weight(text, "fruit") for text in texts]
    np.testing.assert_allclose(scores(retriever, "bat fruit")[0], expected, atol=1e-6)


def test_bm25_gives_the_scores_of_bm25s() -> None:
    bm25s = pytest.importorskip("bm25s", reason="is what we compare with")
    rng = np.random.default_rng(0)
    texts = [" ".join(f"w{number}" for number in rng.zipf(1.5, rng.integers(0, 30)) % 200) for _ in range(300)]
    retriever = BM25()
    retriever.fit([anncur.Item(str(n), text) for n, text in enumerate(texts)])
    theirs = bm25s.BM25(method="lucene", k1=1.5, b=0.75)
    theirs.index([text.split() for text in texts], show_progress=False)
    for query in ("w1 w7 w30", "w2 w2 w150", "w9"):
        known = [word for word in query.split() if word in theirs.vocab_dict]
        np.testing.assert_allclose(scores(retriever, query)[0], theirs.get_scores(known), atol=1e-5)


@pytest.mark.parametrize("kind", [BM25, TfIdf])
def test_items_in_parts_without_some_of_them_score_as_if_they_had_been_fitted(kind: type[BM25] | type[TfIdf]) -> None:
    rng = np.random.default_rng(1)
    items = [anncur.Item(str(n), " ".join(f"w{number}" for number in rng.zipf(1.5, 8) % 60)) for n in range(100)]
    items[40] = anncur.Item("40", "a lonely word")
    kept = np.setdiff1d(np.arange(100), [3, 40, 41, 99])
    fresh, restored = kind(), kind()
    fresh.fit([items[place] for place in kept.tolist()])
    first, second = restored.encode(items[:50], 0), restored.encode(items[50:], 50)
    restored.restore([restored.select(first, kept[kept < 50]), restored.select(second, kept[kept >= 50] - 50)])
    queries = [anncur.Query(text) for text in ("w1 w5 w5", "w2 lonely", "lonely")]
    np.testing.assert_allclose(restored.scores(queries), fresh.scores(queries), atol=1e-6)


@pytest.mark.parametrize(
    ("wanted", "problem"),
    [
        (["bm26"], "take one of bm25, tfidf"),
        ("bm25", "must be a list"),
        ([5], "an object with name"),
        ([BM25], "an object with name"),
        (None, "must be a list"),
        (["bm25", "bm25"], "twice"),
    ],
)
def test_wrong_retrievers_are_refused(wanted: object, problem: str) -> None:
    with pytest.raises(InputError, match=problem):
        load_retrievers(wanted)  # type: ignore[arg-type]


def test_a_retriever_of_ones_own_serves_an_index() -> None:
    class Backwards:
        name = "backwards"

        def fit(self, items: Iterable[anncur.Item]) -> None:
            self.n_items = len(list(items))

        def scores(self, queries: Sequence[anncur.Query]) -> FloatMatrix:
            return np.tile(np.arange(self.n_items, dtype=np.float32), (len(queries), 1))

    index = anncur.Index.build(ITEMS, lambda pairs: [0.0] * len(pairs), ["q"], retrievers=[Backwards()])
    assert index.search("q", k=2, budget=2, method="rerank").ids == ["c", "d"]
