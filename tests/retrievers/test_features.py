"""Exact scores are regressed on features of retriever scores."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import pytest

from anncur import Item, Query
from anncur.arrays import FloatMatrix
from anncur.retrievers.features import (
    Regression,
    features,
    features_of_pairs,
    predict_items,
    predict_sample,
    regress,
    sampled_features,
    scaled,
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


def test_the_second_feature_differs_only_between_the_best(cheap: FloatMatrix) -> None:
    standard, peaks = features(cheap)
    is_best = standard > 2
    for row in range(20):
        assert len(set(peaks[row][~is_best[row]].tolist())) == 1
        assert len(set(peaks[row][is_best[row]].tolist())) == is_best[row].sum()


def test_a_row_without_spread_has_features_of_zero() -> None:
    assert not features(np.full((2, 30), 5.0, dtype=np.float32)).any()


def test_a_retriever_that_is_the_scorer_predicts_it_all(cheap: FloatMatrix) -> None:
    retriever_scores = 3 * features(cheap)[0]
    exact = retriever_scores + np.arange(200)  # every item has a level of its own
    coefficients = regress(exact, {"twin": features(cheap)}).coefficients
    fitted = predict_sample({"twin": features(cheap)}, dict(coefficients))
    residual = exact - fitted
    assert (residual - residual.mean(axis=0)).std() < 0.05 * retriever_scores.std()


def test_what_a_retriever_scores_an_item_for_every_query_does_not_count(cheap: FloatMatrix) -> None:
    popular = cheap + 3 * np.random.default_rng(2).normal(size=200)
    exact = 3 * features(popular)[0]
    coefficients = regress(exact, {"twin": features(popular)}).coefficients
    residual = exact - predict_sample({"twin": features(popular)}, dict(coefficients))
    assert (residual - residual.mean(axis=0)).std() < 0.2 * (exact - exact.mean(axis=0)).std()


def test_two_retrievers_with_the_same_scores_share_the_coefficient(cheap: FloatMatrix) -> None:
    found = dict(regress(features(cheap)[0], {"one": features(cheap), "two": features(cheap)}).coefficients)
    np.testing.assert_allclose(found["one"], found["two"], atol=1e-6)
    assert found["one"][0] == pytest.approx(0.5, abs=0.05)


def test_a_retriever_unrelated_to_the_scorer_gets_coefficients_near_zero(cheap: FloatMatrix) -> None:
    exact = np.random.default_rng(1).normal(size=cheap.shape)
    ((_, coefficients),) = regress(exact, {"unrelated": features(cheap)}).coefficients
    assert np.abs(coefficients).max() < 0.1


def test_one_query_is_too_few_to_regress_on(cheap: FloatMatrix) -> None:
    assert regress(cheap[:1], {"any": features(cheap[:1])}) == Regression((), (), 0.0)


def test_queries_that_trust_a_retriever_differently_give_its_coefficient_a_spread(cheap: FloatMatrix) -> None:
    standard = features(cheap)[0]
    trust = np.where(np.arange(20) % 2, 3.0, 1.0)[:, None]
    alike, unlike = (regress(exact, {"one": features(cheap)}) for exact in (2 * standard, trust * standard))
    assert unlike.spreads[0][1][0] > 5 * alike.spreads[0][1][0]
    assert unlike.coefficients[0][1][0] == pytest.approx(2.0, abs=0.1)


def test_queries_of_different_levels_give_the_level_a_spread(cheap: FloatMatrix) -> None:
    noise = np.random.default_rng(3).normal(size=cheap.shape)
    levels = 5 * np.random.default_rng(4).normal(size=(20, 1))
    alike, unlike = (regress(exact, {"one": features(cheap)}).level_spread for exact in (noise, noise + levels))
    assert alike < 0.3
    assert unlike == pytest.approx(float(levels.std()), rel=0.2)


def test_samples_and_whole_rows_agree(cheap: FloatMatrix) -> None:
    retrievers = {"one": Fixed("one", cheap), "two": Fixed("two", cheap[:, ::-1])}
    coefficients = {"one": (0.5, 0.25), "two": (-1.0, 2.0)}
    items = np.array([3, 50, 199])
    whole = predict_sample({"one": features(cheap), "two": features(cheap[:, ::-1])}, coefficients)
    sampled = predict_sample(sampled_features(retrievers, QUERIES, items), coefficients)
    np.testing.assert_allclose(sampled, whole[:, items], atol=1e-5)
    by_item = predict_items(retrievers, coefficients, QUERIES, slice(0, 200))
    assert by_item is not None
    np.testing.assert_allclose(by_item.fitted, whole.T, atol=1e-5)
    assert predict_items(retrievers, {}, QUERIES, slice(0, 200)) is None


def test_items_that_come_later_are_predicted_by_the_scales_of_those_before(cheap: FloatMatrix) -> None:
    coefficients = {"one": (0.5, 0.25)}
    before = predict_items({"one": Fixed("one", cheap[:, :150])}, coefficients, QUERIES, slice(0, 150))
    assert before is not None
    grown = {"one": Fixed("one", np.hstack([cheap[:, :150], 100 * cheap[:, 150:]]))}  # which would change the scales
    after = predict_items(grown, coefficients, QUERIES, slice(100, 200), scales=before.scales)
    assert after is not None
    np.testing.assert_allclose(after.fitted[:50], before.fitted[100:], atol=1e-5)
    assert after.fitted.shape == (100, len(QUERIES))


def test_half_the_weight_is_half_of_the_prediction(cheap: FloatMatrix) -> None:
    coefficients = {"one": (0.5, 0.25)}
    whole, half = (predict_sample({"one": features(cheap)}, scaled(coefficients, weight)) for weight in (1.0, 0.5))
    np.testing.assert_allclose(half, 0.5 * whole, atol=1e-6)


def test_features_of_pairs_are_those_of_each_query_and_its_own_items(cheap: FloatMatrix) -> None:
    retrievers = {"one": Fixed("one", cheap), "two": Fixed("two", cheap[:, ::-1])}
    items = [np.array([number, 199 - 2 * number]) for number in range(20)]
    found = features_of_pairs(retrievers, QUERIES, items)
    for row, positions in enumerate(items):
        whole = np.concatenate([features(cheap), features(cheap[:, ::-1])])  # (all features, n_queries, n_items)
        np.testing.assert_allclose(found[row], whole[:, row, positions].T, atol=1e-6)
    assert [some.shape for some in features_of_pairs({}, QUERIES[:1], items[:1])] == [(2, 0)]
