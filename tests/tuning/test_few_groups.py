"""Anchor queries that come from few texts are held out text by text."""

from __future__ import annotations

import numpy as np

import anncur
from anncur.items import Query
from anncur.tuning.held_out import make_folds

N_DOCUMENTS, N_CUTS = 5, 6


def cuts() -> list[str]:
    """Queries cut from five documents, those of one document overlapping."""
    words = [[f"d{document}w{number}" for number in range(60)] for document in range(N_DOCUMENTS)]
    return [" ".join(words[place % N_DOCUMENTS][place // N_DOCUMENTS * 4 :][:20]) for place in range(30)]


def test_there_are_no_more_folds_than_texts() -> None:
    folds = make_folds([Query(text) for text in cuts()], np.arange(N_DOCUMENTS * N_CUTS), n_folds=7)
    assert [len(fold) for fold in folds] == [N_CUTS] * N_DOCUMENTS


def test_an_index_can_be_built_on_queries_from_fewer_texts_than_folds() -> None:
    vectors = {text: np.random.default_rng(number).normal(size=4) for number, text in enumerate(cuts())}

    def score(pairs: list[tuple[str, str]]) -> list[float]:
        return [float(vectors[query] @ np.random.default_rng(int(item)).normal(size=4)) for query, item in pairs]

    index = anncur.Index.build([str(number) for number in range(80)], score, cuts())
    assert len(index.search(cuts()[0], budget=20)) == 10
