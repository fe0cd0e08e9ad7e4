"""What tuning found, as a file of an index: JSON, the same bytes for the same values."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

import numpy as np

from anncur.errors import DamagedError
from anncur.search.beliefs import PosteriorSettings, RecallCurve, Tuned
from anncur.search.calibration import Calibration


def encode_tuned(tuned: Tuned) -> bytes:
    """JSON of settings, curve and calibration."""
    record = {
        "settings": None if tuned.settings is None else asdict(tuned.settings),
        "found_after": tuned.curve.found_after.tolist(),
        "most_calls": tuned.curve.most_calls,
        "calibration": asdict(tuned.calibration),
    }
    return json.dumps(record, sort_keys=True).encode()


def decode_tuned(content: bytes) -> Tuned:
    """Read what `encode_tuned` wrote."""
    try:
        record: dict[str, Any] = json.loads(content)
        settings, found_after = record["settings"], np.array(record["found_after"], dtype=np.int32)
        return Tuned(
            None if settings is None else _settings(settings),
            RecallCurve(found_after if found_after.size else np.empty((0, 0), dtype=np.int32), record["most_calls"]),
            _calibration(record["calibration"]),
        )
    except (ValueError, TypeError, KeyError) as error:
        raise DamagedError(f"what was tuned can't be read: {error}") from error


def _settings(record: dict[str, Any]) -> PosteriorSettings:
    coefficients = tuple((name, tuple(values)) for name, values in record.pop("coefficients"))
    return PosteriorSettings(**record, coefficients=coefficients)


def _calibration(record: dict[str, Any]) -> Calibration:
    stops = tuple(tuple((estimate, calls) for estimate, calls in of_k) for of_k in record["stops"])
    return Calibration(tuple(record["ks"]), tuple(map(tuple, record["weights"])), stops)
