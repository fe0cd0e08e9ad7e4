"""Embeddings of the user's own: given at build, stored in the index, and used for queries that can be embedded."""

from __future__ import annotations

import pickle
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import anncur
from anncur.arrays import FloatMatrix
from worlds import World, low_rank_scores

pytestmark = pytest.mark.slow

WIDTH = 6
N_ITEMS, N_ANCHORS = 80, 12
BY_EMBEDDINGS = anncur.Rerank("embeddings")


def embed_texts(texts: Sequence[str]) -> FloatMatrix:
    rows = [np.random.default_rng(zlib.crc32(text.encode())).normal(size=WIDTH) for text in texts]
    return np.stack(rows).astype(np.float32)


def embed_items(items: Sequence[anncur.Item]) -> FloatMatrix:
    return embed_texts([item.full_text for item in items])


def embed_queries(queries: Sequence[anncur.Query]) -> FloatMatrix:
    return embed_texts([query.text for query in queries])


def fails(things: Sequence[Any]) -> FloatMatrix:
    raise OSError("the model is not there")


@pytest.fixture
def world() -> World:
    return World(low_rank_scores(24, N_ITEMS + 10, rank=4, noise=0.2))


@pytest.fixture(params=["on disk", "in memory"])
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Path | None:
    return tmp_path / "x.anncur" if request.param == "on disk" else None


def build(world: World, path: Path | None, **options: Any) -> anncur.Index:
    options = {"embeddings": embed_items, "embed_queries": embed_queries, **options}
    index = anncur.Index.build(world.items[:N_ITEMS], world.scorer, world.queries[:N_ANCHORS], path=path, **options)
    world.scorer.pairs.clear()
    return index


def order_of(index: anncur.Index, query: str | anncur.Query, n_items: int = 20) -> list[int]:
    hits = index.search(query, k=1, budget=n_items, method=BY_EMBEDDINGS)
    return list(hits.trace[0].positions.tolist())


def best(vectors: FloatMatrix, query_vector: FloatMatrix, n_items: int = 20) -> list[int]:
    return list(np.argsort(-(vectors @ query_vector), kind="stable")[:n_items].tolist())


@pytest.mark.parametrize("is_array", [True, False], ids=["an array", "a function"])
def test_items_are_ranked_by_the_dot_product(world: World, path: Path | None, is_array: bool) -> None:
    vectors = embed_items(world.items[:N_ITEMS])
    index = build(world, path, embeddings=vectors if is_array else embed_items)
    assert index.info.retrievers == ("bm25", "embeddings")
    assert order_of(index, "query 20") == best(vectors, embed_texts(["query 20"])[0])


def test_a_query_may_bring_its_own_embedding(world: World, path: Path | None) -> None:
    queries = [anncur.Query(text, embedding=embed_texts([text])[0]) for text in world.queries[:N_ANCHORS]]
    index = anncur.Index.build(
        world.items[:N_ITEMS], world.scorer, queries, path=path, embeddings=embed_items(world.items[:N_ITEMS])
    )
    own = np.arange(WIDTH) - 2.0
    assert order_of(index, anncur.Query("query 20", embedding=own)) == best(embed_items(world.items[:N_ITEMS]), own)


def test_its_own_embedding_goes_before_what_would_be_made_of_a_query(world: World) -> None:
    index = build(world, None)
    mixed = [anncur.Query("query 20", embedding=embed_texts(["query 21"])[0]), anncur.Query("query 22")]
    found = [hits.trace[0].positions.tolist() for hits in index.search_many(mixed, k=1, budget=5, method=BY_EMBEDDINGS)]
    assert found == [order_of(index, "query 21", 5), order_of(index, "query 22", 5)]


def test_a_query_that_cannot_be_embedded_is_refused_with_what_to_pass(world: World, path: Path | None) -> None:
    index = anncur.Index.build(world.items, world.scorer, path=path, embeddings=embed_items)
    with pytest.raises(
        anncur.InputError, match=r"has no embedding; .* Query\(text, embedding=…\) .* give the index embed_queries"
    ):
        index.search("query 20", method=BY_EMBEDDINGS)
    assert not world.scorer.pairs
    assert len(index.search("query 20", k=3, method="exhaustive")) == 3


def test_anchor_queries_that_cannot_be_embedded_are_refused_before_anything_is_paid_for(
    world: World, path: Path | None
) -> None:
    with pytest.raises(anncur.InputError, match="has no embedding"):
        build(world, path, embed_queries=None)
    assert not world.scorer.pairs


def test_an_opened_index_ranks_as_it_did(world: World, tmp_path: Path) -> None:
    built = build(world, tmp_path / "x.anncur")
    expected = [built.search(query, k=5, budget=30) for query in world.queries[N_ANCHORS:]]
    opened = anncur.Index.open(tmp_path / "x.anncur", world.scorer, embed_queries=embed_queries)
    assert [hits.ids for hits in opened.search_many(world.queries[N_ANCHORS:], k=5, budget=30)] == [
        hits.ids for hits in expected
    ]
    without = anncur.Index.open(tmp_path / "x.anncur", world.scorer)
    with pytest.raises(anncur.InputError, match="embed_queries"):
        without.search("query 20", method=BY_EMBEDDINGS)


def test_embeddings_of_anchor_queries_are_stored_with_them(world: World, tmp_path: Path) -> None:
    queries = [anncur.Query(text, embedding=embed_texts([text])[0]) for text in world.queries[:N_ANCHORS]]
    options = {"path": tmp_path / "x.anncur", "embeddings": embed_items}
    built = anncur.Index.build(world.items[:N_ITEMS], world.scorer, queries, **options)  # type: ignore[arg-type]
    opened = anncur.Index.open(tmp_path / "x.anncur", world.scorer)
    for stored, given in zip(opened.anchor_queries, queries, strict=True):
        np.testing.assert_array_equal(np.asarray(stored.embedding), np.asarray(given.embedding))
    query = anncur.Query("query 20", embedding=embed_texts(["query 20"])[0])
    assert opened.search(query, k=5, budget=30).ids == built.search(query, k=5, budget=30).ids
    opened.tune()


def test_an_index_remembers_the_name_of_the_function_for_queries(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "my_model.py").write_text(
        "import numpy as np\n\ndef embed(queries):\n    return np.ones((len(queries), 6))\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    build(world, tmp_path / "x.anncur", embed_queries="my_model:embed")
    opened = anncur.Index.open(tmp_path / "x.anncur", world.scorer)
    assert order_of(opened, "query 20") == best(embed_items(world.items[:N_ITEMS]), np.ones(WIDTH))
    other = anncur.Index.open(tmp_path / "x.anncur", world.scorer, embed_queries=embed_queries)
    assert order_of(other, "query 20") != order_of(opened, "query 20")


@pytest.mark.parametrize("is_array", [True, False], ids=["an array", "a function"])
def test_added_items_have_embeddings_and_removed_ones_are_gone(world: World, path: Path | None, is_array: bool) -> None:
    index = build(world, path)
    new = world.items[N_ITEMS:]
    index.add(new, embeddings=embed_items(new) if is_array else None)
    index.remove(["i3", "i85"])
    vectors = np.delete(embed_items(world.items), [3, 85], axis=0)
    assert order_of(index, "query 20", 88) == best(vectors, embed_texts(["query 20"])[0], 88)
    index.add([world.items[3]])
    vectors = np.vstack([vectors, embed_items([world.items[3]])])
    assert order_of(index, "query 20", 89) == best(vectors, embed_texts(["query 20"])[0], 89)


def test_adding_without_embeddings_is_refused_where_nothing_can_make_them(world: World, path: Path | None) -> None:
    index = build(world, path, embeddings=embed_items(world.items[:N_ITEMS]))
    with pytest.raises(anncur.InputError, match="give those of the new ones"):
        index.add(world.items[N_ITEMS:])
    assert len(index) == N_ITEMS
    assert not world.scorer.pairs
    index.add(world.items[N_ITEMS:], embeddings=embed_items)
    assert len(index) == N_ITEMS + 10


def test_an_index_is_opened_with_a_function_for_items_to_come(world: World, tmp_path: Path) -> None:
    build(world, tmp_path / "x.anncur", embeddings=embed_items(world.items[:N_ITEMS]))
    with pytest.raises(anncur.InputError, match=r"pass an array to index\.add"):
        anncur.Index.open(tmp_path / "x.anncur", embeddings=np.ones((3, WIDTH)))  # type: ignore[arg-type]
    opened = anncur.Index.open(tmp_path / "x.anncur", world.scorer, embeddings=embed_items, embed_queries=embed_queries)
    opened.add(world.items[N_ITEMS:])
    assert order_of(opened, "query 20", 90) == best(embed_items(world.items), embed_texts(["query 20"])[0], 90)


def test_embeddings_are_refused_by_an_index_without_some(world: World, path: Path | None) -> None:
    index = world.index(5, path=path)
    with pytest.raises(anncur.InputError, match="built without embeddings"):
        index.add([anncur.Item("new", "new")], embeddings=np.ones((1, WIDTH)))


def test_functions_for_embeddings_are_refused_where_an_index_has_none(world: World, tmp_path: Path) -> None:
    world.index(5, path=tmp_path / "x.anncur")
    with pytest.raises(anncur.InputError, match="was built without embeddings"):
        anncur.Index.open(tmp_path / "x.anncur", world.scorer, embed_queries=embed_queries)


def test_a_name_that_leads_nowhere_is_refused_before_any_work(world: World, path: Path | None) -> None:
    with pytest.raises(anncur.InputError, match="no function for embed_queries 'nowhere:embed'"):
        build(world, path, embed_queries="nowhere:embed", embeddings=fails)


def test_a_saved_index_has_the_embeddings_of_its_live_items(world: World, path: Path | None, tmp_path: Path) -> None:
    index = build(world, path)
    index.add(world.items[N_ITEMS:])
    index.remove(["i0", "i88"])
    index.save(tmp_path / "copy.anncur")
    copy = anncur.Index.open(tmp_path / "copy.anncur", world.scorer, embed_queries=embed_queries)
    assert copy.verify() == []
    assert order_of(copy, "query 20", 50) == order_of(index, "query 20", 50)
    by_words = anncur.Rerank("bm25")
    assert copy.search("query 7", k=5, method=by_words).ids == index.search("query 7", k=5, method=by_words).ids


def test_a_pickled_index_has_its_functions(world: World, tmp_path: Path) -> None:
    index = anncur.Index.build(
        world.items[:N_ITEMS],
        longest_first,
        path=tmp_path / "x.anncur",
        embeddings=embed_items,
        embed_queries=embed_queries,
    )
    again = pickle.loads(pickle.dumps(index))
    assert order_of(again, "query 20") == order_of(index, "query 20")
    again.add(world.items[N_ITEMS:])


def longest_first(pairs: list[tuple[str, str]]) -> list[float]:
    return [float(len(text)) for _, text in pairs]


WRONG: dict[str, Callable[[FloatMatrix], Any]] = {
    r"a row for each of 80 items, in their order, got 79": lambda rows: rows[:-1],
    r"numbers with a row for each item.*shape \(480,\)": lambda rows: rows.ravel(),
    r"numbers with a row for each item.*<U": lambda rows: rows.astype(str),
    r"numbers with a row for each item.*shape \(80, 0\)": lambda rows: rows[:, :0],
    r"got NaN or infinity for item\(s\) 'i7'$": lambda rows: np.where(np.arange(80)[:, None] == 7, np.nan, rows),
    r"NaN or infinity for item\(s\) 'i0', 'i1', 'i2', 'i3', 'i4' and 75 more": lambda rows: rows + np.inf,
    r"finite in single precision": lambda rows: rows.astype(np.float64) * 1e300,
}


@pytest.mark.parametrize("problem", WRONG)
def test_wrong_embeddings_are_refused_before_anything_is_paid_for(
    world: World, path: Path | None, problem: str
) -> None:
    rows = embed_items(world.items[:N_ITEMS])
    with pytest.raises(anncur.InputError, match=problem):
        build(world, path, embeddings=WRONG[problem](rows))
    assert not world.scorer.pairs
    assert len(build(world, path, embeddings=rows)) == N_ITEMS, "the same build resumes with the right ones"


def test_embeddings_that_are_no_array_are_refused(world: World) -> None:
    with pytest.raises(anncur.InputError, match="embeddings must be"):
        build(world, None, embeddings=[[1.0, 2.0], [1.0]])
    with pytest.raises(anncur.InputError, match="embed_queries must be a function"):
        build(world, None, embed_queries=7)
    with pytest.raises(anncur.InputError, match="embed_queries goes with embeddings"):
        build(world, None, embeddings=None)
    with pytest.raises(anncur.InputError, match="give an array of them"):
        world.index(3, retrievers=["embeddings"])


def test_a_function_that_gives_something_else_is_named(world: World, path: Path | None) -> None:
    for wrong in (lambda items: np.ones((len(items) + 1, 3)), lambda _: None, lambda items: [["a"]] * len(items)):
        with pytest.raises(anncur.RetrieverError, match="the retriever embeddings must be numbers, a row for each"):
            build(world, path, embeddings=wrong)
    with pytest.raises(anncur.RetrieverError, match=r"NaN or infinity for item\(s\) 'i0'"):
        build(world, path, embeddings=lambda items: np.full((len(items), 3), np.nan))
    assert not world.scorer.pairs


def test_functions_that_raise_are_named_and_the_index_is_unharmed(world: World, path: Path | None) -> None:
    with pytest.raises(anncur.RetrieverError, match="embeddings failed to embed 80 items with OSError: the model is"):
        build(world, path, embeddings=fails)
    with pytest.raises(anncur.RetrieverError, match="embeddings failed to embed 1 queries with OSError: the model is"):
        build(world, path, embed_queries=fails)
    assert not world.scorer.pairs
    index = build(world, path)
    with pytest.raises(anncur.RetrieverError, match="failed to embed"):
        index.add(world.items[N_ITEMS:], embeddings=fails)
    assert len(index) == N_ITEMS
    assert index.verify() == []
    assert order_of(index, "query 20") == best(embed_items(world.items[:N_ITEMS]), embed_texts(["query 20"])[0])


def test_embeddings_without_a_direction_are_warned_of_by_the_ids_of_their_items(world: World) -> None:
    rows = embed_items(world.items[:N_ITEMS])
    rows[[2, 5]] = 0.0
    with pytest.warns(anncur.AnncurWarning, match=r"of item\(s\) 'i2', 'i5' are all zeros"):
        index = build(world, None, embeddings=rows)
    assert order_of(index, "query 20", 80) == best(rows, embed_texts(["query 20"])[0], 80)


@pytest.mark.parametrize("scale", [1e6, 1e-9], ids=["large", "small"])
def test_numbers_that_half_precision_cannot_hold_are_kept(world: World, path: Path | None, scale: float) -> None:
    rows = embed_items(world.items[:N_ITEMS]) * np.float32(scale)
    index = build(world, path, embeddings=rows)
    assert order_of(index, "query 20") == best(rows, embed_texts(["query 20"])[0])


def test_a_query_embedding_of_another_width_is_refused(world: World, path: Path | None) -> None:
    index = build(world, path)
    with pytest.raises(anncur.InputError, match="must have 6 numbers, as those of the items have, got 3"):
        index.search(anncur.Query("query 20", embedding=[1.0, 2.0, 3.0]), method=BY_EMBEDDINGS)  # type: ignore[arg-type]
    assert not world.scorer.pairs
    with pytest.raises(anncur.RetrieverError, match="must embed queries like items, with 6 numbers each, got 7"):
        build(world, path and path.with_name("y"), embed_queries=lambda queries: np.ones((len(queries), 7)))
    assert not world.scorer.pairs


def test_embeddings_of_another_model_are_refused_when_items_are_added(world: World, path: Path | None) -> None:
    index, new = build(world, path), world.items[N_ITEMS:]
    with pytest.raises(anncur.FingerprintError, match=r"embeds items that are in the index \(i0, i1\) otherwise"):
        index.add(new, embeddings=lambda items: -embed_items(items))
    with pytest.raises(anncur.InputError, match="must have 6 numbers each, as those in the index have, got 5"):
        index.add(new, embeddings=np.ones((10, 5)))
    with pytest.raises(anncur.InputError, match="must have 6 numbers each"):
        index.add(new, embeddings=lambda items: np.ones((len(items), 5)))
    with pytest.raises(anncur.InputError, match="a row for each of 10 items, in their order, got 9"):
        index.add(new, embeddings=np.ones((9, WIDTH)))
    assert (len(index), world.scorer.pairs) == (N_ITEMS, [])
    index.add(new, embeddings=lambda items: embed_items(items) * 1.0001)
    assert len(index) == N_ITEMS + 10


def test_logged_queries_keep_their_own_embedding_for_learning(world: World, path: Path | None) -> None:
    items = world.items[:N_ITEMS]
    index = anncur.Index.build(items, world.scorer, path=path, embeddings=embed_items, log_queries=100)
    queries = [anncur.Query(text, embedding=embed_texts([text])[0]) for text in world.queries]
    index.search_many(queries, k=5, budget=30)
    assert index.learn() == len(queries)
    assert len(index.search(queries[3], k=5, budget=30)) == 5


def test_logged_queries_that_nobody_can_embed_are_left_out(world: World, path: Path | None) -> None:
    items = world.items[:N_ITEMS]
    index = anncur.Index.build(items, world.scorer, path=path, embeddings=embed_items, log_queries=100)
    queries = [anncur.Query(text, embedding=embed_texts([text])[0]) for text in world.queries[:10]]
    index.search_many(queries, k=5, budget=30)
    index.search_many(world.queries[10:13], k=5, budget=30, method="exhaustive")
    with pytest.warns(anncur.AnncurWarning, match="3 of 13 logged queries have no embedding and were left out"):
        assert index.learn() == 10


@pytest.mark.parametrize(
    ("embedding", "problem"),
    [
        ([], "must be a list of numbers"),
        ([[1.0]], "must be a list of numbers"),
        (["a"], "must be a list of numbers"),
        ("abc", "must be a list of numbers"),
        ([1.0, float("nan")], "must be finite"),
        ([1e300], "must be finite"),
    ],
)
def test_a_query_refuses_an_embedding_that_is_no_vector(embedding: Any, problem: str) -> None:
    with pytest.raises(anncur.InputError, match=problem):
        anncur.Query("a bat", embedding=embedding)


def test_an_embedding_is_no_part_of_what_a_query_is() -> None:
    plain, own = anncur.Query("a bat"), anncur.Query("a bat", embedding=np.ones(3))
    assert plain == own
    assert hash(plain) == hash(own)
    assert repr(plain) == repr(own)
    np.testing.assert_array_equal(
        np.asarray(anncur.Query.from_record({"text": "a", "embedding": [1, 2]}).embedding), [1, 2]
    )
    marked = anncur.Query("a bat", mention=(2, 5), embedding=np.ones(3))
    np.testing.assert_array_equal(np.asarray(marked.mention_alone().embedding), np.ones(3))


def test_a_query_keeps_its_embedding_as_it_was_given() -> None:
    given = np.ones(3, dtype=np.float32)
    query = anncur.Query("a bat", embedding=given)
    given[0] = 5.0
    np.testing.assert_array_equal(np.asarray(query.embedding), np.ones(3))
    np.testing.assert_array_equal(np.asarray(pickle.loads(pickle.dumps(query)).embedding), np.ones(3))


@pytest.mark.parametrize("is_array", [True, False], ids=["an array", "a function"])
def test_building_again_with_other_embeddings_warns_that_the_first_are_kept(
    world: World, tmp_path: Path, is_array: bool
) -> None:
    vectors = embed_items(world.items[:N_ITEMS])
    build(world, tmp_path / "index", embeddings=vectors if is_array else embed_items)
    build(world, tmp_path / "index", embeddings=vectors if is_array else embed_items)
    with pytest.warns(anncur.AnncurWarning, match="was built already, with other embeddings, and keeps them"):
        build(world, tmp_path / "index", embeddings=-vectors if is_array else lambda items: -embed_items(items))
    with pytest.raises(anncur.InputError):
        build(world, tmp_path / "index", embeddings=vectors[:7])


def test_embedders_of_the_same_name_are_refused(world: World) -> None:
    class Model:
        def __init__(self, name: str) -> None:
            self.name = name

        def embed_items(self, items: Sequence[anncur.Item]) -> FloatMatrix:
            return embed_items(items)

        def embed_queries(self, queries: Sequence[anncur.Query]) -> FloatMatrix:
            return embed_queries(queries)

        def fingerprint(self) -> str:
            return "one"

    with pytest.raises(anncur.InputError, match="'words'; give the embedder another `name`"):
        build(world, None, retrievers=[Model("words")])
