"""Entity linking: candidates, rankers, and the numbers by hand."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from anncur.arrays import FloatMatrix, FloatVector
from anncur.datasets.zeshel import LinkingWorld, Mention
from anncur.errors import InputError
from anncur.evaluation.linking import MACRO, LinkingRow, by_retriever, by_scorer, find_candidates, link, sample_mentions
from anncur.items import Corpus, Item, Query
from anncur.scorers.loading import load_scorer


class ScoreTable:
    """Scores by a table: a query's text is its row, an item's id its column. Retriever and scorer in one."""

    name = "table"

    def __init__(self, scores: Sequence[Sequence[float]]) -> None:
        self._scores = np.array(scores, dtype=np.float32)
        self.fits = 0

    def fit(self, items: Iterable[Item]) -> None:
        self.fits += 1

    def scores(self, queries: Sequence[Query]) -> FloatMatrix:
        return self._scores[[int(query.text) for query in queries]]

    def score(self, query: Query, items: Sequence[Item]) -> FloatVector:
        found: FloatVector = self._scores[int(query.text), [int(item.id) for item in items]]
        return found


def make_world(golds: list[int], n_items: int = 4, name: str = "w") -> LinkingWorld:
    mentions = [Mention(Query(str(row)), str(gold), name, "d") for row, gold in enumerate(golds)]
    return LinkingWorld(name, Corpus([Item(str(item), "text") for item in range(n_items)]), mentions, golds)


RETRIEVED = ScoreTable([[9, 8, 7, 6], [9, 8, 7, 6], [6, 7, 8, 9], [9, 8, 7, 6]])  # top 2: 01, 01, 32, 01
RANKING = ScoreTable([[1, 2, 9, 9], [2, 1, 9, 9], [9, 9, 1, 1], [9, 9, 9, 9]])
RANKED = load_scorer(RANKING)


def test_accuracy_recall_and_their_ratio_are_those_counted_by_hand() -> None:
    world = make_world([1, 1, 0, 0])  # candidates hold 3 of 4; ranked first: 1 right, 0 wrong, tie to 3 wrong, tie to 0
    rows = list(link([world], RETRIEVED, {"exact": by_scorer(RANKED)}, n_candidates=2))
    assert rows[0] == LinkingRow("w", "exact", 4, 2, recall=0.75, accuracy=0.5, normalised_accuracy=0.5 / 0.75)
    assert rows[1] == replace(rows[0], world=MACRO)


def test_worlds_count_alike_in_the_average_however_many_mentions_they_have() -> None:
    worlds = [make_world([1, 0, 3, 0], name="large"), make_world([1], name="small")]
    *rows, average = link(worlds, RETRIEVED, {"exact": by_scorer(RANKED)}, n_candidates=2)
    assert [row.accuracy for row in rows] == [1.0, 1.0]
    worlds[1] = make_world([0], name="small")
    *rows, average = link(worlds, RETRIEVED, {"exact": by_scorer(RANKED)}, n_candidates=2)
    assert [row.accuracy for row in rows] == [1.0, 0.0]
    assert (average.world, average.accuracy, average.n_mentions) == (MACRO, 0.5, 5)
    assert average.normalised_accuracy == 0.5


def test_rankers_are_compared_on_the_same_candidates() -> None:
    seen: list[list[list[int]]] = []

    def spy(world: LinkingWorld, candidates: NDArray[np.int64]) -> FloatMatrix:
        seen.append(candidates.tolist())
        return np.zeros(candidates.shape)

    rows = list(link([make_world([0, 0, 3])], RETRIEVED, {"one": spy, "two": spy}, n_candidates=2))
    assert seen == [[[0, 1], [0, 1], [3, 2]]] * 2
    assert [(row.world, row.ranker) for row in rows] == [("w", "one"), ("w", "two"), (MACRO, "one"), (MACRO, "two")]


def test_a_retriever_and_a_scorer_of_the_same_scores_rank_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("anncur.evaluation.linking.QUERIES_AT_ONCE", 3)
    world = make_world([1, 1, 0, 0])
    candidates = find_candidates(world, RETRIEVED, 3)
    assert candidates.tolist() == [[0, 1, 2], [0, 1, 2], [3, 2, 1], [0, 1, 2]]
    expected = by_scorer(RANKED)(world, candidates)
    np.testing.assert_array_equal(by_retriever(RANKING)(world, candidates), expected)
    assert RANKING.fits > 0


def test_without_the_right_entity_among_candidates_nothing_is_right() -> None:
    row, _ = link([make_world([2, 2])], RETRIEVED, {"exact": by_scorer(RANKED)}, n_candidates=1)
    assert (row.recall, row.accuracy, row.normalised_accuracy) == (0.0, 0.0, 0.0)


def test_there_are_no_more_candidates_than_entities() -> None:
    row, _ = link([make_world([0])], RETRIEVED, {"exact": by_scorer(RANKED)}, n_candidates=64)
    assert (row.n_candidates, row.recall) == (4, 1.0)


def test_some_mentions_of_a_world_keep_their_answers() -> None:
    world = make_world([3, 1, 0, 2])
    some = sample_mentions(world, 2, seed=1)
    assert len(some.mentions) == 2
    assert [mention.entity_id for mention in some.mentions] == [str(gold) for gold in some.golds]
    assert some == sample_mentions(world, 2, seed=1)
    assert sample_mentions(world, 9) is world
    assert sample_mentions(world, None) is world


@pytest.mark.parametrize(
    ("worlds", "n", "problem"),
    [
        ([make_world([])], 2, "world 'w' has no mentions to link"),
        ([make_world([0])], 0, "n_candidates must be at least 1, got 0"),
        ([], 2, "there must be at least one world to link"),
    ],
)
def test_nothing_to_link_is_an_error(worlds: list[LinkingWorld], n: int, problem: str) -> None:
    with pytest.raises(InputError, match=problem):
        list(link(worlds, RETRIEVED, {"exact": by_scorer(RANKED)}, n_candidates=n))


def test_drawing_no_mentions_is_an_error() -> None:
    with pytest.raises(InputError, match="mentions must be at least 1, got 0"):
        sample_mentions(make_world([0]), 0)
