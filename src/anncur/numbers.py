"""The rules for numbers that users pass: whole where they count, finite, and large enough."""

from __future__ import annotations

import math
import operator

from anncur.errors import InputError


def whole_number(name: str, value: object, *, least: int) -> int:
    """A whole number of at least `least`, of any integer type."""
    try:
        found = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        raise InputError(f"{name} must be a whole number, got {value!r}") from None
    if found < least:
        raise InputError(f"{name} must be at least {least}, got {found}; give a larger number")
    return found


def number(name: str, value: object, *, least: float, most: float = math.inf) -> float:
    """A finite number between `least` and `most`."""
    try:
        found = math.nan if isinstance(value, str) else float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        found = math.nan
    if not (least <= found <= most and math.isfinite(found)):
        limits = f" at least {least:g}" if most == math.inf else f" between {least:g} and {most:g}"
        raise InputError(f"{name} must be a number{limits if least > -math.inf else ''}, got {value!r}")
    return found
