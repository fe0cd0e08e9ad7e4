"""A model's folder becomes one file."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

pytest.importorskip("onnx", reason="needs the extra `train`")
pytest.importorskip("transformers", reason="needs the extra `train`")

from anncur.cli.main import app
from anncur.errors import FileFormatError, InputError
from anncur.models.checkpoint import ModelCard
from anncur.models.export import WeightFormat, export, export_bytes
from anncur.scorers.onnx import OnnxScorer
from anncur.tokens import PairFormat
from models.tiny import QUERY, make_folder, make_items, save_model, transformers_scores

ITEMS = make_items(20)
SAMPLE = [(QUERY, item) for item in ITEMS]


def test_the_file_alone_scores_as_the_folder_does(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "model")
    expected = transformers_scores(folder, QUERY, ITEMS)
    report = export(folder, tmp_path / "model.onnx")
    for file in folder.iterdir():
        file.unlink()
    assert report.n_bytes == (tmp_path / "model.onnx").stat().st_size
    np.testing.assert_allclose(OnnxScorer.open(tmp_path / "model.onnx").score(QUERY, ITEMS), expected, atol=1e-4)


def test_the_same_folder_gives_the_same_file(tmp_path: Path) -> None:
    folder = make_folder(tmp_path)
    assert export_bytes(folder) == export_bytes(folder)


def test_a_classifier_that_others_saved_scores_plain_pairs(tmp_path: Path) -> None:
    save_model(tmp_path, head="cls")
    found = OnnxScorer(export_bytes(tmp_path)).score(QUERY, ITEMS)
    ModelCard("cross-encoder", "cls", PairFormat(32, 32, marks=False)).write(tmp_path)  # half of its 64 positions
    np.testing.assert_allclose(found, transformers_scores(tmp_path, QUERY, ITEMS), atol=1e-4)


@pytest.mark.parametrize(
    ("weights", "mean", "correlation"), [("float32", 0.0, 1.0), ("compact", 0.3, 0.9), ("int8", 3.0, 0.5)]
)
def test_the_report_has_how_far_scores_moved(
    weights: WeightFormat, mean: float, correlation: float, tmp_path: Path
) -> None:
    folder = make_folder(tmp_path / "model")
    report = export(folder, tmp_path / "x.onnx", weights=weights, sample=SAMPLE)
    assert report.change is not None
    assert report.change.n_pairs == len(SAMPLE)
    assert 0 <= report.change.mean_difference <= mean
    assert report.change.mean_difference <= report.change.max_difference
    assert report.change.rank_correlation >= correlation
    exact, found = (OnnxScorer(content) for content in (export_bytes(folder), (tmp_path / "x.onnx").read_bytes()))
    differences = np.abs([exact.score(QUERY, [item])[0] - found.score(QUERY, [item])[0] for item in ITEMS])
    np.testing.assert_allclose(differences.max(), report.change.max_difference, atol=1e-3)


def test_every_kind_of_weights_is_a_scorer_of_its_own(tmp_path: Path) -> None:
    folder = make_folder(tmp_path)
    kinds: list[WeightFormat] = ["float32", "compact", "int8"]
    assert len({OnnxScorer(export_bytes(folder, weights=kind)).fingerprint for kind in kinds}) == 3


def test_a_failed_export_leaves_the_old_file_and_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = make_folder(tmp_path / "model")
    (tmp_path / "out").mkdir()
    file = tmp_path / "out" / "x.onnx"
    file.write_bytes(b"old")

    def no_space(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", no_space)
    with pytest.raises(OSError, match="No space"):
        export(folder, file)
    assert os.listdir(tmp_path / "out") == ["x.onnx"]
    assert file.read_bytes() == b"old"


def test_only_int8_needs_onnx_and_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = make_folder(tmp_path)
    expected = export_bytes(folder)
    monkeypatch.setitem(sys.modules, "onnx", None)
    assert export_bytes(folder) == expected
    with pytest.raises(InputError, match=r"int8 weights need onnx .*pip install 'anncur\[train\]'"):
        export_bytes(folder, weights="int8")


def test_wrong_folders_are_refused_with_what_is_missing(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no file .*config\.json"):
        export_bytes(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(FileFormatError, match="not JSON"):
        export_bytes(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(InputError, match=r"no file .*model\.safetensors"):
        export_bytes(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"xxxxxxxxxxxxxxxx")
    with pytest.raises(FileFormatError, match=r"model\.safetensors: can't be read"):
        export_bytes(tmp_path)


def test_a_plain_encoder_without_a_card_is_refused(tmp_path: Path) -> None:
    save_model(tmp_path, head="emb")
    with pytest.raises(InputError, match=r"one output, but .* has no classifier"):
        export_bytes(tmp_path)


def test_texts_longer_than_the_models_positions_are_refused(tmp_path: Path) -> None:
    folder = make_folder(tmp_path, format=PairFormat(32, 33))
    with pytest.raises(InputError, match="64 positions together, got 32 and 33"):
        export_bytes(folder)


def test_unknown_weights_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="float32, compact, int8, got 'int4'"):
        export(tmp_path, tmp_path / "x.onnx", weights="int4")  # type: ignore[arg-type]


def test_the_command_writes_the_file_and_prints_the_change(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "model")
    command = ["export", str(folder), "--out", str(tmp_path / "x.onnx"), "--weights", "compact"]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 0, result.output
    assert "On 200 pairs of the sample, scores differ from float32 by" in result.stdout
    answer = json.loads(CliRunner().invoke(app, [*command, "--json"]).stdout)
    assert answer["bytes"] == (tmp_path / "x.onnx").stat().st_size
    assert answer["change"]["rank_correlation"] > 0.9


def test_the_command_ends_in_one_line_when_there_is_no_model(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["export", str(tmp_path), "--out", str(tmp_path / "x.onnx")])
    assert result.exit_code == 1
    assert "config.json" in result.stderr
