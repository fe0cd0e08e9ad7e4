"""What tuning found and the feedback model, from file to values; also as older versions wrote them."""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from anncur.search.drift import DriftReference
from anncur.search.feedback import FeedbackModel
from anncur.search.settings import PosteriorSettings, Tuned
from anncur.storage.codecs import (
    OLDER_FILES,
    OLDER_NAMES,
    decode_feedback,
    decode_tuned,
    encode_feedback,
    encode_tuned,
)

SETTINGS = PosteriorSettings(
    coefficients=(("bm25", (1.0, 0.5)),), retriever_weight=0.0, n_initial=10, min_round_size=20
)


def older_record() -> dict[str, Any]:
    """What versions before 0.2 wrote of these settings."""
    older_names = {name: older for older, name in OLDER_NAMES.items()}
    record: dict[str, Any] = json.loads(encode_tuned(Tuned(SETTINGS)))
    record["settings"] = {older_names.get(name, name): value for name, value in record["settings"].items()}
    return record


def decoded(record: dict[str, Any]) -> PosteriorSettings:
    settings = decode_tuned(json.dumps(record).encode()).settings
    assert settings is not None
    return settings


def test_settings_come_back_as_they_were_written() -> None:
    assert decode_tuned(encode_tuned(Tuned(SETTINGS))).settings == SETTINGS


def test_settings_with_older_names_are_read() -> None:
    assert decoded(older_record()) == SETTINGS


def test_settings_without_initial_candidates_and_weight_search_as_they_did_then() -> None:
    record = older_record()
    del record["settings"]["weight"], record["settings"]["opening"]
    settings = decoded(record)
    assert (settings.retriever_weight, settings.n_initial, settings.min_round_size) == (1.0, 0, 20)


def test_settings_with_only_a_flag_for_initial_candidates_search_as_they_did() -> None:
    record = older_record()
    del record["settings"]["opening"]
    record["settings"]["opens"] = True
    settings = decoded(record)
    assert (settings.n_initial, settings.min_round_size) == (20, 20)


def test_a_feedback_model_comes_back_as_it_was_written_also_from_files_with_older_names() -> None:
    rows = np.arange(12, dtype=np.float32).reshape(4, 3)
    feedback = FeedbackModel(rows, rows[0] + 0.5, 0.25, (("bm25", (1.0, 0.5)),), n_queries=7)
    contents = encode_feedback(feedback)
    older_files = {name: older for older, name in OLDER_FILES.items()}
    older = {older_files[name]: content.replace(b"prior_mean", b"typical") for name, content in contents.items()}
    for found in (decode_feedback(contents), decode_feedback(older)):
        assert found is not None
        np.testing.assert_array_equal(found.item_rows, feedback.item_rows)
        np.testing.assert_array_equal(found.prior_mean, feedback.prior_mean)
        assert (found.noise, found.coefficients, found.n_queries) == (0.25, feedback.coefficients, 7)


def test_what_drift_is_compared_with_comes_back_as_it_was_written() -> None:
    surprises, best_scores = np.random.default_rng(0).gamma(2.0, size=(2, 3, 7))
    reference = DriftReference.of(surprises, best_scores, n_feedback_queries=12)
    decoded_again = decode_tuned(encode_tuned(Tuned(SETTINGS, drift=reference))).drift
    assert decoded_again == reference
    assert decoded_again.identity == reference.identity


def test_what_an_older_version_compared_with_is_read_without_best_scores() -> None:
    reference = DriftReference((10,), ((0.5, 1.5),), n_feedback_queries=3)
    record = json.loads(encode_tuned(Tuned(SETTINGS, drift=reference)))
    del record["drift"]["best_scores"]
    assert decode_tuned(json.dumps(record).encode()).drift == reference


def test_an_index_that_compares_nothing_is_read_and_written_as_before() -> None:
    content = encode_tuned(Tuned(SETTINGS))
    assert "drift" not in json.loads(content)
    assert decode_tuned(content).drift == DriftReference()
