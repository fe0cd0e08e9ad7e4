"""What retrievers derive from items is stored with them: derived once, checked, resumed, repaired."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import anncur
from anncur.arrays import FloatMatrix
from anncur.retrievers import embeddings, lexical, lsa, user_embeddings
from anncur.retrievers.base import Retriever
from anncur.storage.encoded import decode_array, encode_array, folder_name
from anncur.storage.manifest import newest_manifest
from damage import DAMAGES, Damage, apply
from worlds import World, low_rank_scores

WIDTH = 5
BY_MODEL = anncur.Rerank("toy model")
BY_WORDS = anncur.Rerank("bm25")


class ToyModel:
    """An embedder that remembers which items it was asked for."""

    name = "toy model"

    def __init__(self, version: str = "1") -> None:
        self.version = version
        self.asked: list[str] = []
        self.fails_at = ""

    def fingerprint(self) -> str:
        return f"toy {self.version}"

    def embed_items(self, items: Sequence[anncur.Item]) -> FloatMatrix:
        if any(item.id == self.fails_at for item in items):
            raise KeyboardInterrupt
        self.asked += [item.id for item in items]
        return np.stack([vector(item.full_text) for item in items])

    def embed_queries(self, queries: Sequence[anncur.Query]) -> FloatMatrix:
        return np.stack([vector(query.text) for query in queries])


def vector(text: str) -> FloatMatrix:
    return np.random.default_rng(zlib.crc32(text.encode())).normal(size=WIDTH)


@pytest.fixture
def world() -> World:
    return World(low_rank_scores(16, 60, rank=4, noise=0.2))


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (embeddings, user_embeddings):
        monkeypatch.setattr(module, "ITEMS_AT_ONCE", 16)
    monkeypatch.setattr(lexical._Lexical, "items_per_part", 16)


def build(world: World, path: Path | None, model: ToyModel, n_items: int = 50, **options: Any) -> anncur.Index:
    options = {"retrievers": ["bm25", "tfidf", model], **options}
    return anncur.Index.build(world.items[:n_items], world.scorer, world.queries[:8], path=path, **options)


def order_of(index: anncur.Index, method: anncur.Rerank, n_items: int = 30) -> list[int]:
    hits = index.search("query 12", k=1, budget=n_items, method=method)
    return list(hits.trace[0].positions.tolist())


def by_model(items: Sequence[anncur.Item], n_items: int = 30) -> list[int]:
    scores = [vector(item.full_text) @ vector("query 12") for item in items]
    return sorted(range(len(items)), key=lambda place: -scores[place])[:n_items]


def refuse(*_: object) -> Any:
    raise AssertionError("items are not encoded again")


def test_an_opened_index_encodes_no_item_again(world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    index = build(world, tmp_path / "x.anncur", ToyModel())
    index.add(world.items[50:])
    index.remove(["i3", "i55"])
    expected = [order_of(index, method) for method in (BY_MODEL, BY_WORDS)]
    vectors = index._current().knowledge.retrievers["tfidf"]
    monkeypatch.setattr(lexical.WordCounts, "of", refuse)
    monkeypatch.setattr(lsa, "fit_basis", refuse)
    monkeypatch.setattr(lsa, "project", refuse)
    model = ToyModel()
    monkeypatch.setattr(model, "embed_items", refuse)
    opened = anncur.Index.open(tmp_path / "x.anncur", world.scorer, retrievers=[model])
    assert [order_of(opened, method) for method in (BY_MODEL, BY_WORDS)] == expected
    retrievers = opened._current().knowledge.retrievers
    np.testing.assert_array_equal(item_vectors(retrievers["bm25"]), item_vectors(vectors))
    opened.remove(["i4"])
    opened.tune()
    opened.save(tmp_path / "copy.anncur")
    assert len(opened.search("query 13", k=5, budget=20)) == 5


def item_vectors(retriever: Retriever) -> FloatMatrix:
    found: FloatMatrix = retriever.item_vectors()  # type: ignore[attr-defined]
    return found


@pytest.mark.parametrize("on_disk", [True, False], ids=["on disk", "in memory"])
def test_every_item_is_encoded_once_in_the_life_of_an_index(world: World, tmp_path: Path, on_disk: bool) -> None:
    model = ToyModel()
    index = build(world, tmp_path / "x.anncur" if on_disk else None, model)
    index.search("query 12", k=3, budget=20)
    index.add(world.items[50:])
    index.remove(["i3"])
    index.tune()
    index.search("query 12", k=3, budget=20)
    assert sorted(model.asked) == sorted(item.id for item in world.items)


def test_a_build_that_was_stopped_encodes_only_what_is_missing(world: World, tmp_path: Path) -> None:
    first = ToyModel()
    first.fails_at = "i40"
    with pytest.raises(KeyboardInterrupt):
        build(world, tmp_path / "x.anncur", first)
    assert not world.scorer.pairs
    again = ToyModel()
    index = build(world, tmp_path / "x.anncur", again)
    assert [first.asked, again.asked] == [
        [item.id for item in world.items[:32]],
        [item.id for item in world.items[32:50]],
    ]
    assert order_of(index, BY_MODEL) == by_model(world.items[:50])


def test_a_build_that_is_resumed_with_another_model_begins_to_encode_again(world: World, tmp_path: Path) -> None:
    first = ToyModel()
    first.fails_at = "i40"
    with pytest.raises(KeyboardInterrupt):
        build(world, tmp_path / "x.anncur", first)
    other = ToyModel("2")
    build(world, tmp_path / "x.anncur", other)
    assert len(other.asked) == 50


def test_what_retrievers_derived_that_are_no_longer_wanted_is_left_out(world: World, tmp_path: Path) -> None:
    first = ToyModel()
    first.fails_at = "i40"
    with pytest.raises(KeyboardInterrupt):
        build(world, tmp_path / "x.anncur", first)
    build(world, tmp_path / "x.anncur", ToyModel(), retrievers=["bm25"])
    assert not any(folder_name("toy model") in name for name in newest_manifest(tmp_path / "x.anncur").files)


def test_a_function_that_embeds_otherwise_begins_again(world: World, tmp_path: Path) -> None:
    asked: list[str] = []

    def stops(items: Sequence[anncur.Item]) -> FloatMatrix:
        if items[0].id == "i32":
            raise KeyboardInterrupt
        return -np.stack([vector(item.full_text) for item in items])

    def embed(items: Sequence[anncur.Item]) -> FloatMatrix:
        asked.extend(item.id for item in items)
        return np.stack([vector(item.full_text) for item in items])

    options: dict[str, Any] = {"retrievers": ["bm25"], "embed_queries": ToyModel().embed_queries}
    for stopping in (stops, lambda items: -stops(items)):
        with pytest.raises(KeyboardInterrupt):
            build(world, tmp_path / "x.anncur", ToyModel(), embeddings=stopping, **options)
    index = build(world, tmp_path / "x.anncur", ToyModel(), embeddings=embed, **options)
    assert sorted(asked) == sorted(["i0", "i1", *(item.id for item in world.items[32:50])]), "two are compared"
    assert order_of(index, anncur.Rerank("embeddings")) == by_model(world.items[:50])


def test_another_model_is_refused_when_it_is_asked_or_items_are_added(world: World, tmp_path: Path) -> None:
    build(world, tmp_path / "x.anncur", ToyModel("1"))
    other = ToyModel("2")
    opened = anncur.Index.open(tmp_path / "x.anncur", world.scorer, retrievers=[other])
    assert len(opened.search("query 12", k=3, budget=9, method=BY_WORDS)) == 3
    with pytest.raises(anncur.FingerprintError, match=r"another model than what .* toy 2 now, toy 1 then"):
        opened.search("query 12", k=3, budget=9, method=BY_MODEL)
    with pytest.raises(anncur.FingerprintError, match="toy 2 now, toy 1 then"):
        opened.add(world.items[50:])
    assert (len(opened), other.asked, opened.verify()) == (50, [], [])


@pytest.mark.parametrize("on_disk", [True, False], ids=["on disk", "in memory"])
def test_embeddings_of_different_widths_are_refused(world: World, tmp_path: Path, on_disk: bool) -> None:
    def embed(items: Sequence[anncur.Item]) -> FloatMatrix:
        return np.ones((len(items), 4 if items[0].id == "i32" else 3))

    path = tmp_path / "x.anncur" if on_disk else None
    with pytest.raises(anncur.RetrieverError, match="all items embeddings of the same width, got 3 and 4"):
        anncur.Index.build(world.items, world.scorer, path=path, embeddings=embed)


def test_encoding_shows_its_progress(world: World) -> None:
    shown: list[tuple[str, int, int]] = []

    def progress(stage: str, done: int, total: int) -> None:
        shown.append((stage, done, total))

    build(world, None, ToyModel(), progress=progress)
    assert [done for stage, done, _ in shown if stage == "encoding items for toy model"] == [0, 16, 32, 48, 50]
    assert [done for stage, done, _ in shown if stage == "encoding items for words"] == [0, 16, 32, 48, 50]


def test_a_retriever_of_ones_own_that_stores_nothing_is_fitted_as_before(world: World, tmp_path: Path) -> None:
    class Plain:
        name = "plain"

        def fit(self, items: Iterable[anncur.Item]) -> None:
            self.n_items = len(list(items))

        def scores(self, queries: Sequence[anncur.Query]) -> FloatMatrix:
            return np.tile(np.arange(self.n_items, dtype=np.float32), (len(queries), 1))

    build(world, tmp_path / "x.anncur", ToyModel(), retrievers=[Plain(), "bm25"])
    opened = anncur.Index.open(tmp_path / "x.anncur", world.scorer, retrievers=[Plain()])
    assert order_of(opened, anncur.Rerank("plain"), 3) == [49, 48, 47]


KINDS = [
    *("words.npy", "starts.npy", "items.npy", "counts.npy", "lengths.npy", "vectors.npy"),
    *("idf.npy", "basis.npy", "embeddings.npy", "about.json"),
]


def encoded_files(folder: Path) -> list[Path]:
    return sorted(folder / name for name in newest_manifest(folder).files if "retrievers/" in name)


@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_is_named_and_repaired(world: World, tmp_path: Path, damage: Damage) -> None:
    folder = tmp_path / "x.anncur"
    index = build(world, folder, ToyModel())
    index.add(world.items[50:])
    index.remove(["i3"])
    expected = [order_of(index, method) for method in (BY_MODEL, BY_WORDS)]
    for kind in KINDS:
        path = max(path for path in encoded_files(folder) if path.name.endswith(kind))
        world.scorer.pairs.clear()
        apply(path, damage)
        (problem,) = index.verify()
        assert str(path) in problem
        with pytest.raises(anncur.DamagedError, match="verify --repair"):
            anncur.Index.open(folder, world.scorer, retrievers=[ToyModel()])
        assert index.verify(repair=True) == []
        assert not world.scorer.pairs
        opened = anncur.Index.open(folder, world.scorer, retrievers=[ToyModel()])
        assert [order_of(opened, method) for method in (BY_MODEL, BY_WORDS)] == expected


def test_scores_are_repaired_without_the_retrievers_of_the_index(world: World, tmp_path: Path) -> None:
    build(world, tmp_path / "x.anncur", ToyModel())
    apply(next((tmp_path / "x.anncur").rglob("scores/c/0/0")), DAMAGES[0])
    opened = anncur.Index.open(tmp_path / "x.anncur", world.scorer, check=False)
    assert opened.verify(repair=True) == []


def test_embeddings_that_were_given_as_an_array_can_not_be_repaired(world: World, tmp_path: Path) -> None:
    rows = np.stack([vector(item.full_text) for item in world.items[:50]])
    index = build(
        world,
        tmp_path / "x.anncur",
        ToyModel(),
        retrievers=["bm25"],
        embeddings=rows,
        embed_queries=ToyModel().embed_queries,
    )
    (path,) = (path for path in encoded_files(tmp_path / "x.anncur") if path.name.endswith("embeddings.npy"))
    apply(path, DAMAGES[0])
    (problem,) = index.verify(repair=True)
    assert str(path) in problem


def test_only_needed_bases_are_kept(world: World, tmp_path: Path) -> None:
    folder = tmp_path / "x.anncur"
    index = build(world, folder, ToyModel())
    index.add(world.items[50:])
    index.remove([item.id for item in world.items[:50]])
    (folder / "retrievers" / "words-of-before").mkdir()
    index.gc()
    (kept,) = (folder / "retrievers").iterdir()
    assert index.verify() == []
    assert order_of(index, BY_MODEL, 10) == by_model(world.items[50:], 10)
    index.add(world.items[:5])
    assert kept.exists()
    assert order_of(index, BY_MODEL, 15) == by_model([*world.items[50:], *world.items[:5]], 15)


@pytest.mark.parametrize("array", [np.arange(6, dtype=np.int32).reshape(2, 3), np.ones((0, 4), np.float16), np.ones(3)])
def test_arrays_are_read_as_they_were_written(array: Any) -> None:
    found = decode_array(encode_array(array), "x.npy")
    assert found.dtype == array.dtype
    np.testing.assert_array_equal(found, array)


@pytest.mark.parametrize("content", [b"", b"\x93NUMPY", encode_array(np.ones(3))[:-1], b"x" * 200])
def test_what_is_no_array_is_damaged(content: bytes) -> None:
    with pytest.raises(anncur.DamagedError, match=r"x\.npy can't be read"):
        decode_array(content, "x.npy")
