"""What was learnt from searches, as files of an index: plain numbers, and JSON that says how to read them.

No query is in them."""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from anncur.errors import DamagedError
from anncur.index.manifest import LESSON, LESSON_ITEMS
from anncur.search.lesson import Lesson


def encode_lesson(lesson: Lesson) -> dict[str, bytes]:
    """The content of its files, the same bytes for the same values."""
    record = {
        "typical": lesson.typical.tolist(),
        "noise": lesson.noise,
        "coefficients": lesson.coefficients,
        "n_queries": lesson.n_queries,
    }
    return {
        LESSON: json.dumps(record, sort_keys=True).encode(),
        LESSON_ITEMS: np.ascontiguousarray(lesson.known, dtype="<f4").tobytes(),
    }


def decode_lesson(contents: dict[str, bytes]) -> Lesson | None:
    """Read what `encode_lesson` wrote; None where nothing was learnt."""
    if LESSON not in contents or LESSON_ITEMS not in contents:
        return None
    try:
        record: dict[str, Any] = json.loads(contents[LESSON])
        typical = np.array(record["typical"], dtype=np.float32)
        known = np.frombuffer(contents[LESSON_ITEMS], dtype="<f4").astype(np.float32).reshape(-1, len(typical))
        coefficients = tuple((name, tuple(values)) for name, values in record["coefficients"])
        return Lesson(known, typical, record["noise"], coefficients, record["n_queries"])
    except (ValueError, TypeError, KeyError) as error:
        raise DamagedError(f"what was learnt from searches can't be read: {error}") from error
