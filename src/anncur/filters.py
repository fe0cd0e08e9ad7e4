"""The language of filters over items' metadata: which items may be found.

    {"lang": "en", "year": {">=": 2020, "<": 2024}, "tenant": ["a", "b"], "not": {"status": "draft"}}

All entries of a filter must hold. A value stands for equality, a list for any of its values, a mapping of operators for
all of them, and null for a field that an item lacks. `and`, `or` and `not` take filters. An item with several values
passes if one of them does, and `!=`, `not in` and `not` pass what their opposite doesn't.

Reads what users pass and `MetadataColumns`, feeds `search/`. Checks the shape once, and the fields against the data."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from anncur.columns import Comparison, Mask, MetadataColumns, Scalar, Value, kind_of
from anncur.errors import InputError

DEEPEST = 50  # filters within filters
SHOWN_FIELDS = 10  # in an error
RESERVED = ("and", "or", "not")
IDS = ("id", "_id")  # of records, where they are no metadata


class Condition(Protocol):
    """What a filter asks of an item."""

    def check(self, fields: Mapping[str, frozenset[str]]) -> None:
        """Refuse fields that no item has, and values of a kind that a field never has."""
        ...

    def passing(self, columns: MetadataColumns) -> Mask:
        """The rows that pass, in an array of their own."""
        ...


def parse_filter(filter: object) -> Condition:
    """Read a filter, and refuse what isn't one."""
    return _parse(filter, depth=1)


@dataclass(frozen=True, slots=True)
class Exists:
    """The item has a value in the field."""

    field: str

    def check(self, fields: Mapping[str, frozenset[str]]) -> None:
        _check_field(self.field, fields)

    def passing(self, columns: MetadataColumns) -> Mask:
        return columns.present(self.field)


@dataclass(frozen=True, slots=True)
class Among:
    """One of the item's values is one of these."""

    field: str
    values: tuple[Value, ...]

    def check(self, fields: Mapping[str, frozenset[str]]) -> None:
        _check_field(self.field, fields)
        for value in self.values:
            _check_kind(self.field, value, fields)

    def passing(self, columns: MetadataColumns) -> Mask:
        return columns.among(self.field, self.values)


@dataclass(frozen=True, slots=True)
class Within:
    """One of the item's values meets all of these comparisons, whose bounds are of one kind."""

    field: str
    comparisons: tuple[Comparison, ...]

    def check(self, fields: Mapping[str, frozenset[str]]) -> None:
        _check_field(self.field, fields)
        _check_kind(self.field, self.comparisons[0].bound, fields)

    def passing(self, columns: MetadataColumns) -> Mask:
        return columns.within(self.field, self.comparisons)


@dataclass(frozen=True, slots=True)
class And:
    """All of these hold."""

    conditions: tuple[Condition, ...]

    def check(self, fields: Mapping[str, frozenset[str]]) -> None:
        for condition in self.conditions:
            condition.check(fields)

    def passing(self, columns: MetadataColumns) -> Mask:
        passing = np.ones(len(columns), dtype=np.bool_)
        for condition in self.conditions:
            passing &= condition.passing(columns)
        return passing


@dataclass(frozen=True, slots=True)
class Or:
    """One of these holds."""

    conditions: tuple[Condition, ...]

    def check(self, fields: Mapping[str, frozenset[str]]) -> None:
        for condition in self.conditions:
            condition.check(fields)

    def passing(self, columns: MetadataColumns) -> Mask:
        passing = np.zeros(len(columns), dtype=np.bool_)
        for condition in self.conditions:
            passing |= condition.passing(columns)
        return passing


@dataclass(frozen=True, slots=True)
class Not:
    """The opposite."""

    condition: Condition

    def check(self, fields: Mapping[str, frozenset[str]]) -> None:
        self.condition.check(fields)

    def passing(self, columns: MetadataColumns) -> Mask:
        return ~self.condition.passing(columns)


def fields_of(condition: Condition) -> set[str]:
    """The fields that a condition is about."""
    match condition:
        case And(conditions) | Or(conditions):
            return {field for each in conditions for field in fields_of(each)}
        case Not(inner):
            return fields_of(inner)
        case Exists(field) | Among(field, _) | Within(field, _):
            return {field}
    raise InputError(f"{type(condition).__name__} is no condition of a filter")


def _parse(filter: object, *, depth: int) -> Condition:
    if not isinstance(filter, Mapping):
        raise InputError(
            f"a filter must be a mapping of fields to values, got {_shown(filter)}; write it as {{'lang': 'en'}}"
        )
    if depth > DEEPEST:
        raise InputError(f"filters must be nested at most {DEEPEST} deep, got one that is deeper; flatten it")
    return _all([_parse_entry(name, value, depth=depth) for name, value in filter.items()])


def _parse_entry(name: object, value: object, *, depth: int) -> Condition:
    value = _listed(value)
    if not isinstance(name, str):
        raise InputError(f"a field of a filter must be a string, got {_shown(name)}; name a field of the metadata")
    if name == "not":
        return Not(_parse_negated(value, depth=depth))
    if name in RESERVED:
        return _parse_several(name, value, depth=depth)
    if (word := name.lstrip("$").lower()) in RESERVED and _holds_filters(value):
        raise InputError(f"{_shown(name)} is no word of filters; did you mean {word!r}?")
    if isinstance(value, Mapping):
        return _parse_operators(name, value)
    return _in(name, value) if _is_set(value) else _equal(name, value)


def _parse_negated(filter: object, *, depth: int) -> Condition:
    if not isinstance(filter, Mapping):
        raise InputError(
            f"'not' must be a filter, got {_shown(filter)}; write {{'not': {{…}}}}, with 'or' in it for several "
            "(a field of this name can't be filtered by)"
        )
    return _parse(filter, depth=depth + 1)


def _parse_several(word: str, filters: object, *, depth: int) -> Condition:
    if not isinstance(filters, list | tuple):
        raise InputError(
            f"{word!r} must be a list of filters, got {_shown(filters)}; write {{{word!r}: [{{…}}, {{…}}]}} "
            "(a field of this name can't be filtered by)"
        )
    if word == "or" and not filters:
        raise InputError("'or' must have at least one filter, got an empty list; leave it out to pass every item")
    conditions = [_parse(each, depth=depth + 1) for each in filters]
    return _all(conditions) if word == "and" else Or(tuple(conditions))


def _parse_operators(field: str, operators: Mapping[object, object]) -> Condition:
    """The conditions on one field; its comparisons are one range, which one value must meet."""
    if not operators:
        raise InputError(f"{_shown(field)} must have at least one operator, got an empty mapping; {_known_operators()}")
    comparisons: list[Comparison] = []
    conditions: list[Condition] = []
    for name, given in operators.items():
        value = _listed(given)
        if name in COMPARISONS:
            comparisons.append(Comparison(str(name), _bound(f"{_shown(field)} {name}", value)))
        elif isinstance(name, str) and name in _OPERATORS:
            conditions.append(_OPERATORS[name](field, value))
        else:
            raise InputError(f"{_shown(field)} has the unknown operator {_shown(name)}; {_known_operators()}")
    return _all([*_range(field, comparisons), *conditions])


def _all(conditions: list[Condition]) -> Condition:
    return conditions[0] if len(conditions) == 1 else And(tuple(conditions))


def _among(field: str, values: Iterable[object]) -> Condition:
    """Any of these values; null is for items that have none."""
    found = [None if value is None else _value(_shown(field), value) for value in values]
    among = Among(field, tuple(dict.fromkeys(value for value in found if value is not None)))
    if None not in found:
        return among
    missing = Not(Exists(field))
    return Or((among, missing)) if among.values else missing


def _equal(field: str, value: object, *, name: str = "=", of_several: str = "in") -> Condition:
    if _is_set(value):
        raise InputError(
            f"{_shown(field)} {name} must have one value, got {_shown(value)}; use {of_several!r} for several"
        )
    return _among(field, [value])


def _not_equal(field: str, value: object) -> Condition:
    return Not(_equal(field, value, name="!=", of_several="not in"))


def _in(field: str, values: object, *, name: str = "in", of_one: str = "=") -> Condition:
    if not isinstance(values, Iterable) or not _is_set(values):
        raise InputError(
            f"{_shown(field)} {name} must have a list of values, got {_shown(values)}; use {of_one!r} for a single one"
        )
    return _among(field, values)


def _not_in(field: str, values: object) -> Condition:
    return Not(_in(field, values, name="not in", of_one="!="))


def _exists(field: str, value: object) -> Condition:
    if not isinstance(value, bool):
        raise InputError(f"{_shown(field)} exists must be true or false, got {_shown(value)}; pass a boolean")
    return Exists(field) if value else Not(Exists(field))


COMPARISONS = ("<", "<=", ">", ">=")
_OPERATORS: dict[str, Callable[[str, object], Condition]] = {
    "=": _equal,
    "!=": _not_equal,
    "in": _in,
    "not in": _not_in,
    "exists": _exists,
}


def _range(field: str, comparisons: list[Comparison]) -> list[Condition]:
    kinds = sorted({each.bound.kind for each in comparisons})
    if len(kinds) > 1:
        raise InputError(
            f"the bounds of {_shown(field)} must be of one kind, got a {kinds[0]} and a {kinds[1]}; "
            "put two ranges into 'and'"
        )
    return [Within(field, tuple(comparisons))] if comparisons else []


def _bound(name: str, value: object) -> Value:
    if value is None or isinstance(value, bool | np.bool_):
        raise InputError(f"{name} must have a number or a string, got {_shown(value)}; use '=' or 'exists'")
    return _value(name, value)


def _value(name: str, value: object) -> Value:
    plain = value.item() if isinstance(value, np.generic) else value
    kind = kind_of(plain)
    if kind is None or not isinstance(plain, Scalar):
        raise InputError(
            f"a value of {name} must be a boolean, a finite number, a string or null, got {_shown(plain)}; "
            "pass one of these, or a list of them"
        )
    return Value(kind, plain)


def _listed(value: object) -> object:
    """The same value; an array or a range as a list."""
    if isinstance(value, np.ndarray):
        return value.tolist()
    return list(value) if isinstance(value, range) else value


def _is_set(value: object) -> bool:
    return isinstance(value, list | tuple | set | frozenset)


def _holds_filters(value: object) -> bool:
    """Whether a mapping, or one in a list, has other keys than operators."""
    operators = {*_OPERATORS, *COMPARISONS}
    several = value if isinstance(value, list | tuple) else [value]
    return any(isinstance(each, Mapping) and not operators.issuperset(each) for each in several)


def _check_field(field: str, fields: Mapping[str, frozenset[str]]) -> None:
    if field not in fields:
        raise InputError(f"no item has the metadata field {_shown(field)}; {_known_fields(field, fields)}")
    if not fields[field]:
        raise InputError(
            f"a field that is filtered by must hold booleans, numbers, strings or lists of these, got {_shown(field)}, "
            "which holds only nested objects or empty lists; filter by another field"
        )


def _check_kind(field: str, value: Value, fields: Mapping[str, frozenset[str]]) -> None:
    if value.kind not in fields[field]:
        held = " and ".join(f"{kind}s" for kind in sorted(fields[field]))
        raise InputError(
            f"a value must be of a kind that the field has: {_shown(field)} holds {held}, got the {value.kind} "
            f"{_shown(value.value)}; pass one of {held}"
        )


def _known_fields(field: str, fields: Mapping[str, frozenset[str]]) -> str:
    if field in IDS:
        return f"ids are passed as a list, filter=['…']; {_known_fields('', fields)}"
    if not fields:
        return "the items have no metadata to filter by"
    names_by_lower = {name.lower(): name for name in [*RESERVED, *fields]}
    closest = difflib.get_close_matches(field.lower(), names_by_lower, n=1)
    meant = f"did you mean {_shown(names_by_lower[closest[0]])}? " if closest else ""
    names = ", ".join(_shown(name) for name in sorted(fields)[:SHOWN_FIELDS])
    more = f", … {len(fields)} in all" if len(fields) > SHOWN_FIELDS else ""
    return f"{meant}the fields are {names}{more}"


def _known_operators() -> str:
    return f"the operators are {', '.join([*_OPERATORS, *COMPARISONS])}"


def _shown(value: object, limit: int = 60) -> str:
    """A short repr that is safe to print; of what isn't a plain value just the type, as it may be deep."""
    if value is not None and not isinstance(value, Scalar):
        return type(value).__name__
    if isinstance(value, int) and kind_of(value) is None:
        return "an integer beyond the range of float64"
    shown = ascii(value)
    return shown if len(shown) <= limit else shown[: limit - 2] + "…'"
