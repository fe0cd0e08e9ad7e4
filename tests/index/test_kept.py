"""Whatever stops a search, the exception holds the hits that were paid for."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

import anncur
from worlds import World, low_rank_scores


class Stopping:
    """Scores as a world does, and raises when it is asked once more after `n_requests`."""

    fingerprint = "stopping"

    def __init__(self, world: World, error: BaseException) -> None:
        self._world = world
        self._error = error
        self.n_requests = 10**9

    def score(self, query: anncur.Query, items: Sequence[anncur.Item]) -> object:
        self.n_requests -= 1
        if self.n_requests < 0:
            raise self._error
        return self._world.scorer.score(query, items)


def kept_by(search: Callable[[], object]) -> object:
    """What the exception holds that a search ends in."""
    try:
        search()
    except BaseException as error:  # noqa: BLE001
        return getattr(error, "kept", None)
    raise AssertionError("it was to be stopped")


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(), RuntimeError("out of quota")], ids=repr)
def test_one_search_keeps_hits_and_many_keep_a_list_of_them(error: BaseException) -> None:
    world = World(low_rank_scores(14, 60, rank=3))
    scorer = Stopping(world, error)
    index = anncur.Index.build(world.items, scorer, world.queries[:12], retrievers=())
    scorer.n_requests = 2
    kept = kept_by(lambda: index.search(world.queries[13], k=5, budget=30))
    assert isinstance(kept, anncur.Hits)
    assert 0 < kept.calls < 30
    assert kept.is_partial
    scorer.n_requests = 2
    many = kept_by(lambda: index.search_many(world.queries[12:], k=5, budget=30))
    assert isinstance(many, list)
    assert all(isinstance(hits, anncur.Hits) for hits in many)


def test_a_search_that_is_stopped_before_anything_was_paid_for_keeps_empty_hits() -> None:
    world = World(low_rank_scores(14, 60, rank=3))
    scorer = Stopping(world, KeyboardInterrupt())
    index = anncur.Index.build(world.items, scorer, world.queries[:12], retrievers=())
    scorer.n_requests = 0
    kept = kept_by(lambda: index.search(world.queries[13], k=5, budget=30))
    assert isinstance(kept, anncur.Hits)
    assert kept.calls == len(kept) == 0
