"""Filters as SQL: the conditions of `filters.py` over columns of a table, or over a column that holds JSON.

A missing value meets no condition, so that `not` passes it, as everywhere, and numbers that aren't finite are missing.
Strings are compared by code point. Values are parameters, names are quoted."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import numpy as np

from anncur.attached.values import whole_comparison, whole_values
from anncur.columns import Comparison, Value, sign_beside
from anncur.filters import Among, And, Condition, Exists, Not, Or, Within, fields_of

if TYPE_CHECKING:
    from psycopg.sql import Composable

INTEGERS = {"int2": 2, "int4": 4, "int8": 8}  # bytes
FRACTIONS = ("float4", "float8", "numeric")
TEXTS = ("text", "varchar", "bpchar", "name", "citext")
OTHERS = ("uuid", "date", "timestamp", "timestamptz", "time")  # given as text
ALL_KINDS = frozenset(("boolean", "number", "string"))


@dataclass(frozen=True)
class Column:
    """A column's name, and its type in PostgreSQL; an array's begins with an underscore."""

    name: str
    type: str
    sql_type: str  # as statements have it: quoted, with its schema where that is needed

    @property
    def is_array(self) -> bool:
        return self.type.startswith("_")

    @property
    def element(self) -> str:
        return self.type.removeprefix("_")

    @property
    def kinds(self) -> frozenset[str]:
        """Of its values, as filters call them; none where it can't be filtered by."""
        if self.element in INTEGERS or self.element in FRACTIONS:
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
        column = self.columns.get(field)
        if column is not None:
            return _of_column(condition, column)
        assert self.json_column is not None, "checked before"
        return _of_json(condition, quoted(self.json_column), field)


def quoted(*names: str) -> Composable:
    """A name for a statement that has parameters: psycopg reads %% as one percent sign."""
    from psycopg import sql

    return sql.Identifier(*(name.replace("%", "%%") for name in names))


def _of_column(condition: Exists | Among | Within, column: Column) -> tuple[Composable, list[Any]]:
    from psycopg import sql

    name = quoted(column.name)
    if isinstance(condition, Among):
        shape = "{}::{}[] && %s::{}[]" if column.is_array else "{} = ANY(%s::{}[])"
        cast = sql.SQL(_cast(column))
        casts = [cast, cast] if column.is_array else [cast]
        return sql.SQL(shape).format(name, *casts), [_values(condition.values, column)]
    element = sql.Identifier("element") if column.is_array else name
    compared, bounds = [_is_value(element, column)], []
    for comparison in condition.comparisons if isinstance(condition, Within) else ():
        sign, bound = _bound(comparison, column)
        left = sql.SQL('{}::text COLLATE "C"').format(element) if column.element in TEXTS else element
        compared.append(sql.SQL("{} {} {}").format(left, sql.SQL(sign), sql.SQL(f"%s::{_cast(column)}")))
        bounds.append(bound)
    all_hold = sql.SQL(" AND ").join(compared)
    if not column.is_array:
        return sql.SQL("({})").format(all_hold), bounds
    return sql.SQL("EXISTS (SELECT 1 FROM unnest({}) AS element WHERE {})").format(name, all_hold), bounds


def _is_value(element: Composable, column: Column) -> Composable:
    from psycopg import sql

    if column.element not in FRACTIONS:
        return sql.SQL("{} IS NOT NULL").format(element)
    return sql.SQL("{}::text NOT IN ('NaN', 'Infinity', '-Infinity')").format(element)


def _of_json(condition: Exists | Among | Within, column: Composable, field: str) -> tuple[Composable, list[Any]]:
    """JSON knows numbers, strings and booleans apart, and a list holds each of its values, but no lists."""
    from psycopg import sql

    held = sql.SQL("({}::jsonb -> %s::text)").format(column)
    if isinstance(condition, Exists):
        is_value = '$ ? (@.type() != "null" && @.type() != "object" && @.type() != "array")'
        return sql.SQL("jsonb_path_exists({}, %s::jsonpath)").format(held), [field, is_value]
    if isinstance(condition, Among):
        return sql.SQL("{} @> ANY(%s::jsonb[])").format(held), [
            field,
            [json.dumps(one.value) for one in condition.values],
        ]
    bounds = {f"bound{place}": each.bound.value for place, each in enumerate(condition.comparisons)}
    signs = [each.operator for each in condition.comparisons]
    compared = " && ".join(f"@ {sign} ${name}" for sign, name in zip(signs, bounds, strict=True))
    path = f'$ ? (@.type() == "{condition.comparisons[0].bound.kind}" && {compared})'
    return sql.SQL("jsonb_path_exists({}, %s::jsonpath, %s::jsonb)").format(held), [field, path, json.dumps(bounds)]


def _cast(column: Column) -> str:
    """The type that values are given as."""
    if column.element in INTEGERS:
        return "int8"
    return "text" if column.element in TEXTS else column.element


def _values(values: Sequence[Value], column: Column) -> list[Any]:
    """Those that the column can have, as the driver gets them."""
    if column.element in INTEGERS:
        return list(whole_values(values))
    given = [(value.value, *_held(value.value, column)) for value in values]
    return [sent for value, held, sent in given if held == value]


def _bound(comparison: Comparison, column: Column) -> tuple[str, Any]:
    """The sign and the bound of a comparison with what the column has."""
    if column.element in INTEGERS:
        return whole_comparison(comparison)
    bound = comparison.bound.value
    held, sent = _held(bound, column)
    return (comparison.operator if isinstance(bound, str) else sign_beside(comparison.operator, bound, held=held)), sent


def _held(value: Any, column: Column) -> tuple[Any, Any]:
    """The closest value that the column can have, as items come with it and as the driver gets it."""
    if column.element == "float4":
        with np.errstate(over="ignore"):
            short = np.float32(value)
        return float(str(short)), float(short)  # read as the shortest number that stands for it: 0.1
    if column.element == "float8":
        return float(value), float(value)
    return value, Decimal(repr(value)) if column.element == "numeric" else value
