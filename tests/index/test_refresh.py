"""Readers that look for newer versions by themselves, and read of them only what is new."""

from __future__ import annotations

import asyncio
import pickle
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import anncur
from anncur.errors import AnncurWarning, InputError

ITEMS = [anncur.Item(f"i{number}", f"thing {number}", metadata={"n": number}) for number in range(30)]
QUERIES = [f"query {number}" for number in range(4)]
NEW = anncur.Item("new", "thing 9999999", metadata={"n": 99})


def by_digits(pairs: list[tuple[str, str]]) -> list[float]:
    return [float(sum(map(int, filter(str.isdigit, query + item)))) for query, item in pairs]


@pytest.fixture
def writer(tmp_path: Path) -> anncur.Index:
    return anncur.Index.build(ITEMS, by_digits, QUERIES, path=tmp_path / "x", items_per_chunk=8)


def best(index: anncur.Index) -> str:
    return index.search("q", k=1, method="exhaustive").ids[0]


def opened(writer: anncur.Index, refresh_seconds: float | None) -> anncur.Index:
    assert writer.info.path is not None
    return anncur.Index.open(writer.info.path, by_digits, refresh_seconds=refresh_seconds)


def test_a_search_takes_the_newest_version_when_it_is_time_to_look(writer: anncur.Index) -> None:
    at_once, later, never = (opened(writer, seconds) for seconds in (0, 3600, None))
    writer.add([NEW])
    assert best(at_once) == "new"
    assert best(later) != "new"
    assert best(never) != "new"
    writer.upsert([anncur.Item("new", "thing 0")])
    assert best(at_once) != "new"


def test_nobody_looks_before_the_time_has_come(writer: anncur.Index, monkeypatch: pytest.MonkeyPatch) -> None:
    reader = opened(writer, 100)
    now = time.monotonic()
    writer.add([NEW])
    monkeypatch.setattr(time, "monotonic", lambda: now + 90)
    assert best(reader) != "new"
    monkeypatch.setattr(time, "monotonic", lambda: now + 110)
    assert best(reader) == "new"


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The files that are read."""
    found: list[Path] = []
    original = Path.open

    def counted(path: Path, *args: Any, **options: Any) -> Any:
        found.append(path)
        return original(path, *args, **options)

    monkeypatch.setattr(Path, "open", counted)
    return found


def test_where_nothing_is_new_no_manifest_is_read(writer: anncur.Index, read: list[Path]) -> None:
    reader = opened(writer, 0)
    best(reader)
    read.clear()
    best(reader)
    assert {path.name for path in read} <= {"newest"}


def test_of_a_newer_version_only_what_is_new_is_read(writer: anncur.Index, read: list[Path]) -> None:
    reader = opened(writer, 0)
    before = {path.name for path in (writer.info.path or Path()).glob("segments/*")}
    writer.add([NEW])
    writer.remove(["i3"])
    read.clear()
    assert best(reader) == "new"
    segments = {path.parts[path.parts.index("segments") + 1] for path in read if "segments" in path.parts}
    assert segments
    assert not segments & before
    assert reader.digest() == writer.digest()


def test_others_search_on_while_a_newer_version_is_loaded(
    writer: anncur.Index, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = opened(writer, 0)
    backend = reader._backend
    load, is_loading, may_load = backend.load, threading.Event(), threading.Event()

    def slowly() -> Any:
        is_loading.set()
        assert may_load.wait(10)
        return load()

    monkeypatch.setattr(backend, "load", slowly)
    writer.add([NEW])
    with ThreadPoolExecutor(1) as threads:
        first = threads.submit(best, reader)
        assert is_loading.wait(10)
        assert best(reader) != "new", "this search doesn't wait"
        may_load.set()
        assert first.result() == "new"
    assert best(reader) == "new"


def test_a_search_that_is_awaited_refreshes_too(writer: anncur.Index) -> None:
    reader = opened(writer, 0)
    writer.add([NEW])
    assert asyncio.run(reader.asearch("q", k=1, method="exhaustive")).ids == ["new"]


def test_a_pickled_index_refreshes_as_before(writer: anncur.Index) -> None:
    again = pickle.loads(pickle.dumps(opened(writer, 0)))
    writer.add([NEW])
    assert best(again) == "new"


def test_a_newer_version_that_can_not_be_read_is_passed_over_with_a_warning(writer: anncur.Index) -> None:
    reader = opened(writer, 0)
    there = set(writer.info.path.glob("segments/*"))  # type: ignore[union-attr]
    writer.add([NEW])
    (added,) = set(writer.info.path.glob("segments/*")) - there  # type: ignore[union-attr]
    items = added / "items.sqlite"
    whole = items.read_bytes()
    items.write_bytes(b"damaged")
    with pytest.warns(AnncurWarning, match="can't be read, and version 1 is used on"):
        assert best(reader) != "new"
    with pytest.raises(anncur.DamagedError):
        reader.refresh()
    items.write_bytes(whole)
    assert best(reader) == "new"


def test_refreshing_where_nothing_is_new_keeps_what_is_loaded(writer: anncur.Index) -> None:
    reader = opened(writer, None)
    snapshot = reader._current()
    reader.refresh()
    assert reader._current() is snapshot
    writer.add([NEW])
    reader.refresh()
    assert best(reader) == "new"


def test_a_repaired_segment_is_read_again(writer: anncur.Index) -> None:
    reader, digest = opened(writer, 0), writer.digest()
    (chunk,) = writer.info.path.glob("segments/*/scores/c/1/0")  # type: ignore[union-attr]
    chunk.write_bytes(b"damaged")
    assert writer.verify(repair=True) == []
    reader.refresh()
    assert reader.digest() == writer.digest() == digest


@pytest.mark.parametrize("wrong", [-1, "5", float("nan")])
def test_the_time_between_looks_is_a_number_of_seconds(writer: anncur.Index, wrong: Any) -> None:
    with pytest.raises(InputError, match="refresh_seconds must be a number"):
        opened(writer, wrong)


def test_an_index_that_was_closed_looks_for_nothing(writer: anncur.Index) -> None:
    reader = opened(writer, 0)
    reader.close()
    with pytest.raises(InputError, match="closed"):
        best(reader)
