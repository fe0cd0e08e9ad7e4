"""Careful calling: checks, retries, the cap on spend."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import pickle
import random
import re
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import anncur
from anncur.cli.options import open_index
from anncur.errors import (
    DeadlineError,
    InputError,
    ScorerBusyError,
    ScorerError,
    ScorerOutputError,
    SpendCapError,
)
from anncur.scorers.cache import ScoreCache
from anncur.scorers.pace import Deadline
from anncur.scorers.rules import CallRules
from anncur.waiting import Blocking

QUERY = anncur.Query("q")
ITEMS = [anncur.Item(str(n), f"item {n}") for n in range(4)]


class FakeTensor:
    """As much of a torch tensor as matters here."""

    def __init__(self, values: list[float]) -> None:
        self._values = values

    def detach(self) -> FakeTensor:
        return self

    def cpu(self) -> FakeTensor:
        return self

    def double(self) -> FakeTensor:
        return self

    def numpy(self) -> Any:
        return np.array(self._values)


@pytest.mark.parametrize(
    "answer",
    [
        [1, 2, 3, 4],
        (1.0, 2.0, 3.0, 4.0),
        np.array([1, 2, 3, 4], dtype=np.float16),
        np.array([[1.0], [2.0], [3.0], [4.0]]),
        [np.float32(1), np.float32(2), np.float32(3), np.float32(4)],
        FakeTensor([1, 2, 3, 4]),
        (float(n) for n in (1, 2, 3, 4)),
    ],
)
def test_any_form_of_one_number_per_pair_is_taken(answer: Any) -> None:
    assert anncur.load_scorer(lambda _: answer).score(QUERY, ITEMS).tolist() == [1.0, 2.0, 3.0, 4.0]


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        ([1.0, float("nan"), 3.0, 4.0], "got nan for item '1' and query 'q'"),
        ([1.0, 2.0, float("inf"), 4.0], "got inf for item '2' and query 'q'"),
        ([1.0, 2.0, 10**400, 4.0], "too large|got list"),
        ({0: 1.0, 1: 2.0, 2: 3.0, 3: 4.0}, "got dict"),
        ({1.0, 2.0, 3.0, 4.0}, "got set"),
        ("1234", "got str"),
        ([1.0, 2.0], "got 2 numbers for 4 pairs"),
        ([1.0] * 5, "got 5 numbers for 4 pairs"),
        (["high", "low", "low", "low"], "not numbers"),
        (["1", "2", "3", "4"], "not numbers"),
        ([1.0, None, 2.0, 3.0], "None is not a number"),
        ([1j, 2j, 3j, 4j], "not numbers"),
        (None, "got NoneType"),
        (0.5, "got float"),
        (np.zeros((4, 2)), r"shape \(4, 2\); of a model with several outputs"),
        ([[1.0], [2.0, 3.0], [4.0], [5.0]], "got list"),
    ],
)
def test_anything_else_is_refused_with_what_came_back(answer: Any, problem: str) -> None:
    with pytest.raises(ScorerOutputError, match=problem):
        anncur.load_scorer(lambda _: answer).score(QUERY, ITEMS)


def test_an_exception_of_the_scorer_becomes_ours_and_keeps_its_cause() -> None:
    def broken(_: object) -> list[float]:
        raise ConnectionError("no route")

    with pytest.raises(ScorerError, match="ConnectionError: no route") as caught:
        anncur.load_scorer(broken).score(QUERY, ITEMS)
    assert isinstance(caught.value.__cause__, ConnectionError)


def failing(times: int) -> Callable[[list[tuple[str, str]]], list[float]]:
    left = [times]

    def scorer(pairs: list[tuple[str, str]]) -> list[float]:
        if left[0]:
            left[0] -= 1
            raise TimeoutError("slow service")
        return [0.0] * len(pairs)

    return scorer


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """How long was waited, in no time."""
    waits: list[float] = []

    async def sleep(self: Blocking, seconds: float) -> None:
        waits.append(seconds)

    monkeypatch.setattr(Blocking, "sleep", sleep)
    return waits


def test_a_failing_request_is_tried_again_after_ever_longer_waits(waits: list[float]) -> None:
    guarded = anncur.load_scorer(failing(3), retries=3, retry_wait=1.0)
    assert guarded.score(QUERY, ITEMS).tolist() == [0.0] * 4
    assert len(waits) == 3
    assert all(low <= wait <= high for wait, (low, high) in zip(waits, [(0.5, 1), (1, 2), (2, 4)], strict=True))
    assert guarded.calls_made == 16


def test_waits_are_capped(waits: list[float]) -> None:
    rules = CallRules(retries=6, retry_wait=1.0, max_wait=2.0)
    anncur.load_scorer(failing(6)).with_rules(rules).score(QUERY, ITEMS)
    assert max(waits) <= 2.0


@pytest.mark.usefixtures("waits")
def test_after_the_last_try_the_error_goes_up() -> None:
    guarded = anncur.load_scorer(failing(3), retries=2)
    with pytest.raises(ScorerError, match="TimeoutError: slow service"):
        guarded.score(QUERY, ITEMS)
    assert guarded.calls_made == 12


def copies(scorer: object) -> list[anncur.GuardedScorer]:
    return [pickle.loads(pickle.dumps(anncur.load_scorer(scorer, retries=1))) for _ in range(2)]


class AlwaysBusy:
    """Fails, and asks to wait."""

    fingerprint = "busy"

    def __init__(self, retry_after: float | None = None) -> None:
        self._retry_after = retry_after

    def score(self, query: anncur.Query, items: Sequence[anncur.Item]) -> list[float]:
        raise ScorerBusyError("too many requests", retry_after=self._retry_after)


def test_copies_of_a_scorer_come_back_at_different_moments_and_use_no_seed_of_the_users(waits: list[float]) -> None:
    random.seed(7)
    expected = random.random()
    for guarded in copies(AlwaysBusy()):
        random.seed(7)
        with pytest.raises(ScorerBusyError):
            guarded.score(QUERY, ITEMS)
        assert random.random() == expected
    assert len(set(waits)) == 2


def test_the_wait_that_a_scorer_asks_for_is_waited(waits: list[float]) -> None:
    with pytest.raises(ScorerBusyError, match=r"too many requests$"):
        anncur.load_scorer(AlwaysBusy(500.0), retries=1).score(QUERY, ITEMS)
    assert waits == [500.0]


@pytest.mark.parametrize("seconds", [3600.0, 99_999_999_999.0, float("inf")])
def test_a_scorer_that_asks_to_wait_for_more_than_some_minutes_is_an_error_with_that_time(
    waits: list[float], seconds: float
) -> None:
    guarded = anncur.load_scorer(AlwaysBusy(seconds), retries=3)
    with pytest.raises(ScorerBusyError, match=rf"asks to wait {re.escape(f'{seconds:g}')} s") as caught:
        guarded.score(QUERY, ITEMS)
    assert caught.value.retry_after == seconds
    assert (waits, guarded.calls_made) == ([], 4)
    with pytest.raises(DeadlineError):
        guarded.score(QUERY, ITEMS, deadline=Deadline(60.0))


def test_no_wait_goes_past_the_deadline(waits: list[float]) -> None:
    guarded = anncur.load_scorer(failing(3), retries=3, retry_wait=10.0)
    with pytest.raises(DeadlineError):
        guarded.score(QUERY, ITEMS, deadline=Deadline(1.0))
    assert waits == []


@pytest.mark.usefixtures("waits")
def test_a_bad_answer_is_tried_again_too() -> None:
    answers = iter([None, ["high"] * 4, [1.0, 2.0, 3.0, 4.0]])
    guarded = anncur.load_scorer(lambda _: next(answers), retries=2)
    assert guarded.score(QUERY, ITEMS).tolist() == [1.0, 2.0, 3.0, 4.0]


def test_a_generator_that_fails_half_way_is_a_failing_scorer() -> None:
    def generate(pairs: list[tuple[str, str]]) -> Iterator[float]:
        yield 1.0
        raise ConnectionError("gone")

    with pytest.raises(ScorerError, match="ConnectionError: gone"):
        anncur.load_scorer(generate).score(QUERY, ITEMS)


def test_the_cap_holds_when_many_threads_spend_at_once() -> None:
    spent: list[int] = []

    def scorer(pairs: list[tuple[str, str]]) -> list[float]:
        spent.append(len(pairs))
        return [0.0] * len(pairs)

    guarded = anncur.load_scorer(scorer, max_calls=1000)

    def spend_all(_: int) -> None:
        with contextlib.suppress(SpendCapError):
            while True:
                guarded.score(QUERY, ITEMS[:1])

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(spend_all, range(8)))
    assert sum(spent) == guarded.calls_made == 1000


def test_the_cap_on_spend_refuses_the_request_that_would_exceed_it() -> None:
    seen: list[int] = []

    def scorer(pairs: list[tuple[str, str]]) -> list[float]:
        seen.append(len(pairs))
        return [0.0] * len(pairs)

    guarded = anncur.load_scorer(scorer, max_calls=6)
    guarded.score(QUERY, ITEMS)
    with pytest.raises(SpendCapError, match="cap of 6 pairs"):
        guarded.score(QUERY, ITEMS)
    assert seen == [4]
    assert guarded.calls_made == 4


def test_lower_is_better_turns_the_scores_around() -> None:
    def distance(pairs: list[tuple[str, str]]) -> list[float]:
        return [float(n) for n in range(len(pairs))]

    assert anncur.load_scorer(distance, higher_is_better=False).score(QUERY, ITEMS).tolist() == [0, -1, -2, -3]
    distance.higher_is_better = False  # type: ignore[attr-defined]
    assert anncur.load_scorer(distance).score(QUERY, ITEMS).tolist() == [0, -1, -2, -3]
    assert anncur.load_scorer(distance, higher_is_better=True).score(QUERY, ITEMS).tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize(
    "rules",
    [
        {"batch_size": 0}, {"batch_size": 1.5}, {"batch_size": "32"}, {"retries": -1}, {"retries": 0.5},
        {"max_calls": 0}, {"concurrency": 0}, {"requests_per_minute": 0}, {"pairs_per_minute": 0.5},
        {"retry_wait": -1.0}, {"retry_wait": float("nan")}, {"higher_is_better": "no"},
    ],
)  # fmt: skip
def test_rules_that_make_no_sense_are_refused(rules: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=f"{next(iter(rules))} must be"):
        anncur.load_scorer(lambda _: [], **rules)


def test_a_scorer_that_has_a_name_is_loaded_again_from_its_pickle(tmp_path: Path) -> None:
    cache = ScoreCache(tmp_path / "scores.cache", most_bytes=2**21)
    scorer = anncur.load_scorer("builtin", fingerprint="mine-v1", batch_size=16, threads=1, cache=cache)
    again = pickle.loads(pickle.dumps(anncur.load_scorer(scorer, max_calls=50)))
    assert (again.name, again.fingerprint) == ("builtin", "mine-v1")
    assert again.rules == dataclasses.replace(scorer.rules, max_calls=50)
    assert repr(again.cache) == repr(cache)
    assert again._scorer.n_threads == 1
    assert again.score(QUERY, ITEMS).tolist() == scorer.score(QUERY, ITEMS).tolist()


def test_a_loaded_scorer_can_be_given_other_rules_and_keeps_the_rest() -> None:
    first = anncur.load_scorer(lambda _: [], retries=3, max_calls=10)
    assert anncur.load_scorer(first) is first
    second = anncur.load_scorer(first, max_calls=20, higher_is_better=False)
    assert second.rules == CallRules(higher_is_better=False, retries=3, max_calls=20)
    assert second.fingerprint == first.fingerprint


class LostTensor(FakeTensor):
    """A tensor on a device that is gone."""

    def detach(self) -> FakeTensor:
        raise RuntimeError("the device is gone")


class LostList:
    """An answer that fails when it is read."""

    def __iter__(self) -> Iterator[float]:
        raise RuntimeError("the device is gone")


@pytest.mark.usefixtures("waits")
@pytest.mark.parametrize("answer", [LostTensor([]), LostList()])
def test_an_answer_that_fails_when_it_is_read_is_a_failing_scorer_and_tried_again(answer: object) -> None:
    with pytest.raises(ScorerError, match="RuntimeError: the device is gone"):
        anncur.load_scorer(lambda _: answer).score(QUERY, ITEMS)
    answers = iter([answer, [1.0, 2.0, 3.0, 4.0]])
    guarded = anncur.load_scorer(lambda _: next(answers), retries=1)
    assert guarded.score(QUERY, ITEMS).tolist() == [1.0, 2.0, 3.0, 4.0]


def test_rules_keep_plain_numbers() -> None:
    rules = CallRules(
        batch_size=np.int64(8),  # type: ignore[arg-type]
        retries=True,
        retry_wait=np.float32(0.5),  # type: ignore[arg-type]
        max_wait=2,
        max_calls=np.uint8(9),  # type: ignore[arg-type]
    )
    kept = json.dumps(dataclasses.asdict(rules))
    assert kept == json.dumps(dataclasses.asdict(CallRules(True, 8, 1, 0.5, 2.0, 9)))
    assert CallRules().max_calls is None


def test_a_single_pair_is_counted_in_the_singular() -> None:
    guarded = anncur.load_scorer(lambda _: [], max_calls=1)
    with pytest.raises(ScorerOutputError, match=r"got 0 numbers for 1 pair$"):
        guarded.score(QUERY, ITEMS[:1])
    with pytest.raises(SpendCapError, match=r"1 more pair would exceed the cap of 1 pair for .* \(1 was scored\)"):
        guarded.score(QUERY, ITEMS[:1])
    with pytest.raises(ScorerError, match="on 1 pair of 'q'"):
        anncur.load_scorer(failing(1)).score(QUERY, ITEMS[:1])


@pytest.fixture
def nameless(tmp_path: Path) -> Path:
    """An index whose scorer can't be loaded by a name."""
    path = tmp_path / "x.anncur"
    scorer = anncur.load_scorer(lambda pairs: [0.0] * len(pairs), fingerprint="nameless")
    anncur.Index.build(ITEMS, scorer, ["q"], path=path)
    return path


@pytest.mark.parametrize("rule", [{"retries": 3}, {"max_calls": 3}, {"threads": 3}, {"rules": ["concurrency=3"]}])
@pytest.mark.parametrize("name", [None, ""])
def test_rules_for_a_scorer_without_a_name_ask_for_the_scorer(
    nameless: Path, rule: dict[str, Any], name: str | None
) -> None:
    with pytest.raises(InputError, match="has no name to load it by; pass --scorer"):
        open_index(nameless, name, **rule)


@pytest.mark.parametrize("name", [None, ""])
def test_a_scorer_without_a_name_is_missed_when_it_is_needed(nameless: Path, name: str | None) -> None:
    opened = open_index(nameless, name)
    assert opened.info.n_items == 4
    with pytest.raises(InputError, match="has no name to load it by"):
        opened.search("other")
