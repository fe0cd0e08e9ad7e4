"""Ids and values of filters as a database's own types hold them, for all databases.

Pure functions. What a type can't hold equals nothing that is stored; a bound beyond it is its first or last value."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence

from anncur.columns import INT64_MAX, INT64_MIN, Comparison, Value

_WHOLE = re.compile(r"-?[1-9][0-9]{0,18}|0")  # as databases write it: 007 is the id of nothing


def whole_ids(ids: Iterable[str], *, n_bytes: int = 8) -> list[int]:
    """Ids as whole numbers; those that can't be one of this type are left out, like all that are unknown."""
    most = 2 ** (8 * n_bytes - 1)
    return [number for one in ids if _WHOLE.fullmatch(one) and -most <= (number := int(one)) < most]


def whole_values(values: Sequence[Value], *, least: int = INT64_MIN) -> list[int]:
    """The values that a column of whole numbers can have."""
    whole = [int(value.value) for value in values if value.value == int(value.value)]
    return [value for value in whole if least <= value <= INT64_MAX]


def whole_comparison(comparison: Comparison, *, least: int = INT64_MIN) -> tuple[str, int]:
    """The same comparison of whole numbers, with a bound that is one: above 7.5 is above 7."""
    sign, bound = comparison.operator, comparison.bound.value
    assert not isinstance(bound, str), "checked before"
    whole = math.floor(bound) if sign in ("<=", ">") else math.ceil(bound)
    if whole > INT64_MAX:
        return "<=" if sign[0] == "<" else ">", INT64_MAX
    if whole < least:
        return "<" if sign[0] == "<" else ">=", least
    return sign, whole
