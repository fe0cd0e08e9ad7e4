"""Tuning tries settings one after the other, and what it keeps between them changes nothing."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np

import anncur
from anncur.arrays import FloatMatrix
from anncur.item_scores import HeldScores
from anncur.search.settings import PosteriorSettings
from anncur.tuning.posterior import _Bench, _Choice
from worlds import low_rank_scores

N_QUERIES = 30


class Noisy:
    """Scores as the scorer does, with noise of its own."""

    def __init__(self, name: str, scores: FloatMatrix, noise: float) -> None:
        self.name = name
        self._scores = scores + noise * np.random.default_rng(len(name)).normal(size=scores.shape)

    def fit(self, items: Iterable[anncur.Item]) -> None: ...

    def scores(self, queries: Sequence[anncur.Query]) -> FloatMatrix:
        return self._scores[[int(query.text) for query in queries]]


def new_bench() -> _Bench:
    scores = low_rank_scores(N_QUERIES, 300, rank=25, noise=3.0, seed=5)
    queries = [anncur.Query(str(place)) for place in range(N_QUERIES)]
    retrievers = {name: Noisy(name, scores, noise) for name, noise in {"near": 6.0, "far": 30.0}.items()}
    return _Bench.make(HeldScores(scores.T), queries, retrievers, np.random.default_rng(0))


def test_a_choice_is_worth_the_same_after_others_were_tried() -> None:
    plain = _Choice(("near", "far"), PosteriorSettings(retriever_weight=1.0, n_initial=5))
    others = [
        plain,
        replace(plain, settings=replace(plain.settings, retriever_weight=0.0)),
        replace(plain, retrievers=("far",)),
        replace(plain, settings=replace(plain.settings, noise_share=0.2)),
    ]
    fresh = [new_bench().worth(choice).tolist() for choice in others]
    assert len(set(map(tuple, fresh))) == len(fresh), "these choices differ"
    used = new_bench()
    assert [used.worth(choice).tolist() for choice in (*others, *others)] == [*fresh, *fresh]
    assert len(used.views._made) == 2 * len(used.folds), "no more is kept than two choices need"
