"""Filters of other libraries in our language; the libraries themselves are asked in their own tests."""

from __future__ import annotations

from enum import StrEnum
from types import SimpleNamespace
from typing import Any

import pytest

import anncur
from anncur.integrations.foreign_filters import from_haystack, from_llama_index
from boxes import ITEMS, Pencils


class Condition(StrEnum):
    AND = "and"
    OR = "or"
    NOT = "not"


def one(key: str, operator: str, value: Any) -> SimpleNamespace:
    return SimpleNamespace(key=key, operator=operator, value=value)


def several(condition: Condition | None, *filters: Any) -> SimpleNamespace:
    return SimpleNamespace(filters=list(filters), condition=condition)


def sizes(filter: Any) -> set[int]:
    """The sizes of the boxes that pass."""
    index = anncur.Index.build(ITEMS, Pencils())
    hits = index.search("42 pencils", k=len(ITEMS), method="exhaustive", filter=filter)
    return {hit.item.metadata["size"] for hit in hits}


ALL = {item.metadata["size"] for item in ITEMS}


@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        ({"field": "meta.size", "operator": "==", "value": 7}, {7}),
        ({"field": "size", "operator": "!=", "value": 7}, ALL - {7}),
        ({"field": "meta.size", "operator": "in", "value": [7, 9]}, {7, 9}),
        ({"field": "meta.size", "operator": "not in", "value": [7, 9]}, ALL - {7, 9}),
        (
            {
                "operator": "AND",
                "conditions": [
                    {"field": "meta.size", "operator": ">=", "value": 7},
                    {"field": "meta.size", "operator": "<", "value": 9},
                ],
            },
            {7, 8},
        ),
        (
            {
                "operator": "OR",
                "conditions": [
                    {"field": "meta.size", "operator": "==", "value": 7},
                    {"operator": "AND", "conditions": [{"field": "meta.size", "operator": "==", "value": 9}]},
                ],
            },
            {7, 9},
        ),
        (
            {
                "operator": "NOT",
                "conditions": [
                    {"field": "meta.size", "operator": ">", "value": 7},
                    {"field": "meta.size", "operator": "<=", "value": 9},
                ],
            },
            ALL - {8, 9},
        ),
    ],
)
def test_a_filter_of_haystack_passes_what_it_says(filters: dict[str, Any], expected: set[int]) -> None:
    assert sizes(from_haystack(filters)) == expected


@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        (several(None, one("size", "==", 7)), {7}),
        (several(Condition.AND, one("size", ">", 7), one("size", "<=", 9)), {8, 9}),
        (several(Condition.OR, one("size", "==", 7), one("size", "in", [9, 11])), {7, 9, 11}),
        (several(Condition.NOT, one("size", "==", 7), one("size", "nin", [8, 9])), {8, 9}),
        (several(Condition.AND, several(Condition.OR, one("size", "==", 7)), one("size", "!=", 8)), {7}),
        (several(Condition.AND, one("size", "any", [7, 8])), {7, 8}),
        (several(Condition.AND, one("size", "all", [7])), {7}),
        (several(Condition.AND, one("size", "contains", 7)), {7}),
        (several(Condition.AND, one("size", "is_empty", None)), set()),
    ],
)
def test_the_filters_of_llama_index_pass_what_they_say(filters: Any, expected: set[int]) -> None:
    assert sizes(from_llama_index(filters)) == expected


@pytest.mark.parametrize(
    ("filters", "words"),
    [
        ({"size": 7}, "filter=…"),
        ({"operator": "==", "field": "meta.size"}, "'value'"),
        ({"operator": "like", "field": "meta.size", "value": "7"}, "no operator 'like'"),
        ({"operator": "XOR", "conditions": [{"field": "size", "operator": "==", "value": 7}]}, "AND, OR or NOT"),
        ({"operator": "AND", "conditions": []}, "at least one"),
        ({"operator": "==", "field": "id", "value": "box-7"}, "filter=\\[…\\]"),
    ],
)
def test_what_haystack_says_and_an_index_cant_is_refused(filters: dict[str, Any], words: str) -> None:
    with pytest.raises(anncur.InputError, match=words):
        from_haystack(filters)


@pytest.mark.parametrize(
    ("filters", "words"),
    [
        ({"size": 7}, "MetadataFilters"),
        (several(Condition.AND, one("size", "text_match", "7")), "no operator 'text_match'"),
        (several(Condition.AND, one("size", "all", 7)), "a list of values"),
        (several(Condition.AND), "at least one"),
    ],
)
def test_what_llama_index_says_and_an_index_cant_is_refused(filters: Any, words: str) -> None:
    with pytest.raises(anncur.InputError, match=words):
        from_llama_index(filters)
