"""How tables and collections of vectors are called, and which kinds of index a database can have."""

from __future__ import annotations

import hashlib
import re

from anncur.databases.location import Location
from anncur.errors import InputError
from anncur.numbers import number

FLAT, IVF = "flat", "ivf"
KINDS = (IVF, FLAT)
OPTIONS = ("index", "prefix", "timeout")  # of a location
PREFIX = "anncur"
_PREFIX = re.compile("[a-z_][a-z0-9_]{0,30}")


def table_name(prefix: str, space: str) -> str:
    """The name of a space's table: the same in every process, and another one for every space."""
    return f"{prefix}_{hashlib.sha256(space.encode()).hexdigest()[:16]}"


def check_options(index: str, prefix: str) -> None:
    """Refuse what no table can be called or indexed by."""
    if index not in KINDS:
        raise InputError(f"index must be one of {', '.join(KINDS)}, got {index!r}; name it as …?index={IVF}")
    if not _PREFIX.fullmatch(prefix):
        raise InputError(
            f"prefix must be up to 31 small letters, digits and underscores, got {prefix[:40]!r}; name it as …?prefix=…"
        )


def timeout_of(location: Location) -> float:
    """Seconds that a request may take."""
    given = location.option("timeout", "30")
    return number("timeout", float(given) if re.fullmatch(r"\d+(\.\d+)?", given) else given, least=0.001)
