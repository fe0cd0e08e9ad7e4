"""Filters as expressions of Milvus: the conditions of `filters.py` over fields of a collection.

A field that the schema doesn't have is one of the dynamic field, or of a field of JSON that holds the metadata."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass

from anncur.columns import Comparison, Value
from anncur.errors import InputError
from anncur.filters import Among, And, Condition, Exists, Not, Or, Within, fields_of

ALL_KINDS = frozenset(("boolean", "number", "string"))
NUMBERS, TEXTS, BOOLEANS = ("INT8", "INT16", "INT32", "INT64", "FLOAT", "DOUBLE"), ("VARCHAR",), ("BOOL",)
DYNAMIC = "$meta"
NOTHING = "{key} in []"


@dataclass(frozen=True)
class Field:
    """A field of a schema: its type, and that of its elements if it is an array."""

    name: str
    type: str
    element: str = ""
    is_nullable: bool = False

    @property
    def kinds(self) -> frozenset[str]:
        """Of its values, as filters call them; none where it can't be filtered by."""
        held = self.element or self.type
        if held in NUMBERS:
            return frozenset(("number",))
        if held in BOOLEANS:
            return frozenset(("boolean",))
        return frozenset(("string",)) if held in TEXTS else frozenset()


@dataclass(frozen=True)
class MilvusFilter:
    """Turns conditions into expressions; `json_field` holds metadata that have no field of their own."""

    fields: Mapping[str, Field]
    json_field: str | None
    key: str  # the primary key

    def check(self, condition: Condition) -> None:
        """Refuse fields that there aren't, and values of a kind that a field never has."""
        kinds: dict[str, frozenset[str]] = {name: field.kinds for name, field in self.fields.items()}
        if self.json_field is not None:
            kinds.update({name: ALL_KINDS for name in fields_of(condition) if name not in kinds})
        condition.check(kinds)
        self.expression(condition)

    def expression(self, condition: Condition) -> str:
        match condition:
            case And(conditions):
                return " and ".join(f"({self.expression(each)})" for each in conditions) or f"not ({self._nothing})"
            case Or(conditions):
                return " or ".join(f"({self.expression(each)})" for each in conditions)
            case Not(inner):
                return f"not ({self.expression(inner)})"
            case Exists(field):
                return self._exists(field)
            case Among(field, values):
                return self._among(field, values)
            case Within(field, comparisons):
                name = self._name(field)
                if self._is_array(field):
                    raise InputError(f"Milvus can't compare the values of the list {field!r}; filter by '=' or 'in'")
                whole = self._is_whole(field)
                compared = " and ".join(f"{name} {_whole(each) if whole else _compared(each)}" for each in comparisons)
                return self._where_it_is(field, compared)
        raise AssertionError(f"no expression for {type(condition).__name__}")

    @property
    def _nothing(self) -> str:
        return NOTHING.format(key=self.key)

    def _exists(self, field: str) -> str:
        if field not in self.fields:
            return f"exists {self._name(field)}"
        return f"{field} is not null" if self.fields[field].is_nullable else f"not ({self._nothing})"

    def _among(self, field: str, values: tuple[Value, ...]) -> str:
        if self._is_whole(field):
            values = tuple(value for value in values if float(value.value).is_integer())
        if not values:
            return self._nothing
        listed = f"[{', '.join(map(_literal, values))}]"
        if self._is_array(field):
            return f"array_contains_any({field}, {listed})"
        name = self._name(field)
        if field in self.fields:
            return f"{name} in {listed}"
        single = " or ".join(f"{name} == {_literal(value)}" for value in values)  # milvus-lite knows no `in` of JSON
        return self._where_it_is(field, f"{single} or json_contains_any({name}, {listed})")

    def _where_it_is(self, field: str, expression: str) -> str:
        """False for items without a field of JSON: milvus-lite takes that for unknown, and its negation too."""
        return expression if field in self.fields else f"(({self._exists(field)}) and ({expression}))"

    def _is_array(self, field: str) -> bool:
        return field in self.fields and bool(self.fields[field].element)

    def _is_whole(self, field: str) -> bool:
        """Whether it has whole numbers, which Milvus compares with no others."""
        known = self.fields.get(field)
        return known is not None and (known.element or known.type).startswith("INT")

    def _name(self, field: str) -> str:
        """In expressions; a list of the dynamic field is only found by its plain name."""
        if field in self.fields or (self.json_field == DYNAMIC and field.isidentifier() and field.isascii()):
            return field
        return f"{self.json_field}[{json.dumps(field)}]"


def _compared(comparison: Comparison) -> str:
    return f"{comparison.operator} {_literal(comparison.bound)}"


def _whole(comparison: Comparison) -> str:
    """The same for whole numbers: above 7.5 is above 7, and below it is at most 7."""
    bound = comparison.bound.value
    if not isinstance(bound, float) or bound.is_integer():
        return _compared(comparison)
    return f"{'>' if comparison.operator.startswith('>') else '<='} {math.floor(bound)}"


def _literal(value: Value) -> str:
    if value.kind == "boolean":
        return "true" if value.value else "false"
    is_whole = isinstance(value.value, float) and value.value.is_integer()
    return json.dumps(int(value.value) if is_whole else value.value, ensure_ascii=False)
