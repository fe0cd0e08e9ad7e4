"""Vectors of items from their words."""

from __future__ import annotations

import numpy as np
import pytest

import anncur
from anncur.arrays import FloatMatrix
from anncur.retrievers.lexical import BM25, TfIdf

WORDS = [f"w{number}" for number in range(300)]


def make_items(n_items: int, *, n_words: int = 9, seed: int = 0) -> list[anncur.Item]:
    rng = np.random.default_rng(seed)
    return [anncur.Item(f"i{n}", " ".join(rng.choice(WORDS, n_words))) for n in range(n_items)]


def vectors(items: list[anncur.Item]) -> FloatMatrix:
    retriever = BM25()
    retriever.fit(items)
    found = retriever.item_vectors()
    assert found is not None
    return found.astype(np.float64)


def cosines(items: list[anncur.Item]) -> FloatMatrix:
    retriever = TfIdf()
    retriever.fit(items)
    found: FloatMatrix = retriever.scores([anncur.Query(item.text) for item in items])
    return found


def test_inner_products_are_those_of_tfidf_rows_where_the_rank_is_low() -> None:
    items = make_items(80)
    twice = [*items, *[anncur.Item(f"again {item.id}", item.text) for item in items]]
    found = vectors(twice)
    assert found.shape[1] <= 80
    np.testing.assert_allclose(found @ found.T, cosines(twice), atol=2e-3)


def test_no_more_than_256_directions_are_kept_and_they_explain_as_much_as_the_best() -> None:
    items = make_items(600)
    found = vectors(items)
    assert found.shape == (600, 256)
    values = np.linalg.eigvalsh(cosines(items))[::-1]
    assert np.square(found).sum() > 0.98 * values[:256].sum()


def test_permuting_items_permutes_their_inner_products() -> None:
    items = make_items(120)
    order = np.random.default_rng(1).permutation(len(items))
    found, permuted = vectors(items), vectors([items[place] for place in order])
    np.testing.assert_allclose(permuted @ permuted.T, (found @ found.T)[np.ix_(order, order)], atol=2e-3)


def test_vectors_are_the_same_each_time() -> None:
    np.testing.assert_array_equal(vectors(make_items(50)), vectors(make_items(50)))


def test_items_that_are_added_are_projected_like_those_that_were_there() -> None:
    items, retriever = make_items(200), BM25()
    first = retriever.encode(items, 0)
    basis = retriever.fit_basis([first])
    whole = retriever.project(first, basis)["vectors"]
    alone = retriever.project(retriever.encode(items[150:], 0), basis)["vectors"]
    np.testing.assert_allclose(alone.astype(np.float64), whole[150:].astype(np.float64), atol=2e-3)


@pytest.mark.parametrize("texts", [["", "…"], ["bat", "cat"], [""]], ids=["no words", "none in common", "one"])
def test_items_that_share_no_words_have_no_vectors(texts: list[str]) -> None:
    retriever = BM25()
    retriever.fit([anncur.Item(str(n), text) for n, text in enumerate(texts)])
    assert retriever.item_vectors() is None


def test_an_item_of_unknown_words_is_projected_to_zero() -> None:
    retriever = BM25()
    basis = retriever.fit_basis([retriever.encode(make_items(40), 0)])
    found = retriever.project(retriever.encode([anncur.Item("new", "zebra zoo"), anncur.Item("none", "")], 0), basis)
    assert not found["vectors"].any()


def test_both_lexical_retrievers_have_the_same_vectors() -> None:
    items, other = make_items(60), TfIdf()
    other.fit(items)
    np.testing.assert_array_equal(np.asarray(other.item_vectors(), dtype=np.float64), vectors(items))
