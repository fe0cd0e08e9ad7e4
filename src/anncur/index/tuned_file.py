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
    """JSON of settings, curve and calibration, and of what there is for comparison."""
    record: dict[str, Any] = {
        "settings": None if tuned.settings is None else asdict(tuned.settings),
        **_curve_record(tuned.curve),
        "calibration": asdict(tuned.calibration),
    }
    if tuned.rerank_curves:
        record["rerank"] = {name: _curve_record(curve) for name, curve in tuned.rerank_curves.items()}
    if tuned.spectrum:
        record["spectrum"] = tuned.spectrum
    return json.dumps(record, sort_keys=True).encode()


def decode_tuned(content: bytes) -> Tuned:
    """Read what `encode_tuned` wrote, also where it had nothing for comparison yet."""
    try:
        record: dict[str, Any] = json.loads(content)
        settings = record["settings"]
        return Tuned(
            None if settings is None else _settings(settings),
            _curve(record),
            _calibration(record["calibration"]),
            {name: _curve(found) for name, found in record.get("rerank", {}).items()},
            tuple(record.get("spectrum", ())),
        )
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise DamagedError(f"what was tuned can't be read: {error}") from error


def _curve_record(curve: RecallCurve) -> dict[str, Any]:
    return {"found_after": curve.found_after.tolist(), "most_calls": curve.most_calls}


def _curve(record: dict[str, Any]) -> RecallCurve:
    found_after = np.array(record["found_after"], dtype=np.int32)
    return RecallCurve(found_after if found_after.size else np.empty((0, 0), dtype=np.int32), record["most_calls"])


def _settings(record: dict[str, Any]) -> PosteriorSettings:
    coefficients = tuple((name, tuple(values)) for name, values in record.pop("coefficients"))
    opening = record["first"] if record.pop("opens", False) else 0  # how files told of it at first
    if_absent = {"weight": 1.0, "opening": opening}  # what searches did before these two could be set
    return PosteriorSettings(**{**if_absent, **record}, coefficients=coefficients)


def _calibration(record: dict[str, Any]) -> Calibration:
    stops = tuple(tuple((estimate, calls) for estimate, calls in of_k) for of_k in record["stops"])
    return Calibration(tuple(record["ks"]), tuple(map(tuple, record["weights"])), stops)
