"""A string is plain text, always; a mention is given as a span, or by marking it on purpose."""

from __future__ import annotations

from pathlib import Path

import pytest

import anncur
from anncur.items import Query, as_query
from anncur.retrievers.lexical import BM25

IN_C = "what does a[0] mean in C"


@pytest.mark.parametrize("form", [IN_C, {"text": IN_C}, anncur.Query(IN_C)], ids=["string", "dict", "query"])
def test_brackets_in_plain_text_mark_nothing(form: anncur.QueryLike) -> None:
    query = as_query(form)
    assert query.text == IN_C
    assert query.mention is None
    assert query.marked_text == IN_C


def test_a_retriever_of_words_looks_for_all_of_them() -> None:
    items = [anncur.Item("zero", "0"), anncur.Item("c", "the mean of C"), anncur.Item("other", "nothing of it")]
    retriever = BM25()
    retriever.fit(items)
    (scores,) = retriever.scores([as_query(IN_C)])
    assert scores.argmax() == 1


def test_a_scorer_sees_the_text_as_it_was_given() -> None:
    seen: list[str] = []

    def scorer(pairs: list[tuple[str, str]]) -> list[float]:
        seen.extend(query for query, _ in pairs)
        return [float(len(item)) for _, item in pairs]

    index = anncur.Index.build(["a", "bb", "ccc"], scorer)
    index.search(IN_C, k=1)
    assert set(seen) == {IN_C}


def test_a_marked_query_has_its_mention_and_the_text_without_brackets() -> None:
    query = anncur.Query.marked("small [bat] that eats fruit", id="q7")
    assert query == anncur.Query("small bat that eats fruit", id="q7", mention=(6, 9))
    assert query.marked_text == "small [bat] that eats fruit"


@pytest.mark.parametrize("text", ["no bracket", "[two] of [them]", "never [closed", "empty []", "blank [ ]"])
def test_a_marked_query_without_exactly_one_mention_is_refused(text: str) -> None:
    with pytest.raises(anncur.InputError, match="exactly one"):
        anncur.Query.marked(text)


def test_lines_of_a_text_file_are_plain_unless_they_are_marked(tmp_path: Path) -> None:
    file = tmp_path / "queries.txt"
    file.write_text("small [bat]\n")
    assert list(anncur.read_queries(file)) == [anncur.Query("small [bat]")]
    assert list(anncur.read_queries(file, marked=True)) == [anncur.Query("small bat", mention=(6, 9))]


def test_queries_have_the_same_key_only_if_text_and_mention_are_the_same() -> None:
    alike = [
        Query("small red [bird]"),
        Query("small red bird", mention=(10, 14)),
        Query("[small] red bird", mention=(12, 16)),
        Query("small red [bird]", mention=(0, 5)),
        Query("bird] small", mention=(0, 4)),
        Query("bird] small", mention=(0, 5)),
        Query("small red bird"),
    ]
    assert len({query.key for query in alike}) == len(alike)
    assert Query("small red bird", "q1").key == Query("small red bird", "q2").key == "small red bird"
    assert alike[1].key == "small red [bird]", "caches of scores know it by this"
