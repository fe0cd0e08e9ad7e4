"""Which negatives a mention is trained against."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from anncur.arrays import FloatMatrix
from anncur.datasets.zeshel import LinkingWorld, Mention
from anncur.errors import InputError
from anncur.items import Corpus, Item, Query
from anncur.training.examples import NegativeSettings, drawn_negatives, random_negatives, retrieved_negatives


class ByPosition:
    """Scores items by their position, the last one highest."""

    name = "by position"

    def fit(self, items: object) -> None: ...

    def scores(self, queries: Sequence[Query]) -> FloatMatrix:
        return np.tile(np.arange(6, dtype=np.float32), (len(queries), 1))


def world(golds: list[int]) -> LinkingWorld:
    mentions = [Mention(Query(f"mention {number}"), str(gold), "w", "d") for number, gold in enumerate(golds)]
    return LinkingWorld("w", Corpus([Item(str(number), "text") for number in range(6)]), mentions, golds)


@given(n_items=st.integers(2, 9), n=st.integers(0, 30), seed=st.integers(0, 999))
def test_random_negatives_are_any_item_but_the_gold_one(n_items: int, n: int, seed: int) -> None:
    golds = np.arange(n_items)
    drawn = random_negatives(golds, n_items, n, np.random.default_rng(seed))
    assert drawn.shape == (n_items, n)
    assert ((drawn >= 0) & (drawn < n_items)).all()
    assert not (drawn == golds[:, None]).any()


def test_every_negative_is_drawn_equally_often() -> None:
    drawn = random_negatives(np.array([2]), 5, 40_000, np.random.default_rng(0))
    assert np.bincount(drawn[0], minlength=5) / 40_000 == pytest.approx([0.25, 0.25, 0, 0.25, 0.25], abs=0.02)


def test_a_world_of_one_entity_has_no_negatives() -> None:
    with pytest.raises(InputError, match="at least 2 entities"):
        random_negatives(np.array([0]), 1, 3, np.random.default_rng(0))


def test_retrieved_negatives_are_the_best_items_without_the_gold_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("anncur.training.examples.QUERIES_AT_ONCE", 2)
    found = retrieved_negatives(world([5, 0, 4, 3]), np.array([0, 2, 3]), ByPosition(), 2)
    assert found.tolist() == [[4, 3], [5, 3], [5, 4]]


def test_a_small_world_gives_all_of_its_negatives() -> None:
    assert retrieved_negatives(world([5]), np.array([0]), ByPosition(), 60).tolist() == [[4, 3, 2, 1, 0]]


@given(n=st.integers(1, 12), share=st.sampled_from([0.0, 0.25, 0.5, 1.0]), n_pool=st.integers(1, 8))
def test_negatives_come_from_the_pool_apart_from_a_random_share(n: int, share: float, n_pool: int) -> None:
    golds = np.array([0, 50, 99])
    pool = np.arange(10, 10 + n_pool) + np.array([[0], [10], [20]])
    drawn = drawn_negatives(pool, golds, 100, n, random_share=share, rng=np.random.default_rng(0))
    assert drawn.shape == (3, n)
    assert not (drawn == golds[:, None]).any()
    n_pooled = min(n - round(n * share), n_pool)
    for row, allowed in zip(drawn[:, :n_pooled].tolist(), pool.tolist(), strict=True):
        assert set(row) <= set(allowed)
        assert len(set(row)) == n_pooled, "none twice"


def test_the_best_of_a_pool_are_drawn_more_often() -> None:
    pool = np.tile(np.arange(10), (4000, 1))
    golds = np.full(4000, 99)
    drawn = drawn_negatives(pool, golds, 100, 3, random_share=0, rng=np.random.default_rng(0))
    counts = np.bincount(drawn.ravel(), minlength=10)
    assert counts[0] > 2 * counts[9]
    assert counts[9] > 0


@pytest.mark.parametrize("wrong", [{"n": 0}, {"pool": 0}, {"random_share": 1.5}], ids=str)
def test_settings_that_make_no_sense_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(InputError, match="must be"):
        NegativeSettings(**wrong)  # type: ignore[arg-type]
