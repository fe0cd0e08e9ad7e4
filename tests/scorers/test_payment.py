"""Payments: few requests, several at once, and failures that stay with their query."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

import anncur
from anncur.errors import (
    DeadlineError,
    RequestTooLargeError,
    ScorerAccessError,
    ScorerError,
    ScorerRefusedError,
    TextTooLongError,
)
from anncur.scorers.base import Pair
from anncur.scorers.meter import Meter
from anncur.scorers.pace import Deadline
from anncur.scorers.payment import Payments
from anncur.waiting import run

CORPUS = anncur.Corpus([f"item {n}" for n in range(50)])


def true_score(query: anncur.Query, item: anncur.Item) -> float:
    return 100.0 * int(query.text) + int(item.id)


class Recorder:
    """Takes pairs of several queries, and remembers its requests."""

    fingerprint = "recorder"

    def __init__(
        self, *, fails_for: str = "", error: Exception | None = None, most: int = 1000, seconds: float = 0.0
    ) -> None:
        self.requests: list[list[tuple[str, str]]] = []
        self.most_at_once = 0
        self._fails_for, self._most, self._seconds = fails_for, most, seconds
        self._error = error or ConnectionError("gone")
        self._lock, self._n_at_once = threading.Lock(), 0

    def score_pairs(self, pairs: Sequence[Pair]) -> list[float]:
        with self._lock:
            self._n_at_once += 1
            self.most_at_once = max(self.most_at_once, self._n_at_once)
            self.requests.append([(query.text, item.id) for query, item in pairs])
        time.sleep(self._seconds)
        with self._lock:
            self._n_at_once -= 1
        if len(pairs) > self._most:
            raise RequestTooLargeError(f"at most {self._most}")
        if any(query.text == self._fails_for for query, _ in pairs):
            raise self._error
        return [true_score(query, item) for query, item in pairs]


class ByQuery(Recorder):
    """Takes one query at a time."""

    score_pairs = None  # type: ignore[assignment]

    def score(self, query: anncur.Query, items: Sequence[anncur.Item]) -> list[float]:
        return Recorder.score_pairs(self, [(query, item) for item in items])


def meters(n_queries: int, *, budget: int = 50) -> list[Meter]:
    return [Meter(anncur.Query(str(number)), CORPUS, budget=budget) for number in range(n_queries)]


def pay(
    recorder: Recorder, wanted: list[Meter], n_each: int, *, deadline: Deadline | None = None, **rules: Any
) -> None:
    payments = Payments(anncur.load_scorer(recorder, **rules), deadline=deadline)
    run(payments.pay([(meter, np.arange(n_each)) for meter in wanted]))


def sizes(recorder: Recorder) -> list[int]:
    return [len(request) for request in recorder.requests]


def check_right(wanted: Sequence[Meter]) -> None:
    for meter in wanted:
        expected = [true_score(meter.query, CORPUS[at]) for at in meter.positions.tolist()]
        assert meter.exact_scores.tolist() == expected


def test_pairs_of_several_queries_go_into_one_request() -> None:
    recorder, wanted = Recorder(), meters(3)
    pay(recorder, wanted, 7, batch_size=10)
    assert sizes(recorder) == [10, 10, 1]
    assert [meter.positions.tolist() for meter in wanted] == [list(range(7))] * 3
    assert [meter.n_requests for meter in wanted] == [1, 2, 2]
    check_right(wanted)


def test_a_scorer_by_query_is_never_asked_for_two_queries_at_once() -> None:
    recorder, wanted = ByQuery(), meters(3)
    pay(recorder, wanted, 7, batch_size=5)
    assert sizes(recorder) == [5, 2, 5, 2, 5, 2]
    assert all(len({query for query, _ in request}) == 1 for request in recorder.requests)
    check_right(wanted)


@pytest.mark.parametrize("kind", [Recorder, ByQuery])
def test_as_many_requests_are_under_way_as_the_rules_allow(kind: type[Recorder]) -> None:
    recorder, wanted = kind(seconds=0.05), meters(4)
    pay(recorder, wanted, 10, batch_size=5, concurrency=3)
    assert recorder.most_at_once == 3
    assert sizes(recorder) == [5] * 8
    check_right(wanted)


@pytest.mark.parametrize("kind", [Recorder, ByQuery])
def test_a_query_that_the_scorer_fails_for_doesnt_cost_the_others_theirs(kind: type[Recorder]) -> None:
    recorder, wanted = kind(fails_for="1"), meters(3)
    pay(recorder, wanted, 7, batch_size=10)
    assert [meter.calls for meter in wanted] == [7, 0, 7]
    assert isinstance(wanted[1].failure, ScorerError)
    assert "ConnectionError: gone" in str(wanted[1].failure)
    assert wanted[0].failure is wanted[2].failure is None
    check_right(wanted)


def test_when_three_queries_fail_in_a_row_it_is_the_scorer_and_nothing_else_is_asked_for() -> None:
    class Down(ByQuery):
        def score(self, query: anncur.Query, items: Sequence[anncur.Item]) -> list[float]:
            self.requests.append([])
            raise ConnectionError("down")

    recorder = Down()
    with pytest.raises(ScorerError, match="ConnectionError: down"):
        pay(recorder, meters(20), 7)
    assert len(recorder.requests) == 3


def test_requests_of_one_failing_query_count_as_one_failure() -> None:
    recorder, wanted = Recorder(fails_for="1", seconds=0.005), meters(3)
    pay(recorder, wanted, 50, batch_size=5, concurrency=4)
    assert [meter.calls for meter in wanted][::2] == [50, 50]
    assert wanted[1].failure is not None


def test_a_request_that_is_too_large_is_split_and_the_next_are_smaller() -> None:
    recorder, wanted = Recorder(most=4), meters(2)
    pay(recorder, wanted, 20, batch_size=16)
    check_right(wanted)
    assert [meter.calls for meter in wanted] == [20, 20]
    assert sizes(recorder)[:3] == [16, 8, 4]
    assert all(size <= 4 for size in sizes(recorder)[8:])


def test_a_single_pair_that_is_too_large_is_its_querys_failure_and_requests_stay_large() -> None:
    class TooLong(Recorder):
        def score_pairs(self, pairs: Sequence[Pair]) -> list[float]:
            if any((query.text, item.id) == ("1", "7") for query, item in pairs):
                self.requests.append([])
                raise RequestTooLargeError("item 7 is too long")
            return super().score_pairs(pairs)

    recorder, wanted = TooLong(), meters(3)
    scorer = anncur.load_scorer(recorder, batch_size=16)
    run(Payments(scorer).pay([(meter, np.arange(20)) for meter in wanted]))
    assert isinstance(wanted[1].failure, RequestTooLargeError)
    assert [meter.calls for meter in wanted][::2] == [20, 20]
    assert scorer.most_pairs == 16
    check_right(wanted)


def test_a_scorer_that_finds_every_pair_too_large_is_asked_for_three_queries_alone() -> None:
    recorder, wanted = Recorder(most=0), meters(20)
    with pytest.raises(RequestTooLargeError):
        pay(recorder, wanted, 8, batch_size=16)
    assert sum(meter.failure is not None for meter in wanted) == 3


@pytest.mark.parametrize("kind", [Recorder, ByQuery])
def test_a_request_that_is_refused_is_its_querys_failure_and_not_tried_again(kind: type[Recorder]) -> None:
    recorder, wanted = kind(fails_for="1", error=ScorerRefusedError("content filter")), meters(4)
    pay(recorder, wanted, 7, batch_size=7, retries=3)
    assert [meter.calls for meter in wanted] == [7, 0, 7, 7]
    assert isinstance(wanted[1].failure, ScorerRefusedError)
    assert len(recorder.requests) == 4


def test_a_scorer_that_refuses_access_is_asked_once() -> None:
    recorder = Recorder(fails_for="0", error=ScorerAccessError("wrong key"))
    with pytest.raises(ScorerAccessError):
        pay(recorder, meters(20), 7, retries=3)
    assert len(recorder.requests) == 1


def test_a_text_that_stays_too_long_is_sent_twice_and_then_its_querys_failure() -> None:
    recorder, wanted = Recorder(fails_for="1", error=TextTooLongError("512 tokens")), meters(3)
    pay(recorder, wanted, 7, batch_size=7, retries=3)
    assert [meter.calls for meter in wanted] == [7, 0, 7]
    assert len(recorder.requests) == 4


def test_pairs_of_the_cache_are_not_asked_for_and_are_counted_apart(tmp_path: Any) -> None:
    recorder = Recorder()
    first, again = meters(2), meters(2)
    pay(recorder, first, 7, cache=tmp_path / "scores.cache")
    pay(recorder, again, 9, cache=tmp_path / "scores.cache")
    assert sizes(recorder) == [14, 4]
    assert [(meter.calls, meter.n_cached) for meter in again] == [(9, 7), (9, 7)]
    check_right(again)


def test_the_cache_keeps_the_scorers_own_scores_whichever_way_is_better(tmp_path: Any) -> None:
    recorder, wanted = Recorder(), meters(2)
    pay(recorder, meters(2), 7, cache=tmp_path / "scores.cache")
    pay(recorder, wanted, 7, cache=tmp_path / "scores.cache", higher_is_better=False)
    assert sizes(recorder) == [14]
    assert wanted[1].exact_scores.tolist() == [-(100.0 + number) for number in range(7)]


def test_what_was_paid_for_before_a_failure_is_in_the_cache(tmp_path: Any) -> None:
    for _ in range(2):
        recorder = Recorder(fails_for="1")
        pay(recorder, meters(3), 7, batch_size=7, cache=tmp_path / "scores.cache")
    assert recorder.requests == [[("1", str(number)) for number in range(7)]]


def test_a_deadline_cuts_off_all_queries_alike() -> None:
    wanted = meters(3)
    with pytest.raises(DeadlineError):
        pay(Recorder(seconds=0.05), wanted, 50, batch_size=6, deadline=Deadline(0.3))
    calls = [meter.calls for meter in wanted]
    assert 2 <= min(calls) <= max(calls) <= min(calls) + 1


def test_under_a_deadline_a_scorer_by_query_gets_all_pairs_of_a_query_at_once() -> None:
    recorder, wanted = ByQuery(), meters(3)
    pay(recorder, wanted, 7, batch_size=10, deadline=Deadline(60.0))
    assert sizes(recorder) == [7, 7, 7]
    check_right(wanted)


def test_latency_is_distinguished_from_pace_so_that_a_deadline_is_used() -> None:
    """150 ms a request, 20 pairs at most: after the first, which is smaller, requests are as large as they may be."""
    recorder, wanted = Recorder(seconds=0.15), meters(1)
    pay(recorder, wanted, 50, batch_size=20, deadline=Deadline(2.0))
    assert sizes(recorder) == [8, 20, 20, 2]


def test_no_request_is_begun_that_would_be_answered_after_the_deadline() -> None:
    recorder, wanted = Recorder(seconds=0.1), meters(1)
    started = time.perf_counter()
    with pytest.raises(DeadlineError, match="before another request would be answered"):
        pay(recorder, wanted, 50, batch_size=5, deadline=Deadline(0.45))
    assert time.perf_counter() - started < 0.9
    assert 2 <= len(recorder.requests) <= 4


def test_ctrl_c_stops_what_has_not_begun() -> None:
    class Interrupted(Recorder):
        def score_pairs(self, pairs: Sequence[Pair]) -> list[float]:
            if len(self.requests) == 4:
                raise KeyboardInterrupt
            return super().score_pairs(pairs)

    recorder, wanted = Interrupted(seconds=0.01), meters(4)
    with pytest.raises(KeyboardInterrupt):
        pay(recorder, wanted, 50, batch_size=5, concurrency=2)
    assert sum(meter.calls for meter in wanted) <= 30
    check_right(wanted)


def test_after_ctrl_c_nothing_is_tried_again() -> None:
    class Busy(Recorder):
        def score_pairs(self, pairs: Sequence[Pair]) -> list[float]:
            self.requests.append([])
            if len(self.requests) == 4:
                raise KeyboardInterrupt
            raise ConnectionError("busy")

    recorder = Busy()
    started = time.perf_counter()
    with pytest.raises(KeyboardInterrupt):
        pay(recorder, meters(8), 5, batch_size=5, concurrency=4, retries=3, retry_wait=20.0)
    assert time.perf_counter() - started < 8.0, "a wait would take ten seconds at least"
    assert len(recorder.requests) == 4


def test_who_waits_for_a_place_keeps_to_the_deadline() -> None:
    scorer = anncur.load_scorer(Recorder(seconds=2.0), concurrency=2, batch_size=5)
    threads = [threading.Thread(target=scorer.score, args=(anncur.Query("0"), CORPUS[:5])) for _ in range(2)]
    for thread in threads:
        thread.start()
    time.sleep(0.1)
    with pytest.raises(DeadlineError):
        run(Payments(scorer, deadline=Deadline(0.2)).pay([(meter, np.arange(5)) for meter in meters(1)]))
    assert any(thread.is_alive() for thread in threads)
    for thread in threads:
        thread.join()


def test_no_request_is_larger_than_a_minute_allows() -> None:
    scorer = anncur.load_scorer(Recorder(), batch_size=50, pairs_per_minute=10)
    assert scorer.most_pairs == 10
