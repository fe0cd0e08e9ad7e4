"""What retrievers say is regressed on anchor queries."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import pytest

from anncur import Item, Query
from anncur.arrays import FloatMatrix
from anncur.candidates.prior import (
    explain,
    explain_items,
    explain_sample,
    features,
    regress,
    sampled_features,
)

QUERIES = [Query(f"{number}") for number in range(20)]


class Fixed:
    """A retriever with given scores, (n_queries, n_items)."""

    def __init__(self, name: str, scores: FloatMatrix) -> None:
        self.name = name
        self._scores = scores

    def fit(self, items: Iterable[Item]) -> None: ...

    def scores(self, queries: Sequence[Query]) -> FloatMatrix:
        return self._scores[[int(query.text) for query in queries]]


@pytest.fixture
def cheap() -> FloatMatrix:
    return np.random.default_rng(0).normal(size=(20, 200)).astype(np.float32)


def test_features_do_not_depend_on_the_scale_or_level_of_a_retriever(cheap: FloatMatrix) -> None:
    np.testing.assert_allclose(features(cheap), features(100 * cheap + 7), atol=1e-3)


def test_a_row_without_spread_says_nothing() -> None:
    assert not features(np.full((2, 30), 5.0, dtype=np.float32)).any()


def test_a_retriever_that_is_the_scorer_explains_it_all(cheap: FloatMatrix) -> None:
    exact = 3 * features(cheap)[0] + np.arange(200)  # every item has a level of its own
    coefficients = regress(exact, {"twin": features(cheap)})
    explained = explain({"twin": cheap}, coefficients)
    rest = exact - explained
    assert (rest - rest.mean(axis=0)).std() < 0.05 * exact.std()


def test_a_retriever_that_knows_nothing_gets_no_say(cheap: FloatMatrix) -> None:
    exact = np.random.default_rng(1).normal(size=cheap.shape)
    (coefficients,) = regress(exact, {"deaf": features(cheap)}).values()
    assert np.abs(coefficients).max() < 0.1


def test_one_query_is_too_few_to_regress_on(cheap: FloatMatrix) -> None:
    assert regress(cheap[:1], {"any": features(cheap[:1])}) == {}


def test_samples_and_whole_rows_agree(cheap: FloatMatrix) -> None:
    retrievers = {"one": Fixed("one", cheap), "two": Fixed("two", cheap[:, ::-1])}
    coefficients = {"one": (0.5, 0.25), "two": (-1.0, 2.0)}
    items = np.array([3, 50, 199])
    whole = explain({"one": cheap, "two": cheap[:, ::-1]}, coefficients)
    sampled = explain_sample(sampled_features(retrievers, QUERIES, items), coefficients)
    np.testing.assert_allclose(sampled, whole[:, items], atol=1e-5)
    np.testing.assert_allclose(explain_items(retrievers, coefficients, QUERIES, 200), whole.T, atol=1e-5)
