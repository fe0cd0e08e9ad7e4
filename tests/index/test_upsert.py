"""Items that change: what is new is added, what differs is replaced, what is the same is left alone."""

from __future__ import annotations

import datetime
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import anncur
from anncur.errors import DuplicateIdError, InputError, InvalidTextError, ScorerError
from anncur.filling import STAGE

QUERIES = [f"query {number}" for number in range(6)]


class Checksums:
    """Scores by the text alone; remembers the pairs, and fails when a limit is reached."""

    fingerprint = "checksums"

    def __init__(self) -> None:
        self.pairs: list[tuple[str, str]] = []
        self.most = 10**6

    def score(self, query: anncur.Query, items: Sequence[anncur.Item]) -> list[float]:
        if len(self.pairs) + len(items) > self.most:
            raise ConnectionError("quota used up")
        self.pairs.extend((query.text, item.id) for item in items)
        return [float(zlib.crc32(f"{query.text} {item.full_text}".encode()) % 997) for item in items]


def item(number: int, text: str = "a thing", **metadata: Any) -> anncur.Item:
    return anncur.Item(f"i{number}", f"{text} {number}", metadata=metadata)


ITEMS = [item(number, colour="red") for number in range(12)]
Make = Callable[..., anncur.Index]


@pytest.fixture
def scorer() -> Checksums:
    return Checksums()


@pytest.fixture(params=["memory", "folder"])
def make(request: pytest.FixtureRequest, scorer: Checksums, tmp_path: Path) -> Make:
    path = None if request.param == "memory" else tmp_path / "index"

    def make(items: Sequence[anncur.ItemLike] = ITEMS, **options: Any) -> anncur.Index:
        guarded = anncur.load_scorer(scorer, batch_size=4)
        index = anncur.Index.build(items, guarded, QUERIES, path=path, items_per_chunk=4, **options)
        scorer.pairs.clear()
        return index

    return make


def test_what_is_new_is_added_and_what_differs_replaced_in_one_version(make: Make, scorer: Checksums) -> None:
    index = make()
    index.upsert([item(3, "another thing"), item(50)])
    assert index.info.version == 2
    left = [one for one in ITEMS if one.id != "i3"]
    assert list(index.items) == [*left, item(3, "another thing"), item(50)]
    assert sorted(scorer.pairs) == sorted((query, item_id) for query in QUERIES for item_id in ("i3", "i50"))
    built = anncur.Index.build(list(index.items), scorer, QUERIES)
    np.testing.assert_array_equal(index.anchor_scores(), built.anchor_scores())
    assert index.search("q", k=13, method="exhaustive").ids == built.search("q", k=13, method="exhaustive").ids


def test_what_is_the_same_costs_nothing_and_makes_no_version(make: Make, scorer: Checksums) -> None:
    index = make()
    before = index.digest()
    index.upsert([ITEMS[4], {"id": "i7", "text": "a thing 7", "metadata": {"colour": "red"}}])
    assert (index.info.version, index.digest(), scorer.pairs) == (1, before, [])


@pytest.mark.parametrize("nothing", [[], iter(())])
def test_nothing_to_upsert_changes_nothing(make: Make, scorer: Checksums, nothing: Any) -> None:
    index = make()
    before = index.digest()
    index.upsert(nothing)
    assert (index.info.version, index.digest(), scorer.pairs) == (1, before, [])


def test_where_nothing_is_to_be_scored_no_progress_of_scoring_is_shown(make: Make) -> None:
    index, stages = make(), set()
    index.upsert([item(number, colour="green") for number in range(6)], progress=lambda stage, *_: stages.add(stage))
    assert STAGE not in stages
    index.upsert([item(0, colour="blue"), item(1, "another")], progress=lambda stage, *_: stages.add(stage))
    assert STAGE in stages


def test_where_only_metadata_changed_the_scores_stay(make: Make, scorer: Checksums) -> None:
    index = make()
    scores = dict(zip([one.id for one in index.items], index.anchor_scores().tolist(), strict=True))
    index.upsert([item(5, colour="blue"), item(2)])
    assert scorer.pairs == []
    assert [one.id for one in index.items][-2:] == ["i5", "i2"]
    assert dict(zip([one.id for one in index.items], index.anchor_scores().tolist(), strict=True)) == scores
    assert index.search("q", filter={"colour": "blue"}).ids == ["i5"]
    assert index["i2"].metadata == {}


def test_the_title_is_text(make: Make, scorer: Checksums) -> None:
    index = make()
    index.upsert([anncur.Item("i1", ITEMS[1].text, "a title", {"colour": "red"})])
    assert len(scorer.pairs) == len(QUERIES)


def test_an_anchor_item_stays_one_when_only_its_metadata_changes(make: Make) -> None:
    index = make()
    anchors = [list(index.items)[place].id for place in index._current().derived.anchor_items]
    index.upsert([item(number, colour="blue") for number in range(0, 12, 3)])
    assert [list(index.items)[place].id for place in index._current().derived.anchor_items] == anchors
    index.upsert([item(int(anchors[0][1:]), "another thing")])
    assert [list(index.items)[place].id for place in index._current().derived.anchor_items] == anchors[1:]


def test_every_item_can_be_replaced_at_once(make: Make) -> None:
    index = make()
    index.upsert([item(number, "all new") for number in range(12)])
    assert list(index.items) == [item(number, "all new") for number in range(12)]
    assert index.info.n_removed == 0


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ([item(50), item(3, "x"), item(50, "y")], DuplicateIdError, "'i50' at positions 0 and 2"),
        ([ITEMS[0], ITEMS[0]], DuplicateIdError, "'i0' at positions 0 and 1"),
        ([item(3, "x"), "a bare text"], InputError, "needs an id of its own, got a bare text at position 1"),
        ([item(3, "x"), {"text": "no id"}], InputError, "needs an 'id'"),
        ([item(3, "x"), {"id": "z", "text": "\0"}], InvalidTextError, "NUL"),
        ([item(3, x={1, 2})], InputError, "can't be stored as JSON.* a set as a list"),
        ([item(3, x=datetime.date(2024, 5, 1))], InputError, r"pass a date as value\.isoformat\(\)"),
        ("i3", InputError, "must be a list of items"),
    ],
)
def test_what_can_not_be_taken_is_refused_and_changes_nothing(
    make: Make, scorer: Checksums, given: Any, error: type[Exception], message: str
) -> None:
    index = make()
    before = index.digest()
    with pytest.raises(error, match=message):
        index.upsert(given)
    assert (index.info.version, index.digest(), scorer.pairs) == (1, before, [])


def test_where_the_scorer_fails_half_way_the_version_before_answers_and_the_same_call_resumes(
    make: Make, scorer: Checksums
) -> None:
    index = make()
    before, answer = index.digest(), index.search("q", k=12, method="exhaustive")
    changes = [item(3, colour="blue"), *(item(number, "another thing") for number in range(6, 10)), item(50)]
    scorer.pairs.clear()
    scorer.most = 17
    with pytest.raises(ScorerError, match="quota"):
        index.upsert(changes)
    n_paid = len(scorer.pairs)
    assert n_paid > 0
    scorer.most = 10**6
    assert index.digest() == before
    assert index.search("q", k=12, method="exhaustive") == answer
    scorer.pairs.clear()
    index.upsert(changes)
    assert len(scorer.pairs) == 5 * len(QUERIES) - n_paid
    assert list(index.items)[-6:] == changes
    assert index.verify() == []


def test_the_query_log_forgets_what_has_another_text_and_keeps_the_rest(make: Make) -> None:
    index = make(log_queries=100, explore=0.0)
    index.search("something new", method="exhaustive")
    index.upsert([item(3, "another thing"), item(4, colour="blue")])
    (search,) = index._backend._query_log.read()  # type: ignore[attr-defined]
    assert set(search.scores) == {one.id for one in ITEMS} - {"i3"}


def test_the_feedback_model_follows_items_whose_metadata_changed(make: Make) -> None:
    index = make(log_queries=100)
    for number in range(8):
        index.search(f"something new {number}", method="exhaustive")
    index.learn()
    rows = feedback_rows(index)
    index.upsert([item(4, colour="blue"), item(5, "another thing")])
    index.compact()
    after = feedback_rows(index)
    assert {item_id for item_id in rows if rows[item_id] != after[item_id]} == {"i5"}


def feedback_rows(index: anncur.Index) -> dict[str, list[float]]:
    feedback = index._current().derived.feedback
    assert feedback is not None
    return dict(zip([one.id for one in index.items], feedback.item_rows.tolist(), strict=True))


def test_an_array_of_embeddings_has_a_row_for_each_item_that_is_passed(make: Make) -> None:
    rows = np.eye(12, 16, dtype=np.float32)
    index = make(embeddings=rows, embed_queries=lambda queries: np.ones((len(queries), 16)))
    new = np.full((3, 16), 2.0, dtype=np.float32)
    new[1] = 7.0
    with pytest.raises(InputError, match="a row for each of 3 items"):
        index.upsert([ITEMS[0], item(4, "another thing"), item(50)], embeddings=new[:2])
    index.upsert([ITEMS[0], item(4, "another thing"), item(50)], embeddings=new)
    vectors = index._current().knowledge.retrievers["embeddings"].item_vectors()  # type: ignore[attr-defined]
    np.testing.assert_array_equal(vectors, np.vstack([np.delete(rows, 4, axis=0), new[1:]]))


def test_adding_leaves_ids_alone_that_are_there(make: Make) -> None:
    index = make()
    with pytest.raises(DuplicateIdError, match="'i3'"):
        index.add([item(3, "another thing")])
    assert index.info.version == 1


def test_an_index_without_anchor_queries_is_changed_without_a_pair(scorer: Checksums, tmp_path: Path) -> None:
    for path in (None, tmp_path / "index"):
        index = anncur.Index.build(ITEMS, scorer, path=path)
        index.upsert([item(3, "another thing"), item(50)])
        assert scorer.pairs == []
        assert len(index) == 13
        assert len(index.search("thing 50", k=3, budget=5)) == 3
        scorer.pairs.clear()
