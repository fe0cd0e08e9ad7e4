"""Whatever happens to the files of an index, it never answers wrongly."""

from __future__ import annotations

import contextlib
import multiprocessing
from pathlib import Path

import numpy as np
import pytest

import anncur
from anncur.errors import AnncurError, DamagedError, DamagedWarning
from anncur.storage.manifest import manifest_path
from damage import (
    ASKED,
    DAMAGES,
    ITEMS_PER_CHUNK,
    QUERIES,
    ChecksumScorer,
    Damage,
    answers,
    apply,
    check_every_damage,
    damaged,
    exhaustive_answers,
    file_like,
    files_of,
    make_index,
    needed_file,
    opened,
    possible,
)

ROUNDS = [pytest.param(1, id="quick"), pytest.param(12, id="full", marks=pytest.mark.slow)]


@pytest.mark.parametrize("n_rounds", ROUNDS)
def test_a_damaged_file_is_refused_or_passed_over_with_a_warning_or_not_needed(n_rounds: int, tmp_path: Path) -> None:
    check_every_damage(tmp_path, make_index(tmp_path), n_rounds=n_rounds, seed=0)


@pytest.mark.parametrize("n_rounds", ROUNDS)
def test_no_damage_kills_the_process(n_rounds: int, tmp_path: Path) -> None:
    child = multiprocessing.get_context("spawn").Process(
        target=check_every_damage,
        args=(tmp_path, make_index(tmp_path)),
        kwargs={"n_rounds": n_rounds, "seed": 1, "damages": DAMAGES[:2]},
    )
    child.start()
    child.join()
    assert child.exitcode == 0  # below zero it is a signal


@pytest.mark.parametrize("n_rounds", ROUNDS)
def test_damage_after_opening_gives_the_right_answers_or_an_error(n_rounds: int, tmp_path: Path) -> None:
    truth = make_index(tmp_path)
    rng = np.random.default_rng(2)
    for path in files_of(tmp_path) * n_rounds:
        for damage in possible(path):
            index = anncur.Index.open(tmp_path, ChecksumScorer())
            with damaged(path, damage, rng), contextlib.suppress(AnncurError):
                assert answers(index) == truth[max(truth)], f"{damage.__name__} {path}"


@pytest.mark.parametrize(("before", "after"), [(b"item 3 ", b"item 9 "), (b'"number": 3', b'"number": 9')])
def test_an_item_altered_after_opening_is_noticed(before: bytes, after: bytes, tmp_path: Path) -> None:
    make_index(tmp_path)
    index = anncur.Index.open(tmp_path, ChecksumScorer())
    path = file_like(tmp_path, "items.sqlite", holding=before)
    path.write_bytes(path.read_bytes().replace(before, after))
    with pytest.raises(DamagedError, match=r"items\.sqlite"):
        index.search("a query", method="exhaustive", k=20)


@pytest.mark.parametrize("damage", DAMAGES)
def test_repair_scores_just_the_items_of_a_damaged_chunk_again(damage: Damage, tmp_path: Path) -> None:
    truth = make_index(tmp_path)
    index, scorer = opened(tmp_path)
    digest = index.digest()
    apply(file_like(tmp_path, "scores/c/1/0", holding=b""), damage)
    assert index.verify(repair=True) == []
    assert len(scorer.pairs) == len(set(scorer.pairs)) == ITEMS_PER_CHUNK * len(QUERIES)
    again = anncur.Index.open(tmp_path, scorer)
    assert (again.verify(), again.digest(), answers(again)) == ([], digest, truth[max(truth)])


@pytest.mark.parametrize("name", ["anchors.int64", "ranks.int16", "zarr.json", "prepared.sqlite"])
@pytest.mark.parametrize("damage", DAMAGES)
def test_repair_derives_without_scoring_what_can_be_derived(name: str, damage: Damage, tmp_path: Path) -> None:
    truth = make_index(tmp_path)
    index, scorer = opened(tmp_path)
    apply(needed_file(tmp_path, name), damage)
    assert index.verify(repair=True) == []
    assert scorer.pairs == []
    again = anncur.Index.open(tmp_path, scorer)
    assert again.verify() == []
    assert exhaustive_answers(again) == truth[max(truth)][: len(ASKED)]


@pytest.mark.parametrize("name", ["items.sqlite", "plan.json", ".jsonl"])
@pytest.mark.parametrize("damage", DAMAGES)
def test_repair_reports_what_it_cannot_repair(name: str, damage: Damage, tmp_path: Path) -> None:
    make_index(tmp_path)
    index, scorer = opened(tmp_path)
    path = needed_file(tmp_path, name)
    apply(path, damage)
    remaining = index.verify(repair=True)
    assert len(remaining) == 1
    assert str(path) in remaining[0]
    assert scorer.pairs == []


def test_repair_never_scores_damaged_items(tmp_path: Path) -> None:
    make_index(tmp_path)
    index, scorer = opened(tmp_path)
    items = file_like(tmp_path, "items.sqlite", holding=b"item 3 ")
    items.write_bytes(items.read_bytes().replace(b"item 3 ", b"item 9 "))
    chunk = items.parent / "scores" / "c" / "0" / "0"
    chunk.unlink()
    remaining = index.verify(repair=True)
    assert scorer.pairs == []
    assert {path for path in (items, chunk) if any(str(path) in line for line in remaining)} == {items, chunk}


@pytest.mark.parametrize("damage", DAMAGES)
def test_after_the_loss_of_the_newest_manifest_an_index_can_be_changed_again(damage: Damage, tmp_path: Path) -> None:
    truth = make_index(tmp_path)
    index, scorer = opened(tmp_path)
    apply(manifest_path(tmp_path, max(truth)), damage)
    with pytest.warns(DamagedWarning):
        index.remove(["i0"])
    again = anncur.Index.open(tmp_path, scorer)  # without a warning, else this would raise
    assert "i0" not in {item.id for item in again.items}
    assert again.verify() == []
