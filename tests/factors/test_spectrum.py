"""The spectrum shows how many principal components the scores need."""

from __future__ import annotations

import numpy as np
import pytest

from anncur.factors.spectrum import n_components, spectrum
from worlds import low_rank_scores


def test_shares_are_those_of_the_singular_values_of_the_centred_scores() -> None:
    scores = low_rank_scores(20, 300, rank=6, noise=0.3).T
    centred = scores - scores.mean(axis=1, keepdims=True)
    variances = np.linalg.svd(centred, compute_uv=False)[:-1] ** 2
    assert spectrum([scores]) == pytest.approx(variances / variances.sum(), abs=1e-5)


def test_the_parts_that_scores_come_in_make_no_difference() -> None:
    scores = low_rank_scores(20, 300, rank=6, noise=0.3).T
    assert spectrum([scores[:7], scores[7:250], scores[250:]]) == spectrum([scores])


def test_what_all_queries_have_in_common_counts_for_nothing() -> None:
    scores = low_rank_scores(20, 300, rank=6).T.astype(np.float64)
    offsets = 100 * np.random.default_rng(0).normal(size=(300, 1))
    assert spectrum([scores + offsets]) == pytest.approx(spectrum([scores]), abs=1e-6)
    assert spectrum([np.full((300, 5), 0.1, dtype=np.float32)]) == ()


def test_scores_of_some_rank_need_as_many_components() -> None:
    shares = spectrum([low_rank_scores(40, 500, rank=6).T])
    assert len(shares) == 39
    assert n_components(shares, 1.0) == 6
    assert n_components(shares, 0.9) < 6


def test_explained_variance_is_counted_from_the_first_component() -> None:
    shares = (0.6, 0.3, 0.08, 0.02)
    assert [n_components(shares, explained) for explained in (0.5, 0.6, 0.9, 0.95, 0.99)] == [1, 1, 2, 3, 4]
