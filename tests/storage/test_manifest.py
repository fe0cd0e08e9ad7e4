"""What one version of an index consists of."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from anncur.storage.manifest import Segment


class Read(tuple[int, ...]):
    """Rows that know how often they were read one by one."""

    n_times = 0

    def __iter__(self) -> Iterator[int]:
        type(self).n_times += 1
        return super().__iter__()


@pytest.mark.parametrize("n_removed", [0, 1, 37, 100])
def test_the_rows_of_chunks_are_those_that_are_not_hidden(n_removed: int) -> None:
    removed = np.random.default_rng(0).choice(100, n_removed, replace=False).tolist()
    segment = Segment("s", tuple(removed))
    for start, stop in [(0, 100), (0, 30), (30, 60), (99, 100), (50, 50)]:
        assert segment.rows(start, stop).tolist() == [row for row in range(start, stop) if row not in removed]


def test_hidden_rows_are_read_once_however_many_chunks_there_are() -> None:
    segment = Segment("s", Read(range(0, 100, 3)))
    for start in range(0, 100, 10):
        segment.rows(start, start + 10)
    assert Read.n_times <= 1
