"""One contract for all vector indexes."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

from anncur.arrays import FloatMatrix, Positions
from anncur.candidates import Candidates
from anncur.errors import InputError
from anncur.ranking import top_k
from anncur.vectors.base import VectorIndex
from anncur.vectors.engines import VectorEngine
from anncur.vectors.exact import ExactVectors, Part
from anncur.vectors.faiss import FLAT, HNSW, IVF, FaissVectors

Make = Callable[[FloatMatrix], VectorIndex]
N_ITEMS, WIDTH = 3000, 12
NONE: Positions = np.empty(0, dtype=np.int64)


def in_parts(vectors: FloatMatrix) -> ExactVectors:
    """In three parts, one of which has rows that are gone."""
    hidden = np.insert(vectors[1000:2000], [0, 17, 17, 1000], 9.0, axis=0)
    rows = np.setdiff1d(np.arange(len(hidden)), [0, 18, 19, 1003])
    return ExactVectors(vectors[:1000], Part(hidden, rows), vectors[2000:])


def in_faiss(vectors: FloatMatrix, *, kind: str) -> FaissVectors:
    return FaissVectors(ExactVectors(vectors), kind)


MAKERS: dict[str, Make] = {
    "exact": ExactVectors,
    "parts": in_parts,
    "half": lambda vectors: ExactVectors(vectors.astype(np.float16)),
    **{kind: partial(in_faiss, kind=kind) for kind in (FLAT, IVF, HNSW)},
}
EXACT = ("exact", "parts")
DATABASES: list[Any] = [
    pytest.param("milvus_lite", marks=pytest.mark.slow),
    *(pytest.param(name, marks=pytest.mark.processes) for name in ("postgres", "postgres?index=flat")),
    *(pytest.param(name, marks=pytest.mark.processes) for name in ("milvus", "milvus?index=flat")),
]


def make_by(name: str, request: pytest.FixtureRequest) -> Make:
    """In memory, or in the database that a fixture of this name has, with options behind it."""
    if name in MAKERS:
        return MAKERS[name]
    fixture, _, options = name.partition("?")
    location: str = request.getfixturevalue(fixture).location
    separator = "&" if "?" in location else "?"
    engine = VectorEngine(f"{location}{separator}{options}" if options else location)
    return lambda vectors: engine.index(ExactVectors(vectors))


@pytest.fixture(scope="module")
def vectors() -> FloatMatrix:
    """Of unequal lengths, around some centres."""
    rng = np.random.default_rng(0)
    centres = rng.normal(size=(40, WIDTH))
    lengths = rng.uniform(0.3, 2.0, size=(N_ITEMS, 1))
    directions = centres[rng.integers(40, size=N_ITEMS)] + 0.4 * rng.normal(size=(N_ITEMS, WIDTH))
    return (lengths * directions).astype(np.float32)


@pytest.fixture(scope="module", params=[*MAKERS, *DATABASES])
def engine(request: pytest.FixtureRequest, vectors: FloatMatrix) -> VectorIndex:
    return make_by(request.param, request)(vectors)


@pytest.fixture(scope="module", params=[FLAT, IVF, HNSW, *DATABASES])
def make_approximate(request: pytest.FixtureRequest) -> Make:
    return make_by(request.param, request)


@pytest.fixture
def queries() -> FloatMatrix:
    return np.random.default_rng(1).normal(size=(5, WIDTH)).astype(np.float32)


def true_top(vectors: FloatMatrix, query: FloatMatrix, n: int, allowed: Positions) -> Positions:
    best: Positions = allowed[top_k(vectors[allowed] @ query, n)]
    return best


@pytest.mark.parametrize("share", [None, 0.9, 0.1, 0.01])
@pytest.mark.parametrize("n_excluded", [0, 30])
def test_the_best_candidates_come_first(
    engine: VectorIndex, vectors: FloatMatrix, queries: FloatMatrix, share: float | None, n_excluded: int
) -> None:
    rng = np.random.default_rng(2)
    passing = None if share is None else np.sort(rng.choice(N_ITEMS, round(share * N_ITEMS), replace=False))
    among = Candidates(N_ITEMS, passing)
    exclude = [rng.permutation(among.first(N_ITEMS))[: min(n_excluded, len(among) // 2)] for _ in queries]
    found = engine.top(queries, 20, exclude=exclude, among=among)
    shares = []
    for ranked, query, excluded in zip(found, queries, exclude, strict=True):
        allowed = np.setdiff1d(among.first(N_ITEMS), excluded)
        assert np.isin(ranked.positions, allowed).all()
        assert len(set(ranked.positions.tolist())) == len(ranked.positions)
        assert (np.diff(ranked.scores) <= 0).all()
        np.testing.assert_allclose(ranked.scores, vectors[ranked.positions] @ query, rtol=5e-3, atol=5e-3)
        shares.append(np.isin(true_top(vectors, query, 20, allowed), ranked.positions).mean())
    assert np.mean(shares) >= 0.95


@pytest.mark.parametrize("make", [MAKERS[name] for name in EXACT], ids=EXACT)
def test_exact_ones_break_ties_by_position(make: Make) -> None:
    vectors = np.random.default_rng(0).integers(-1, 2, size=(N_ITEMS, 3)).astype(np.float32)
    query = np.array([[1.0, 1.0, 0.0]], dtype=np.float32)
    (ranked,) = make(vectors).top(query, 500, exclude=[NONE], among=Candidates(N_ITEMS))
    assert ranked.positions.tolist() == top_k(vectors @ query[0], 500).tolist()


def test_all_are_found_where_all_are_wanted(engine: VectorIndex, queries: FloatMatrix) -> None:
    among = Candidates(N_ITEMS, np.arange(0, N_ITEMS, 300))
    for ranked in engine.top(queries, 50, exclude=[NONE] * 5, among=among):
        assert len(ranked.positions) <= 10
        assert set(ranked.positions.tolist()) <= set(range(0, N_ITEMS, 300))


def test_vectors_are_taken_by_position(engine: VectorIndex, vectors: FloatMatrix) -> None:
    positions = np.array([[0, 2999, 1000], [1017, 1999, 2000]])
    np.testing.assert_allclose(engine.take(positions), vectors[positions], rtol=1e-3, atol=1e-3)
    assert (len(engine), engine.width) == (N_ITEMS, WIDTH)


def test_added_and_removed_items_are_ranked_where_they_are_then(
    engine: VectorIndex, vectors: FloatMatrix, queries: FloatMatrix
) -> None:
    rng = np.random.default_rng(3)
    gone, more = rng.choice(N_ITEMS, 700, replace=False), 3 * vectors[:200]
    changed = engine.remove(gone).add(more)
    expected = np.concatenate([np.delete(vectors, gone, axis=0), more])
    assert len(changed) == len(expected)
    np.testing.assert_allclose(changed.take(np.arange(len(expected))), expected, rtol=1e-3, atol=1e-3)
    found = changed.top(queries, 20, exclude=[NONE] * 5, among=Candidates(len(expected)))
    everything = np.arange(len(expected))
    both = zip(found, queries, strict=True)
    shares = [np.isin(true_top(expected, query, 20, everything), ranked.positions).mean() for ranked, query in both]
    assert np.mean(shares) >= 0.95
    assert len(engine) == N_ITEMS  # as it was


@pytest.mark.parametrize("kind", [FLAT, IVF, HNSW])
def test_a_few_changes_are_made_without_building_faiss_again(
    vectors: FloatMatrix, queries: FloatMatrix, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = in_faiss(vectors[:2500], kind=kind)
    monkeypatch.setattr("anncur.vectors.faiss._build", None)
    rng, changed, expected = np.random.default_rng(4), engine, vectors[:2500]
    for start in range(2500, N_ITEMS, 100):
        gone, more = rng.choice(len(changed), 60, replace=False), 0.9 * vectors[start : start + 100]
        changed, expected = changed.remove(gone).add(more), np.concatenate([np.delete(expected, gone, axis=0), more])
    found = changed.top(queries, 20, exclude=[NONE] * 5, among=Candidates(len(expected)))
    both, everything = zip(found, queries, strict=True), np.arange(len(expected))
    shares = [np.isin(true_top(expected, query, 20, everything), ranked.positions).mean() for ranked, query in both]
    assert np.mean(shares) >= 0.95


@pytest.mark.parametrize(
    "change", [lambda v: 1e5 * v, lambda v: 1e-7 * v, lambda v: v + 1e4], ids=["large", "small", "level"]
)
def test_neither_scale_nor_level_of_vectors_matters(
    vectors: FloatMatrix,
    queries: FloatMatrix,
    make_approximate: Make,
    change: Callable[[FloatMatrix], FloatMatrix],
) -> None:
    changed = change(vectors.astype(np.float64)).astype(np.float32)
    engine = make_approximate(changed)
    assert engine.recall >= 0.9
    found = engine.top(queries, 20, exclude=[NONE] * 5, among=Candidates(N_ITEMS))
    both = zip(found, queries, strict=True)
    everything = np.arange(N_ITEMS)
    shares = [np.isin(true_top(changed, query, 20, everything), ranked.positions).mean() for ranked, query in both]
    assert np.mean(shares) >= 0.9


@pytest.mark.parametrize("n_best", [2000, 3000, 5000])
def test_all_that_are_wanted_come(engine: VectorIndex, queries: FloatMatrix, n_best: int) -> None:
    exclude = [np.arange(100)] * 5
    for ranked in engine.top(queries, n_best, exclude=exclude, among=Candidates(N_ITEMS)):
        assert len(ranked.positions) == min(n_best, N_ITEMS - 100)


@pytest.mark.parametrize("n_items", [1, 3, 10])
def test_few_items_are_ranked_too(
    vectors: FloatMatrix, queries: FloatMatrix, make_approximate: Make, n_items: int
) -> None:
    found = make_approximate(vectors[:n_items]).top(queries, 2, exclude=[NONE] * 5, among=Candidates(n_items))
    assert [len(ranked.positions) for ranked in found] == [min(2, n_items)] * 5


@pytest.mark.parametrize("kind", [FLAT, IVF, HNSW])
def test_offsets_are_one_more_coordinate(vectors: FloatMatrix, queries: FloatMatrix, kind: str) -> None:
    offsets = np.random.default_rng(5).normal(size=N_ITEMS).astype(np.float32)
    engine = FaissVectors(ExactVectors(vectors[:, :-1]), kind, offsets=offsets)
    together = np.column_stack([vectors[:, :-1], offsets])
    np.testing.assert_allclose(engine.take(np.arange(5)), together[:5])
    found = engine.top(queries, 20, exclude=[NONE] * 5, among=Candidates(N_ITEMS))
    both, everything = zip(found, queries, strict=True), np.arange(N_ITEMS)
    shares = [np.isin(true_top(together, query, 20, everything), ranked.positions).mean() for ranked, query in both]
    assert np.mean(shares) >= 0.95


def test_approximate_ones_tell_what_they_miss(vectors: FloatMatrix) -> None:
    assert in_faiss(vectors, kind=FLAT).recall >= 0.99
    assert 0.95 <= in_faiss(vectors, kind=IVF).recall <= 1.0


def test_a_kind_that_faiss_does_not_have_is_refused(vectors: FloatMatrix) -> None:
    with pytest.raises(InputError, match="flat, ivf, hnsw"):
        in_faiss(vectors, kind="tree")
