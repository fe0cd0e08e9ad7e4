"""What a scorer makes of items once: who makes it, when, and who gets to see it."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import anncur
from anncur.errors import DamagedError, ScorerError
from anncur.index.folder import FolderBackend
from anncur.items import TextDigest
from anncur.planning.plan import plan
from anncur.progress import silent
from anncur.scorers import guard
from anncur.scorers.base import ScorerLike
from anncur.storage import items as stored_items

QUERIES = [f"query {number}" for number in range(12)]
ITEMS = [anncur.Item(f"i{number}", f"item {number} is a thing", metadata={"n": number}) for number in range(20)]

in_memory_and_on_disk = pytest.mark.parametrize("name", [None, "x.anncur"], ids=["in memory", "on disk"])


class TokenScorer:
    """Prepares items, and fails on an item that comes without what it made of it."""

    def __init__(self, fingerprint: str = "tokens, 1") -> None:
        self.fingerprint = fingerprint
        self.prepared: list[str] = []
        self.scored: list[str] = []

    def prepare(self, items: Sequence[anncur.Item]) -> list[bytes]:
        self.prepared += [item.id for item in items]
        return [self.tokens(item) for item in items]

    def score(self, query: anncur.Query, items: Sequence[anncur.Item]) -> list[float]:
        assert [item.prepared for item in items] == [self.tokens(item) for item in items]
        self.scored += [item.id for item in items]
        return [zlib.crc32(query.text.encode() + item.prepared) % 9973 for item in items]

    def tokens(self, item: anncur.Item) -> bytes:
        return f"{self.fingerprint}\0{item.full_text}".encode()


class BareScorer(TokenScorer):
    """The same scorer before it could prepare."""

    prepare = None  # type: ignore[assignment]

    def tokens(self, item: anncur.Item) -> bytes:
        return b""


@pytest.fixture(autouse=True)
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (guard, stored_items):
        monkeypatch.setattr(module, "PREPARED_AT_ONCE", 6)


def build(path: Path | None, scorer: ScorerLike, items: Any = ITEMS, **options: Any) -> anncur.Index:
    return anncur.Index.build(items, scorer, QUERIES, path=path, items_per_chunk=8, **options)


def place(folder: Path, name: str | None) -> Path | None:
    return None if name is None else folder / name


def ids(items: Sequence[anncur.Item]) -> list[str]:
    return [item.id for item in items]


@in_memory_and_on_disk
def test_a_build_prepares_each_item_once_and_a_search_none(name: str | None, tmp_path: Path) -> None:
    scorer = TokenScorer()
    index = build(place(tmp_path, name), scorer, iter(ITEMS))
    assert scorer.prepared == ids(ITEMS)
    index.search("a query", budget=20)
    assert scorer.prepared == ids(ITEMS)


class Nameless:
    """A scorer that prepares, but has no fingerprint."""

    def __init__(self) -> None:
        self.inner = TokenScorer()
        self.prepare = self.inner.prepare
        self.score = self.inner.score


@in_memory_and_on_disk
def test_a_scorer_without_a_fingerprint_may_prepare_too(name: str | None, tmp_path: Path) -> None:
    scorer = Nameless()
    build(place(tmp_path, name), scorer).search("a query", budget=20)
    assert scorer.inner.prepared == ids(ITEMS)


def test_items_are_prepared_in_batches(tmp_path: Path) -> None:
    sizes: list[int] = []

    class Sized(TokenScorer):
        def prepare(self, items: Sequence[anncur.Item]) -> Iterator[bytes]:  # type: ignore[override]
            sizes.append(len(items))
            return iter(super().prepare(items))

    build(tmp_path, Sized())
    build(None, Sized())
    assert sizes == [6, 6, 6, 2] * 2


@in_memory_and_on_disk
def test_an_add_prepares_just_the_new_items(name: str | None, tmp_path: Path) -> None:
    scorer = TokenScorer()
    index = build(place(tmp_path, name), scorer, ITEMS[:12])
    scorer.prepared.clear()
    index.add(ITEMS[12:])
    assert scorer.prepared == ids(ITEMS[12:])


@in_memory_and_on_disk
def test_searches_give_each_item_with_what_was_made_of_it_also_after_changes(name: str | None, tmp_path: Path) -> None:
    scorer = TokenScorer()  # which fails on anything else
    index = build(place(tmp_path, name), scorer, ITEMS[:12])
    index.add(ITEMS[12:])
    index.remove(["i3", "i15"])
    index.tune(anchor_method="random", seed=1)
    scorer.scored.clear()
    found = index.search("a query", k=18, method="exhaustive")
    assert sorted(found.ids) == sorted(scorer.scored) == sorted({*ids(ITEMS)} - {"i3", "i15"})


def test_an_opened_index_prepares_nothing_and_answers_the_same(tmp_path: Path) -> None:
    built, scorer = build(tmp_path, TokenScorer()), TokenScorer()
    opened = anncur.Index.open(tmp_path, scorer)
    assert opened.search_many(QUERIES, budget=10) == built.search_many(QUERIES, budget=10)
    assert scorer.prepared == []


def test_on_disk_and_in_memory_are_the_same_index(tmp_path: Path) -> None:
    assert build(tmp_path, TokenScorer()).digest() == build(None, TokenScorer()).digest()


def test_a_build_that_was_stopped_after_its_items_were_written_does_not_prepare_again(tmp_path: Path) -> None:
    scorer = TokenScorer()
    with pytest.raises(ScorerError):
        build(tmp_path, anncur.load_scorer(scorer, max_calls=100))
    build(tmp_path, scorer)
    assert scorer.prepared == ids(ITEMS)


def test_a_build_that_was_stopped_while_it_prepared_begins_with_that_again(tmp_path: Path) -> None:
    class Stopped(TokenScorer):
        def prepare(self, items: Sequence[anncur.Item]) -> list[bytes]:
            if len(self.prepared) > 10:
                raise ConnectionError("gone")
            return super().prepare(items)

    with pytest.raises(ScorerError, match="gone"):
        build(tmp_path, Stopped())
    scorer = TokenScorer()
    build(tmp_path, scorer).search("a query")
    assert scorer.prepared == ids(ITEMS)


def test_several_shards_prepare_each_item_once_among_them(tmp_path: Path) -> None:
    scorer = TokenScorer()
    for part in range(3):
        build(tmp_path, scorer, shard=(part, 3))
    assert scorer.prepared == ids(ITEMS)
    assert anncur.Index.open(tmp_path, scorer).verify() == []


def test_building_a_finished_index_again_prepares_nothing(tmp_path: Path) -> None:
    build(tmp_path, TokenScorer())
    scorer = TokenScorer()
    build(tmp_path, scorer)
    assert scorer.prepared == []


def test_what_was_prepared_for_an_unfinished_build_and_is_damaged_is_made_again(tmp_path: Path) -> None:
    scorer = TokenScorer()
    with pytest.raises(ScorerError):
        build(tmp_path, anncur.load_scorer(scorer, max_calls=100))
    (file,) = tmp_path.glob("segments/*/prepared.sqlite")
    whole = file.read_bytes()
    for damaged in (whole.replace(b"item 7 ", b"item 8 "), whole[:5000]):
        file.write_bytes(damaged)
        scorer.prepared.clear()
        with pytest.raises(ScorerError):
            build(tmp_path, anncur.load_scorer(scorer, max_calls=1))
        assert scorer.prepared == ids(ITEMS)
    build(tmp_path, scorer)
    assert anncur.Index.open(tmp_path, scorer).verify() == []


@in_memory_and_on_disk
def test_only_the_scorer_gets_what_it_prepared(name: str | None, tmp_path: Path) -> None:
    index = build(place(tmp_path, name), TokenScorer())
    hits = index.search("a query", k=20, budget=20)
    assert {item.prepared for item in [*index.items, *(hit.item for hit in hits)]} == {b""}
    snapshot = index._current()
    assert all(item.prepared for item in snapshot.items_for("tokens, 1"))
    assert not any(item.prepared for item in snapshot.items_for("tokens, 2"))


@in_memory_and_on_disk
def test_what_another_scorer_made_is_replaced(name: str | None, tmp_path: Path) -> None:
    foreign = [replace(item, prepared=b"of another scorer") for item in ITEMS]
    index = build(place(tmp_path, name), TokenScorer(), foreign[:12])  # whose scorer fails on anything but its own
    index.add(foreign[12:])
    assert index.search("a query", k=20, budget=20).calls == 20


def test_what_was_prepared_is_no_part_of_an_item() -> None:
    bare = ITEMS[3]
    item = replace(bare, prepared=b"tokens")
    assert item == bare
    assert repr(item) == repr(bare)
    assert hash(item) == hash(bare)
    digests = [TextDigest(), TextDigest()]
    for digest, some in zip(digests, (item, bare), strict=True):
        digest.add_item(some)
    assert str(digests[0]) == str(digests[1])
    assert anncur.Item.from_record({"id": "a", "text": "b", "prepared": "c"}).prepared == b""


def test_a_scorer_that_prepares_nothing_leaves_no_file(tmp_path: Path) -> None:
    def lengths(pairs: list[tuple[str, str]]) -> list[float]:
        return [float(len(item)) for _, item in pairs]

    index = build(tmp_path, lengths)
    index.add([anncur.Item("new", "a new one")])
    assert list(tmp_path.rglob("prepared*")) == []


def test_a_value_may_be_empty(tmp_path: Path) -> None:
    class Choosy(TokenScorer):
        def tokens(self, item: anncur.Item) -> bytes:
            return b"" if item.id == "i2" else super().tokens(item)

    index = build(tmp_path, Choosy())
    assert index.search("a query", k=20, method="exhaustive").calls == 20


def test_an_older_index_takes_prepared_items_and_serves_both(tmp_path: Path) -> None:
    class Tolerant(TokenScorer):
        def score(self, query: anncur.Query, items: Sequence[anncur.Item]) -> list[float]:
            seen.update({item.id: item.prepared for item in items})
            return [float(len(item.text)) for item in items]

    seen: dict[str, bytes] = {}
    build(tmp_path, BareScorer(), ITEMS[:12])
    index = anncur.Index.open(tmp_path, Tolerant())
    index.add(ITEMS[12:])
    seen.clear()
    anncur.Index.open(tmp_path, Tolerant()).search("a query", method="exhaustive")
    assert seen == {item.id: b"" if item in ITEMS[:12] else Tolerant().tokens(item) for item in ITEMS}
    index.remove(ids(ITEMS[12:]))


def test_building_a_finished_older_index_again_leaves_it_as_it_was(tmp_path: Path) -> None:
    build(tmp_path, BareScorer())
    before = sorted(tmp_path.rglob("*"))
    scorer = TokenScorer()
    build(tmp_path, scorer)
    assert scorer.prepared == []
    assert sorted(tmp_path.rglob("*")) == before


def test_items_that_were_removed_and_come_back_are_whole(tmp_path: Path) -> None:
    scorer = TokenScorer()
    index = build(tmp_path, scorer, ITEMS[:12])
    index.add(ITEMS[12:])
    index.remove(ids(ITEMS[12:]))
    for file in tmp_path.glob("segments/*/prepared.sqlite"):
        file.write_bytes(file.read_bytes().replace(b"item 17 ", b"item 18 "))
    index.add(ITEMS[12:])
    assert anncur.Index.open(tmp_path, scorer).search("a query", k=20, method="exhaustive").calls == 20


def test_a_value_altered_after_opening_is_noticed_and_never_used(tmp_path: Path) -> None:
    long = [replace(item, text=f"{item.text} " * 50) for item in ITEMS]  # so that SQLite doesn't hold them all
    build(tmp_path, TokenScorer(), long)
    scorer = TokenScorer()
    index = anncur.Index.open(tmp_path, scorer)
    (file,) = tmp_path.glob("segments/*/prepared.sqlite")
    file.write_bytes(file.read_bytes().replace(b"item 7 ", b"item 8 "))
    with pytest.raises(DamagedError, match=r"prepared\.sqlite"):
        index.search("a query", method="exhaustive")
    assert "i7" not in scorer.scored
    with pytest.raises(DamagedError, match=r"prepared\.sqlite"):
        anncur.Index.open(tmp_path, scorer)


def test_repair_leaves_out_what_the_scorer_no_longer_prepares(tmp_path: Path) -> None:
    index = build(tmp_path, TokenScorer())
    (file,) = tmp_path.glob("segments/*/prepared.sqlite")
    file.write_bytes(b"damaged")
    assert len(index.verify()) == 1
    bare = anncur.load_scorer(BareScorer())
    assert FolderBackend(tmp_path).repair(bare, progress=silent) == []
    assert anncur.Index.open(tmp_path, bare).search("a query", k=20, method="exhaustive").calls == 20


def test_a_pilot_scores_what_it_prepared() -> None:
    scorer = TokenScorer()
    made = plan(ITEMS, scorer, QUERIES, seconds=1, retrievers=())
    assert sorted(scorer.prepared) == sorted(ids(ITEMS))
    without = made.disk_bytes - sum(len(scorer.tokens(item)) for item in ITEMS)
    assert without == 4 * made.n_pairs + 2 * sum(len(item.full_text) for item in ITEMS) + 2**21
