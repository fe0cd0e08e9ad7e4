"""Filters as expressions of Milvus: the conditions of `filters.py` over fields of a collection.

A field that the schema doesn't have is one of the dynamic field, or of a field of JSON that holds the metadata. A
missing value meets no condition, so that `not` passes it, as everywhere. For Milvus a condition on it is unknown, and
its negation too, so that conditions ask whether the value is there."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from anncur.attached.values import whole_comparison, whole_values
from anncur.columns import INT64_MAX, INT64_MIN, Comparison, Value, sign_beside
from anncur.errors import InputError
from anncur.filters import Among, And, Condition, Exists, Not, Or, Within, fields_of

ALL_KINDS = frozenset(("boolean", "number", "string"))
NUMBERS, TEXTS, BOOLEANS = ("INT8", "INT16", "INT32", "INT64", "FLOAT", "DOUBLE"), ("VARCHAR",), ("BOOL",)
LEAST = INT64_MIN + 1  # it reads a sign and then a number, which must be within int64 by itself
DYNAMIC = "$meta"
NOTHING = "{key} in []"
KEYWORDS = {"and", "or", "not", "in", "like", "is", "null", "exists", "true", "false"}
KEYWORDS |= {f"{kind}_contains{which}" for kind in ("array", "json") for which in ("", "_all", "_any")}
KEYWORDS |= {"array_length", "text_match", "phrase_match"}


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
    """Turns conditions into expressions; `json_field` holds metadata that have no field of their own.

    `others` are fields of the schema that are no metadata: the dynamic field has none of their names."""

    fields: Mapping[str, Field]
    json_field: str | None
    key: str  # the primary key
    others: frozenset[str] = frozenset()
    is_lite: bool = False

    def check(self, condition: Condition) -> None:
        """Refuse fields that there aren't, and values of a kind that a field never has."""
        kinds: dict[str, frozenset[str]] = {name: field.kinds for name, field in self.fields.items()}
        if self.json_field is not None:
            taken = {*kinds, *(self.others if self.json_field == DYNAMIC else ())}
            kinds.update({name: ALL_KINDS for name in fields_of(condition) if name not in taken})
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
                if self._is_array(field):
                    raise InputError(f"Milvus can't compare the values of the list {field!r}; filter by '=' or 'in'")
                name = self._name(field)
                compared = " and ".join(f"{name} {self._compared(field, each)}" for each in comparisons)
                return self._where_it_is(field, compared)
        raise AssertionError(f"no expression for {type(condition).__name__}")

    @property
    def _nothing(self) -> str:
        return NOTHING.format(key=self.key)

    def _exists(self, field: str) -> str:
        if field not in self.fields:
            return f"exists {self._name(field)}"
        return f"{field} is not null" if self.fields[field].is_nullable else f"not ({self._nothing})"

    def _among(self, field: str, values: Sequence[Value]) -> str:
        literals = self._literals(field, values)
        if not literals:
            return self._nothing
        name, listed = self._name(field), f"[{', '.join(literals)}]"
        if self._is_array(field):
            return self._where_it_is(field, f"array_contains_any({name}, {listed})")
        if field in self.fields:
            return self._where_it_is(field, f"{name} in {listed}")
        single = " or ".join(f"{name} == {literal}" for literal in literals)  # milvus-lite knows no `in` of JSON
        if self.is_lite and name.startswith(DYNAMIC):  # nor lists of the dynamic field, but by a plain name
            return self._where_it_is(field, single)
        return self._where_it_is(field, f"{single} or json_contains_any({name}, {listed})")

    def _literals(self, field: str, values: Sequence[Value]) -> list[str]:
        """Those that the field can have; all of one type, if it has one."""
        if self._is_whole(field):
            return list(map(str, whole_values(values, least=LEAST)))
        if self._is_fraction(field):
            return [json.dumps(float(value.value)) for value in values if float(value.value) == value.value]
        return list(map(_literal, values))

    def _compared(self, field: str, comparison: Comparison) -> str:
        """A sign and a bound, of the field's own type if it has one."""
        sign, bound = comparison.operator, comparison.bound.value
        if self._is_whole(field):
            sign, whole = whole_comparison(comparison, least=LEAST)
            return f"{sign} {whole}"
        if self._is_fraction(field) and not isinstance(bound, str):
            return f"{sign_beside(sign, bound, held=float(bound))} {json.dumps(float(bound))}"
        return f"{sign} {_literal(comparison.bound)}"

    def _where_it_is(self, field: str, expression: str) -> str:
        """False for items without the field."""
        if field in self.fields and not self.fields[field].is_nullable:
            return expression
        return f"(({self._exists(field)}) and ({expression}))"

    def _is_array(self, field: str) -> bool:
        return field in self.fields and bool(self.fields[field].element)

    def _is_whole(self, field: str) -> bool:
        """Whether it has whole numbers, which Milvus compares with no others."""
        known = self.fields.get(field)
        return known is not None and (known.element or known.type).startswith("INT")

    def _is_fraction(self, field: str) -> bool:
        return field in self.fields and "number" in self.fields[field].kinds and not self._is_whole(field)

    def _name(self, field: str) -> str:
        """In expressions; milvus-lite finds lists of the dynamic field by a plain name alone."""
        is_plain = field.isidentifier() and field.isascii() and field.lower() not in KEYWORDS
        if field in self.fields or (self.json_field == DYNAMIC and is_plain):
            return field
        return f"{self.json_field}[{json.dumps(field)}]"


def _literal(value: Value) -> str:
    plain = value.value
    if value.kind == "boolean":
        return "true" if plain else "false"
    if isinstance(plain, str):
        return json.dumps(plain, ensure_ascii=False)
    if not LEAST <= plain <= INT64_MAX:
        return json.dumps(float(plain))
    return json.dumps(int(plain) if plain == int(plain) else plain)
