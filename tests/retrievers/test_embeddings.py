"""Dot products of embeddings in half precision."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

import anncur
from anncur.arrays import FloatMatrix
from anncur.retrievers.embeddings import EmbeddingRetriever
from anncur.retrievers.loading import load_retrievers
from anncur.vectors.half import halved, inner_products


def test_every_number_of_half_precision_is_multiplied_as_it_is() -> None:
    numbers = np.arange(2**16, dtype=np.uint16).view(np.float16)
    numbers = numbers[np.isfinite(numbers)]
    np.testing.assert_array_equal(inner_products(numbers[:, None], np.ones((1, 1))), [numbers.astype(np.float32)])


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_products_are_those_of_the_matrices_and_the_same_alone_and_among_others(dtype: type) -> None:
    rng = np.random.default_rng(0)
    vectors: FloatMatrix = rng.normal(size=(2_500, 24)).astype(dtype)
    queries = rng.normal(size=(3, 24)).astype(np.float32)
    found = inner_products(vectors, queries)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, queries @ vectors.astype(np.float32).T, rtol=1e-4, atol=1e-4)
    for row, query in zip(found, queries, strict=True):
        np.testing.assert_array_equal(inner_products(vectors, query[None])[0], row)


@pytest.mark.parametrize(
    ("rows", "dtype"),
    [
        ([[1.0, 2.0]], np.float16),
        ([[0.0, 0.0]], np.float16),
        ([[65_504.0, 1.0]], np.float16),
        ([[65_600.0, 1.0]], np.float32),
        ([[1e-9, 2e-9]], np.float32),
        ([[1.0, 1e-9]], np.float16),
    ],
)
def test_half_precision_is_taken_where_it_holds_the_numbers(rows: list[list[float]], dtype: type) -> None:
    single = np.array(rows, dtype=np.float32)
    found = halved(single)
    assert found.dtype == dtype
    np.testing.assert_allclose(found.astype(np.float32), single, rtol=1e-3, atol=1e-8)


def test_an_object_that_embeds_items_and_queries_is_a_retriever() -> None:
    class Lengths:
        name = "lengths"

        def fingerprint(self) -> str:
            return "lengths 1"

        def embed_items(self, items: Sequence[anncur.Item]) -> list[list[float]]:
            return [[float(len(item.text)), 1.0] for item in items]

        def embed_queries(self, queries: Sequence[anncur.Query]) -> list[list[float]]:
            return [[1.0, 100.0 * len(query.text)] for query in queries]

    (retriever,) = load_retrievers([Lengths()]).values()
    assert isinstance(retriever, EmbeddingRetriever)
    retriever.fit([anncur.Item("a", "aa"), anncur.Item("b", "bbb")])
    assert retriever.scores([anncur.Query("x"), anncur.Query("xx")]).tolist() == [[102.0, 103.0], [202.0, 203.0]]
