"""Items that come later are mapped as those before them were."""

from __future__ import annotations

import numpy as np
import pytest

from anncur.arrays import FloatMatrix
from anncur.factors.items import MOST_COMPONENTS, ItemMap, centred_items, item_model
from worlds import low_rank_scores


@pytest.fixture
def embeddings() -> FloatMatrix:
    return np.random.default_rng(1).normal(size=(400, 30)).astype(np.float32)


@pytest.mark.parametrize("n_queries", [0, 20, MOST_COMPONENTS + 20])
@pytest.mark.parametrize("share", [0.0, 0.4])
def test_a_map_gives_each_item_the_same_vector_alone_and_among_others(
    embeddings: FloatMatrix, n_queries: int, share: float
) -> None:
    offsets, centred = centred_items(low_rank_scores(n_queries, 400, rank=5, noise=0.3).T + 3)
    fitted = ItemMap.fit(offsets, centred, noise_share=0.1, embeddings=embeddings, embedding_share=share)
    whole = fitted.apply(offsets, centred, embeddings)
    parts = [fitted.apply(offsets[some], centred[some], embeddings[some]) for some in (slice(0, 7), slice(7, 400))]
    np.testing.assert_allclose(np.concatenate(parts), whole, atol=1e-5)
    model = item_model(offsets, centred, noise_share=0.1, embeddings=embeddings, embedding_share=share)
    np.testing.assert_array_equal(model.vectors.all(), whole)


def test_a_map_of_some_items_is_nearly_that_of_all(embeddings: FloatMatrix) -> None:
    offsets, centred = centred_items(low_rank_scores(20, 400, rank=5, noise=0.3).T + 3)
    some = slice(0, 300)
    fitted = ItemMap.fit(
        offsets[some], centred[some], noise_share=0.1, embeddings=embeddings[some], embedding_share=0.4
    )
    whole = ItemMap.fit(offsets, centred, noise_share=0.1, embeddings=embeddings, embedding_share=0.4)
    assert fitted.noise == pytest.approx(whole.noise, rel=0.1)
    ours, theirs = (one.apply(offsets, centred, embeddings) for one in (fitted, whole))
    products = (ours @ ours.T, theirs @ theirs.T)  # what guesses are made of
    assert np.corrcoef(products[0].ravel(), products[1].ravel())[0, 1] > 0.99


def test_embeddings_have_their_share_of_the_variance(embeddings: FloatMatrix) -> None:
    offsets, centred = centred_items(low_rank_scores(20, 400, rank=5).T)
    fitted = ItemMap.fit(offsets, centred, noise_share=0.1, embeddings=embeddings, embedding_share=0.4)
    vectors = fitted.apply(offsets, centred, embeddings)[:, :-1]  # the offsets stand behind
    of_scores, of_embeddings = (np.square(part).sum(axis=1).mean() for part in (vectors[:, :20], vectors[:, 20:]))
    assert of_embeddings / (of_scores + of_embeddings) == pytest.approx(0.4, abs=1e-3)
