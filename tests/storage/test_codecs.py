"""What tuning found, from file to settings."""

from __future__ import annotations

import json

from anncur.search.settings import PosteriorSettings, Tuned
from anncur.storage.codecs import decode_tuned, encode_tuned

SETTINGS = PosteriorSettings(coefficients=(("bm25", (1.0, 0.5)),), weight=0.0, n_initial=10, first=20)


def test_settings_come_back_as_they_were_written() -> None:
    assert decode_tuned(encode_tuned(Tuned(SETTINGS))).settings == SETTINGS


def test_settings_of_before_openings_and_weights_search_as_they_did_then() -> None:
    record = json.loads(encode_tuned(Tuned(SETTINGS)))
    del record["settings"]["weight"], record["settings"]["opening"]
    settings = decode_tuned(json.dumps(record).encode()).settings
    assert settings is not None
    assert (settings.weight, settings.n_initial, settings.first) == (1.0, 0, 20)


def test_settings_that_told_only_whether_retrievers_open_search_as_they_did() -> None:
    record = json.loads(encode_tuned(Tuned(SETTINGS)))
    del record["settings"]["opening"]
    record["settings"]["opens"] = True
    settings = decode_tuned(json.dumps(record).encode()).settings
    assert settings is not None
    assert (settings.n_initial, settings.first) == (20, 20)
