"""Graphs are written in the bytes that the package `onnx` writes."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("onnx", reason="needs the extra `train`")
pytest.importorskip("transformers", reason="needs the extra `train`")

import onnx
from safetensors.numpy import load_file

from anncur.models import onnx_format
from anncur.models.export import export_bytes
from anncur.models.graph import Shape, build_embedding_graph
from anncur.models.onnx_format import Kind
from models.tiny import make_folder


def graphs(folder: Path) -> list[bytes]:
    """One of every kind."""
    make_folder(folder)
    shape = Shape.from_config(json.loads((folder / "config.json").read_text()))
    weights = load_file(folder / "model.safetensors")
    towers = [build_embedding_graph(weights, shape, head) for head in ("cls", "mean")]
    return [export_bytes(folder), export_bytes(folder, weights="compact"), *towers]


def test_the_bytes_are_those_that_onnx_writes(tmp_path: Path) -> None:
    for content in graphs(tmp_path):
        assert onnx.load_from_string(content).SerializeToString(deterministic=True) == content


def test_the_graphs_pass_the_check_of_onnx(tmp_path: Path) -> None:
    for content in graphs(tmp_path):
        onnx.checker.check_model(onnx.load_from_string(content))


@pytest.mark.parametrize("dtype", ["float32", "int8", "int32", "int64", "bool"])
def test_constants_are_read_back_as_they_were(dtype: str) -> None:
    rng = np.random.default_rng(0)
    for value in (rng.normal(size=(3, 400)).T * 100, rng.normal(size=(1,)) * 100, np.array(-7.0)):
        constant = onnx_format.tensor(value.astype(dtype), "x")
        read = onnx.TensorProto.FromString(b"".join(constant))
        np.testing.assert_array_equal(onnx.numpy_helper.to_array(read), value.astype(dtype))
        assert read.name == "x"


def test_attributes_are_read_back_as_they_were() -> None:
    branch = onnx_format.graph([], "g", outputs=[onnx_format.value_info("y", Kind.FLOAT, None)])
    given: dict[str, onnx_format.Attribute] = {"b": -1, "a": 0.5, "c": [1, -2, 2**40], "d": branch}
    node = onnx_format.node("Op", ["x", ""], ["y"], domain="", attributes=given)
    read = onnx.NodeProto.FromString(b"".join(node))
    found = {attribute.name: onnx.helper.get_attribute_value(attribute) for attribute in read.attribute}
    assert list(found) == ["a", "b", "c", "d"]
    assert (found["a"], found["b"], found["c"], found["d"].name) == (0.5, -1, [1, -2, 2**40], "g")
    assert (list(read.input), list(read.output), read.op_type) == (["x", ""], ["y"], "Op")
