"""An index of every format that was ever released still opens, and answers as it did then."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import anncur

GOLDEN = Path(__file__).parent / "golden"
DIGESTS = {"format-1": "bbaa4147fb87eaf849d18d985c52da6199dada5eeb7fbb492edc4b9857851a12"}


def letters_in_common(pairs: list[tuple[str, str]]) -> list[float]:
    """What scripts/make_golden.py built with; again here, so that the script may change with the next format."""
    return [len(set(query) & set(item)) + len(item) / 64 for query, item in pairs]


letters_in_common.fingerprint = "letters in common, 1"  # type: ignore[attr-defined]


@pytest.fixture(params=DIGESTS)
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return Path(shutil.copytree(GOLDEN / request.param, tmp_path / request.param))


def test_a_golden_index_is_whole(folder: Path) -> None:
    index = anncur.Index.open(folder, letters_in_common)
    assert index.verify() == []
    assert index.digest() == DIGESTS[folder.name]
    assert (index.info.version, index.info.n_anchor_queries) == (3, 3)


def test_a_golden_index_holds_its_items(folder: Path) -> None:
    index = anncur.Index.open(folder, letters_in_common)
    assert list(index.items) == [
        anncur.Item("fox", "A flying fox eats figs and mangoes", "Flying fox", {"wings": True}),
        anncur.Item("owl", "An owl hunts at night", "Owl", {"wings": True}),
        anncur.Item("tiger", "The tiger is the largest of the cats", metadata={"wings": False}),
        anncur.Item("günther", "Günther's vole: größer als eine Maus", "Vole"),
    ]


@pytest.mark.parametrize("method", ["anncur", "rerank", "exhaustive"])
def test_a_golden_index_answers_as_it_did(method: str, folder: Path) -> None:
    hits = anncur.Index.open(folder, letters_in_common).search("large birds", k=3, budget=4, method=method)
    assert [(hit.id, hit.score) for hit in hits] == [("fox", 8.703125), ("günther", 8.640625), ("tiger", 8.5625)]


def test_a_golden_index_can_be_changed_and_tuned(folder: Path) -> None:
    index = anncur.Index.open(folder, letters_in_common)
    index.add([anncur.Item("dodo", "The dodo is back again, larger than all birds")])
    index.remove(["owl"])
    index.tune()
    again = anncur.Index.open(folder, letters_in_common)
    assert again.search("large birds", k=10, budget=4).ids == ["dodo", "fox", "günther", "tiger"]
    assert again.verify() == []


def test_golden_indexes_are_small() -> None:
    files = [path for path in GOLDEN.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) < 100_000
