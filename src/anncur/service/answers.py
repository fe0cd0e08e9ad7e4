"""Answers as JSON, whatever items hold, and problems as theirs."""

from __future__ import annotations

import json
import math
from typing import Any

from pydantic_core import PydanticSerializationError, to_json
from starlette.responses import Response

from anncur.service.problems import MEDIA_TYPE, ProblemError

NDJSON = "application/x-ndjson"


class JsonAnswer(Response):
    """JSON that every client can read: numbers that JSON doesn't have are null."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        return as_json(content)


class ProblemAnswer(Response):
    """A problem."""

    media_type = MEDIA_TYPE

    def __init__(self, problem: ProblemError, request_id: str) -> None:
        super().__init__(as_json(problem.body(request_id)), problem.kind.status, problem.all_headers())


def as_json(content: Any) -> bytes:
    """The bytes of a value."""
    try:
        return to_json(content, inf_nan_mode="null")
    except PydanticSerializationError:  # metadata of a file may hold lone surrogates, which JSON escapes
        return json.dumps(_plain(content), ensure_ascii=True, default=str).encode("ascii")


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(name): _plain(each) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
