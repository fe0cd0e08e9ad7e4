"""Filters as SQL: the conditions of `filters.py` over columns of a table, or over a column that holds JSON.

A missing value meets no condition, so that `not` passes it, as everywhere. Strings are compared by code point. Values
are parameters, names are quoted."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from anncur.columns import Comparison, Value
from anncur.filters import Among, And, Condition, Exists, Not, Or, Within, fields_of

if TYPE_CHECKING:
    from psycopg.sql import Composable

NUMBERS = {"int2": "int8", "int4": "int8", "int8": "int8", "float4": "float8", "float8": "float8", "numeric": "numeric"}
TEXTS = ("text", "varchar", "bpchar", "name", "citext")
OTHERS = ("uuid", "date", "timestamp", "timestamptz", "time")  # given as text
ALL_KINDS = frozenset(("boolean", "number", "string"))


@dataclass(frozen=True)
class Column:
    """A column's name, and its type in PostgreSQL; an array's begins with an underscore."""

    name: str
    type: str

    @property
    def is_array(self) -> bool:
        return self.type.startswith("_")

    @property
    def element(self) -> str:
        return self.type.removeprefix("_")

    @property
    def kinds(self) -> frozenset[str]:
        """Of its values, as filters call them; none where it can't be filtered by."""
        if self.element in NUMBERS:
            return frozenset(("number",))
        if self.element == "bool":
            return frozenset(("boolean",))
        return frozenset(("string",)) if self.element in TEXTS + OTHERS else frozenset()


@dataclass(frozen=True)
class SqlFilter:
    """Turns conditions into SQL, for the columns of one table; `json_column` holds the metadata that have none."""

    columns: Mapping[str, Column]
    json_column: str | None = None

    def check(self, condition: Condition) -> None:
        """Refuse fields that there aren't, and values of a kind that a field never has."""
        kinds: dict[str, frozenset[str]] = {name: column.kinds for name, column in self.columns.items()}
        if self.json_column is not None:
            kinds.update({name: ALL_KINDS for name in fields_of(condition) if name not in kinds})
        condition.check(kinds)

    def where(self, condition: Condition) -> tuple[Composable, list[Any]]:
        """An expression that is true or false, never null, and its parameters."""
        from psycopg import sql

        match condition:
            case And(conditions) | Or(conditions):
                parts = [self.where(each) for each in conditions]
                word = " AND " if isinstance(condition, And) else " OR "
                empty = sql.SQL("true" if isinstance(condition, And) else "false")
                joined = sql.SQL("({})").format(sql.SQL(word).join([part for part, _ in parts])) if parts else empty
                return joined, [value for _, values in parts for value in values]
            case Not(inner):
                part, values = self.where(inner)
                return sql.SQL("(NOT {})").format(part), values
            case Exists(field) | Among(field, _) | Within(field, _):
                part, values = self._of_field(condition, field)
                return sql.SQL("coalesce({}, false)").format(part), values
        raise AssertionError(f"no SQL for {type(condition).__name__}")

    def _of_field(self, condition: Exists | Among | Within, field: str) -> tuple[Composable, list[Any]]:
        from psycopg import sql

        column = self.columns.get(field)
        if column is not None:
            return _of_column(condition, column)
        assert self.json_column is not None, "checked before"
        return _of_json(condition, sql.Identifier(self.json_column), field)


def _of_column(condition: Exists | Among | Within, column: Column) -> tuple[Composable, list[Any]]:
    from psycopg import sql

    name = sql.Identifier(column.name)
    if isinstance(condition, Exists):
        filled = sql.SQL("cardinality({}) > 0").format(name) if column.is_array else sql.SQL("true")
        return sql.SQL("({} IS NOT NULL AND {})").format(name, filled), []
    if isinstance(condition, Among):
        values = [_fitting(value, column) for value in condition.values]
        type_name = sql.SQL(f"%s::{_cast(column)}[]")
        if column.is_array:
            return sql.SQL("{}::{} && {}").format(name, sql.SQL(f"{_cast(column)}[]"), type_name), [values]
        return sql.SQL("{} = ANY({})").format(name, type_name), [values]
    element = sql.Identifier("element") if column.is_array else name
    compared = sql.SQL(" AND ").join([_comparison(each, element, column) for each in condition.comparisons])
    bounds = [_fitting(each.bound, column) for each in condition.comparisons]
    if not column.is_array:
        return compared, bounds
    return sql.SQL("EXISTS (SELECT 1 FROM unnest({}) AS element WHERE {})").format(name, compared), bounds


def _comparison(comparison: Comparison, element: Composable, column: Column) -> Composable:
    from psycopg import sql

    is_text = column.element in TEXTS
    left = sql.SQL('{}::text COLLATE "C"').format(element) if is_text else element
    cast = "text" if is_text else "float8" if _is_fraction(comparison.bound) else _cast(column)
    return sql.SQL("{} {} {}").format(left, sql.SQL(comparison.operator), sql.SQL(f"%s::{cast}"))


def _of_json(condition: Exists | Among | Within, column: Composable, field: str) -> tuple[Composable, list[Any]]:
    """JSON knows numbers, strings and booleans apart, and a list holds each of its values."""
    from psycopg import sql

    path = f"$.{json.dumps(field)}"
    if isinstance(condition, Exists):
        exists = "jsonb_path_exists({}::jsonb, %s::jsonpath)"
        return sql.SQL(exists).format(column), [f'{path}[*] ? (@.type() != "null" && @.type() != "object")']
    if isinstance(condition, Among):
        value_in = sql.SQL("({}::jsonb -> %s) @> ANY(%s::jsonb[])").format(column)
        return value_in, [field, [json.dumps(value.value) for value in condition.values]]
    wanted = " && ".join(f"@ {each.operator} ${_variable(place)}" for place, each in enumerate(condition.comparisons))
    bounds = {_variable(place): each.bound.value for place, each in enumerate(condition.comparisons)}
    exists = "jsonb_path_exists({}::jsonb, %s::jsonpath, %s::jsonb)"
    return sql.SQL(exists).format(column), [f"{path}[*] ? ({wanted})", json.dumps(bounds)]


def _variable(place: int) -> str:
    return f"bound{place}"


def _cast(column: Column) -> str:
    """The type that values are given as."""
    if column.element in NUMBERS:
        return NUMBERS[column.element]
    return "text" if column.element in TEXTS else column.element


def _fitting(value: Value, column: Column) -> Any:
    """A value as the driver gets it; whole where a column of whole numbers may have it."""
    if value.kind == "number" and NUMBERS.get(column.element) == "int8" and not _is_fraction(value):
        return int(value.value)
    return value.value


def _is_fraction(value: Value) -> bool:
    return isinstance(value.value, float) and not value.value.is_integer()
