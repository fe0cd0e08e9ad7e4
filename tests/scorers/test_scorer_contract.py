"""One suite for everything that may serve as a scorer."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import anncur
from anncur.errors import InputError
from anncur.scorers.stored import StoredScorer

QUERY = anncur.Query("small bat that eats fruit", mention=(6, 9))
ITEMS = [anncur.Item("a", "eats fruit", "bat"), anncur.Item("b", "a large cat"), anncur.Item("c", "bat")]


def length_of_pairs(pairs: list[tuple[str, str]]) -> list[float]:
    return [float(len(query) + len(item)) for query, item in pairs]


class Predicting:
    def predict(self, pairs: list[tuple[str, str]]) -> Any:
        return np.array(length_of_pairs(pairs), dtype=np.float32)


class Scoring:
    def score(self, query: anncur.Query, items: Sequence[anncur.Item]) -> list[float]:
        return [float(len(query.text) + len(item.text)) for item in items]


def scorers() -> dict[str, Callable[[], object]]:
    matrix = np.arange(3.0).reshape(1, 3)
    return {
        "callable": lambda: length_of_pairs,
        "predict": Predicting,
        "score": Scoring,
        "stored": lambda: StoredScorer(matrix, [QUERY], ["a", "b", "c"]),
        "builtin": lambda: "builtin",
        "named": lambda: "tests_scorers_importable:length",
    }


@pytest.fixture(params=list(scorers()))
def make_scorer(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[], Any]:
    (tmp_path / "tests_scorers_importable.py").write_text("def length(pairs): return [len(q + i) for q, i in pairs]")
    monkeypatch.syspath_prepend(tmp_path)
    return lambda: anncur.load_scorer(scorers()[request.param]())


@pytest.fixture
def scorer(make_scorer: Callable[[], Any]) -> Any:
    return make_scorer()


def test_one_finite_float_per_item(scorer: Any) -> None:
    scores = scorer.score(QUERY, ITEMS)
    assert scores.dtype == np.float64
    assert scores.shape == (3,)
    assert np.isfinite(scores).all()


def test_a_score_does_not_depend_on_the_company_or_the_order(scorer: Any) -> None:
    together = scorer.score(QUERY, ITEMS)
    one_by_one = [scorer.score(QUERY, [item])[0] for item in ITEMS]
    np.testing.assert_allclose(together, one_by_one, atol=1e-6)
    np.testing.assert_allclose(scorer.score(QUERY, ITEMS[::-1]), together[::-1], atol=1e-6)


def test_the_fingerprint_is_the_same_each_time_that_a_scorer_is_loaded(make_scorer: Callable[[], Any]) -> None:
    first, second = make_scorer(), make_scorer()
    assert first.fingerprint
    assert first.fingerprint == second.fingerprint


def test_a_callable_sees_the_marked_text_and_the_full_text() -> None:
    seen: list[tuple[str, str]] = []

    def scorer(pairs: list[tuple[str, str]]) -> list[float]:
        seen.extend(pairs)
        return [0.0] * len(pairs)

    anncur.load_scorer(scorer).score(QUERY, ITEMS[:2])
    assert seen == [("small [bat] that eats fruit", "bat\neats fruit"), ("small [bat] that eats fruit", "a large cat")]


def test_a_scoring_object_sees_queries_and_items() -> None:
    class Scorer:
        def score(self, query: object, items: Sequence[object]) -> list[float]:
            assert query == QUERY
            assert list(items) == ITEMS
            return [1.0, 2.0, 3.0]

    assert anncur.load_scorer(Scorer()).score(QUERY, ITEMS).tolist() == [1.0, 2.0, 3.0]


def test_a_callables_fingerprint_is_its_attribute_else_its_qualified_name() -> None:
    def named(pairs: object) -> list[float]:
        return []

    assert anncur.load_scorer(named).fingerprint.endswith("test_scorer_contract:" + named.__qualname__)
    named.fingerprint = "my-model-v3"  # type: ignore[attr-defined]
    assert anncur.load_scorer(named).fingerprint == "my-model-v3"


def test_a_partials_fingerprint_is_that_of_its_function() -> None:
    partial = functools.partial(length_of_pairs)
    assert anncur.load_scorer(partial).fingerprint == anncur.load_scorer(length_of_pairs).fingerprint


@pytest.mark.parametrize("wrong", [5, None, Predicting, ["a"]])
def test_what_can_not_score_is_refused_with_what_can(wrong: object) -> None:
    with pytest.raises(InputError, match="a scorer must be"):
        anncur.load_scorer(wrong)


@pytest.mark.parametrize("name", ["nocolon", "no.such.module:scorer", "anncur:no_such_name", ":x"])
def test_a_name_that_leads_nowhere_is_refused(name: str) -> None:
    with pytest.raises(InputError, match=r"package\.module:name"):
        anncur.load_scorer(name)


def test_stored_scores_refuse_a_shape_that_does_not_fit() -> None:
    with pytest.raises(InputError, match=r"\(1, 2\) in all, got \(2, 2\)"):
        StoredScorer(np.zeros((2, 2)), ["q"], ["a", "b"])


def test_stored_scores_name_what_they_do_not_know() -> None:
    with pytest.raises(anncur.AnncurError, match="no stored score for 'other'"):
        StoredScorer(np.zeros((1, 1)), ["q"], ["a"]).score(anncur.Query("other"), ITEMS[:1])
