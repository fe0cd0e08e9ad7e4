"""A small build for workers of an engine, and scorers that any process finds by name: steady, slow, and such that fail
on some items."""

from __future__ import annotations

import os
import signal
import time
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import anncur

QUERIES = [f"query {number}" for number in range(12)]
ITEMS = [anncur.Item(f"i{number}", f"item{number} is a thing") for number in range(240)]
PER_CHUNK = 8
N_PAIRS = len(QUERIES) * len(ITEMS)
PIDS = "ANNCUR_TEST_PIDS"  # a file that scorers write the number of their process to


def build(
    path: Path | None,
    scorer: Any = "misbehaving:steady",
    *,
    items: Sequence[anncur.Item] = ITEMS,
    queries: Sequence[str] = QUERIES,
    **options: Any,
) -> anncur.Index:
    """The same index, whoever scores it."""
    given = {"items_per_chunk": PER_CHUNK, "retrievers": ["bm25"], "progress": False, **options}
    return anncur.Index.build(items, scorer, queries, path=path, **given)


class HashScorer:
    """Gives scores by the texts alone, and prepares items."""

    fingerprint = "hash of the texts"

    def __init__(self, *, seconds: float = 0.0) -> None:
        self._seconds = seconds

    def prepare(self, items: Sequence[anncur.Item]) -> list[bytes]:
        return [item.full_text.encode() for item in items]

    def score(self, query: anncur.Query, items: Sequence[anncur.Item]) -> list[float]:
        assert [item.prepared for item in items] == self.prepare(items), "items come with what was prepared"
        if PIDS in os.environ:
            with Path(os.environ[PIDS]).open("a") as file:
                file.write(f"{os.getpid()}\n")
        time.sleep(self._seconds)
        return [hash_score(query.text, item) for item in items]


class FailingScorer(HashScorer):
    """Fails where an item's text has the word: raises an error, or kills its process."""

    def __init__(self, word: str, *, kills: bool = False) -> None:
        super().__init__()
        self._word = word
        self._kills = kills

    def score(self, query: anncur.Query, items: Sequence[anncur.Item]) -> list[float]:
        if any(self._word in item.text.split() for item in items):
            if self._kills:
                os.kill(os.getpid(), signal.SIGKILL)
            raise ValueError(f"no score for {self._word}")
        return super().score(query, items)


class PausingScorer(HashScorer):
    """Pauses before it scores an item whose text has the word."""

    def __init__(self, word: str, *, seconds: float) -> None:
        super().__init__()
        self._word = word
        self._pause = seconds

    def score(self, query: anncur.Query, items: Sequence[anncur.Item]) -> list[float]:
        if query.text == QUERIES[0] and any(self._word in item.text.split() for item in items):
            time.sleep(self._pause)
        return super().score(query, items)


class LockedOutScorer(HashScorer):
    """Has a key that no request will ever be answered with."""

    def score(self, query: anncur.Query, items: Sequence[anncur.Item]) -> list[float]:
        raise anncur.ScorerAccessError("the key is wrong")


class ElsewhereAnother(HashScorer):
    """Has another fingerprint in every process."""

    def __init__(self) -> None:
        super().__init__()
        self.fingerprint = f"hash {os.getpid()}"


def hash_score(query: str, item: anncur.Item) -> float:
    """A number from 0 to 999."""
    return float(zlib.crc32(f"{query} {item.full_text}".encode()) % 1000)


def hash_pairs(pairs: Sequence[tuple[str, str]]) -> list[float]:
    """A number from 0 to 999 for each."""
    return [float(zlib.crc32(f"{query} {text}".encode()) % 1000) for query, text in pairs]


steady = HashScorer()
slow = HashScorer(seconds=0.02)
slower = HashScorer(seconds=0.06)
raises = FailingScorer("item17")
kills = FailingScorer("item17", kills=True)
pauses = PausingScorer("item17", seconds=6)
always_raises = FailingScorer("thing")
locked_out = LockedOutScorer()
another = ElsewhereAnother()


class PickyScorer(HashScorer):
    """Fails for queries that have the word."""

    def __init__(self, word: str) -> None:
        super().__init__()
        self._word = word

    def score(self, query: anncur.Query, items: Sequence[anncur.Item]) -> list[float]:
        if self._word in query.text.split():
            raise ValueError(f"no score for queries with {self._word}")
        return super().score(query, items)


picky = PickyScorer("bad")
