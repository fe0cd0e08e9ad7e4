"""A cache of scores: what was put is found again, bit by bit, and whatever happens to the file, no score is wrong."""

from __future__ import annotations

import contextlib
import hashlib
import math
import os
import pickle
import sqlite3
import struct
import sys
import time
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from anncur import Index, Query
from anncur.errors import AnncurWarning, DamagedWarning, InputError
from anncur.scorers import cache as cache_module
from anncur.scorers.base import TextPair
from anncur.scorers.cache import APPLICATION, LEAST_BYTES, TABLE, VERSION, ScoreCache
from anncur.scorers.loading import load_scorer


def make_pairs(n: int, *, query: str = "a query") -> list[TextPair]:
    return [(query, f"item {number}") for number in range(n)]


def score_of(pair: TextPair) -> float:
    """The right score of a pair."""
    digest = hashlib.sha256("\0".join(pair).encode()).digest()
    return int.from_bytes(digest[:6], "big") / 997


def filled(path: Path, pairs: list[TextPair], **options: Any) -> ScoreCache:
    cache = ScoreCache(path, **options)
    cache.put("scorer", pairs, [score_of(pair) for pair in pairs])
    return cache


def n_right(cache: ScoreCache, pairs: list[TextPair]) -> int:
    """How many pairs are found; a wrong score is a failure."""
    found = cache.get("scorer", pairs)
    assert len(found) == len(pairs)
    assert all(score in (None, score_of(pair)) for pair, score in zip(pairs, found, strict=True))
    return len(pairs) - found.count(None)


def bytes_on_disk(path: Path) -> int:
    return sum(file.stat().st_size for file in path.parent.glob(f"{path.name}*"))


@contextlib.contextmanager
def one_warning(category: type[AnncurWarning], words: str) -> Iterator[None]:
    """Exactly one warning is given, whatever is done."""
    with pytest.warns(category, match=words) as caught:
        yield
    assert len(caught) == 1, [str(warning.message) for warning in caught]


def test_what_was_put_is_found_by_whoever_opens_the_file_and_the_rest_is_unknown(tmp_path: Path) -> None:
    path, pairs = tmp_path / "new" / "folder" / "scores.cache", make_pairs(1_200)
    cache = filled(path, pairs[::2])
    assert ScoreCache(path).get("scorer", pairs) == [
        score_of(pair) if place % 2 == 0 else None for place, pair in enumerate(pairs)
    ]
    assert len(cache) == 600
    assert cache.get("scorer", []) == []


@pytest.mark.parametrize("score", [0.0, -0.0, 5e-324, -1.7976931348623157e308, 0.1 + 0.2, np.float32(0.1)])
def test_a_score_comes_back_with_every_bit(score: float, tmp_path: Path) -> None:
    cache = ScoreCache(tmp_path / "scores.cache")
    cache.put("scorer", [("q", "i")], [score])
    (found,) = cache.get("scorer", [("q", "i")])
    assert found is not None
    assert struct.pack("<d", found) == struct.pack("<d", score)


def test_pairs_that_differ_only_in_where_the_query_ends_or_in_the_scorer_are_different(tmp_path: Path) -> None:
    cache = ScoreCache(tmp_path / "scores.cache")
    pairs = [("ab", "c"), ("a", "bc"), ("", "abc"), ("abc", ""), ("c", "ab"), ("ab", "c\0"), ("ab\0", "c")]
    cache.put("one", pairs, range(len(pairs)))
    cache.put("another", pairs[:1], [-1.0])
    assert cache.get("one", pairs) == list(range(len(pairs)))
    assert cache.get("another", pairs[:2]) == [-1.0, None]
    assert cache.get("on", [("eab", "c")]) == [None]


def test_any_text_and_any_fingerprint_will_do(tmp_path: Path) -> None:
    cache = ScoreCache(tmp_path / "scores.cache")
    pairs = [("", ""), ("\0", "é😀"), ("\ud800", "lone surrogate"), ("long " * 50_000, "text")]
    cache.put("f" * 1_000, pairs, [1, 2, 3, 4])
    assert cache.get("f" * 1_000, pairs) == [1, 2, 3, 4]
    assert cache.get("f" * 999, pairs) == [None] * 4


def test_a_pair_that_is_put_again_has_the_later_score(tmp_path: Path) -> None:
    cache = ScoreCache(tmp_path / "scores.cache")
    cache.put("scorer", [("q", "i"), ("q", "i")], [1, 2])
    assert cache.get("scorer", [("q", "i"), ("q", "i")]) == [2, 2]
    cache.put("scorer", [("q", "i")], [3])
    assert cache.get("scorer", [("q", "i")]) == [3]
    assert len(cache) == 1


def test_neither_texts_nor_fingerprints_can_be_read_in_the_files(tmp_path: Path) -> None:
    cache = ScoreCache(tmp_path / "scores.cache")
    cache.put("a fingerprint", [("what nobody may read", "nor this")] * 3, [1, 2, 3])
    files = [path for path in tmp_path.iterdir() if path.stat().st_size]
    assert len(files) == 3  # the log has what was put
    for path in files:
        assert not any(text in path.read_bytes() for text in (b"fingerprint", b"nobody", b"nor this"))


@pytest.mark.parametrize("score", [math.nan, math.inf, -math.inf])
def test_a_score_that_is_not_finite_is_refused_with_all_that_came_with_it(score: float, tmp_path: Path) -> None:
    cache = ScoreCache(tmp_path / "scores.cache")
    with pytest.raises(InputError, match="finite"):
        cache.put("scorer", make_pairs(3), [1, score, 2])
    assert len(cache) == 0


@pytest.mark.parametrize("most_bytes", [0, -1, LEAST_BYTES - 1, 2.5e9, "1 GB", None])
def test_a_size_that_makes_no_sense_is_refused(most_bytes: Any, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="most_bytes must be"):
        ScoreCache(tmp_path / "scores.cache", most_bytes=most_bytes)
    assert list(tmp_path.iterdir()) == []


def test_it_never_takes_more_than_its_bytes_and_drops_what_was_put_first(tmp_path: Path) -> None:
    path, pairs = tmp_path / "scores.cache", make_pairs(16_000)
    cache = ScoreCache(path, most_bytes=LEAST_BYTES)
    for start in range(0, len(pairs), 1_000):
        batch = pairs[start : start + 1_000]
        cache.put("scorer", batch, [score_of(pair) for pair in batch])
        assert bytes_on_disk(path) <= LEAST_BYTES
    assert len(cache) == n_right(cache, pairs) > 5_000
    assert n_right(cache, pairs[:4_000]) == 0
    assert n_right(cache, pairs[-5_000:]) == 5_000


def test_a_pair_that_is_put_again_outlives_those_that_were_put_with_it(tmp_path: Path) -> None:
    pairs = make_pairs(13_000)
    cache = filled(tmp_path / "scores.cache", pairs[:1_000], most_bytes=LEAST_BYTES)
    for start in range(1_000, len(pairs), 1_000):
        cache.put("scorer", batch := pairs[start : start + 1_000] + pairs[:1], [score_of(pair) for pair in batch])
    assert n_right(cache, pairs[:1]) == 1
    assert n_right(cache, pairs[1:1_000]) == 0


def test_opened_with_fewer_bytes_it_gives_space_back(tmp_path: Path) -> None:
    path, pairs = tmp_path / "scores.cache", make_pairs(20_000)
    filled(path, pairs).close()
    assert path.stat().st_size > 1.2 * LEAST_BYTES
    cache = ScoreCache(path, most_bytes=LEAST_BYTES)
    cache.put("scorer", [("q", "one more")], [score_of(("q", "one more"))])
    cache.close()
    assert path.stat().st_size < LEAST_BYTES
    assert len(cache) == n_right(cache, [*pairs, ("q", "one more")]) > 5_000


def test_ten_thousand_pairs_take_well_under_a_second(tmp_path: Path) -> None:
    pairs = make_pairs(10_000)
    cache, scores = ScoreCache(tmp_path / "scores.cache"), [1.0] * len(pairs)
    start = time.process_time()
    cache.put("scorer", pairs, scores)
    assert cache.get("scorer", pairs) == scores
    assert time.process_time() - start < 1


def test_threads_may_share_one(tmp_path: Path) -> None:
    cache = ScoreCache(tmp_path / "scores.cache")

    def work(number: int) -> int:
        pairs = make_pairs(50, query=f"query {number % 7}")
        cache.put("scorer", pairs, [score_of(pair) for pair in pairs])
        return n_right(cache, pairs)

    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(work, range(60))) == [50] * 60
    assert len(cache) == 7 * 50


def test_a_pickle_opens_the_same_file(tmp_path: Path) -> None:
    cache = filled(tmp_path / "scores.cache", make_pairs(5), most_bytes=2**21)
    copy = pickle.loads(pickle.dumps(cache))
    assert n_right(copy, make_pairs(6)) == 5
    assert repr(copy) == repr(cache)
    assert "of 2.0 MiB" in repr(copy)


def test_closed_it_is_one_file_and_the_next_use_opens_it_again(tmp_path: Path) -> None:
    cache = filled(tmp_path / "scores.cache", make_pairs(5))
    cache.close()
    cache.close()
    assert {path.name for path in tmp_path.iterdir()} <= {"scores.cache", "scores.cache.lock"}
    assert n_right(cache, make_pairs(6)) == 5


def test_a_link_to_a_cache_and_the_cache_are_the_same(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere" / "scores.cache")
    cache = filled(tmp_path / "link", make_pairs(5))
    assert n_right(ScoreCache(tmp_path / "elsewhere" / "scores.cache"), make_pairs(6)) == 5
    assert len(cache) == 5


def test_an_empty_file_becomes_a_cache(tmp_path: Path) -> None:
    path = tmp_path / "scores.cache"
    path.touch()
    assert n_right(filled(path, make_pairs(5)), make_pairs(6)) == 5


def foreign_database(path: Path, *statements: str) -> None:
    with contextlib.closing(sqlite3.connect(path)) as connection:
        for statement in statements:
            connection.execute(statement)
        connection.commit()


@pytest.mark.parametrize(
    "make",
    [
        lambda path: path.write_bytes(b"notes of somebody\n" * 30),
        lambda path: path.write_bytes(b"x"),
        lambda path: path.write_bytes(b"SQLite format 3\0" + bytes(range(256)) * 40),
        lambda path: foreign_database(path, "CREATE TABLE notes (text)", "INSERT INTO notes VALUES ('precious')"),
        lambda path: foreign_database(path, "PRAGMA application_id = 7", "CREATE TABLE scores (key, record)"),
        lambda path: foreign_database(path, "PRAGMA journal_mode = WAL", "CREATE TABLE notes (text)"),
    ],
)
def test_a_file_of_somebody_else_is_refused_and_left_as_it_is(make: Any, tmp_path: Path) -> None:
    path = tmp_path / "scores.cache"
    make(path)
    before = path.read_bytes()
    with pytest.raises(InputError, match="is not a cache of scores"):
        ScoreCache(path)
    assert [file.name for file in tmp_path.iterdir()] == ["scores.cache"]
    assert path.read_bytes() == before


def test_a_file_of_a_later_version_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "scores.cache"
    version = f"PRAGMA user_version = {VERSION + 1}"
    foreign_database(path, f"PRAGMA application_id = {APPLICATION}", version, "CREATE TABLE other (key)")
    before = path.read_bytes()
    with pytest.raises(InputError, match="later version of anncur; upgrade"):
        ScoreCache(path)
    assert path.read_bytes() == before


def test_a_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is a file"):
        ScoreCache(tmp_path)


def test_a_file_of_somebody_else_that_comes_later_is_a_warning_and_left_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "scores.cache"
    cache = filled(path, make_pairs(5))
    other = tmp_path / "other"
    other.write_bytes(b"notes of somebody\n" * 30)
    other.replace(path)
    with one_warning(AnncurWarning, "not a cache of scores"):
        assert n_right(cache, make_pairs(5)) == 0
        cache.put("scorer", make_pairs(5), [1] * 5)
    assert path.read_bytes().startswith(b"notes")


def test_a_file_that_was_deleted_is_begun_again(tmp_path: Path) -> None:
    path = tmp_path / "scores.cache"
    cache = filled(path, make_pairs(5))
    path.unlink()  # and not its log, which must not be applied to the new one
    assert n_right(cache, make_pairs(5)) == 0
    cache.put("scorer", make_pairs(5), [score_of(pair) for pair in make_pairs(5)])
    assert n_right(ScoreCache(path), make_pairs(5)) == 5


def alter(path: Path, statement: str, *values: Any) -> int:
    with contextlib.closing(sqlite3.connect(path)) as connection, connection:
        return connection.execute(statement, values).rowcount


@pytest.mark.parametrize("record", [b"\0" * 16, b"", b"x", "text", 3.5])
def test_a_score_with_the_wrong_checksum_is_unknown_and_deleted_and_the_others_stay(
    record: Any, tmp_path: Path
) -> None:
    path, pairs = tmp_path / "scores.cache", make_pairs(50)
    cache = filled(path, pairs)
    assert alter(path, f"UPDATE {TABLE} SET record = ? WHERE id <= 3", record) == 3
    with one_warning(DamagedWarning, r"3 damaged score\(s\).*dropped"):
        assert n_right(cache, pairs) == 47
        assert len(cache) == 47
        assert n_right(cache, pairs) == 47


def test_a_score_that_stands_beside_the_key_of_another_pair_is_unknown(tmp_path: Path) -> None:
    path, pairs = tmp_path / "scores.cache", make_pairs(2)
    cache = filled(path, pairs)
    alter(path, f"UPDATE {TABLE} SET record = (SELECT record FROM {TABLE} WHERE id = 2) WHERE id = 1")
    with one_warning(DamagedWarning, "1 damaged score"):
        assert n_right(cache, pairs) == 1


def flip_bytes(content: bytes, rng: np.random.Generator) -> bytes:
    damaged = bytearray(content)
    for place in rng.integers(len(content), size=int(rng.integers(1, 20))):
        damaged[place] ^= int(rng.integers(1, 256))
    return bytes(damaged)


def flip_header(content: bytes, rng: np.random.Generator) -> bytes:
    damaged = bytearray(content)
    damaged[rng.integers(100)] ^= 1 << int(rng.integers(8))
    return bytes(damaged)


def truncate(content: bytes, rng: np.random.Generator) -> bytes:
    return content[: rng.integers(len(content))]


def truncate_header(content: bytes, rng: np.random.Generator) -> bytes:
    return content[: rng.integers(200)]


def zero_a_block(content: bytes, rng: np.random.Generator) -> bytes:
    start = int(rng.integers(len(content) // 512)) * 512
    return content[:start] + bytes(512) + content[start + 512 :]


def zero(content: bytes, rng: np.random.Generator) -> bytes:
    return bytes(len(content))


@pytest.mark.parametrize("n_rounds", [4, pytest.param(150, marks=pytest.mark.slow)])
@pytest.mark.parametrize("ending", ["", "-wal"])
@pytest.mark.parametrize("damage", [flip_bytes, flip_header, truncate, truncate_header, zero_a_block, zero])
def test_a_damaged_file_never_gives_a_wrong_score_and_never_more_than_warnings(
    damage: Any, ending: str, n_rounds: int, tmp_path: Path
) -> None:
    path, pairs, rng = tmp_path / "scores.cache", make_pairs(400), np.random.default_rng(0)
    cache = filled(path, pairs)
    if not ending:
        cache.close()
    whole = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    cache.close()
    for _ in range(n_rounds):
        folder = tmp_path / "damaged"
        folder.mkdir()
        for name, content in whole.items():
            is_damaged = name == path.name + ending
            (folder / name).write_bytes(damage(content, rng) if is_damaged else content)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            cache = ScoreCache(folder / path.name)
            n_right(cache, pairs)
            cache.put("scorer", pairs[:100], [score_of(pair) for pair in pairs[:100]])
            n_found = n_right(cache, pairs)
            len(cache)
            cache.close()
        assert {warning.category for warning in caught} <= {AnncurWarning, DamagedWarning}
        assert n_found > 0 or caught
        for file in folder.iterdir():
            file.unlink()
        folder.rmdir()


def test_a_damaged_file_is_set_aside_and_begun_again_by_all_who_have_it_open(tmp_path: Path) -> None:
    path, pairs = tmp_path / "scores.cache", make_pairs(3_000)
    filled(path, pairs).close()
    second = ScoreCache(path)
    content = bytearray(path.read_bytes())
    content[4096:] = bytes(len(content) - 4096)
    path.write_bytes(content)
    with one_warning(DamagedWarning, "renamed to scores.cache.damaged; its scores are paid for again"):
        first = ScoreCache(path)
        assert n_right(first, pairs) == 0
        first.put("scorer", pairs, [score_of(pair) for pair in pairs])
        assert n_right(second, pairs) == 3_000
    assert path.with_name("scores.cache.damaged").read_bytes()[4096:] == bytes(len(content) - 4096)


def test_a_damaged_header_loses_nothing_while_the_rest_can_be_read(tmp_path: Path) -> None:
    path = tmp_path / "scores.cache"
    filled(path, make_pairs(5)).close()
    content = bytearray(path.read_bytes())
    content[60:72] = b"\xff" * 12  # version and application
    path.write_bytes(content)
    assert n_right(ScoreCache(path), make_pairs(5)) == 5


def test_a_locked_file_is_one_warning_and_is_used_again_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache_module, "BUSY_SECONDS", 0.05)
    path, pairs = tmp_path / "scores.cache", make_pairs(10)
    cache = filled(path, pairs[:5])
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        with one_warning(AnncurWarning, "locked.*: stop the program"):
            cache.close()
            cache.put("scorer", pairs[5:], [1] * 5)
            cache.put("scorer", pairs[5:], [1] * 5)
        assert n_right(cache, pairs) == 5
    cache.put("scorer", pairs[5:], [1] * 5)
    assert n_right(cache, pairs) == 5, "it is not tried at once"
    monkeypatch.setattr(time, "monotonic", lambda: math.inf)
    cache.put("scorer", pairs[5:], [score_of(pair) for pair in pairs[5:]])
    assert n_right(cache, pairs) == 10


def test_a_full_disk_is_one_warning_and_what_is_there_is_still_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, pairs = tmp_path / "scores.cache", make_pairs(5_000)
    filled(path, pairs[:10]).close()
    connect = sqlite3.connect

    def connect_to_full_disk(*args: Any, **options: Any) -> sqlite3.Connection:
        connection: sqlite3.Connection = connect(*args, **options)
        connection.execute("PRAGMA max_page_count = 10")
        return connection

    monkeypatch.setattr(sqlite3, "connect", connect_to_full_disk)
    cache = ScoreCache(path)
    with one_warning(AnncurWarning, "full.*: free space on the disk"):
        for _ in range(3):
            cache.put("scorer", pairs, [score_of(pair) for pair in pairs])
            assert n_right(cache, pairs) == 10


def test_a_folder_that_cannot_be_made_is_one_warning(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with one_warning(AnncurWarning, "no scores are cached in .*: check that its folder can be written"):
        cache = ScoreCache(tmp_path / "file" / "scores.cache")
        cache.put("scorer", make_pairs(5), [1] * 5)
        assert n_right(cache, make_pairs(5)) == 0
        assert len(cache) == 0
        assert "0.0 of 1024.0 MiB" in repr(cache)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs a folder that takes no files, from anybody")
def test_a_folder_that_cannot_be_written_is_one_warning() -> None:
    with one_warning(AnncurWarning, "no scores are cached in /proc/.*: check that its folder can be written"):
        cache = ScoreCache(f"/proc/self/{os.getpid()}.cache")
        cache.put("scorer", make_pairs(5), [1] * 5)
        assert n_right(cache, make_pairs(5)) == 0


@pytest.mark.parametrize("scorer", [lambda pairs: [0.0] * len(pairs), "in a script"])
def test_a_scorer_whose_name_others_may_have_is_not_cached_unless_it_is_given_a_fingerprint(
    scorer: Any, tmp_path: Path
) -> None:
    if scorer == "in a script":
        scorer = type("Scorer", (), {"__module__": "__main__", "score": lambda *_: []})()
    with pytest.raises(InputError, match="fingerprint='my-scorer-v1'"):
        load_scorer(scorer, cache=tmp_path / "scores.cache")
    assert load_scorer(scorer, cache=tmp_path / "scores.cache", fingerprint="mine").fingerprint == "mine"


class Mentions:
    """Likes queries with a mention."""

    fingerprint = "mentions"

    def score(self, query: Query, items: Any) -> list[float]:
        return [float(query.mention is not None)] * len(items)


def test_a_mention_and_brackets_in_a_text_are_not_each_others_scores(tmp_path: Path) -> None:
    index = Index.build(["a", "b"], load_scorer(Mentions(), cache=tmp_path / "scores.cache"))
    plain, marked = Query("small red [bird]"), Query("small red bird", mention=(10, 14))
    assert index.search(plain).scores == [0.0, 0.0]
    found = index.search(marked)
    assert (found.scores, found.cached_calls) == ([1.0, 1.0], 0)
    assert index.search(plain).cached_calls == index.search(marked).cached_calls == 2


def test_scores_that_were_cached_by_marked_text_are_found_again(tmp_path: Path) -> None:
    cache = ScoreCache(tmp_path / "scores.cache")
    cache.put("mentions", [("small bird", "a"), ("small [bird]", "a")], [5.0, 7.0])
    cache.close()
    index = Index.build(["a"], load_scorer(Mentions(), cache=tmp_path / "scores.cache"))
    assert index.search("small bird").scores == [5.0]
    assert index.search(Query("small bird", mention=(6, 10))).scores == [7.0]
