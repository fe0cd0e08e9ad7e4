"""Anchor queries that were cut from the same text are held out together."""

from __future__ import annotations

import numpy as np

from anncur.items import Query
from anncur.tuning.held_out import make_folds, related

WORDS = [f"word{number}" for number in range(400)]


def cut(start: int, n_words: int = 20) -> Query:
    return Query(" ".join(WORDS[start : start + n_words]))


def test_queries_whose_texts_overlap_are_related_also_by_way_of_others() -> None:
    queries = [cut(0), cut(100), cut(10), cut(20), cut(105)]
    assert related(queries) == [[0, 2, 3], [1, 4]]


def test_the_case_of_letters_and_a_second_time_in_the_same_text_make_no_difference() -> None:
    eight = cut(0, n_words=8).text
    assert related([Query(eight), Query(f"{eight.upper()} and {eight.upper()}")]) == [[0, 1]]


def test_a_few_words_in_common_mean_nothing() -> None:
    assert related([cut(0), cut(14), cut(28)]) == [[0], [1], [2]]


def test_a_form_that_queries_are_put_in_makes_none_of_them_related() -> None:
    queries = [Query(f"{' '.join(WORDS[:12])} {' '.join(WORDS[start : start + 9])}") for start in range(20, 320, 20)]
    assert related(queries) == [[place] for place in range(15)]


def test_no_text_is_in_two_folds_and_every_query_is_in_one() -> None:
    texts = np.repeat(np.arange(12), 3)
    queries = [cut(30 * text + 4 * number) for text, number in zip(texts.tolist(), [0, 1, 2] * 12, strict=True)]
    held_out = np.random.default_rng(0).permutation(36)
    folds = make_folds(queries, held_out, n_folds=4)
    assert sorted(np.concatenate(folds).tolist()) == list(range(36))
    assert [len(fold) for fold in folds] == [9, 9, 9, 9]
    homes = [{fold for fold, some in enumerate(folds) if text in texts[some]} for text in range(12)]
    assert all(len(home) == 1 for home in homes)


def test_queries_of_one_text_alone_are_split_all_the_same() -> None:
    folds = make_folds([cut(4 * number) for number in range(12)], np.arange(12), n_folds=3)
    assert [len(fold) for fold in folds] == [4, 4, 4]


def test_a_chain_of_texts_that_holds_most_queries_is_split_all_the_same() -> None:
    queries = [cut(11 * number) for number in range(12)]
    assert len(related(queries)) == 1
    assert [len(fold) for fold in make_folds(queries, np.arange(12), n_folds=3)] == [4, 4, 4]
