"""A user's own function as a retriever."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

import anncur
from anncur.arrays import FloatVector
from anncur.errors import InputError, RetrieverError
from anncur.retrievers.base import FittedRetriever, Retriever
from anncur.retrievers.loading import FunctionRetriever, RetrieverFunction, load_retrievers
from worlds import World, low_rank_scores

ITEMS = [anncur.Item("a", "one"), anncur.Item("b", "three"), anncur.Item("c", "seven")]
QUERIES = [anncur.Query("x"), anncur.Query("xyz")]


def by_length(query: anncur.Query, items: Sequence[anncur.Item]) -> list[float]:
    return [float(len(item.text) - len(query.text)) for item in items]


def test_it_is_asked_for_each_query_with_all_items() -> None:
    (retriever,) = load_retrievers([by_length]).values()
    retriever.fit(ITEMS)
    assert isinstance(retriever, Retriever)
    assert retriever.name == "by_length"
    assert retriever.scores(QUERIES).tolist() == [[2.0, 4.0, 4.0], [0.0, 2.0, 2.0]]


def test_an_index_searches_with_it_and_is_given_it_again_when_it_is_opened(tmp_path: Path) -> None:
    world = World(low_rank_scores(14, 40, rank=3))

    def oracle(query: anncur.Query, items: Sequence[anncur.Item]) -> FloatVector:
        return world.scorer.score(query, items)

    path = tmp_path / "world.anncur"
    built = anncur.Index.build(world.items, world.scorer, world.queries[:12], path=path, retrievers=[oracle])
    opened = anncur.Index.open(path, world.scorer, retrievers=[oracle])
    for index in (built, opened):
        truth = index.search(world.queries[13], k=3, method="exhaustive")
        assert index.search(world.queries[13], k=3, budget=3, method=anncur.Rerank("oracle")).ids == truth.ids


class Lengths:
    def __call__(self, query: anncur.Query, items: Sequence[anncur.Item]) -> list[float]:
        return by_length(query, items)


def test_an_object_is_named_by_its_class_and_items_may_come_one_by_one() -> None:
    retriever = FunctionRetriever(Lengths())
    retriever.fit(iter(ITEMS))
    assert retriever.name == "Lengths"
    assert retriever.scores(QUERIES).tolist() == [[2.0, 4.0, 4.0], [0.0, 2.0, 2.0]]


def test_a_lambda_has_no_name_to_be_remembered_by() -> None:
    with pytest.raises(InputError, match="define it with def"):
        load_retrievers([lambda _, items: [0.0] * len(items)])


def too_few(query: anncur.Query, items: Sequence[anncur.Item]) -> list[float]:
    return [1.0]


def not_finite(query: anncur.Query, items: Sequence[anncur.Item]) -> list[float]:
    return [float("nan")] * len(items)


def failing(query: anncur.Query, items: Sequence[anncur.Item]) -> list[float]:
    raise RuntimeError("no connection")


def out_of_quota(query: anncur.Query, items: Sequence[anncur.Item]) -> list[float]:
    raise anncur.AnncurError("no quota is left")


def fitted(function: RetrieverFunction) -> FittedRetriever:
    """As an index asks it."""
    return FittedRetriever(function.__name__, FunctionRetriever(function), anncur.Corpus(ITEMS))


def test_an_error_of_ours_comes_through_as_it_is() -> None:
    with pytest.raises(anncur.AnncurError, match=r"^no quota is left$"):
        fitted(out_of_quota).scores(QUERIES)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (too_few, r"too_few must give a number for every query and item, \(1, 3\) in all, .* of shape \(1, 1\)"),
        (not_finite, "must give finite numbers"),
        (failing, "the retriever failing failed to score with RuntimeError: no connection"),
    ],
)
def test_the_message_names_what_is_wrong_with_its_answer(function: RetrieverFunction, message: str) -> None:
    with pytest.raises(RetrieverError, match=message):
        fitted(function).scores(QUERIES[:1])
