"""Exact scores that benchmarks keep: read where they fit, made again where they don't."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from anncur.progress import silent
from toy_linking import write_zeshel

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
WORDNET = os.environ.get("ANNCUR_WORDNET_LINKING", "")
N_QUERIES, N_ITEMS = 20, 12


@pytest.fixture
def matrices(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ModuleType:
    """`benchmarks/matrices.py`, which keeps scores in a folder of the test."""
    monkeypatch.syspath_prepend(BENCHMARKS)
    monkeypatch.delitem(sys.modules, "matrices", raising=False)
    import matrices

    monkeypatch.setattr(matrices, "KEPT", tmp_path / "scores")
    return matrices


def test_kept_rows_are_read_and_only_the_others_are_scored(matrices: ModuleType, tmp_path: Path) -> None:
    world = matrices.read_world(write_zeshel(tmp_path / "data"), "delta", N_QUERIES, N_ITEMS)
    kept = np.arange(10 * N_ITEMS, dtype=np.float32).reshape(10, N_ITEMS)
    matrices.keep(kept, world, "builtin")
    found = matrices.matrix(world, "builtin", tmp_path / "work", silent)
    fresh = matrices.block_scorer("builtin", world)(world.queries[10:])
    np.testing.assert_array_equal(found[:10], kept)
    np.testing.assert_allclose(found[10:], fresh, rtol=1e-5)
    assert len(list((tmp_path / "work" / "matrices").iterdir())) == 1
    assert matrices.matrix(world, "builtin", tmp_path / "work", silent, n_rows=4).shape == (4, N_ITEMS)


def test_rows_of_a_whole_world_serve_for_some_of_its_items_and_only_new_ones_are_kept_beside_them(
    matrices: ModuleType, tmp_path: Path
) -> None:
    whole = matrices.read_world(write_zeshel(tmp_path / "data"), "delta", N_QUERIES, N_ITEMS)
    part = replace(whole, items=whole.items[::2], asked=(N_QUERIES, N_ITEMS // 2))
    kept = np.arange(10 * len(whole.items), dtype=np.float32).reshape(10, -1)
    matrices.keep(kept, replace(whole, mentions=whole.mentions[:10]), "builtin")
    found = matrices.matrix(part, "builtin", tmp_path / "work", silent)
    np.testing.assert_array_equal(found[:10], kept[:, ::2])
    with np.load(matrices.keep(found, part, "builtin")) as beside:
        np.testing.assert_array_equal(beside["exact_scores"], found[10:])
    assert sorted(matrices.read_kept(part, "builtin")) == list(range(len(part.queries)))
    assert sorted(matrices.read_kept(whole, "builtin")) == list(range(10)), "the others lack every other item"


def test_keeping_fewer_rows_later_loses_none(matrices: ModuleType, tmp_path: Path) -> None:
    world = matrices.read_world(write_zeshel(tmp_path / "data"), "delta", N_QUERIES, N_ITEMS)
    kept = np.arange(N_QUERIES * len(world.items), dtype=np.float32).reshape(N_QUERIES, -1)
    for n_rows in (20, 4):
        matrices.keep(kept[:n_rows], world, "builtin")
    assert len(matrices.read_kept(world, "builtin")) == len(world.queries)


def test_scores_of_late_interaction_are_kept_too(matrices: ModuleType, tmp_path: Path) -> None:
    world = matrices.read_world(write_zeshel(tmp_path / "data"), "delta", N_QUERIES, N_ITEMS)
    matrices.keep(np.ones((10, len(world.items)), dtype=np.float32), world, matrices.MAXSIM)
    assert len(matrices.read_kept(world, matrices.MAXSIM)) == 10
    assert not matrices.read_kept(world, "builtin")


def test_rows_that_were_kept_of_other_texts_or_another_scorer_are_not_read(
    matrices: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = matrices.read_world(write_zeshel(tmp_path / "data"), "delta", N_QUERIES, N_ITEMS)
    matrices.keep(np.ones((10, N_ITEMS), dtype=np.float32), world, "builtin")
    assert len(matrices.read_kept(world, "builtin")) == 10
    changed = replace(world, items=[replace(world.items[0], text="another text"), *world.items[1:]])
    assert len(matrices.read_kept(changed, "builtin")) == 0
    monkeypatch.setattr(matrices, "fingerprint", lambda _: "another model")
    assert len(matrices.read_kept(world, "builtin")) == 0


@pytest.mark.skipif(not WORDNET, reason="set ANNCUR_WORDNET_LINKING to the folder of wordnet-linking")
@pytest.mark.parametrize("file", sorted((BENCHMARKS / "scores").glob("*.npz")), ids=lambda file: file.stem)
def test_rows_that_come_with_the_benchmarks_are_what_the_scorer_gives(
    file: Path, matrices: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(matrices, "KEPT", file.parent)
    name, scorer, sizes = file.stem.split()
    world = matrices.read_world(Path(WORDNET), name, *map(int, sizes.split("x")))
    kept = matrices.read_kept(world, scorer)
    assert kept
    rng = np.random.default_rng(0)
    row, places = int(rng.choice(sorted(kept))), rng.choice(len(world.items), 50, replace=False)
    few = replace(world, items=[world.items[place] for place in places])
    fresh = matrices.block_scorer(scorer, few)([world.queries[row]])
    np.testing.assert_allclose(kept[row][places], fresh[0], rtol=1e-4, atol=1e-3)
