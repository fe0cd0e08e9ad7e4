"""Whatever stops a search, the exception holds the hits that were paid for."""

from __future__ import annotations

from collections import Counter
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


@pytest.mark.parametrize("log_queries", [0, 10])
def test_a_failed_repeat_leaves_the_answer_whole_and_warns(log_queries: int) -> None:
    world = World(low_rank_scores(14, 60, rank=3))
    scorer = Stopping(world, ConnectionError("gone"))
    guarded = anncur.load_scorer(scorer, repeats=3)
    index = anncur.Index.build(world.items, guarded, world.queries[:12], retrievers=(), log_queries=log_queries)
    scorer.n_requests = 2
    with pytest.warns(anncur.AnncurWarning, match="gone"):
        hits = index.search(world.queries[13], k=5, budget=30, max_rounds=2)
    assert scorer.n_requests == -1, "nothing is asked for after that"
    assert len(hits) == 5
    assert 0 < hits.calls < 30
    assert not hits.is_partial
    assert hits.estimated_recall is not None


def test_a_repeat_that_fails_for_one_query_leaves_the_others_theirs() -> None:
    world = World(low_rank_scores(14, 60, rank=3))
    n_scored: Counter[str] = Counter()

    class FailingLater:
        fingerprint = "failing later"

        def score(self, query: anncur.Query, items: Sequence[anncur.Item]) -> object:
            if query.text == world.queries[12] and n_scored[query.text] >= 20:
                raise ConnectionError("gone")
            n_scored[query.text] += len(items)
            return world.scorer.score(query, items)

    index = anncur.Index.build(world.items, anncur.load_scorer(FailingLater(), repeats=2), retrievers=["bm25"])
    with pytest.warns(anncur.AnncurWarning, match="gone"):
        answers = index.search_many(world.queries[12:], k=5, budget=30, method="rerank")
    assert [hits.calls for hits in answers] == [20, 30]
    assert [len(hits) for hits in answers] == [5, 5]
