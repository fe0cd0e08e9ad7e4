"""Mentions that lose most of their context, so that a model learns to score short queries."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="needs the extra `train`")
pytest.importorskip("transformers", reason="needs the extra `train`")

from anncur.errors import InputError
from anncur.items import Query
from anncur.tokens import PairTokenizer
from anncur.training.examples import Examples, shortened
from anncur.training.jobs import DataSettings
from training.toy_tasks import TEXT, Toys


@pytest.mark.parametrize(
    ("left", "right", "marked"),
    [(1, 2, "c [d e] f g"), (0, 0, "[d e]"), (9, 0, "a b c [d e]"), (0, 9, "[d e] f g h")],
)
def test_only_the_words_next_to_the_mention_stay(left: int, right: int, marked: str) -> None:
    assert shortened(Query.marked("a b c [d e] f g h"), left, right).marked_text == marked


def test_a_query_without_a_mention_stays_as_it_is() -> None:
    assert shortened(Query("a b c"), 1, 1) == Query("a b c")


def test_a_share_of_the_examples_gets_shorter_and_none_longer(tmp_path: Path) -> None:
    toys = Toys(tmp_path, dropout=0.0)
    whole = Examples.draw(toys.worlds("train"), PairTokenizer.from_folder(toys.network, TEXT), n=None, seed=0)
    half, all_short = replace(whole, short_contexts=0.5), replace(whole, short_contexts=1.0)
    is_shorter = [len(short) < len(query) for short, query in zip(half.queries, whole.queries, strict=True)]
    assert 0 < sum(is_shorter) < len(whole)
    assert all(len(short) <= len(query) for short, query in zip(all_short.queries, whole.queries, strict=True))
    assert sum(map(len, all_short.queries)) < sum(map(len, half.queries))
    assert half.describe() != whole.describe()


def test_a_share_outside_0_and_1_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="short_contexts"):
        DataSettings(tmp_path, short_contexts=1.5)
