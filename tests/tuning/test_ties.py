"""One rule for ties everywhere: whatever scores as much as the k-th best item counts as one of the top k."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from anncur.arrays import FloatMatrix
from anncur.evaluation.recall import recalls
from worlds import World, low_rank_scores

pytestmark = pytest.mark.slow

N_ANCHORS, N_TESTS, N_ITEMS = 40, 60, 400
K = 10


def graded(n_grades: int) -> FloatMatrix:
    """Scores of low rank as whole grades, so that very many items tie."""
    raw = low_rank_scores(N_ANCHORS + N_TESTS, N_ITEMS, rank=4, noise=0.5)
    edges = np.quantile(raw, np.linspace(0, 1, n_grades + 1)[1:-1] ** 0.2)  # the best grades are rare
    return np.digitize(raw, edges).astype(np.float32)


@pytest.mark.parametrize(
    "scores",
    [graded(5), graded(2), np.ones((N_ANCHORS + N_TESTS, N_ITEMS), dtype=np.float32)],
    ids=["grades 0 to 4", "binary", "constant"],
)
@pytest.mark.filterwarnings("ignore:the scorer stored gives all pairs the same score")
def test_what_is_promised_for_tied_scores_is_what_tests_find(scores: FloatMatrix) -> None:
    world = World(scores)
    index = world.index(N_ANCHORS)
    promised = index.suitability()
    reported = {"anncur": "anncur", "posterior": "posterior", "rerank": "rerank bm25"}
    for (method, name), budget in itertools.product(reported.items(), (50, 100)):
        answers = index.search_many(world.queries[N_ANCHORS:], K, budget, method)
        found = float(recalls(answers, scores[N_ANCHORS:], K).mean())
        expected = promised.recall(name, K, budget)
        assert expected is not None
        assert abs(found - expected) < 0.08, f"{name}: {expected:.2f} promised, {found:.2f} found"


def test_any_item_of_the_best_grade_counts_as_found() -> None:
    scores = np.zeros((N_ANCHORS + N_TESTS, N_ITEMS), dtype=np.float32)
    scores[:, 100:300] = 1.0  # half of the items are equally good
    world = World(scores)
    index = world.index(N_ANCHORS)
    assert index.expected_recall(k=K, budget=50) == 1.0
    assert index.search(world.queries[-1], k=K, budget=50).scores == [1.0] * K
