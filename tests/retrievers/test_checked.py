"""What retrievers of users' own give is checked: numbers for all items, or (id, score) pairs of some."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import anncur
from anncur.arrays import FloatMatrix
from anncur.items import Corpus
from anncur.retrievers.base import FittedRetriever, fitted_on_use
from anncur.retrievers.loading import load_models, load_retriever
from worlds import World, low_rank_scores


class Vectors:
    """A vector database: embeddings by item id, of which `scores` gives something."""

    name = "vectors"

    def __init__(self, world: World, *, spoil: float | None = None, n_best: int | None = None) -> None:
        self._columns = {item.id: column for column, item in enumerate(world.items)}
        self._world = world
        self._spoil = spoil
        self._n_best = n_best

    def fit(self, items: Iterable[anncur.Item]) -> None:
        self._ids = [item.id for item in items]
        self._positions = [self._columns[item_id] for item_id in self._ids]

    def scores(self, queries: Sequence[anncur.Query]) -> Any:
        rows = [self._row(query) for query in queries]
        if self._n_best is not None:
            return [self._best(row) for row in rows]
        return np.stack(rows)

    def _row(self, query: anncur.Query) -> FloatMatrix:
        exact = self._world.exact_scores[self._world.queries.index(query.text)][self._positions]
        row: FloatMatrix = exact + np.random.default_rng(0).normal(size=len(exact))
        if self._spoil is not None:
            row[np.argsort(row)[:-20]] = self._spoil
        return row

    def _best(self, row: FloatMatrix) -> Iterable[tuple[str, float]]:
        return ((self._ids[place], float(row[place])) for place in np.argsort(-row)[: self._n_best].tolist())


@pytest.fixture
def world() -> World:
    return World(low_rank_scores(30, 300, rank=4, noise=0.2))


@pytest.mark.parametrize("spoil", [np.nan, -np.inf], ids=["NaN", "-inf"])
def test_an_object_that_gives_numbers_that_are_not_finite_is_refused_before_anything_is_paid_for(
    world: World, spoil: float
) -> None:
    with pytest.raises(anncur.RetrieverError, match=r"must give finite numbers.*\(id, score\) pairs"):
        world.index(12, retrievers=[Vectors(world, spoil=spoil)])
    assert not world.scorer.pairs


@pytest.mark.parametrize("answer", [np.zeros(300), np.zeros((1, 299)), [["a"] * 300], None, 7.0])
def test_an_answer_of_another_shape_or_kind_is_refused(world: World, answer: Any) -> None:
    class Odd(Vectors):
        def scores(self, queries: Sequence[anncur.Query]) -> Any:
            return answer

    with pytest.raises(anncur.RetrieverError, match="vectors"):
        world.index(12, retrievers=[Odd(world)])


def test_a_retriever_may_know_only_its_best_items(world: World) -> None:
    index = world.index(12, retrievers=[Vectors(world, n_best=60)])
    whole = world.index(12, retrievers=[Vectors(world)])
    query = world.queries[20]
    best = whole.search(query, k=10, budget=40, method="rerank")
    assert index.search(query, k=10, budget=40, method="rerank").ids == best.ids
    deeper = index.search(query, k=10, budget=100, method="rerank")
    assert deeper.calls == 100, "behind the known items come the others"
    recall = np.mean([found(index, world, query) for query in range(12, 30)])
    assert recall > 0.9


def found(index: anncur.Index, world: World, query: int) -> float:
    hits = index.search(world.queries[query], k=10, budget=60)
    return len(set(hits.ids) & set(world.brute_force(query, 10))) / 10


def test_a_function_may_give_pairs_too_and_nothing_at_all_for_some_queries(world: World) -> None:
    def some(query: anncur.Query, items: Sequence[anncur.Item]) -> list[tuple[str, float]]:
        return [] if query.text == "query 13" else [("i7", 2.0), ("i3", 1.0)]

    index = world.index(12, retrievers=[some])
    assert index.search("query 14", k=2, budget=2, method="rerank").calls == 2
    assert set(index.search("query 14", k=2, budget=2, method="rerank").ids) == {"i7", "i3"}
    assert len(index.search("query 13", k=2, budget=5, method="rerank")) == 2


def test_an_id_that_is_not_there_is_an_error_with_its_name(world: World) -> None:
    def wrong(query: anncur.Query, items: Sequence[anncur.Item]) -> list[tuple[str, float]]:
        return [("nobody", 2.0)]

    with pytest.raises(
        anncur.UnknownIdError, match="the retriever wrong gave an id that no item has: no item has the id 'nobody'"
    ):
        world.index(12, retrievers=[wrong])


@pytest.mark.parametrize("on_disk", [True, False], ids=["on disk", "in memory"])
def test_adding_an_item_that_a_retriever_has_no_vector_for_is_refused_and_nothing_changes(
    world: World, tmp_path: Path, on_disk: bool
) -> None:
    path = tmp_path / "x.anncur" if on_disk else None
    retriever = Vectors(world)
    index = anncur.Index.build(world.items, world.scorer, world.queries[:12], path=path, retrievers=[retriever])
    before = index.info.version
    world.scorer.pairs.clear()
    with pytest.raises(anncur.RetrieverError, match="the retriever vectors failed to fit 301 items with KeyError"):
        index.add([anncur.Item("new", "a new one")])
    assert index.info.version == before
    assert not world.scorer.pairs, "nothing was paid for"
    assert len(index.search(world.queries[20], k=3)) == 3


def test_a_retriever_can_be_named_and_is_found_again_by_that_name(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = "def by_length(query, items):\n    return [len(item.text) for item in items]\n"
    (tmp_path / "my_retrievers.py").write_text(module)
    monkeypatch.syspath_prepend(str(tmp_path))
    name = "my_retrievers:by_length"
    anncur.Index.build(world.items, world.scorer, world.queries[:12], path=tmp_path / "x.anncur", retrievers=[name])
    index = anncur.Index.open(tmp_path / "x.anncur", world.scorer)
    assert index.info.retrievers == (name,)
    hits = index.search(world.queries[20], k=3, budget=200, method=anncur.Rerank(name))
    assert all(len(world.items[position].text) == 19 for position in hits.trace[0].positions.tolist())


def answering(world: World, answer: Any) -> anncur.Index:
    """An index whose retriever gives the same answer for every query."""

    class Answering(Vectors):
        def scores(self, queries: Sequence[anncur.Query]) -> Any:
            return answer if isinstance(answer, list) else np.stack([answer] * len(queries))

    return world.index(12, retrievers=[Answering(world)])


@pytest.mark.parametrize("dtype", [np.uint8, np.uint64, np.int64, np.float16, np.float32, np.float64, np.longdouble])
def test_numbers_of_any_type_are_ranked_highest_first(world: World, dtype: type) -> None:
    row: Any = (np.arange(300) % 251).astype(dtype)
    hits = answering(world, row).search(world.queries[20], k=2, budget=300, method="rerank")
    assert hits.trace[0].positions[:2].tolist() == [250, 249], "not those of score 0, which stays 0 when it is negated"


def test_truths_are_ranked_like_one_and_zero(world: World) -> None:
    row = np.isin(np.arange(300), (7, 70))
    assert sorted(answering(world, row).search("query 20", k=2, budget=2, method="rerank").ids) == ["i7", "i70"]


@pytest.mark.parametrize(("given", "kept"), [("f4", "f4"), ("f8", "f8"), ("f2", "f4"), ("?", "f4"), ("u1", "f4")])
def test_scores_are_single_or_double_floats(world: World, given: str, kept: str) -> None:
    class Typed(Vectors):
        def scores(self, queries: Sequence[anncur.Query]) -> Any:
            return np.ones((len(queries), 300), dtype=given)

    fitted = fitted_on_use({"vectors": Typed(world)}, Corpus(world.items))["vectors"]
    assert fitted.scores([anncur.Query("query 20")]).dtype == np.dtype(kept)


@pytest.mark.parametrize(
    "answer",
    [
        [[1.0] * 300, [1.0] * 299],
        [[], [1.0] * 300],
        [[1.0] * 300, []],
        [[("i1", 1.0)], [1.0] * 300],
        [[("i1", "high")], []],
        [[(["i1"], 1.0)], []],
    ],
    ids=["ragged", "empty first", "empty last", "pairs and numbers", "no number", "no id"],
)
def test_answers_of_mixed_kinds_are_refused_with_the_name_of_the_retriever(world: World, answer: list[Any]) -> None:
    class Mixed(Vectors):
        def scores(self, queries: Sequence[anncur.Query]) -> Any:
            return answer

    fitted = fitted_on_use({"vectors": Mixed(world)}, Corpus(world.items))["vectors"]
    with pytest.raises(anncur.RetrieverError, match="the retriever vectors"):
        fitted.scores([anncur.Query("query 20"), anncur.Query("query 21")])


@pytest.mark.parametrize("vectors", [[[1.0, 2.0], [1.0]], [["a"]] * 300], ids=["ragged", "strings"])
def test_item_vectors_that_are_no_matrix_of_numbers_are_refused(world: World, vectors: Any) -> None:
    class Odd(Vectors):
        def item_vectors(self) -> Any:
            return vectors

    fitted = FittedRetriever("vectors", Odd(world), Corpus(world.items))
    with pytest.raises(anncur.RetrieverError, match="the retriever vectors"):
        fitted.item_vectors()


def test_models_are_loaded_of_our_retrievers_alone(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    class Loading(Vectors):
        def load(self) -> None:
            raise AssertionError("a user's own load is not called")

    load_models(Loading(world))
    load_models(load_retriever("tfidf"))
    monkeypatch.setattr(Loading, "__module__", "anncur.retrievers.loading")
    with pytest.raises(AssertionError, match="not called"):
        load_models(Loading(world))
