"""An index and every way to damage its files, in a module of its own, so that another process can import it."""

from __future__ import annotations

import contextlib
import warnings
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeAlias

import numpy as np

import anncur
from anncur.errors import AnncurError, DamagedWarning
from anncur.storage.manifest import MANIFESTS, NEWEST, manifest_path, newest_manifest

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


def make_index(folder: Path) -> dict[int, Answers]:
    """Make an index of two segments with removed items; returns what each of its versions answers."""
    index = anncur.Index.build(items(0, 10), ChecksumScorer(), QUERIES, path=folder, items_per_chunk=ITEMS_PER_CHUNK)
    truth = {index.info.version: answers(index)}
    changes: list[Callable[[], object]] = [
        lambda: index.add(items(10, 16)),
        lambda: index.remove(["i2", "i11"]),
        lambda: index.tune(anchor_method="random", seed=1),
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
        for damage in possible(path, damages):
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


def possible(path: Path, damages: Sequence[Damage] = DAMAGES) -> list[Damage]:
    """Those that change a file: in an empty one, such as the lock, there is nothing to alter."""
    return [damage for damage in damages if path.stat().st_size or damage in (delete, append)]


def files_of(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def needed_files(folder: Path) -> set[Path]:
    """What the newest version consists of, and the record that it is the newest."""
    newest = newest_manifest(folder)
    record = folder / MANIFESTS / NEWEST
    return {record, manifest_path(folder, newest.version)} | {folder / name for name in newest.files}


def needed_file(folder: Path, ending: str) -> Path:
    return min(path for path in needed_files(folder) if path.name.endswith(ending))


def file_like(folder: Path, ending: str, *, holding: bytes) -> Path:
    return next(path for path in files_of(folder) if str(path).endswith(ending) and holding in path.read_bytes())


@contextlib.contextmanager
def damaged(path: Path, damage: Damage, rng: np.random.Generator) -> Iterator[None]:
    """Damage a file in place, and put it back afterwards."""
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
