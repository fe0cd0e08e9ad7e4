"""`anncur search` and `anncur info` tell of queries that are unlike the anchor queries."""

from __future__ import annotations

import json
import warnings
from pathlib import Path

import pytest
from typer.testing import CliRunner

import anncur
from anncur.cli.main import app

SCORER = """
import zlib
import numpy as np

def vector(text):
    return np.random.default_rng(zlib.crc32(text.encode())).normal(size=8)

def score(pairs):
    return [one_score(query, vector(item)) for query, item in pairs]

def one_score(query, item):
    half = item[:4] if query.startswith("like") else item[4:]
    return float(half @ vector(query)[:4])
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """An index whose anchor queries read one half of an item's vector; other queries read the other half."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    Path("scorer_of_drift.py").write_text(SCORER)
    items = [anncur.Item(f"i{number}", f"item {number}") for number in range(200)]
    anchors = [f"like {number}" for number in range(40)]
    anncur.Index.build(items, "scorer_of_drift:score", anchors, path="x.anncur", retrievers=())
    Path("others.txt").write_text("".join(f"other {number}\n" for number in range(30)))
    return "x.anncur"


def run(*arguments: str) -> str:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", anncur.DriftWarning)
        result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    return result.stdout


def test_a_search_tells_of_a_query_unlike_the_anchor_queries(folder: str) -> None:
    options = ["--budget", "60", "-k", "3"]
    found = json.loads(run("search", folder, "other 1", *options, "--json"))
    assert found["is_unlike_anchors"] is True
    assert found["drift"] >= 0.95
    assert "unlike the anchor queries" in run("search", folder, "other 1", *options)
    shown = [run("search", folder, f"like {number}", *options) for number in (50, 51, 52)]
    assert sum("unlike the anchor queries" in one for one in shown) <= 1


def test_info_tells_what_the_query_log_shows_and_what_to_do(folder: str) -> None:
    assert json.loads(run("info", folder, "--json"))["drift"] is None
    assert "unlike the anchor queries" not in run("info", folder)
    options = ["--budget", "60", "-k", "3", "--log-queries", "100"]
    answered = run("search", folder, "--queries", "others.txt", "--out", "answers.jsonl", *options)
    assert "unlike the anchor queries" in answered
    drift = json.loads(run("info", folder, "--json"))["drift"]
    assert (drift["n_queries"], drift["is_drifting"]) == (30, True)
    shown = " ".join(run("info", folder).split())
    assert "of the last 30 queries are unlike the anchor queries" in shown
    assert "anncur learn" in shown
