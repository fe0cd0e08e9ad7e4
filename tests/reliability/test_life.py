"""Any life of an index, on disk or in memory, against a plain dict and brute force."""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

import anncur
from anncur.anchors import ANCHOR_METHODS
from anncur.errors import DuplicateIdError, InputError, UnknownIdError
from worlds import FewScores, few_score

IDS = [*"abcdefgh"]
QUERIES = [f"query {number}" for number in range(6)]


def an_item(item_id: str, edition: int) -> anncur.Item:
    return anncur.Item(item_id, f"{item_id} in its edition {edition}", metadata={"edition": edition})


ids = st.lists(st.sampled_from(IDS), min_size=1, max_size=4, unique=True)
editions = st.integers(0, 1)
queries = st.sampled_from([*QUERIES, "a new one"])


class LifeInMemory(RuleBasedStateMachine):
    """The index beside `there`: the items that it must hold, in the order of their positions."""

    folder: Path | None = None

    @initialize(first=ids, edition=editions, n_anchors=st.sampled_from([1, 4, 6]))
    def build(self, first: list[str], edition: int, n_anchors: int) -> None:
        self.scorer = FewScores()
        self.n_anchors = n_anchors
        items = [an_item(item_id, edition) for item_id in first]
        self.index = anncur.Index.build(
            items, self.scorer, QUERIES[:n_anchors], path=self.folder, items_per_chunk=2, retrievers=["tfidf"]
        )
        self.there = {item.id: item for item in items}
        self.scorer.n_pairs = 0

    @rule(item_ids=ids, edition=editions)
    def add(self, item_ids: list[str], edition: int) -> None:
        new = [an_item(item_id, edition) for item_id in item_ids if item_id not in self.there]
        if new:
            self.index.add(new)
            self.there.update({item.id: item for item in new})
            self.expect_at_most(len(new) * self.n_anchors)

    @rule(item_ids=ids, edition=editions, colour=st.sampled_from(["red", "blue"]))
    def upsert(self, item_ids: list[str], edition: int, colour: str) -> None:
        given = [replace(an_item(item_id, edition), metadata={"colour": colour}) for item_id in item_ids]
        changed = [item for item in given if self.there.get(item.id) != item]
        others = [item for item in changed if item.id not in self.there or self.there[item.id].text != item.text]
        version = self.index.info.version
        self.index.upsert(given)
        for item in changed:
            self.there.pop(item.id, None)
            self.there[item.id] = item
        assert (self.index.info.version == version) == (not changed)
        self.expect_at_most(len(others) * self.n_anchors)

    @rule()
    def compact(self) -> None:
        digest = self.index.digest()
        self.index.compact()
        assert self.index.digest() == digest
        assert self.index.info.n_segments == 1
        self.expect_at_most(0)

    @rule(item_ids=ids)
    def remove(self, item_ids: list[str]) -> None:
        gone = [item_id for item_id in item_ids if item_id in self.there]
        if len(gone) < len(self.there):
            self.index.remove(gone)
            for item_id in gone:
                del self.there[item_id]
            self.expect_at_most(0)

    @rule(query=queries, k=st.integers(1, 9), method=st.sampled_from(["anncur", "rerank", "exhaustive"]))
    def search_with_a_budget_for_everything(self, query: str, k: int, method: str) -> None:
        hits = self.index.search(query, k=k, budget=len(IDS), method=method)
        assert [(hit.item, hit.score) for hit in hits] == self.brute_force(query, k)
        self.expect_at_most(len(self.there))

    @rule(query=queries, budget=st.integers(1, 9), method=st.sampled_from(["anncur", "rerank"]))
    def search_with_any_budget(self, query: str, budget: int, method: str) -> None:
        hits = self.index.search(query, k=3, budget=budget, method=method)
        assert all(hit.item == self.there[hit.id] and hit.score == few_score(query, hit.item) for hit in hits)
        assert hits.calls == self.scorer.n_pairs
        self.expect_at_most(budget)

    @rule(anchor_method=st.sampled_from([*ANCHOR_METHODS]), seed=st.integers(0, 3))
    def tune(self, anchor_method: str, seed: int) -> None:
        self.index.tune(anchor_method=anchor_method, seed=seed)
        self.expect_at_most(0)

    @rule(unpublished=st.booleans())
    def gc(self, unpublished: bool) -> None:
        digest = self.index.digest()
        self.index.gc(unpublished=unpublished)
        assert self.index.digest() == digest
        self.expect_at_most(0)

    @rule()
    def repair(self) -> None:
        digest = self.index.digest()
        assert self.index.verify(repair=True) == []
        assert self.index.digest() == digest
        self.expect_at_most(0)

    @rule(new=st.sampled_from(IDS), data=st.data())
    def adding_what_is_there_is_refused(self, new: str, data: Any) -> None:
        old = data.draw(st.sampled_from([*self.there]))
        self.refused(DuplicateIdError, lambda: self.index.add([an_item(new, 2), an_item(old, 2)]))

    @rule(data=st.data())
    def removing_what_is_not_there_is_refused(self, data: Any) -> None:
        old = data.draw(st.sampled_from([*self.there]))
        unknown = data.draw(st.sampled_from(["never", *(item_id for item_id in IDS if item_id not in self.there)]))
        self.refused(UnknownIdError, lambda: self.index.remove([old, unknown]))

    @rule()
    def removing_everything_is_refused(self) -> None:
        self.refused(InputError, lambda: self.index.remove([*self.there]))

    @invariant()
    def holds_what_it_must(self) -> None:
        assert len(self.index) == len(self.there)
        assert list(self.index.items) == list(self.there.values())
        assert [self.index.items.position(item_id) for item_id in self.there] == list(range(len(self.there)))
        assert self.index.verify() == []

    def refused(self, error: type[Exception], change: Any) -> None:
        before = (self.index.info.version, self.index.digest())
        with pytest.raises(error):
            change()
        assert (self.index.info.version, self.index.digest()) == before
        self.expect_at_most(0)

    def brute_force(self, query: str, k: int) -> list[tuple[anncur.Item, float]]:
        """The top k, ties by position."""
        scored = [(item, few_score(query, item)) for item in self.there.values()]
        return sorted(scored, key=lambda pair: -pair[1])[:k]

    def expect_at_most(self, n_pairs: int) -> None:
        assert self.scorer.n_pairs <= n_pairs
        self.scorer.n_pairs = 0


class LifeOnDisk(LifeInMemory):
    """The same life in a folder."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp()) / "index"

    @rule()
    def open_again(self) -> None:
        digest = self.index.digest()
        self.index = self.opened()
        assert self.index.digest() == digest
        self.expect_at_most(0)

    @rule(item_ids=ids, edition=editions)
    def add_from_elsewhere(self, item_ids: list[str], edition: int) -> None:
        elsewhere, ours = self.opened(), self.index
        self.index = elsewhere
        self.add(item_ids, edition)
        self.index = ours
        ours.refresh()

    def opened(self) -> anncur.Index:
        assert self.folder is not None
        return anncur.Index.open(self.folder, self.scorer)

    def teardown(self) -> None:
        assert self.folder is not None
        shutil.rmtree(self.folder.parent)


@pytest.mark.parametrize("life", [LifeInMemory, LifeOnDisk])
@pytest.mark.parametrize(
    "n_sequences", [pytest.param(15, id="quick"), pytest.param(1000, id="full", marks=pytest.mark.slow)]
)
def test_any_life_of_an_index_agrees_with_brute_force(life: type[LifeInMemory], n_sequences: int) -> None:
    quick = n_sequences < 100
    run_state_machine_as_test(
        life,
        settings=settings(
            max_examples=n_sequences,
            stateful_step_count=12,
            deadline=None,
            database=None,
            derandomize=quick,
            suppress_health_check=list(HealthCheck),
        ),
    )
