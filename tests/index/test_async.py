"""Searches that are awaited: the same answers, on the caller's event loop."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import anyio
import numpy as np
import pytest

import anncur
from anncur.errors import ScorerError
from anncur.search.base import Knowledge, Proposal, QueryBlock, Rounds
from worlds import World, low_rank_scores


class AsyncScorer:
    """Scores a world's pairs on the loop that awaits it."""

    fingerprint = "async"

    def __init__(self, world: World, *, seconds: float = 0.0, fails_for: str = "") -> None:
        self._world, self._seconds, self._fails_for = world, seconds, fails_for
        self.threads: set[str] = set()
        self.n_requests = self.n_at_once = self.most_at_once = 0

    async def score(self, query: anncur.Query, items: Sequence[anncur.Item]) -> list[float]:
        self.threads.add(threading.current_thread().name)
        self.n_requests += 1
        self.n_at_once += 1
        self.most_at_once = max(self.most_at_once, self.n_at_once)
        try:
            await asyncio.sleep(self._seconds)
        finally:
            self.n_at_once -= 1
        if query.text == self._fails_for:
            raise ConnectionError("gone")
        answer: list[float] = self._world.scorer.score(query, items).tolist()
        return answer


@pytest.fixture
def world() -> World:
    return World(low_rank_scores(30, 80, rank=3, noise=0.2))


def test_an_awaited_search_gives_what_a_blocking_one_gives(world: World) -> None:
    index = world.index(20)
    hits = index.search(world.queries[25], k=5, budget=30)
    many = index.search_many(world.queries[20:], k=5, budget=30)

    async def both() -> tuple[anncur.Hits, list[anncur.Hits]]:
        one = await index.asearch(world.queries[25], k=5, budget=30)
        return one, await index.asearch_many(world.queries[20:], k=5, budget=30)

    assert asyncio.run(both()) == (hits, many)


def test_an_async_scorer_runs_on_the_loop_of_the_caller(world: World) -> None:
    scorer = AsyncScorer(world)
    index = anncur.Index.build(world.items, scorer)
    scorer.threads.clear()
    asyncio.run(index.asearch(world.queries[3], k=5, budget=30))
    assert scorer.threads == {threading.current_thread().name}


def test_an_async_scorer_serves_searches_and_builds_that_block(world: World) -> None:
    index = anncur.Index.build(world.items, AsyncScorer(world), world.queries[:20])
    expected = world.index(20)
    assert index.search(world.queries[25], k=5, budget=30).ids == expected.search(world.queries[25], k=5, budget=30).ids


def test_an_async_function_over_text_pairs_is_a_scorer() -> None:
    async def lengths(pairs: list[tuple[str, str]]) -> list[float]:
        await asyncio.sleep(0)
        return [float(len(item)) for _, item in pairs]

    index = anncur.Index.build(["a", "bbb", "cc"], lengths)
    assert index.search("q", k=3, budget=3).ids == ["1", "2", "0"]
    assert asyncio.run(index.asearch("q", k=3, budget=3)).ids == ["1", "2", "0"]


def test_a_scorer_that_blocks_doesnt_block_the_event_loop(world: World) -> None:
    class Slow:
        fingerprint = "slow"

        def score(self, query: anncur.Query, items: Sequence[anncur.Item]) -> list[float]:
            time.sleep(0.5)
            answer: list[float] = world.scorer.score(query, items).tolist()
            return answer

    index = anncur.Index.build(world.items, Slow())

    async def longest_pause() -> float:
        search = asyncio.create_task(index.asearch(world.queries[3], k=5, budget=20, max_rounds=2))
        longest = 0.0
        while not search.done():
            before = time.perf_counter()
            await asyncio.sleep(0.005)
            longest = max(longest, time.perf_counter() - before)
        await search
        return longest

    assert asyncio.run(longest_pause()) < 0.4


def test_searches_of_several_tasks_are_under_way_at_once(world: World) -> None:
    scorer = AsyncScorer(world, seconds=0.01)
    index = anncur.Index.build(world.items, scorer)

    async def four() -> list[anncur.Hits]:
        return await asyncio.gather(*(index.asearch(query, k=5, budget=20) for query in world.queries[:4]))

    found = asyncio.run(four())
    assert scorer.most_at_once >= 2
    assert [hits.ids for hits in found] == [index.search(query, k=5, budget=20).ids for query in world.queries[:4]]


def test_requests_of_one_search_are_under_way_at_once(world: World) -> None:
    scorer = AsyncScorer(world, seconds=0.01)
    index = anncur.Index.build(world.items, anncur.load_scorer(scorer, concurrency=4, batch_size=5))
    asyncio.run(index.asearch(world.queries[3], k=5, budget=40, method="rerank"))
    assert scorer.most_at_once == 4


@pytest.mark.parametrize("concurrency", [1, 4])
def test_cancelling_a_task_stops_its_requests_and_keeps_what_was_paid_for(world: World, concurrency: int) -> None:
    scorer = AsyncScorer(world, seconds=0.03)
    index = anncur.Index.build(world.items, anncur.load_scorer(scorer, batch_size=5, concurrency=concurrency))

    async def cancelled() -> anncur.Hits:
        task = asyncio.create_task(index.asearch(world.queries[3], k=5, budget=80, method="rerank"))
        while scorer.n_requests < 2 * concurrency:
            await asyncio.sleep(0.002)
        task.cancel()
        with pytest.raises(asyncio.CancelledError) as caught:
            await task
        kept = caught.value.kept  # type: ignore[attr-defined]
        assert isinstance(kept, anncur.Hits)
        return kept

    kept = asyncio.run(cancelled())
    n_requests = scorer.n_requests
    time.sleep(0.1)
    assert scorer.n_requests == n_requests <= 3 * concurrency
    assert 0 < kept.calls <= 10 * concurrency
    assert kept.is_partial


def test_a_failure_for_one_query_leaves_the_others_answered(world: World) -> None:
    scorer = AsyncScorer(world, fails_for=world.queries[2])
    index = anncur.Index.build(world.items, scorer)
    with pytest.raises(ScorerError, match="ConnectionError: gone") as caught:
        asyncio.run(index.asearch_many(world.queries[:4], k=5, budget=20))
    kept = caught.value.kept
    assert isinstance(kept, list)
    assert [hits.calls for hits in kept] == [20, 20, 0, 20]
    assert [hits.is_partial for hits in kept] == [False, False, True, False]
    expected = anncur.Index.build(world.items, world.scorer).search_many(world.queries[:4], k=5, budget=20)
    assert [kept[place].ids for place in (0, 1, 3)] == [expected[place].ids for place in (0, 1, 3)]


def test_no_more_requests_are_under_way_than_the_rules_allow_whoever_asks(world: World) -> None:
    scorer = AsyncScorer(world, seconds=0.01)
    index = anncur.Index.build(world.items, anncur.load_scorer(scorer, concurrency=3, batch_size=5))

    async def many() -> None:
        await asyncio.gather(*(index.asearch(query, budget=20, method="rerank") for query in world.queries[:10]))

    asyncio.run(many())
    assert 2 <= scorer.most_at_once <= 3


@pytest.mark.parametrize("own", [None, 8])
def test_a_concurrency_of_one_that_is_given_holds_for_all_tasks(world: World, own: int | None) -> None:
    scorer = AsyncScorer(world, seconds=0.001)
    scorer.concurrency = own  # type: ignore[attr-defined]
    index = anncur.Index.build(world.items, anncur.load_scorer(scorer, concurrency=1))

    async def many() -> None:
        await asyncio.gather(*(index.asearch(query, budget=20, method="rerank") for query in world.queries[:10]))

    asyncio.run(many())
    assert scorer.most_at_once == 1


def test_what_a_blocking_scorer_was_paid_for_is_kept_when_its_task_is_cancelled(world: World, tmp_path: Path) -> None:
    class Slow:
        fingerprint = "slow"
        n_pairs = 0

        def score(self, query: anncur.Query, items: Sequence[anncur.Item]) -> list[float]:
            self.n_pairs += len(items)
            time.sleep(0.3)
            answer: list[float] = world.scorer.score(query, items).tolist()
            return answer

    slow = Slow()
    scorer = anncur.load_scorer(slow, batch_size=10, cache=tmp_path / "scores.cache")
    index = anncur.Index.build(world.items, scorer)

    async def cancelled(seconds: float) -> anncur.Hits:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(seconds):
                await index.asearch(world.queries[3], k=5, budget=80, method="rerank")
        return await index.asearch(world.queries[3], k=5, budget=10, method="rerank")

    hits = asyncio.run(cancelled(0.1))
    assert (hits.calls, hits.cached_calls, slow.n_pairs) == (10, 10, 10)


@pytest.mark.parametrize("moment", [0.0, 0.01, 0.05])
def test_a_search_can_be_cancelled_while_it_computes(world: World, moment: float) -> None:
    index = world.index(20)

    async def cancelled() -> None:
        task = asyncio.create_task(index.asearch_many(world.queries[20:] * 20, k=5, budget=60))
        await asyncio.sleep(moment)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancelled())


def test_a_search_that_is_cancelled_twice_while_it_computes_ends_as_cancelled(world: World) -> None:
    begun, may_end = threading.Event(), threading.Event()

    class Slow:
        name, is_exact = "slow", False

        def rounds(self, block: QueryBlock, knowledge: Knowledge, /) -> Rounds:
            begun.set()
            may_end.wait(20)
            yield [Proposal(np.arange(5)) for _ in block.queries]
            return None

    index = world.index(20)

    async def cancelled() -> None:
        task = asyncio.create_task(index.asearch(world.queries[25], k=5, budget=30, method=Slow()))
        await asyncio.to_thread(begun.wait, 20)
        for _ in range(2):
            task.cancel()
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        may_end.set()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancelled())


def test_a_cancel_scope_that_cancels_again_and_again_keeps_what_is_paid_for_and_cancels_nothing_after_it(
    world: World, tmp_path: Path
) -> None:
    begun, may_end = threading.Event(), threading.Event()

    class Slow:
        fingerprint = "slow"

        def score(self, query: anncur.Query, items: Sequence[anncur.Item]) -> list[float]:
            begun.set()
            may_end.wait(20)
            answer: list[float] = world.scorer.score(query, items).tolist()
            return answer

    scorer = anncur.load_scorer(Slow(), batch_size=10, cache=tmp_path / "scores.cache")
    index = anncur.Index.build(world.items, scorer)

    async def cancel(scope: anyio.CancelScope) -> None:
        await asyncio.to_thread(begun.wait, 20)
        scope.cancel()
        for _ in range(5):
            await asyncio.sleep(0)
        may_end.set()

    async def cancelled() -> anncur.Hits:
        with anyio.CancelScope() as scope:
            canceller = asyncio.create_task(cancel(scope))
            await index.asearch(world.queries[3], k=5, budget=80, method="rerank")
        await canceller
        assert scope.cancelled_caught
        return await index.asearch(world.queries[3], k=5, budget=10, method="rerank")

    hits = asyncio.run(cancelled())
    assert (hits.cached_calls, scorer.calls_made) == (10, 10)


def test_a_blocking_scorer_is_asked_by_one_task_at_a_time_unless_its_rules_say_more(world: World) -> None:
    at_once: list[int] = []

    class Counting:
        fingerprint = "counting"
        n_at_once = 0

        def score(self, query: anncur.Query, items: Sequence[anncur.Item]) -> list[float]:
            self.n_at_once += 1
            at_once.append(self.n_at_once)
            time.sleep(0.01)
            self.n_at_once -= 1
            answer: list[float] = world.scorer.score(query, items).tolist()
            return answer

    index = anncur.Index.build(world.items, Counting())

    async def many() -> None:
        await asyncio.gather(*(index.asearch(query, budget=20, method="rerank") for query in world.queries[:5]))

    asyncio.run(many())
    assert max(at_once) == 1


def test_queries_of_later_blocks_are_answered_after_a_failure(world: World) -> None:
    scorer = AsyncScorer(world, fails_for=world.queries[0])
    index = anncur.Index.build(world.items, scorer)
    with pytest.raises(ScorerError, match="gone") as caught:
        index.search_many(world.queries * 4, k=5, budget=5, method="rerank")
    kept = caught.value.kept
    assert isinstance(kept, list)
    assert len(kept) == 120
    assert sum(hits.calls == 5 for hits in kept) == 116
