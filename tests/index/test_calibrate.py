"""An index without anchor queries estimates its recall when it is calibrated on queries that are scored in full."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

import anncur
from worlds import World, low_rank_scores

N_CALIBRATION, N_TESTS = 20, 60


@pytest.fixture
def world() -> World:
    """Scores of low rank over items whose words tell nothing: all is learnt from embeddings."""
    return World(low_rank_scores(N_CALIBRATION + N_TESTS, 400, rank=8, noise=0.5, seed=1))


def embeddings(world: World) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    """What a good embedding would know of the items: their scores' principal components."""
    items = np.linalg.svd(world.exact_scores, full_matrices=False)[2][:12].T
    return items.astype(np.float32)


def build(world: World, path: Path | None = None) -> anncur.Index:
    vectors = embeddings(world)
    rough = np.linalg.lstsq(vectors, world.exact_scores.T, rcond=None)[0].T
    rough = rough + rough.std() * np.random.default_rng(0).normal(size=rough.shape)

    def embed(queries: Sequence[anncur.Query]) -> list[list[float]]:
        return [rough[int(query.text.removeprefix("query "))].tolist() for query in queries]

    return anncur.Index.build(
        world.items, world.scorer, path=path, retrievers=("embeddings",), embeddings=vectors, embed_queries=embed
    )


def recall(world: World, hits: list[anncur.Hits], k: int) -> float:
    true = (set(world.brute_force(N_CALIBRATION + number, k)) for number in range(N_TESTS))
    return float(np.mean([len(ids & set(found.ids)) / k for ids, found in zip(true, hits, strict=True)]))


def test_its_estimates_are_true_on_average(world: World) -> None:
    index = build(world)
    assert index.calibrate(world.queries[:N_CALIBRATION]) == N_CALIBRATION * 400
    hits = index.search_many(world.queries[N_CALIBRATION:], k=10, budget=40)
    estimates = [found.estimated_recall for found in hits]
    assert None not in estimates
    assert np.mean(np.array(estimates, dtype=float)) == pytest.approx(recall(world, hits, 10), abs=0.05)


def test_a_target_recall_is_reached(world: World) -> None:
    index = build(world)
    with pytest.raises(anncur.InputError, match=r"call index\.calibrate\(queries\)"):
        index.search(world.queries[-1], k=10, target_recall=0.9)
    index.calibrate(world.queries[:N_CALIBRATION])
    hits = index.search_many(world.queries[N_CALIBRATION:], k=10, target_recall=0.9)
    assert recall(world, hits, 10) >= 0.88
    assert np.mean([found.calls for found in hits]) < 200, "half of the items"


def test_searches_find_the_same_before_and_after(world: World) -> None:
    index = build(world)
    before = index.search(world.queries[-1], k=10, budget=40)
    index.calibrate(world.queries[:N_CALIBRATION])
    assert index.search(world.queries[-1], k=10, budget=40).ids == before.ids


def test_it_is_kept_when_the_index_is_opened_again_changed_or_tuned(world: World, tmp_path: Path) -> None:
    index = build(world, tmp_path / "index")
    index.calibrate(world.queries[:5])
    reopened = anncur.Index.open(tmp_path / "index", world.scorer)
    query = anncur.Query("query 70", embedding=np.ones(12))
    assert reopened.search(query, k=5, budget=20).estimated_recall is not None
    reopened.tune()
    assert reopened.search(query, k=5, budget=20).estimated_recall is not None
    reopened.remove(["i3"])
    assert reopened.search(query, k=5, budget=20).estimated_recall is not None
    assert not (tmp_path / "index" / "calibration").exists()
    assert reopened.verify() == []


def test_where_it_was_interrupted_it_resumes_and_pays_for_no_pair_twice(world: World, tmp_path: Path) -> None:
    index = build(world, tmp_path / "index")
    limited = anncur.Index.open(tmp_path / "index", anncur.load_scorer(world.scorer, max_calls=1000))
    with pytest.raises(anncur.AnncurError, match="max_calls"):
        limited.calibrate(world.queries[:5])
    paid = len(world.scorer.pairs)
    assert 0 < paid <= 1000
    assert index.calibrate(world.queries[:5]) == 5 * 400 - paid
    assert len(set(world.scorer.pairs)) == len(world.scorer.pairs) == 5 * 400


def test_an_interrupted_calibration_is_deleted_with_what_else_is_unpublished(world: World, tmp_path: Path) -> None:
    build(world, tmp_path / "index")
    limited = anncur.Index.open(tmp_path / "index", anncur.load_scorer(world.scorer, max_calls=500))
    with pytest.raises(anncur.AnncurError):
        limited.calibrate(world.queries[:5])
    limited.gc()
    assert (tmp_path / "index" / "calibration").exists()
    assert "calibration" in limited.gc(unpublished=True)
    assert not (tmp_path / "index" / "calibration").exists()


def test_too_few_queries_or_anchor_queries_are_refused_before_anything_is_paid_for(world: World) -> None:
    index = build(world)
    with pytest.raises(anncur.InputError, match="at least 4 different queries, got 3"):
        index.calibrate([*world.queries[:3], world.queries[0]])
    with_anchors = world.index(10)
    with pytest.raises(anncur.InputError, match="'query 9' is one of its anchor queries"):
        with_anchors.calibrate(world.queries[9:20])
    assert not world.scorer.pairs


def test_a_closed_index_pays_for_nothing(world: World) -> None:
    index = build(world)
    index.close()
    with pytest.raises(anncur.AnncurError, match="closed"):
        index.calibrate(world.queries[:5])
    assert not world.scorer.pairs
