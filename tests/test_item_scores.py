"""Exact scores are read in the same way from memory and from chunks of files."""

from __future__ import annotations

import numpy as np
import pytest

from anncur.item_scores import ChunkedScores, HeldScores
from worlds import low_rank_scores


@pytest.fixture
def chunked() -> ChunkedScores:
    """Some of 50 rows, in chunks of which the third has none that are live."""
    rows = low_rank_scores(6, 50, rank=3).T
    live = np.setdiff1d(np.arange(50), [0, 7, 8, *range(20, 30), 49])
    return ChunkedScores(np.split(rows, [10, 20, 30, 41]), live, 6)


def test_rows_parts_and_the_whole_agree(chunked: ChunkedScores) -> None:
    whole = low_rank_scores(6, 50, rank=3).T[np.setdiff1d(np.arange(50), [0, 7, 8, *range(20, 30), 49])]
    np.testing.assert_array_equal(chunked.all(), whole)
    positions = np.array([35, 0, 17, 17, 9])
    np.testing.assert_array_equal(chunked.rows(positions), whole[positions])
    joined = HeldScores(np.concatenate([part for _, part in chunked.parts()]))
    np.testing.assert_array_equal(joined.all(), whole)
    assert [start for start, _ in chunked.parts()] == [0, 7, 17, 28]
    assert (chunked.n_items, chunked.n_anchor_queries) == whole.shape


def test_the_whole_is_copied_once(chunked: ChunkedScores) -> None:
    assert chunked.all() is chunked.all()


def test_there_may_be_no_anchor_query() -> None:
    empty = ChunkedScores([], np.arange(5), 0)
    assert empty.all().shape == (5, 0)
    assert empty.rows(np.array([1, 3])).shape == (2, 0)
