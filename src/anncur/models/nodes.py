"""Collects the nodes and constants of an ONNX graph, and names their outputs.

`graph.py` arranges them; `onnx_format.py` has the bytes. Weights are NumPy arrays under the names of transformers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from anncur.errors import InputError
from anncur.models import onnx_format
from anncur.models.onnx_format import Attribute, Kind, Message

Weights: TypeAlias = Mapping[str, NDArray[np.float32]]
Name: TypeAlias = str  # of a value in the graph
Dimensions: TypeAlias = tuple[int | str, ...]  # of an input or output; a string names one that varies

FUSED = "com.microsoft"  # the domain of ONNX Runtime's own operators
FUSED_OPERATORS = {"FusedMatMul", "Gelu", "MultiHeadAttention"}
OPSETS = {"": 17, FUSED: 1}
IR_VERSION = 8


@dataclass(frozen=True, slots=True)
class Backend:
    """How weights are stored; the arithmetic is in float32 either way."""

    embeddings: Literal["float32", "int8"] = "float32"
    layers: Literal["float32", "int8"] = "float32"


FLOAT32 = Backend()


def quantised(matrix: NDArray[np.float32], *, axis: int) -> tuple[NDArray[np.int8], NDArray[np.float32]]:
    """Integers of one byte and their scales along `axis`: matrix ≈ integers * scales."""
    scales = np.abs(matrix).max(axis=axis, keepdims=True).astype(np.float32) / np.float32(127)
    scales[scales == 0] = 1
    return np.rint(matrix / scales).astype(np.int8), scales


class Nodes:
    """The nodes of a graph in the order of their execution, and its constants."""

    def __init__(self, weights: Weights, backend: Backend = FLOAT32) -> None:
        self._weights = weights
        self._backend = backend
        self._nodes: list[Message] = []
        self._constants: dict[Name, Message] = {}

    def add(self, operator: str, *inputs: Name, output: Name = "", **attributes: Attribute) -> Name:
        """A node with one output."""
        return self.add_many(operator, *inputs, outputs=[output or f"{operator}_{len(self._nodes)}"], **attributes)[0]

    def add_many(self, operator: str, *inputs: Name, outputs: list[Name], **attributes: Attribute) -> list[Name]:
        """A node with several outputs."""
        self._nodes.append(_node(operator, inputs, outputs, attributes))
        return outputs

    def branch(self, operator: str, *inputs: Name, output: Name, **attributes: Attribute) -> Message:
        """A graph of one node, for an `If`."""
        node = _node(operator, inputs, [output], attributes)
        return onnx_format.graph([node], output, outputs=[onnx_format.value_info(output, Kind.FLOAT, None)])

    def constant(self, value: NDArray[Any], name: Name = "") -> Name:
        """A value stored in the file."""
        name = name or f"constant_{len(self._constants)}"
        self._constants[name] = onnx_format.tensor(value, name)
        return name

    def integers(self, *values: int) -> Name:
        """A vector of integers, such as a shape or axes."""
        return self.constant(np.array(values, dtype=np.int64))

    def number(self, value: float) -> Name:
        """A single float32."""
        return self.constant(np.array(value, dtype=np.float32))

    def cast(self, value: Name, kind: Kind) -> Name:
        """A value as another type of number."""
        return self.add("Cast", value, to=kind)

    def vector(self, key: str) -> Name:
        """A bias or the weights of a norm, always stored in float32."""
        return self.constant(self._weight(key), key)

    def matrix(self, key: str) -> Name:
        """A linear layer's (in, out) matrix; ONNX Runtime converts it to float32 once, when it opens the file."""
        matrix = self._weight(key).T
        if self._backend.layers == "int8":
            integers, scales = quantised(matrix, axis=0)
            return self.add("Mul", self.cast(self.constant(integers, key), Kind.FLOAT), self.constant(scales))
        return self.constant(matrix, key)

    def rows(self, key: str, places: Name) -> Name:
        """Rows of a table of embeddings; of one stored as integers, only these are converted to float32."""
        table = self._weight(key)
        if self._backend.embeddings == "float32":
            return self.add("Gather", self.constant(table, key), places)
        integers, scales = quantised(table, axis=1)
        found = self.cast(self.add("Gather", self.constant(integers, key), places), Kind.FLOAT)
        return self.add("Mul", found, self.add("Gather", self.constant(scales, key + ".scales"), places))

    def serialised(
        self,
        name: str,
        *,
        inputs: Mapping[Name, Dimensions],
        outputs: Mapping[Name, Dimensions],
        metadata: Mapping[str, str],
    ) -> bytes:
        """The content of the file: `inputs` are int32, `outputs` float32, each with its shape."""
        whole = onnx_format.graph(
            self._nodes,
            name,
            inputs=[onnx_format.value_info(name, Kind.INT32, shape) for name, shape in inputs.items()],
            outputs=[onnx_format.value_info(name, Kind.FLOAT, shape) for name, shape in outputs.items()],
            constants=self._constants.values(),
        )
        return onnx_format.model(whole, ir_version=IR_VERSION, opsets=OPSETS, metadata=metadata)

    def _weight(self, key: str) -> NDArray[np.float32]:
        try:
            return np.asarray(self._weights[key], dtype=np.float32)
        except KeyError:
            raise InputError(
                f"the model's weights must hold {key!r}, but don't; is config.json that of another model, or was it "
                "saved for another task?"
            ) from None


def _node(operator: str, inputs: tuple[Name, ...], outputs: list[Name], attributes: Mapping[str, Attribute]) -> Message:
    domain = FUSED if operator in FUSED_OPERATORS else ""
    return onnx_format.node(operator, inputs, outputs, domain=domain, attributes=attributes)
