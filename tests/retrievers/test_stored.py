"""Scores of a retriever that were computed earlier."""

from __future__ import annotations

import numpy as np

import anncur
from anncur.retrievers.stored import StoredRetriever
from worlds import HashedVectors

ITEMS = [anncur.Item(f"i{number}", f"thing {number}") for number in range(6)]
QUERIES = [anncur.Query("a bat", mention=(2, 5)), anncur.Query("a bat"), anncur.Query("a cat")]


def make() -> tuple[StoredRetriever, HashedVectors]:
    original = HashedVectors()
    return StoredRetriever(original, QUERIES, ITEMS), original


def test_queries_with_different_mentions_have_different_scores() -> None:
    stored, original = make()
    expected = original.scores(QUERIES)
    assert (expected[0] != expected[1]).any()
    for place, query in enumerate(QUERIES):
        np.testing.assert_array_equal(stored.scores([query]), expected[[place]])


def test_some_of_the_items_have_the_scores_and_vectors_that_they_had_among_all() -> None:
    stored, original = make()
    positions = np.array([4, 1])
    taken = stored.take_items(positions)
    np.testing.assert_array_equal(taken.scores(QUERIES), original.scores(QUERIES)[:, positions])
    np.testing.assert_array_equal(taken.item_vectors(), original.item_vectors()[positions])
    np.testing.assert_array_equal(stored.scores(QUERIES), original.scores(QUERIES))
    np.testing.assert_array_equal(stored.item_vectors(), original.item_vectors())
