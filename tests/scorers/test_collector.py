"""Continuous batching: searches that run at the same time share requests, and nothing else."""

from __future__ import annotations

import asyncio
import os
import threading
import time
import warnings
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import anncur
from anncur.errors import DeadlineError, ScorerBusyError, ScorerError, SpendCapError
from anncur.scorers.base import Pair
from anncur.scorers.collector import Order, Room
from anncur.scorers.guard import GuardedScorer
from anncur.scorers.pace import Deadline, Pace
from anncur.waiting import AWAITING

ITEMS = [anncur.Item(str(number), f"item {number}") for number in range(40)]


def true_score(query: anncur.Query, item: anncur.Item) -> float:
    return 100.0 * int(query.text) + int(item.id)


class Recorder:
    """Remembers its requests, and takes a while for each."""

    fingerprint = "recorder"

    def __init__(self, *, seconds: float = 0.02, fails_for: str = "", error: Exception | None = None) -> None:
        self.requests: list[list[str]] = []
        self._seconds, self._fails_for = seconds, fails_for
        self._error = error or ConnectionError("gone")

    def score_pairs(self, pairs: Sequence[Pair]) -> list[float]:
        self.requests.append([query.text for query, _ in pairs])
        time.sleep(self._seconds)
        if any(query.text == self._fails_for for query, _ in pairs):
            raise self._error
        return [true_score(query, item) for query, item in pairs]


class AsyncRecorder(Recorder):
    """The same for one that is awaited."""

    async def score_pairs(self, pairs: Sequence[Pair]) -> list[float]:  # type: ignore[override]
        self.requests.append([query.text for query, _ in pairs])
        await asyncio.sleep(self._seconds)
        return [true_score(query, item) for query, item in pairs]


def shared(recorder: Recorder, **rules: Any) -> GuardedScorer:
    return anncur.load_scorer(recorder, shares_requests=True, **rules)


async def ask(scorer: GuardedScorer, query: int, n_items: int = 5, deadline: Deadline | None = None) -> list[float]:
    pairs = [(anncur.Query(str(query)), item) for item in ITEMS[:n_items]]
    scores: list[float] = (await scorer.ask(pairs, waiting=AWAITING, deadline=deadline)).tolist()
    return scores


def ask_all(scorer: GuardedScorer, queries: Sequence[int]) -> list[Any]:
    async def everybody() -> list[Any]:
        return await asyncio.gather(*(ask(scorer, query) for query in queries), return_exceptions=True)

    return asyncio.run(everybody())


def expected(query: int, n_items: int = 5) -> list[float]:
    return [true_score(anncur.Query(str(query)), item) for item in ITEMS[:n_items]]


@pytest.mark.parametrize("kind", [Recorder, AsyncRecorder])
def test_those_who_ask_while_a_request_is_under_way_share_the_next(kind: type[Recorder]) -> None:
    recorder = kind()
    answers = ask_all(shared(recorder), range(10))
    assert answers == [expected(query) for query in range(10)]
    assert len(recorder.requests) == 2
    assert [len(request) for request in recorder.requests] == [5, 45]


def test_one_alone_never_waits() -> None:
    recorder = Recorder(seconds=0)
    scorer = shared(recorder)
    for query in range(5):
        assert asyncio.run(ask(scorer, query)) == expected(query)
    assert [len(request) for request in recorder.requests] == [5] * 5


def test_without_the_rule_nobody_shares() -> None:
    recorder = Recorder(seconds=0.001)
    ask_all(anncur.load_scorer(recorder), range(6))
    assert [len(request) for request in recorder.requests] == [5] * 6


def test_a_shared_request_is_no_larger_than_the_rules_allow() -> None:
    recorder = Recorder()
    assert ask_all(shared(recorder, batch_size=12), range(10)) == [expected(query) for query in range(10)]
    assert max(map(len, recorder.requests)) <= 12


def test_an_error_is_that_of_the_query_that_causes_it() -> None:
    recorder = Recorder(fails_for="3")
    answers = ask_all(shared(recorder), range(6))
    for query, answer in enumerate(answers):
        if query == 3:
            assert isinstance(answer, ScorerError)
        else:
            assert answer == expected(query)


def test_a_scorer_that_is_down_is_told_to_all_at_once_and_each_has_an_error_of_its_own() -> None:
    recorder = Recorder(fails_for="3", error=ScorerBusyError("overloaded", retry_after=2.0))
    answers = ask_all(shared(recorder), range(6))
    assert answers[0] == expected(0)
    errors = answers[1:]
    assert all(isinstance(error, ScorerBusyError) and error.retry_after == 2.0 for error in errors)
    assert len(set(map(id, errors))) == len(errors)
    assert len(recorder.requests) == 2


def test_a_cap_on_spend_lets_through_what_fits() -> None:
    recorder = Recorder()
    answers = ask_all(shared(recorder, max_calls=20), range(6))
    assert sum(isinstance(answer, SpendCapError) for answer in answers) == 2
    assert sum(map(len, recorder.requests)) == 20


def test_whoever_is_cancelled_leaves_the_others_their_answers() -> None:
    recorder = AsyncRecorder(seconds=0.05)
    scorer = shared(recorder)

    async def everybody() -> list[Any]:
        first = asyncio.create_task(ask(scorer, 0))
        others = [asyncio.create_task(ask(scorer, query)) for query in range(1, 5)]
        await asyncio.sleep(0.01)
        others[1].cancel()  # waits
        await asyncio.sleep(0.05)
        others[0].cancel()  # leads the second request
        return await asyncio.gather(first, *others, return_exceptions=True)

    first, *others = asyncio.run(everybody())
    assert first == expected(0)
    assert [isinstance(other, asyncio.CancelledError) for other in others] == [True, True, False, False]
    assert others[2:] == [expected(3), expected(4)]


def test_a_deadline_isnt_risked_by_the_pairs_of_others() -> None:
    """Each pair takes 2 ms: in 200 ms, 80 pairs are answered with time to spare, and 90 are not."""
    pace = Pace()
    for n_pairs in (1, 5, 10, 20, 40):
        pace.observe(n_pairs, 0.002 * n_pairs)
    room = Room(most_pairs=1_000, at_once=1, pace=pace)
    hurried = order(10, Deadline(0.2, clock=lambda: 0.0))
    assert room.holds([hurried], order(69))
    assert not room.holds([hurried], order(80))
    assert not room.holds([order(80)], hurried)
    assert room.holds([order(500)], order(500))
    assert not room.holds([order(500)], order(501))


def order(n_pairs: int, deadline: Deadline | None = None) -> Order:
    return Order([(anncur.Query("a"), ITEMS[0])] * n_pairs, deadline)


def test_a_deadline_that_comes_before_ones_turn_ends_the_waiting() -> None:
    recorder = Recorder(seconds=0.3)
    scorer = shared(recorder)

    async def both() -> list[Any]:
        first = asyncio.create_task(ask(scorer, 0))
        await asyncio.sleep(0.01)
        return list(await asyncio.gather(first, ask(scorer, 1, 5, Deadline(0.05)), return_exceptions=True))

    first, second = asyncio.run(both())
    assert first == expected(0)
    assert isinstance(second, DeadlineError)
    assert len(recorder.requests) == 1


def test_threads_that_block_share_requests_too() -> None:
    recorder = Recorder()
    scorer = shared(recorder)
    ready = threading.Barrier(8)

    def score(query: int) -> list[float]:
        ready.wait()
        scores: list[float] = scorer.score(anncur.Query(str(query)), ITEMS[:5]).tolist()
        return scores

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(score, range(8))) == [expected(query) for query in range(8)]
    assert len(recorder.requests) <= 4


def test_searches_share_requests_and_keep_their_own_budgets() -> None:
    recorder = Recorder(seconds=0.005)
    index = anncur.Index.build(ITEMS, shared(recorder), retrievers=())
    recorder.requests.clear()

    async def everybody() -> list[anncur.Hits]:
        return await asyncio.gather(*(index.asearch(str(query), k=3, budget=10 + query) for query in range(8)))

    answers = asyncio.run(everybody())
    assert [hits.calls for hits in answers] == [10 + query for query in range(8)]
    assert sum(map(len, recorder.requests)) == sum(hits.calls for hits in answers)
    assert any(len(set(request)) > 3 for request in recorder.requests)
    alone = [index.search(str(query), k=3, budget=10 + query) for query in range(8)]
    assert [hits.ids for hits in answers] == [hits.ids for hits in alone]


def test_a_fork_begins_with_an_empty_queue() -> None:
    scorer = shared(Recorder(seconds=0.3))

    async def ask_and_fork() -> int:
        first = asyncio.create_task(ask(scorer, 0))
        await asyncio.sleep(0.05)  # its request is under way
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of forks beside threads, in later versions of Python
            child = os.fork()
        if not child:
            try:
                found = scorer.score(anncur.Query("1"), ITEMS[:5]).tolist()
                os._exit(0 if found == expected(1) else 1)
            finally:
                os._exit(2)
        await first
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

    assert asyncio.run(asyncio.wait_for(ask_and_fork(), 20)) == 0
