"""Whatever happens to the files of an index, it never answers wrongly."""

from __future__ import annotations

import contextlib
import multiprocessing
import warnings
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeAlias

import numpy as np
import pytest

import anncur
from anncur.errors import AnncurError, DamagedError, DamagedWarning
from anncur.storage.manifest import manifest_path, newest_manifest

QUERIES = [f"anchor query {number}" for number in range(5)]
ASKED = ["a query", "another one"]
ITEMS_PER_CHUNK = 4

Answers: TypeAlias = list[anncur.Hits]
Damage: TypeAlias = Callable[[bytes, np.random.Generator], bytes | None]


class ChecksumScorer:
    """Scores by a checksum of the texts, so that a text with one letter changed gets another score.

    Sees the texts just as it has prepared them: backwards."""

    fingerprint = "checksum of texts"

    def __init__(self) -> None:
        self.pairs: list[tuple[str, str]] = []

    def score(self, query: anncur.Query, items: Sequence[anncur.Item]) -> list[float]:
        self.pairs.extend((query.text, item.id) for item in items)
        return [zlib.crc32(query.text.encode() + item.prepared) % 9973 for item in items]

    def prepare(self, items: Sequence[anncur.Item]) -> list[bytes]:
        return [item.full_text[::-1].encode() for item in items]


def flip_a_bit(content: bytes, rng: np.random.Generator) -> bytes:
    damaged = bytearray(content)
    damaged[rng.integers(len(content))] ^= 1 << int(rng.integers(8))
    return bytes(damaged)


def truncate(content: bytes, rng: np.random.Generator) -> bytes:
    return content[: rng.integers(len(content))]


def delete(content: bytes, rng: np.random.Generator) -> None:
    return None


def append(content: bytes, rng: np.random.Generator) -> bytes:
    return content + rng.bytes(int(rng.integers(1, 100)))


def zero(content: bytes, rng: np.random.Generator) -> bytes:
    return bytes(len(content))


DAMAGES: list[Damage] = [flip_a_bit, truncate, delete, append, zero]
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
        for damage in DAMAGES:
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
def test_repair_derives_without_calls_what_can_be_derived(name: str, damage: Damage, tmp_path: Path) -> None:
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
def test_repair_reports_what_it_cannot_mend(name: str, damage: Damage, tmp_path: Path) -> None:
    make_index(tmp_path)
    index, scorer = opened(tmp_path)
    path = needed_file(tmp_path, name)
    apply(path, damage)
    left = index.verify(repair=True)
    assert len(left) == 1
    assert str(path) in left[0]
    assert scorer.pairs == []


def test_repair_never_scores_damaged_items(tmp_path: Path) -> None:
    make_index(tmp_path)
    index, scorer = opened(tmp_path)
    items = file_like(tmp_path, "items.sqlite", holding=b"item 3 ")
    items.write_bytes(items.read_bytes().replace(b"item 3 ", b"item 9 "))
    chunk = items.parent / "scores" / "c" / "0" / "0"
    chunk.unlink()
    left = index.verify(repair=True)
    assert scorer.pairs == []
    assert {path for path in (items, chunk) if any(str(path) in line for line in left)} == {items, chunk}


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


def make_index(folder: Path) -> dict[int, Answers]:
    """Make an index of two segments with removed items; returns what each of its versions answers."""
    index = anncur.Index.build(items(0, 10), ChecksumScorer(), QUERIES, path=folder, items_per_chunk=ITEMS_PER_CHUNK)
    truth = {index.info.version: answers(index)}
    changes: list[Callable[[], None]] = [
        lambda: index.add(items(10, 16)),
        lambda: index.remove(["i2", "i11"]),
        lambda: index.tune(anchors="random", seed=1),
        lambda: index.remove(["i5"]),
    ]
    for change in changes:
        change()
        truth[index.info.version] = answers(index)
    return truth


def items(start: int, stop: int) -> list[anncur.Item]:
    return [
        anncur.Item(f"i{number}", f"item {number} " + "is about a thing " * 9, metadata={"number": number})
        for number in range(start, stop)
    ]


def answers(index: anncur.Index) -> Answers:
    return exhaustive_answers(index) + [index.search(query, k=3, budget=8) for query in ASKED]


def exhaustive_answers(index: anncur.Index) -> Answers:
    return [index.search(query, k=20, method="exhaustive") for query in ASKED]


def opened(folder: Path) -> tuple[anncur.Index, ChecksumScorer]:
    scorer = ChecksumScorer()
    return anncur.Index.open(folder, scorer), scorer


def check_every_damage(
    folder: Path, truth: dict[int, Answers], *, n_rounds: int, seed: int, damages: Sequence[Damage] = DAMAGES
) -> None:
    """Damage each file in each way, a new place each round, and look at what opening and verifying make of it."""
    rng = np.random.default_rng(seed)
    index = anncur.Index.open(folder, ChecksumScorer())
    needed = needed_files(folder)
    for path in files_of(folder) * n_rounds:
        for damage in damages:
            with damaged(path, damage, rng):
                check_open(folder, truth)
                problems = index.verify()
            named = [problem for problem in problems if str(path) in problem]
            assert problems == named, f"{damage.__name__} {path}"
            assert len(problems) == (path in needed), f"{damage.__name__} {path}"
    check_open(folder, truth)


def check_open(folder: Path, truth: dict[int, Answers]) -> None:
    """An index that opens answers as its newest version, or with a warning as the one before."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            index = anncur.Index.open(folder, ChecksumScorer())
            found, version = answers(index), index.info.version
        except AnncurError:
            return
    assert {warning.category for warning in caught} <= {DamagedWarning}
    assert max(truth) - bool(caught) <= version <= max(truth)
    assert found == truth[version]


def files_of(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def needed_files(folder: Path) -> set[Path]:
    """What the newest version consists of."""
    newest = newest_manifest(folder)
    return {manifest_path(folder, newest.version)} | {folder / name for name in newest.files}


def needed_file(folder: Path, ending: str) -> Path:
    return min(path for path in needed_files(folder) if path.name.endswith(ending))


def file_like(folder: Path, ending: str, *, holding: bytes) -> Path:
    return next(path for path in files_of(folder) if str(path).endswith(ending) and holding in path.read_bytes())


@contextlib.contextmanager
def damaged(path: Path, damage: Damage, rng: np.random.Generator) -> Iterator[None]:
    """Damage a file in place, and mend it afterwards."""
    content = path.read_bytes()
    try:
        apply(path, damage, rng)
        yield
    finally:
        path.write_bytes(content)


def apply(path: Path, damage: Damage, rng: np.random.Generator | None = None) -> None:
    content = path.read_bytes()
    changed = damage(content, rng or np.random.default_rng(0))
    assert changed != content
    if changed is None:
        path.unlink()
    else:
        path.write_bytes(changed)
