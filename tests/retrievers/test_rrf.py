"""Reciprocal-rank fusion."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import pytest

import anncur
from anncur.arrays import FloatMatrix
from anncur.retrievers.loading import load_retriever
from anncur.retrievers.rrf import Rrf, mean_ranks
from worlds import HashedVectors, World, low_rank_scores

ITEMS = [anncur.Item(f"i{number}", f"item {number % 7} of {number % 5}") for number in range(40)]


class Counting:
    """Scores items by a number of each, and counts how often it is fitted and asked."""

    def __init__(self, name: str, scores: Sequence[float]) -> None:
        self.name = name
        self.calls: list[str] = []
        self._scores = np.array(scores, dtype=np.float32)

    def fit(self, items: Iterable[anncur.Item]) -> None:
        self.calls.append("fit")

    def scores(self, queries: Sequence[anncur.Query]) -> FloatMatrix:
        self.calls.append("scores")
        return np.tile(self._scores, (len(queries), 1))


def test_equal_scores_share_the_mean_of_their_ranks() -> None:
    assert mean_ranks(np.array([5.0, 0.0, 7.0, 0.0, 0.0])).tolist() == [2, 4, 1, 4, 4]


def test_the_score_is_the_sum_of_reciprocal_ranks() -> None:
    fused = Rrf([Counting("one", [3, 2, 1]), Counting("two", [1, 3, 2])])
    fused.fit(ITEMS[:3])
    expected = [1 / 61 + 1 / 63, 1 / 62 + 1 / 61, 1 / 63 + 1 / 62]
    np.testing.assert_allclose(fused.scores([anncur.Query("q")]), [expected], rtol=1e-6)


def test_in_an_index_it_fuses_the_other_retrievers_and_asks_each_once() -> None:
    first, second = Counting("one", range(40)), Counting("two", range(40, 0, -1))
    index = anncur.Index.build(ITEMS, lambda pairs: [0.0] * len(pairs), retrievers=[first, second, "rrf"])
    assert index.info.retrievers == ("one", "two", "rrf")
    retrievers = index._current().knowledge.retrievers
    first.calls.clear()
    query = [anncur.Query("q")]
    fused, alone = retrievers["rrf"].scores(query), retrievers["one"].scores(query)
    np.testing.assert_array_equal(alone, [np.arange(40)])
    np.testing.assert_allclose(fused[0], fused[0][::-1], rtol=1e-6)
    assert first.calls == ["fit", "scores"]


def test_permuting_items_permutes_the_fused_scores() -> None:
    rng = np.random.default_rng(0)
    order = rng.permutation(len(ITEMS))
    scores = []
    for items in (ITEMS, [ITEMS[place] for place in order]):
        fused = Rrf([load_retriever("bm25"), HashedVectors()])
        fused.fit(items)
        scores.append(fused.scores([anncur.Query("item 3 of 2")])[0])
    np.testing.assert_array_equal(scores[1], scores[0][order])


def test_rrf_alone_stands_for_words_and_embeddings_and_itself() -> None:
    vectors = np.random.default_rng(0).normal(size=(40, 6))
    index = anncur.Index.build(
        ITEMS,
        lambda pairs: [float(len(text)) for _, text in pairs],
        ["item 1", "item 2"],
        retrievers=["rrf"],
        embeddings=vectors,
        embed_queries=lambda queries: np.ones((len(queries), 6)),
    )
    assert index.info.retrievers == ("bm25", "embeddings", "rrf")
    assert len(index.search("item 3", k=3, budget=10, method=anncur.Rerank("rrf"))) == 3


def test_rrf_of_one_retriever_is_refused() -> None:
    for retrievers in (["rrf"], ["bm25", "rrf"]):
        with pytest.raises(anncur.InputError, match="rrf fuses at least 2 other retrievers"):
            anncur.Index.build(ITEMS, lambda pairs: [0.0] * len(pairs), retrievers=retrievers)


def test_an_index_on_disk_fuses_again_when_it_is_opened(tmp_path: Path) -> None:
    world = World(low_rank_scores(12, 40, rank=3))
    path = tmp_path / "x.anncur"
    built = world.index(8, path=path, retrievers=["bm25", HashedVectors(), "rrf"])
    opened = anncur.Index.open(path, world.scorer, retrievers=[HashedVectors()])
    by_rrf = anncur.Rerank("rrf")
    query = world.queries[9]
    assert (
        opened.search(query, k=5, budget=9, method=by_rrf).ids == built.search(query, k=5, budget=9, method=by_rrf).ids
    )


def test_an_object_of_the_users_may_have_the_name() -> None:
    def rrf(query: anncur.Query, items: Sequence[anncur.Item]) -> list[float]:
        return [float(len(item.text)) for item in items]

    index = anncur.Index.build(["a", "bbb", "cc"], lambda pairs: [0.0] * len(pairs), retrievers=[rrf])
    assert index.search("any", k=2, budget=2, method="rerank").ids == ["1", "2"]
