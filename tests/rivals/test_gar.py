"""GAR: a graph of neighbours, and searches that walk it."""

from __future__ import annotations

import numpy as np
import pytest

import anncur
from anncur import AnncurError, Index, Rerank
from anncur.retrievers.loading import load_retriever
from anncur.rivals.gar import Gar, NeighbourGraph, graph_by_retriever, graph_by_vectors
from worlds import HashedVectors, World

N_ITEMS = 60


@pytest.fixture
def world() -> World:
    """One query for which the later half of the items is better, the higher the better."""
    return World(np.tile(np.arange(N_ITEMS, dtype=np.float32), (3, 1)))


@pytest.fixture
def index(world: World) -> Index:
    return world.index(0, retrievers=(HashedVectors(), "bm25"))


def chain() -> NeighbourGraph:
    """Each item is next to the one above and the one below."""
    items = np.arange(N_ITEMS)
    return NeighbourGraph(np.stack([np.minimum(items + 1, N_ITEMS - 1), np.maximum(items - 1, 0)], axis=1))


def test_neighbours_are_the_nearest_by_cosine_without_the_item_itself() -> None:
    angles = np.array([0.0, 0.1, 0.3, 2.0])
    vectors = np.stack([np.cos(angles), np.sin(angles)], axis=1) * [[1], [5], [0.2], [3]]
    assert graph_by_vectors(vectors, n_neighbours=2).neighbours.tolist() == [[1, 2], [0, 2], [1, 0], [2, 1]]


def test_a_graph_has_no_more_neighbours_than_there_are_others() -> None:
    assert graph_by_vectors(np.eye(3), n_neighbours=16).neighbours.shape == (3, 2)


def test_items_that_share_words_are_neighbours_by_bm25() -> None:
    texts = ["red fox", "grey whale", "red fox cub", "blue whale"]
    items = [anncur.Item(str(place), text) for place, text in enumerate(texts)]
    retriever = load_retriever("bm25")
    retriever.fit(items)
    assert graph_by_retriever(retriever, items, n_neighbours=1).neighbours.tolist() == [[2], [3], [0], [1]]


def test_rounds_take_turns_between_the_ranking_and_the_neighbours_of_the_best(world: World, index: Index) -> None:
    query = anncur.Query(world.queries[0])
    ranking = index.search(query, k=5, budget=N_ITEMS, method=Rerank("hashed")).trace[0].positions.tolist()
    trace = index.search(query, k=5, budget=12, method=Gar(chain(), 2, 3, "hashed")).trace
    first, second, third, _ = (step.positions.tolist() for step in trace)
    assert first == ranking[:3]
    best, second_best, _ = sorted(first, reverse=True)
    frontier = dict.fromkeys([min(best + 1, N_ITEMS - 1), best - 1, second_best + 1, second_best - 1])
    assert second == [item for item in frontier if item not in first][:3]
    assert third == [item for item in ranking if item not in (*first, *second)][:3]


def test_walking_the_graph_climbs_to_what_the_ranking_misses() -> None:
    n_items = 300
    world = World(np.tile(np.arange(n_items, dtype=np.float32), (5, 1)))
    steps = np.minimum(np.arange(n_items)[:, None] + np.arange(1, 6), n_items - 1)
    index = world.index(0, retrievers=(HashedVectors(),))
    walked, ranked = (
        np.array([sum(hits.scores) for hits in index.search_many(world.queries, k=20, budget=60, method=method)])
        for method in (Gar(NeighbourGraph(steps), 5, 4), Rerank())
    )
    assert (walked > ranked).all()


def test_the_graph_is_made_of_the_embeddings_where_none_is_given(world: World, index: Index) -> None:
    vectors = HashedVectors()
    vectors.fit(world.items)
    given = Gar(graph_by_vectors(vectors.item_vectors()), retriever="bm25")
    for query in world.queries:
        with_graph, without = (
            index.search(query, k=30, budget=30, method=method) for method in (given, Gar(retriever="bm25"))
        )
        assert with_graph.ids == without.ids


def test_without_embeddings_and_graph_gar_names_what_is_missing(world: World) -> None:
    def by_length(query: anncur.Query, items: list[anncur.Item]) -> list[float]:
        return [float(len(item.text)) for item in items]

    with pytest.raises(AnncurError, match="gar needs a retriever with item vectors, and by_length has none"):
        world.index(0, retrievers=(by_length,)).search(world.queries[0], method=Gar())


@pytest.mark.parametrize("setting", [{"n_neighbours": 0}, {"batch_size": 0}])
def test_gar_refuses_settings_that_make_no_sense(setting: dict[str, int]) -> None:
    with pytest.raises(AnncurError, match=next(iter(setting))):
        Gar(**setting)  # type: ignore[arg-type]
