"""The cap on spend holds for a scorer, whatever rules and indexes it is seen through."""

from __future__ import annotations

from pathlib import Path

import pytest

import anncur
from worlds import World, low_rank_scores


def test_the_cap_counts_a_build_and_the_searches_of_an_index_that_is_opened_later(tmp_path: Path) -> None:
    world = World(low_rank_scores(20, 100, rank=3))
    scorer = anncur.load_scorer(world.scorer, max_calls=1_300)
    anncur.Index.build(world.items, scorer, world.queries[:12], path=tmp_path / "x.anncur")
    assert scorer.calls_made == 12 * 100 + 8
    index = anncur.Index.open(tmp_path / "x.anncur", scorer)
    index.search(world.queries[13], k=3, budget=50)
    assert scorer.calls_made == 12 * 100 + 8 + 50
    with pytest.raises(anncur.SpendCapError, match="cap of 1300"):
        index.search(world.queries[14], k=3, budget=50)
    assert scorer.calls_made <= 1_300
    assert len(world.scorer.pairs) == scorer.calls_made


def test_a_cap_that_is_set_later_counts_what_was_paid_before() -> None:
    world = World(low_rank_scores(4, 30, rank=2))
    loose = anncur.load_scorer(world.scorer)
    loose.score(anncur.Query(world.queries[0]), world.items[:20])
    capped = anncur.load_scorer(loose, max_calls=25)
    with pytest.raises(anncur.SpendCapError, match=r"20 were scored"):
        capped.score(anncur.Query(world.queries[1]), world.items[:10])
    assert capped.calls_made == loose.calls_made == 20
