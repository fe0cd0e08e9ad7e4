"""Searches over endpoints that misbehave: every score is right, and nothing that was answered is asked for again."""

from __future__ import annotations

import random
import threading
from collections import Counter
from pathlib import Path

import pytest

import anncur
from endpoints import SPOKEN, Answer, Asked, Spoken, honest, score_of, serve

pytestmark = pytest.mark.slow

ITEMS = [anncur.Item(str(number), "bat " * (number % 40) + f"number {number}") for number in range(120)]
QUERIES = ["a bat", "some fruit", "large cats", "the ones that eat fruit"]


class Storm:
    """An honest endpoint that refuses, fails, garbles or limits what it can, and counts the pairs that it answered."""

    def __init__(self, spoken: Spoken, *, most: int, seed: int = 0) -> None:
        self._spoken, self._honest, self._most = spoken, honest(spoken), most
        self._rng, self._lock = random.Random(seed), threading.Lock()
        self.answered: Counter[tuple[str, str]] = Counter()
        self.n_billed = 0

    def __call__(self, asked: Asked) -> Answer:
        with self._lock:
            pairs = self._spoken.pairs(asked.body)
            if len(pairs) > self._most:
                return Answer({"error": f"batch size {len(pairs)} > maximum allowed batch size {self._most}"}, 413)
            trouble = self._rng.random()
            if trouble < 0.2:
                return Answer({"error": "slow down"}, 429, {"Retry-After": "0"})
            if trouble < 0.3:
                return Answer(b"<html>bad gateway</html>", 502)
            if trouble < 0.35:
                return Answer(b'[{"index": 0, "sc', is_cut=True)
            self.n_billed += 1
            if trouble < 0.4:
                return Answer(self._spoken.answer([(0, 1.0)] * (len(pairs) + 1)))
            self.answered.update(pairs)
            return self._honest(asked)


QUICK = {"tei", "vllm-score"}  # one that is asked by query, and one by pairs


@pytest.fixture(params=[name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in SPOKEN])
def spoken(request: pytest.FixtureRequest) -> Spoken:
    return SPOKEN[request.param]


@pytest.mark.parametrize("concurrency", [1, 4])
def test_a_storm_of_refusals_costs_no_score_and_no_pair_twice(spoken: Spoken, concurrency: int, tmp_path: Path) -> None:
    storm = Storm(spoken, most=9)
    with serve(storm) as endpoint:
        name = spoken.name.format(url=endpoint.url)
        rules = {"retries": 50, "retry_wait": 0.001, "batch_size": 32, "concurrency": concurrency}
        scorer = anncur.load_scorer(name, **rules, cache=tmp_path / "scores.cache")  # type: ignore[arg-type]
        index = anncur.Index.build(ITEMS, scorer, retrievers=["bm25"])
        answers = index.search_many(QUERIES, k=5, budget=40)
        again = index.search_many(QUERIES, k=5, budget=40)
    for query, hits in zip(QUERIES, answers, strict=True):
        assert hits.calls == 40
        assert hits.scores == pytest.approx([score_of(query, hit.item.full_text) for hit in hits])
    assert set(storm.answered.values()) == {1}
    assert sum(storm.answered.values()) == 4 * 40
    assert [hits.cached_calls for hits in again] == [40] * 4
    assert [hits.ids for hits in again] == [hits.ids for hits in answers]
    if spoken.unit:
        assert scorer.spent == {spoken.unit: 7 * storm.n_billed}
