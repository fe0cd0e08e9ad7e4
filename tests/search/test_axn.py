"""AXN: item vectors from sparse scores, and searches that begin with a retriever."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

import numpy as np
import pytest

import anncur
from anncur import AnncurError, Axn, Index, Rerank
from anncur.arrays import FloatMatrix
from anncur.factors.cur import CurFactors
from anncur.factors.sparse import SparseScores, Start
from anncur.item_scores import HeldScores
from anncur.search.axn import FactorSettings, Reference, SparseFactors, fit_sparse
from anncur.search.base import Knowledge, Method
from worlds import World

pytestmark = pytest.mark.slow  # the whole of it takes seconds

N_ANCHORS, N_ITEMS, WIDTH = 40, 400, 8
MakeWorld = Callable[..., World]


class ToyDualEncoder:
    """Knows vectors of queries and items by their texts."""

    name = "toy"

    def __init__(self, query_vectors: FloatMatrix, item_vectors: FloatMatrix) -> None:
        self._query_vectors = {f"query {number}": vector for number, vector in enumerate(query_vectors)}
        self._item_vectors = item_vectors

    def fit(self, items: Iterable[anncur.Item]) -> None:
        """It knows them."""

    def scores(self, queries: Sequence[anncur.Query]) -> FloatMatrix:
        return np.stack([self._query_vectors[query.text] for query in queries]) @ self._item_vectors.T

    def item_vectors(self) -> FloatMatrix:
        return self._item_vectors


@pytest.fixture(scope="module")
def toy() -> ToyDualEncoder:
    rng = np.random.default_rng(0)
    return ToyDualEncoder(rng.normal(size=(60, WIDTH)), rng.normal(size=(N_ITEMS, WIDTH)).astype(np.float32))


@pytest.fixture(scope="module")
def world(toy: ToyDualEncoder) -> World:
    """The scorer sees what the dual encoder sees on another scale and somewhat distorted."""
    rng = np.random.default_rng(1)
    distortion = np.eye(WIDTH) + 0.4 * rng.normal(size=(WIDTH, WIDTH))
    query_vectors = np.stack(list(toy._query_vectors.values()))
    return World((100 + 10 * query_vectors @ distortion @ toy.item_vectors().T).astype(np.float32))


@pytest.fixture(scope="module")
def index(world: World, toy: ToyDualEncoder) -> Index:
    return world.index(N_ANCHORS, retrievers=("bm25", toy))


def recall(world: World, index: Index, method: str | Method, budget: int = 50) -> float:
    found = index.search_many(world.queries[N_ANCHORS:], k=10, budget=budget, method=method)
    true = [set(world.brute_force(query, 10)) for query in range(N_ANCHORS, 60)]
    return float(np.mean([len(best & set(hits.ids)) / 10 for best, hits in zip(true, found, strict=True)]))


def test_the_dual_encoder_alone_is_re_ranking(world: World, index: Index) -> None:
    """With vectors that stay as they are and queries that are never estimated."""
    alone = Axn(dual_share=1.0, pull=1e9)
    for query in world.queries[N_ANCHORS:]:
        ours, theirs = (index.search(query, k=50, budget=50, method=method) for method in (alone, Rerank("toy")))
        assert ours.ids == theirs.ids


@pytest.mark.parametrize("kind", ["transductive", "inductive"])
def test_adapting_to_the_query_finds_more_than_re_ranking(world: World, index: Index, kind: str) -> None:
    assert recall(world, index, Axn(kind=kind)) > recall(world, index, Rerank("toy")) + 0.1


def test_a_linear_scorer_over_the_same_vectors_is_fitted(world: World, index: Index) -> None:
    hits = index.search(world.queries[50], k=10, budget=50, method=Axn(dual_share=0, pull=1e9))
    assert hits.ids == world.brute_force(50, 10)
    guesses = np.concatenate([step.guesses for step in hits.trace[1:] if step.guesses is not None])
    exact_scores = np.concatenate([step.exact_scores for step in hits.trace[1:]])
    assert np.corrcoef(guesses, exact_scores)[0, 1] > 0.95


def test_a_closed_gate_leaves_the_dual_encoder_as_it_is(toy: ToyDualEncoder) -> None:
    from anncur.factors.gated import train_gated

    rng = np.random.default_rng(0)
    sparse = SparseScores(np.stack([rng.permutation(N_ITEMS)[:20] for _ in range(30)]), rng.normal(size=(30, 20)))
    start = Start(rng.normal(size=(30, WIDTH)), toy.item_vectors())
    np.testing.assert_array_equal(train_gated(sparse, start, seed=0, n_epochs=0), toy.item_vectors())
    opened = [train_gated(sparse, start, seed=seed, n_epochs=3) for seed in (1, 1, 2)]
    np.testing.assert_array_equal(opened[0], opened[1])
    assert not np.allclose(opened[0], opened[2])
    assert not np.allclose(opened[0], toy.item_vectors())


def test_a_dual_encoders_query_vectors_are_found_from_its_scores(toy: ToyDualEncoder) -> None:
    query_vectors = np.stack(list(toy._query_vectors.values()))
    scores = (query_vectors @ toy.item_vectors().T).astype(np.float32)
    np.testing.assert_allclose(Reference(toy.item_vectors()).fit(scores), query_vectors, atol=1e-5)


def test_training_leaves_the_global_seed_alone(world: World, index: Index) -> None:
    import torch

    before = torch.random.get_rng_state()
    index.search(world.queries[50], budget=20, method=Axn(kind="inductive", seed=3))
    assert torch.equal(before, torch.random.get_rng_state())


def test_only_the_scores_of_a_retrievers_best_items_are_used(world: World, index: Index, toy: ToyDualEncoder) -> None:
    """The others might as well be anything."""
    best = np.argsort(-toy.scores([anncur.Query(text) for text in world.queries[:N_ANCHORS]]), axis=1)[:, :30]
    scores = np.full((N_ANCHORS, N_ITEMS), -1e3, dtype=np.float32)
    np.put_along_axis(scores, best, np.take_along_axis(world.exact_scores[:N_ANCHORS], best, axis=1), axis=1)
    full = index._current().knowledge
    sparse = replace(full, factors=CurFactors(HeldScores(scores.T), full.factors.anchor_order))
    for n_scored, is_same in ((30, True), (31, False)):
        settings = FactorSettings("transductive", "toy", n_scored, pull=1.0, seed=0)
        of_all, of_some = (fit_sparse(knowledge, settings).vectors for knowledge in (full, sparse))
        assert np.array_equal(of_all, of_some) == is_same


def test_vectors_are_made_once_for_equal_settings(world: World, index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    from anncur.search import axn

    made: list[FactorSettings] = []

    def counted(knowledge: Knowledge, settings: FactorSettings) -> SparseFactors:
        made.append(settings)
        return fit_sparse(knowledge, settings)

    monkeypatch.setattr(axn, "fit_sparse", counted)
    for method in (Axn(n_scored=33), Axn(n_scored=33, n_rounds=3, dual_share=0.5), Axn(n_scored=34)):
        index.search(world.queries[50], budget=20, method=method)
    assert len(made) == 2


@pytest.mark.parametrize("settings", [("transductive", "toy"), ("inductive", "toy"), ("transductive", "bm25")])
def test_equal_settings_make_equal_vectors(index: Index, settings: tuple[str, str]) -> None:
    first, second = (
        fit_sparse(index._current().knowledge, FactorSettings(*settings, n_scored=50, pull=1.0, seed=1))
        for _ in range(2)
    )
    np.testing.assert_array_equal(first.vectors, second.vectors)
    assert first.level == second.level


def test_axn_needs_anchor_queries_and_a_retriever(make_world: MakeWorld) -> None:
    world = make_world()
    with pytest.raises(AnncurError, match="axn needs anchor queries"):
        world.index(0).search(world.queries[0], method="axn")
    with pytest.raises(AnncurError, match="retrievers: none; build it with"):
        world.index(5, retrievers=()).search(world.queries[9], method="axn")

    def by_length(query: anncur.Query, items: Sequence[anncur.Item]) -> list[float]:
        return [float(len(item.text)) for item in items]

    with pytest.raises(AnncurError, match="retriever with item vectors, and by_length has none"):
        world.index(5, retrievers=(by_length,)).search(world.queries[9], method=Axn(kind="inductive"))


def test_the_inductive_kind_names_the_extra_that_it_needs(
    world: World, index: Index, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.delitem(sys.modules, "anncur.factors.gated", raising=False)
    with pytest.raises(AnncurError, match=r"needs torch; run pip install 'anncur\[train\]'"):
        index.search(world.queries[50], method=Axn(kind="inductive", seed=11))


@pytest.mark.parametrize(
    "setting", [{"n_rounds": 0}, {"n_scored": 0}, {"dual_share": 1.5}, {"kind": "free"}, {"pull": 0}, {"cutoff": 0}]
)
def test_axn_refuses_settings_that_make_no_sense(setting: dict[str, object]) -> None:
    with pytest.raises(AnncurError, match=next(iter(setting))):
        Axn(**setting)  # type: ignore[arg-type]
