"""The engines by the names that users call them."""

from __future__ import annotations

from typing import TypeAlias

from anncur.engines.base import Engine
from anncur.engines.local import LOCAL
from anncur.engines.ray import RayEngine
from anncur.errors import InputError

NAMES = ("local", "ray")
EngineLike: TypeAlias = Engine | str


def as_engine(engine: EngineLike) -> Engine:
    """The engine of a name, or one that was made with settings."""
    if engine == LOCAL.name:
        return LOCAL
    if engine == RayEngine.name:
        return RayEngine()
    if isinstance(engine, str) or not callable(getattr(engine, "run", None)):
        raise InputError(f"engine must be one of {', '.join(NAMES)}, or anncur.RayEngine(…), got {engine!r}")
    return engine
