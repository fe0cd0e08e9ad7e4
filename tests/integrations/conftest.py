"""An index that the tests of all libraries search, and settings that keep these libraries from calling home."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

# before any of them is imported
os.environ["HAYSTACK_TELEMETRY_ENABLED"] = "False"
os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"
os.environ["LANGSMITH_TRACING"] = "false"
for library in ("HF_HUB", "HF_DATASETS", "TRANSFORMERS"):
    os.environ[f"{library}_OFFLINE"] = "1"

import anncur
from boxes import ITEMS, Pencils


@pytest.fixture
def scorer() -> Pencils:
    return Pencils()


@pytest.fixture
def index(scorer: Pencils) -> anncur.Index:
    return anncur.Index.build(ITEMS, scorer, [f"{size} pencils" for size in range(5, 200, 20)])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Of an index whose scorer can be loaded by its name."""
    path = tmp_path / "boxes.anncur"
    anncur.Index.build(ITEMS, "boxes:score_boxes", path=path)
    return path
