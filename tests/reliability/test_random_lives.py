"""Random lives of an index whose items change, against brute force: each answer, each item, each pair that is paid."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import anncur
from anncur.index import folder_changes
from worlds import FewScores, few_score

IDS = [f"item {number}" for number in range(30)]
QUERIES = ["a query", "another query"]
COLOURS = ["red", "green", "blue"]


class Life:
    """An index, a reader that refreshes itself, and beside them the items that they must hold, in their order."""

    def __init__(self, folder: Path | None, start: Path, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.scorer = FewScores()
        self.folder = folder
        if folder is None:
            self.index = build(self.scorer, None)
            self.reader = self.index
        else:
            shutil.copytree(start, folder)
            self.index = anncur.Index.open(folder, self.scorer)
            self.reader = anncur.Index.open(folder, self.scorer, refresh_seconds=0)
        self.there = {item.id: item for item in first_items()}
        self.scorer.n_pairs = 0

    def live(self, n_steps: int) -> None:
        changes = [self.add, self.upsert, self.upsert, self.remove, self.compact, self.open_again, self.fail]
        for step in self.rng.integers(len(changes), size=n_steps).tolist():
            changes[step]()
            self.search()
        self.reader.refresh()
        assert list(self.index.items) == list(self.reader.items) == list(self.there.values())
        assert self.index.verify() == []

    def an_item(self, item_id: str) -> anncur.Item:
        edition, colour = self.rng.integers(3, size=2).tolist()
        return anncur.Item(item_id, f"{item_id} in edition {edition}", metadata={"colour": COLOURS[colour]})

    def some(self, ids: Sequence[str], most: int) -> list[str]:
        n_ids = min(len(ids), int(self.rng.integers(1, most + 1)))
        return [ids[place] for place in self.rng.permutation(len(ids))[:n_ids]]

    def add(self) -> None:
        absent = [item_id for item_id in IDS if item_id not in self.there]
        if absent:
            new = [self.an_item(item_id) for item_id in self.some(absent, 4)]
            self.index.add(new)
            self.there.update({item.id: item for item in new})
            self.paid(len(QUERIES) * len(new))

    def upsert(self) -> None:
        given = [self.an_item(item_id) for item_id in self.some(IDS, 4)]
        version = self.index.info.version
        changed = [item for item in given if self.there.get(item.id) != item]
        rescored = [item for item in changed if item.id not in self.there or self.there[item.id].text != item.text]
        self.index.upsert(given)
        for item in changed:
            self.there.pop(item.id, None)
            self.there[item.id] = item
        self.paid(len(QUERIES) * len(rescored))
        assert (self.index.info.version > version) == bool(changed)

    def remove(self) -> None:
        gone = self.some(list(self.there), 4)
        if len(gone) < len(self.there):
            self.index.remove(gone)
            for item_id in gone:
                del self.there[item_id]
            self.paid(0)

    def compact(self) -> None:
        self.index.compact()
        info = self.index.info
        assert (info.n_segments, info.n_removed) == (1, 0)
        self.paid(0)

    def open_again(self) -> None:
        if self.folder is not None:
            digest = self.index.digest()
            self.index = anncur.Index.open(self.folder, self.scorer)
            assert self.index.digest() == digest
            self.paid(0)

    def fail(self) -> None:
        """Items that can't be taken change nothing."""
        version, new = self.index.info.version, self.an_item(self.some(IDS, 1)[0])
        with pytest.raises(anncur.DuplicateIdError):
            self.index.upsert([new, self.an_item(new.id)])
        with pytest.raises(anncur.InputError):
            self.index.upsert([new, "a bare text"])
        assert self.index.info.version == version
        self.paid(0)

    def search(self) -> None:
        index = [self.index, self.reader][self.rng.integers(2)]
        query, colour = f"query {self.rng.integers(5)}", COLOURS[self.rng.integers(3)]
        wanted: Any = [None, {"colour": colour}, {"not": {"colour": colour}}, self.some(IDS, 6)][self.rng.integers(4)]
        method = ["posterior", "anncur", "rerank", "exhaustive"][self.rng.integers(4)]
        hits = index.search(query, k=5, budget=len(IDS), method=method, filter=wanted)
        passing = [item for item in self.there.values() if passes(item, wanted)]
        best = sorted(((item, few_score(query, item)) for item in passing), key=lambda pair: -pair[1])
        assert [(hit.item, hit.score) for hit in hits] == best[:5]
        self.paid(len(passing))

    def paid(self, n_pairs: int) -> None:
        assert self.scorer.n_pairs == n_pairs
        self.scorer.n_pairs = 0


def passes(item: anncur.Item, filter: Any) -> bool:
    if isinstance(filter, list):
        return item.id in filter
    if filter is not None and "not" in filter:
        return not passes(item, filter["not"])
    return filter is None or item.metadata["colour"] == filter["colour"]


def first_items() -> list[anncur.Item]:
    return [anncur.Item(item_id, item_id, metadata={"colour": "red"}) for item_id in IDS[:20]]


def build(scorer: FewScores, path: Path | None) -> anncur.Index:
    return anncur.Index.build(first_items(), scorer, QUERIES, path=path, items_per_chunk=4, retrievers=["bm25"])


@pytest.mark.parametrize(
    "n_lives", [pytest.param(12, id="quick"), pytest.param(1000, id="full", marks=pytest.mark.slow)]
)
def test_any_life_of_an_index_whose_items_change_agrees_with_brute_force(
    n_lives: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folder_changes, "LEAST_MERGED", 3)  # so that a short life has merges
    monkeypatch.setattr(os, "fsync", lambda _: None)  # nobody pulls the plug here
    build(FewScores(), tmp_path / "start")
    for number in range(n_lives):
        folder = None if number % 2 else tmp_path / "life"
        Life(folder, tmp_path / "start", seed=number).live(n_steps=5)
        shutil.rmtree(tmp_path / "life", ignore_errors=True)
