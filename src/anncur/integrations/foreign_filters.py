"""Filters of Haystack and LlamaIndex in our own language.

Reads plain values and attributes, so that neither library is needed here; feeds their modules. What `filters.py` can't
say is refused: a match within text, and fields that are no metadata."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum
from typing import Any

from anncur.errors import InputError

META = "meta."  # before a field of a document's metadata, in Haystack
HAYSTACK_OWN = ("id", "content", "blob", "score", "embedding", "sparse_embedding")  # of a document, beside `meta`
SHARED = {"==": "=", "!=": "!=", ">": ">", ">=": ">=", "<": "<", "<=": "<=", "in": "in"}  # operators, and ours
HAYSTACK = {**SHARED, "not in": "not in"}
LLAMA_INDEX = {**SHARED, "nin": "not in", "any": "in", "contains": "="}

Conditions = dict[str, Any]


def from_haystack(filters: Mapping[str, Any]) -> Conditions:
    """A filter of Haystack: {"field", "operator", "value"}, or {"operator", "conditions"} with AND, OR and NOT."""
    if not isinstance(filters, Mapping) or "operator" not in filters:
        raise InputError(
            f"a filter of Haystack must be a dict with 'operator', and 'field' and 'value' or 'conditions', got "
            f"{filters!r:.200}; one of anncur's goes into filter=…"
        )
    operator = filters["operator"]
    if "field" not in filters:
        conditions = [from_haystack(each) for each in filters.get("conditions", ())]
        return _combined(str(operator).lower(), conditions, negated="and")
    if "value" not in filters:
        raise InputError(f"a comparison of Haystack must have a 'value', got {filters!r:.200}")
    field = str(filters["field"])
    if field in HAYSTACK_OWN:
        raise InputError(f"an index filters by metadata, and {field!r} is no field of it; pass ids as filter=[…]")
    return _compared(field.removeprefix(META), operator, filters["value"], HAYSTACK)


def from_llama_index(filters: Any) -> Conditions:
    """The filters of LlamaIndex: `MetadataFilters`, with some of the same in it."""
    if not hasattr(filters, "filters"):
        raise InputError(f"filters must be MetadataFilters, got {filters!r:.200}; one of anncur's goes into filter=…")
    conditions = [from_llama_index(each) if hasattr(each, "filters") else _of_one(each) for each in filters.filters]
    return _combined(_word(filters.condition) if filters.condition else "and", conditions, negated="or")


def _of_one(filter: Any) -> Conditions:
    """One `MetadataFilter`. A list of ours passes if one of its values does, so that "contains" is equality."""
    operator = _word(filter.operator)
    if operator == "is_empty":
        return {filter.key: None}
    if operator == "all":
        return {"and": [{filter.key: value} for value in _listed(filter.key, operator, filter.value)]}
    return _compared(filter.key, operator, filter.value, LLAMA_INDEX)


def _compared(field: str, operator: str, value: Any, known: Mapping[str, str]) -> Conditions:
    if operator not in known:
        raise InputError(f"an index has no operator {operator!r} for {field!r}; use one of {', '.join(known)}")
    return {field: {known[operator]: value}}


def _combined(word: str, conditions: list[Conditions], *, negated: str) -> Conditions:
    """Conditions joined by a word. NOT is the opposite of all of them together in Haystack, of any in LlamaIndex."""
    if word not in {"and", "or", "not"}:
        raise InputError(f"conditions are joined by AND, OR or NOT, got {word!r}")
    if not conditions:
        raise InputError(f"{word.upper()} must have at least one condition, got none; leave the filter out to pass all")
    return {"not": {negated: conditions}} if word == "not" else {word: conditions}


def _listed(field: str, operator: str, value: Any) -> Iterable[Any]:
    if not isinstance(value, list | tuple):
        raise InputError(f"{operator!r} of {field!r} must have a list of values, got {value!r:.60}")
    return value


def _word(value: Any) -> str:
    return str(value.value if isinstance(value, Enum) else value)
