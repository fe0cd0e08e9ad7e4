"""The graph computes what transformers computes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
from numpy.typing import NDArray

pytest.importorskip("onnx", reason="needs the extra `train`")
pytest.importorskip("transformers", reason="needs the extra `train`")

import onnxruntime
from onnx import load_from_string
from safetensors.numpy import load_file

from anncur.errors import InputError
from anncur.models.graph import Shape, build_graph
from anncur.models.nodes import FLOAT32, Backend, quantised
from anncur.tokens import Layout, PairBatch, PairFormat, PairTokenizer
from models.tiny import CONFIG, QUERY, make_folder, make_items, run_transformers


def session(folder: Path, head: Literal["emb", "cls"], backend: Backend = FLOAT32) -> Any:
    shape = Shape.from_config(json.loads((folder / "config.json").read_text()))
    content = build_graph(load_file(folder / "model.safetensors"), shape, head, backend=backend)
    return onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])


def run(graph: Any, batch: PairBatch) -> NDArray[np.float32]:
    (scores,) = graph.run(None, {value.name: getattr(batch, value.name) for value in graph.get_inputs()})
    return np.asarray(scores)


def make_batch(folder: Path, texts: PairFormat, n_items: int) -> PairBatch:
    tokenizer = PairTokenizer.from_folder(folder, texts)
    return tokenizer.assemble([tokenizer.query(QUERY)] * n_items, tokenizer.items(make_items(n_items)))


@pytest.mark.parametrize("n_layers", [1, 2, 3])
@pytest.mark.parametrize("layout", ["contiguous", "fixed-offset"])
@pytest.mark.parametrize("head", ["emb", "cls"])
def test_scores_are_those_of_transformers(
    head: Literal["emb", "cls"], layout: Layout, n_layers: int, tmp_path: Path
) -> None:
    texts = PairFormat(32, 24, layout)
    folder = make_folder(tmp_path, head=head, format=texts, n_layers=n_layers)
    graph = session(folder, head)
    for n_items in (1, 17):  # alone there is no padding
        batch = make_batch(folder, texts, n_items)
        expected = run_transformers(folder, batch, head=head)
        np.testing.assert_allclose(run(graph, batch), expected, atol=1e-4)
    assert expected.std() > 0.02, "scores must differ for this test to mean anything"


@pytest.mark.parametrize("head", ["emb", "cls"])
def test_compact_weights_score_as_the_float32_weights_that_they_decode_to(
    head: Literal["emb", "cls"], tmp_path: Path
) -> None:
    folder = make_folder(tmp_path, head=head)
    batch = make_batch(folder, PairFormat(32, 24), 9)
    decoded = {
        key: restored(value) if value.ndim == 2 else value
        for key, value in load_file(folder / "model.safetensors").items()
    }
    expected = run_transformers(folder, batch, head=head, state=decoded)
    found = run(session(folder, head, Backend("int8", "int8")), batch)
    np.testing.assert_allclose(found, expected, atol=1e-4)
    assert np.abs(found - run(session(folder, head), batch)).max() > 1e-4, "the weights were not made smaller"


def restored(value: NDArray[np.float32]) -> NDArray[np.float32]:
    integers, scales = quantised(value, axis=1)  # the rows of a table, the outputs of a linear layer
    return integers * scales


def test_quantised_weights_are_off_by_half_a_step_at_most_and_zeros_stay_zeros() -> None:
    matrix = np.random.default_rng(0).normal(size=(7, 9)).astype(np.float32)
    matrix[3] = 0
    integers, scales = quantised(matrix, axis=1)
    assert (np.abs(integers * scales - matrix) <= 0.5001 * scales).all()
    assert not (integers * scales)[3].any()


def test_compact_layers_are_converted_to_float32_once_and_not_in_every_run(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "model", head="cls")
    shape = Shape.from_config(json.loads((folder / "config.json").read_text()))
    weights = load_file(folder / "model.safetensors")
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    options.log_severity_level = 3

    def count_nodes(backend: Backend) -> int:
        options.optimized_model_filepath = str(tmp_path / "optimised.onnx")
        onnxruntime.InferenceSession(build_graph(weights, shape, "cls", backend=backend), options)
        return len(load_from_string((tmp_path / "optimised.onnx").read_bytes()).graph.node)

    assert count_nodes(Backend("float32", "int8")) == count_nodes(FLOAT32)


def test_a_cls_graph_takes_no_marks(tmp_path: Path) -> None:
    folder = make_folder(tmp_path, head="cls")
    names = [value.name for value in session(folder, "cls").get_inputs()]
    assert names == ["token_ids", "segment_ids", "position_ids", "mask"]


@pytest.mark.parametrize(
    "change", [{"model_type": "roberta"}, {"hidden_act": "relu"}, {"position_embedding_type": "relative_key"}]
)
def test_other_architectures_are_refused_with_what_differs(change: dict[str, str]) -> None:
    known = {**CONFIG, "model_type": "bert", "hidden_act": "gelu", "layer_norm_eps": 1e-12}
    (key, value), *_ = change.items()
    assert Shape.from_config(known).head_width == 8
    with pytest.raises(InputError, match=rf"only a BERT whose {key} is .* got '{value}'"):
        Shape.from_config({**known, **change})


def test_missing_weights_are_named(tmp_path: Path) -> None:
    folder = make_folder(tmp_path, head="emb")
    with pytest.raises(InputError, match=r"must hold 'pooler\.dense\.weight'"):
        session(folder, "cls")
