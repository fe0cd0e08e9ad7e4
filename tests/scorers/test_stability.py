"""A scorer that answers differently to the same pair is noticed."""

from __future__ import annotations

import itertools
import warnings

import numpy as np
import pytest

import anncur
from anncur.errors import UnstableScorerWarning
from anncur.items import Query
from anncur.scorers.stability import StabilityWatch, n_different

POSITIONS = np.arange(3)


def test_equal_answers_are_counted_without_a_warning() -> None:
    watch = StabilityWatch()
    watch.observe(Query("q"), POSITIONS, np.array([1.0, 2.0, 3.0]))
    watch.observe(Query("q"), POSITIONS, np.array([1.0, 2.0, 3.0]))
    assert (watch.report.n_repeated, watch.report.n_different) == (3, 0)


def test_rounding_is_no_difference_even_for_a_single_pair() -> None:
    watch = StabilityWatch()
    watch.observe(Query("q"), POSITIONS, np.array([1.0, 2.0, 3.0]))
    watch.observe(Query("q"), POSITIONS[:1], np.array([1.0 + 1e-6]))
    assert watch.report.n_different == 0
    assert watch.report.largest_difference == pytest.approx(1e-6)


def test_a_different_answer_warns_once_and_is_counted_every_time() -> None:
    watch = StabilityWatch()
    watch.observe(Query("q"), POSITIONS, np.array([1.0, 2.0, 3.0]))
    with pytest.warns(UnstableScorerWarning, match="1 of 3 repeated pairs, by up to 0.5"):
        watch.observe(Query("q"), POSITIONS, np.array([1.0, 2.5, 3.0]))
    watch.observe(Query("q"), POSITIONS, np.array([1.0, 2.0, 3.0]))
    assert watch.report.n_different == 2


def test_other_queries_are_other_pairs() -> None:
    watch = StabilityWatch()
    watch.observe(Query("q"), POSITIONS, np.array([1.0, 2.0, 3.0]))
    watch.observe(Query("p"), POSITIONS, np.array([9.0, 9.0, 9.0]))
    assert watch.report.n_repeated == 0


def test_memory_is_bounded() -> None:
    watch = StabilityWatch(capacity=2)
    watch.observe(Query("q"), POSITIONS, np.array([1.0, 2.0, 3.0]))
    watch.observe(Query("q"), POSITIONS, np.array([1.0, 2.0, 3.0]))
    assert watch.report.n_repeated < 3


def test_a_build_notices_a_scorer_that_rolls_dice() -> None:
    dice = itertools.count()

    def scorer(pairs: list[tuple[str, str]]) -> list[float]:
        return [float(next(dice)) for _ in pairs]

    with pytest.warns(UnstableScorerWarning):
        index = anncur.Index.build([f"item {n}" for n in range(20)], scorer, ["q"])
    assert index.info.stability.n_different == 8


@pytest.mark.parametrize("constant", [0.1, 1e6 + 0.1, -3.3])
def test_a_constant_scorer_is_stable_though_float32_rounds_it(constant: float) -> None:
    index = anncur.Index.build(["a", "b"], lambda pairs: [constant] * len(pairs), ["q"])
    index.search("q")
    assert index.info.stability.n_different == 0


def test_repeated_searches_notice_a_scorer_that_changes_later() -> None:
    shift = [0.0]

    def scorer(pairs: list[tuple[str, str]]) -> list[float]:
        return [len(item) + shift[0] for _, item in pairs]

    index = anncur.Index.build(["a", "bb", "ccc"], scorer, ["q"])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        index.search("other")
        index.search("other")
    shift[0] = 1.0
    with pytest.warns(UnstableScorerWarning):
        index.search("other")


@pytest.mark.parametrize(("dtype", "n_changed"), [("float16", 0), ("float32", 2)])
def test_what_storing_rounds_is_no_difference(dtype: str, n_changed: int) -> None:
    exact = np.array([1000.3, 1000.4, 1001.0])
    stored = exact.astype(np.float16).astype(np.float64)
    assert n_different(stored, exact, lowest=1000.0, highest=1001.0, dtype=dtype) == n_changed
    watch = StabilityWatch(dtype=dtype)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        watch.observe(Query("q"), POSITIONS, stored)
        watch.observe(Query("q"), POSITIONS, exact)
    assert watch.report.n_different == n_changed


def test_a_real_difference_is_noticed_in_half_precision() -> None:
    before, now = np.array([1.0, 2.0, 3.0]), np.array([1.0, 2.5, 3.0])
    assert n_different(before, now, lowest=1.0, highest=3.0, dtype="float16") == 1


def test_a_mention_and_brackets_in_a_text_are_other_pairs() -> None:
    watch = StabilityWatch()
    watch.observe(Query("small red [bird]"), POSITIONS, np.array([1.0, 2.0, 3.0]))
    watch.observe(Query("small red bird", mention=(10, 14)), POSITIONS, np.array([9.0, 9.0, 9.0]))
    assert watch.report.n_repeated == 0
