"""An index of every format that was ever released still opens, and answers as it did then."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest

import anncur
from anncur.errors import InputError

GOLDEN = Path(__file__).parent / "golden"
DIGEST = "bbaa4147fb87eaf849d18d985c52da6199dada5eeb7fbb492edc4b9857851a12"  # of what all formats hold
FORMATS = ["format-1", "format-2", "format-3", "format-4", "format-5", "format-6"]


class LettersInCommon:
    """What scripts/make_golden.py built with; again here, so that the script may change with the next format.

    Takes an item also without what it prepared of it, and remembers what it got."""

    fingerprint = "letters in common, 1"

    def __init__(self) -> None:
        self.got: dict[str, bytes] = {}

    def prepare(self, items: Sequence[anncur.Item]) -> list[bytes]:
        return [f"{len(item.full_text)} {''.join(sorted(set(item.full_text)))}".encode() for item in items]

    def score(self, query: anncur.Query, items: Sequence[anncur.Item]) -> list[float]:
        self.got.update({item.id: item.prepared for item in items})
        values = [item.prepared or value for item, value in zip(items, self.prepare(items), strict=True)]
        split = [value.decode().split(" ", 1) for value in values]
        return [len(set(query.marked_text) & set(letters)) + int(length) / 64 for length, letters in split]


@pytest.fixture(params=FORMATS)
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return Path(shutil.copytree(GOLDEN / request.param, tmp_path / request.param))


def test_a_golden_index_is_whole(folder: Path) -> None:
    index = anncur.Index.open(folder, LettersInCommon())
    assert index.verify() == []
    assert index.digest() == DIGEST
    assert (index.info.version, index.info.n_anchor_queries) == (3, 3)


def test_a_golden_index_holds_its_items(folder: Path) -> None:
    index = anncur.Index.open(folder, LettersInCommon())
    assert list(index.items) == [
        anncur.Item("fox", "A flying fox eats figs and mangoes", "Flying fox", {"wings": True}),
        anncur.Item("owl", "An owl hunts at night", "Owl", {"wings": True}),
        anncur.Item("tiger", "The tiger is the largest of the cats", metadata={"wings": False}),
        anncur.Item("günther", "Günther's vole: größer als eine Maus", "Vole"),
    ]


@pytest.mark.parametrize("method", ["anncur", "rerank", "exhaustive"])
def test_a_golden_index_answers_as_it_did(method: str, folder: Path) -> None:
    hits = anncur.Index.open(folder, LettersInCommon()).search("large birds", k=3, budget=4, method=method)
    assert [(hit.id, hit.score) for hit in hits] == [("fox", 8.703125), ("günther", 8.640625), ("tiger", 8.5625)]


def test_a_golden_index_can_be_changed_and_tuned(folder: Path) -> None:
    index = anncur.Index.open(folder, LettersInCommon())
    index.add([anncur.Item("dodo", "The dodo is back again, larger than all birds")])
    index.remove(["owl"])
    index.tune()
    again = anncur.Index.open(folder, LettersInCommon())
    assert again.search("large birds", k=10, budget=4).ids == ["dodo", "fox", "günther", "tiger"]
    assert again.verify() == []


def test_a_scorer_gets_what_it_prepared_then_and_nothing_from_before_it_could(folder: Path) -> None:
    scorer = LettersInCommon()
    index = anncur.Index.open(folder, scorer)
    index.add([anncur.Item("emu", "The emu runs")])
    scorer.got.clear()
    index.search("large birds", method="exhaustive")
    assert scorer.got.pop("emu") == b"12  Tehmnrsu"
    assert scorer.got["owl"] == (b"" if folder.name == "format-1" else b"25 \n AOaghilnostuw")
    assert len({value == b"" for value in scorer.got.values()}) == 1


def test_a_golden_index_grows_and_answers(folder: Path) -> None:
    index = anncur.Index.open(folder, LettersInCommon())
    for number in range(3):  # with words that the items before don't have
        texts = [f"A zorilla{number} digs, one of {count} zorilla{number}s" for count in range(4)]
        index.add([anncur.Item(f"{number} {count}", text) for count, text in enumerate(texts)])
    index.compact()
    index.upsert([anncur.Item("owl", "An owl sleeps")])
    assert len(index.search("large birds", 20, 20)) == 16
    assert index.verify() == []


def test_a_golden_index_is_filtered_by_metadata(folder: Path) -> None:
    index = anncur.Index.open(folder, LettersInCommon())
    assert index.search("large birds", filter={"wings": False}).ids == ["tiger"]


def test_an_index_of_a_format_to_come_is_refused_with_the_remedy(folder: Path) -> None:
    manifest = folder / "manifests" / "00000003.json"
    body = manifest.read_bytes()[:-66].replace(f'"format": {folder.name[-1]}'.encode(), b'"format": 7')
    manifest.write_bytes(body + b"\n" + hashlib.sha256(body).hexdigest().encode() + b"\n")
    with pytest.raises(InputError, match="has format 7, this version of anncur reads 1, 2, 3, 4, 5, 6; update anncur"):
        anncur.Index.open(folder, LettersInCommon())


def test_golden_indexes_are_small() -> None:
    files = [path for path in GOLDEN.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) < 300_000
