"""What tuning found and the feedback model as files of an index: plain numbers and JSON, the same bytes for the same
values. No query is in them."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

import numpy as np

from anncur.errors import DamagedError
from anncur.search.calibration import Calibration
from anncur.search.drift import DriftReference
from anncur.search.feedback import FeedbackModel
from anncur.search.settings import PosteriorSettings, RecallCurve, Tuned
from anncur.storage.manifest import FEEDBACK, FEEDBACK_ITEMS

OLDER_NAMES = {  # of settings, as versions before 0.2 wrote them
    "side": "embeddings_of",
    "side_share": "embedding_share",
    "weight": "retriever_weight",
    "opening": "n_initial",
    "first": "min_round_size",
}
OLDER_FILES = {"lesson.json": FEEDBACK, "lesson.float32": FEEDBACK_ITEMS}  # the feedback model's, before 0.2


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
    if tuned.drift.n_pairs:
        record["drift"] = asdict(tuned.drift)
    return json.dumps(record, sort_keys=True).encode()


def decode_tuned(content: bytes) -> Tuned:
    """Read what `encode_tuned` wrote, also where it had nothing for comparison yet."""
    try:
        record: dict[str, Any] = json.loads(content)
        settings = record["settings"]
        return Tuned(
            None if settings is None else decode_settings(settings),
            _curve(record),
            _calibration(record["calibration"]),
            {name: _curve(found) for name, found in record.get("rerank", {}).items()},
            tuple(record.get("spectrum", ())),
            _drift(record.get("drift")),
        )
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise DamagedError(f"what was tuned can't be read: {error}") from error


def _curve_record(curve: RecallCurve) -> dict[str, Any]:
    return {"found_after": curve.found_after.tolist(), "most_calls": curve.most_calls}


def _curve(record: dict[str, Any]) -> RecallCurve:
    found_after = np.array(record["found_after"], dtype=np.int32)
    return RecallCurve(found_after if found_after.size else np.empty((0, 0), dtype=np.int32), record["most_calls"])


def decode_settings(record: dict[str, Any]) -> PosteriorSettings:
    """Settings from their record in JSON, also by the names that versions before 0.2 gave them."""
    opens = record.pop("opens", False)
    if "first" in record:  # before these two could be set, searches did this
        record = {"weight": 1.0, "opening": record["first"] if opens else 0, **record}
    named = {OLDER_NAMES.get(name, name): value for name, value in record.items()}
    for field in ("coefficients", "spreads"):
        named[field] = tuple((name, tuple(values)) for name, values in named.get(field, ()))
    return PosteriorSettings(**named)


def _calibration(record: dict[str, Any]) -> Calibration:
    stops = tuple(tuple((estimate, calls) for estimate, calls in of_k) for of_k in record["stops"])
    return Calibration(tuple(record["ks"]), tuple(map(tuple, record["weights"])), stops)


def _drift(record: dict[str, Any] | None) -> DriftReference:
    if record is None:  # of an older version
        return DriftReference()
    surprises, best_scores = (tuple(map(tuple, rows)) for rows in (record["surprises"], record.get("best_scores", ())))
    return DriftReference(tuple(record["n_pairs"]), surprises, best_scores, record["n_feedback_queries"])


def encode_feedback(feedback: FeedbackModel) -> dict[str, bytes]:
    """The content of its files, the same bytes for the same values."""
    record = {
        "prior_mean": feedback.prior_mean.tolist(),
        "noise": feedback.noise,
        "coefficients": feedback.coefficients,
        "n_queries": feedback.n_queries,
    }
    return {
        FEEDBACK: json.dumps(record, sort_keys=True).encode(),
        FEEDBACK_ITEMS: np.ascontiguousarray(feedback.item_rows, dtype="<f4").tobytes(),
    }


def decode_feedback(contents: dict[str, bytes]) -> FeedbackModel | None:
    """Read what `encode_feedback` wrote; None where no query log was fitted."""
    contents = {OLDER_FILES.get(name, name): content for name, content in contents.items()}
    if FEEDBACK not in contents or FEEDBACK_ITEMS not in contents:
        return None
    try:
        record: dict[str, Any] = json.loads(contents[FEEDBACK])
        prior_mean = np.array(record.get("prior_mean", record.get("typical")), dtype=np.float32)
        rows = np.frombuffer(contents[FEEDBACK_ITEMS], dtype="<f4").astype(np.float32).reshape(-1, len(prior_mean))
        coefficients = tuple((name, tuple(values)) for name, values in record["coefficients"])
        return FeedbackModel(rows, prior_mean, record["noise"], coefficients, record["n_queries"])
    except (ValueError, TypeError, KeyError) as error:
        raise DamagedError(f"the feedback model can't be read: {error}") from error
