"""An index without anchor queries searches from the first query on: it learns the scorer from what it pays for."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import pytest

import anncur
from anncur import Posterior, Rerank
from anncur.arrays import FloatMatrix
from anncur.scorers.stored import StoredScorer

N_ITEMS, N_QUERIES, WIDTH = 500, 30, 24


class Embedding:
    """A retriever that sees what the scorer sees, with a query vector that is off."""

    name = "embedding"

    def __init__(self, world: World) -> None:
        self._world = world

    def fit(self, items: Iterable[anncur.Item]) -> None: ...

    def scores(self, queries: Sequence[anncur.Query]) -> FloatMatrix:
        rows = [int(query.text.removeprefix("query ")) for query in queries]
        return self._world.rough_queries[rows] @ self._world.item_vectors.T

    def item_vectors(self) -> FloatMatrix:
        return self._world.item_vectors


class World:
    """A scorer that is linear in vectors of the items, with a scale and a level of its own for every query."""

    def __init__(self, *, scale: float = 1.0, level: float = 0.0) -> None:
        rng = np.random.default_rng(0)
        self.item_vectors = rng.normal(size=(N_ITEMS, WIDTH)).astype(np.float32)
        queries = rng.normal(size=(N_QUERIES, WIDTH))
        self.rough_queries = (queries + 1.2 * rng.normal(size=queries.shape)).astype(np.float32)
        levels = level + rng.normal(size=(N_QUERIES, 1))
        noise = 0.3 * rng.normal(size=(N_QUERIES, N_ITEMS))
        self.exact_scores = scale * (queries @ self.item_vectors.T + levels + noise)
        self.queries = [f"query {number}" for number in range(N_QUERIES)]
        self.items = [anncur.Item(f"i{number}", f"thing {number}") for number in range(N_ITEMS)]

    def index(self, n_anchors: int = 0) -> anncur.Index:
        scorer = StoredScorer(self.exact_scores, self.queries, [item.id for item in self.items])
        return anncur.Index.build(self.items, scorer, self.queries[:n_anchors], retrievers=[Embedding(self)])

    def recall(self, index: anncur.Index, method: anncur.Method | str = "posterior", *, k: int = 10) -> float:
        answers = index.search_many(self.queries[10:], k, 60, method)
        best = np.argsort(-self.exact_scores[10:], axis=1)[:, :k]
        true = ({f"i{place}" for place in row} for row in best.tolist())
        return float(np.mean([len(ids & set(hits.ids)) / k for ids, hits in zip(true, answers, strict=True)]))


@pytest.fixture(scope="module")
def world() -> World:
    return World()


def test_it_finds_more_than_re_ranking_with_the_same_pairs(world: World) -> None:
    index = world.index()
    assert index.info.build_calls == 0
    assert world.recall(index) > world.recall(index, Rerank("embedding")) + 0.2


def test_a_few_anchor_queries_are_no_step_back(world: World) -> None:
    first = world.recall(world.index())
    assert world.recall(world.index(3)) > first - 0.02
    assert world.recall(world.index(8)) > first - 0.02


@pytest.mark.parametrize(("scale", "level"), [(1e-3, 0.0), (1e3, 0.0), (1.0, 5e6), (1e-3, -40.0)])
def test_neither_scale_nor_level_of_the_scorer_matters(world: World, scale: float, level: float) -> None:
    other = World(scale=scale, level=level)
    answers, expected = ((each.index().search_many(each.queries[:5], 10, 60)) for each in (other, world))
    assert [hits.ids for hits in answers] == [hits.ids for hits in expected]


def test_its_first_items_are_those_that_the_retriever_ranks_highest(world: World) -> None:
    index = world.index()
    ours, theirs = (index.search(world.queries[0], k=5, budget=10, method=method) for method in ("posterior", "rerank"))
    assert ours.ids == theirs.ids


def test_queries_searched_together_get_what_each_gets_alone(world: World) -> None:
    index = world.index()
    together = index.search_many(world.queries[:6], k=5, budget=50)
    alone = [index.search(query, k=5, budget=50) for query in world.queries[:6]]
    assert [hits.ids for hits in together] == [hits.ids for hits in alone]


def test_a_query_with_a_spiky_retriever_leaves_the_answers_of_others_as_they_were() -> None:
    texts = [f"thing {number % 17} {number % 23} of {number % 5}" for number in range(3000)]
    texts[77] = "rareword"
    index = anncur.Index.build(
        texts, lambda pairs: [float(len(set(q) & set(i))) for q, i in pairs], retrievers=("bm25", "tfidf")
    )
    queries = [f"thing {number} of {number % 7}" for number in range(10)]
    alone = index.search_many(queries, k=10, budget=60)
    among = index.search_many([*queries, "rareword"], k=10, budget=60)
    assert [hits.ids for hits in among[:-1]] == [hits.ids for hits in alone]


@pytest.mark.parametrize("n_anchors", [0, 3])
def test_what_a_retriever_knows_of_items_is_asked_for_once(world: World, n_anchors: int) -> None:
    asked = 0

    class Counting(Embedding):
        def item_vectors(self) -> FloatMatrix:
            nonlocal asked
            asked += 1
            return super().item_vectors()

    scorer = StoredScorer(world.exact_scores, world.queries, [item.id for item in world.items])
    index = anncur.Index.build(world.items, scorer, world.queries[:n_anchors], retrievers=[Counting(world)])
    index.search(world.queries[5], k=5, budget=20)
    before = asked
    index.search(world.queries[6], k=5, budget=20)
    assert asked == before


def test_the_share_of_embeddings_counts_and_none_leaves_them_out(world: World) -> None:
    index = world.index()
    without, with_them = (
        world.recall(index, Posterior(embedding_share=share, retrievers=["embedding"])) for share in (0.0, 1.0)
    )
    assert with_them > without + 0.1


def test_a_budget_for_all_items_gives_the_brute_force_ranking(world: World) -> None:
    hits = world.index().search(world.queries[3], k=N_ITEMS, budget=N_ITEMS)
    assert hits.ids == [f"i{place}" for place in np.argsort(-world.exact_scores[3], kind="stable").tolist()]


def test_a_scorer_that_gives_the_same_to_all_is_searched_without_complaint(world: World) -> None:
    index = anncur.Index.build(world.items, lambda pairs: [1.0] * len(pairs), retrievers=[Embedding(world)])
    hits = index.search(world.queries[0], k=5, budget=40)
    assert (hits.calls, hits.scores) == (40, [1.0] * 5)


def test_recall_is_not_estimated_where_nothing_was_calibrated(world: World) -> None:
    index = world.index()
    assert index.search(world.queries[0], k=5, budget=20).estimated_recall is None
    with pytest.raises(anncur.InputError, match="calibrate"):
        index.search(world.queries[0], k=5, target_recall=0.9)


def test_words_alone_serve_where_there_are_no_embeddings() -> None:
    """The scorer likes items with words that go together with the query's; BM25 finds only the query's own."""
    rng = np.random.default_rng(1)
    topics = rng.integers(0, 8, 400)
    texts = [" ".join(f"t{topic}w{word}" for word in rng.integers(0, 12, 8)) for topic in topics.tolist()]

    def by_topic(pairs: list[tuple[str, str]]) -> list[float]:
        wanted = (query.split()[0].split("w")[0] for query, _ in pairs)
        return [
            sum(word.startswith(f"{topic}w") for word in item.split()) + len(set(item)) / 100
            for topic, (_, item) in zip(wanted, pairs, strict=True)
        ]

    index = anncur.Index.build(texts, by_topic, retrievers=("bm25",))
    queries = [f"t{topic}w0" for topic in range(8)]
    found, plain = (index.search_many(queries, 40, 80, method) for method in ("posterior", "rerank"))
    assert np.mean([hits.scores for hits in found]) > np.mean([hits.scores for hits in plain]) + 0.5


def test_a_retriever_that_knows_nothing_does_not_keep_it_from_learning(world: World) -> None:
    def at_random(query: anncur.Query, items: Sequence[anncur.Item]) -> FloatMatrix:
        return np.random.default_rng(len(query.text)).normal(size=len(items))

    scorer = StoredScorer(world.exact_scores, world.queries, [item.id for item in world.items])
    index = anncur.Index.build(world.items, scorer, retrievers=[at_random, Embedding(world)])
    assert world.recall(index) > world.recall(index, Rerank("embedding"))
    assert world.recall(index, Posterior(retrievers=["embedding"])) >= world.recall(index)
