"""A BERT cross-encoder as an ONNX graph, arranged for speed on CPUs.

Takes weights as NumPy arrays under the names of transformers, feeds `export.py`. The graph's inputs are the fields of
`tokens.PairBatch`, its output is one score per pair. Nothing is approximated; three things are left out:

- the first layer's queries, keys and values of a token that has the same position in another pair of the batch, as
  all tokens of a query have;
- the last layer, but for the tokens that the head reads;
- the last layer's keys and values: with so few queries it is cheaper to multiply those by the keys' matrix, and the
  averages of the states by the values' matrix.

Only BERT, and only ONNX Runtime runs it, because it has operators of its own. Needs `onnx`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray
from onnx import TensorProto, checker, helper, numpy_helper

from anncur.errors import InputError
from anncur.models.checkpoint import Head

Weights: TypeAlias = Mapping[str, NDArray[np.float32]]
Name: TypeAlias = str  # of a value in the graph

FUSED = "com.microsoft"  # the domain of ONNX Runtime's own operators
FUSED_OPERATORS = {"FusedMatMul", "Gelu"}
OPSETS = {"": 17, FUSED: 1}
IR_VERSION = 8
IS_FULL = "is_full"  # name of the graph's value that is true where no pair of the batch is padded
FAR_BELOW = -1e9  # added to the attention logits of padding: their softmax is 0 in float32


@dataclass(frozen=True, slots=True)
class Backend:
    """How weights are stored; the arithmetic is in float32 either way."""

    embeddings: Literal["float32", "int8"] = "float32"
    layers: Literal["float32", "int8"] = "float32"


FLOAT32 = Backend()


@dataclass(frozen=True, slots=True)
class Shape:
    """The dimensions of a BERT, from its config.json."""

    width: int
    n_heads: int
    n_layers: int
    n_positions: int
    epsilon: float

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Shape:
        """Read a parsed config.json, and refuse what this graph doesn't compute."""
        given = {"position_embedding_type": "absolute", "is_decoder": False, **config}
        needed = {
            "model_type": "bert",
            "hidden_act": "gelu",
            "position_embedding_type": "absolute",
            "is_decoder": False,
        }
        for key, value in needed.items():
            if given.get(key) != value:
                raise InputError(
                    f"only a BERT whose {key} is {value!r} can be exported, got {given.get(key)!r}; other networks "
                    "score without being exported: load_scorer('folder')"
                )
        try:
            return cls(
                width=given["hidden_size"],
                n_heads=given["num_attention_heads"],
                n_layers=given["num_hidden_layers"],
                n_positions=given["max_position_embeddings"],
                epsilon=given["layer_norm_eps"],
            )
        except KeyError as error:
            raise InputError(f"the config.json of a BERT must give {error}; is it this model's?") from error

    @property
    def head_width(self) -> int:
        """The width of one attention head."""
        return self.width // self.n_heads


def build_graph(
    weights: Weights,
    shape: Shape,
    head: Head,
    *,
    backend: Backend = FLOAT32,
    metadata: Mapping[str, str] | None = None,
) -> bytes:
    """The bytes of an .onnx file that scores pairs."""
    if head not in ("emb", "cls"):
        raise InputError(f"a cross-encoder's head must be 'emb' or 'cls', got {head!r}; export another model")
    graph = _Graph(_without_prefix(weights), backend)
    graph.add("Cast", graph.add("ReduceMin", "mask", keepdims=0), to=TensorProto.BOOL, output=IS_FULL)
    distinct = _distinct_tokens(graph, shape)
    states = graph.add("Gather", distinct.embeddings, distinct.places)  # (n_pairs, n_tokens, width)
    for layer in range(shape.n_layers - 1):
        attended = _attend(graph, shape, layer, states, distinct)
        states = _feed_forward(graph, shape, layer, attended, states)
    read = _read_states(graph, head, states)  # (n_pairs, n_read, width)
    attended = _attend_last(graph, shape, read, states)
    read = _feed_forward(graph, shape, shape.n_layers - 1, attended, read)
    inputs = ["token_ids", "segment_ids", "position_ids", "mask"]
    if head == "emb":
        _emb_scores(graph, read)
        return graph.serialised([*inputs, "marks"], metadata or {})
    _cls_scores(graph, read)
    return graph.serialised(inputs, metadata or {})


def quantised(matrix: NDArray[np.float32], *, axis: int) -> tuple[NDArray[np.int8], NDArray[np.float32]]:
    """Integers of one byte and their scales along `axis`: matrix ≈ integers * scales."""
    scales = np.abs(matrix).max(axis=axis, keepdims=True).astype(np.float32) / np.float32(127)
    scales[scales == 0] = 1
    return np.rint(matrix / scales).astype(np.int8), scales


class _Graph:
    """Collects nodes and constants, and names their outputs."""

    def __init__(self, weights: Weights, backend: Backend) -> None:
        self._weights = weights
        self._backend = backend
        self._nodes: list[Any] = []
        self._constants: dict[Name, Any] = {}

    def add(self, operator: str, *inputs: Name, output: Name = "", **attributes: Any) -> Name:
        """A node with one output."""
        return self.add_many(operator, *inputs, outputs=[output or f"{operator}_{len(self._nodes)}"], **attributes)[0]

    def add_many(self, operator: str, *inputs: Name, outputs: list[Name], **attributes: Any) -> list[Name]:
        """A node with several outputs."""
        domain = FUSED if operator in FUSED_OPERATORS else ""
        self._nodes.append(helper.make_node(operator, list(inputs), outputs, domain=domain, **attributes))
        return outputs

    def constant(self, value: NDArray[Any], name: Name = "") -> Name:
        """A value stored in the file."""
        name = name or f"constant_{len(self._constants)}"
        self._constants[name] = numpy_helper.from_array(np.asarray(value, order="C"), name)
        return name

    def integers(self, *values: int) -> Name:
        """A vector of integers, such as a shape or axes."""
        return self.constant(np.array(values, dtype=np.int64))

    def number(self, value: float) -> Name:
        """A single float32."""
        return self.constant(np.array(value, dtype=np.float32))

    def cast(self, value: Name, kind: int) -> Name:
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
            return self.add("Mul", self.cast(self.constant(integers, key), TensorProto.FLOAT), self.constant(scales))
        return self.constant(matrix, key)

    def rows(self, key: str, places: Name) -> Name:
        """Rows of a table of embeddings; of one stored as integers, only these are converted to float32."""
        table = self._weight(key)
        if self._backend.embeddings == "float32":
            return self.add("Gather", self.constant(table, key), places)
        integers, scales = quantised(table, axis=1)
        found = self.cast(self.add("Gather", self.constant(integers, key), places), TensorProto.FLOAT)
        return self.add("Mul", found, self.add("Gather", self.constant(scales, key + ".scales"), places))

    def serialised(self, inputs: list[Name], metadata: Mapping[str, str]) -> bytes:
        """The content of the file."""
        declared = [
            helper.make_tensor_value_info(name, TensorProto.INT32, ["n_pairs", 3 if name == "marks" else "n_tokens"])
            for name in inputs
        ]
        scores = helper.make_tensor_value_info("scores", TensorProto.FLOAT, ["n_pairs"])
        graph = helper.make_graph(self._nodes, "cross_encoder", declared, [scores], list(self._constants.values()))
        opsets = [helper.make_opsetid(domain, version) for domain, version in OPSETS.items()]
        model = helper.make_model(graph, opset_imports=opsets, ir_version=IR_VERSION, producer_name="anncur")
        helper.set_model_props(model, dict(metadata))
        checker.check_model(model)
        return bytes(model.SerializeToString(deterministic=True))

    def _weight(self, key: str) -> NDArray[np.float32]:
        try:
            return np.asarray(self._weights[key], dtype=np.float32)
        except KeyError:
            raise InputError(
                f"the model's weights must hold {key!r}, but don't; is config.json that of another model, or was it "
                "saved for another task?"
            ) from None


@dataclass(frozen=True, slots=True)
class _Distinct:
    """The tokens of a batch without duplicates, which have the same id, segment and position."""

    embeddings: Name  # (n_distinct, width)
    places: Name  # (n_pairs, n_tokens), rows of the above


def _distinct_tokens(graph: _Graph, shape: Shape) -> _Distinct:
    names = ("token_ids", "position_ids", "segment_ids")
    tokens, positions, segments = (graph.cast(name, TensorProto.INT64) for name in names)
    key = graph.add("Add", graph.add("Mul", tokens, graph.integers(shape.n_positions)), positions)
    key = graph.add("Add", graph.add("Mul", key, graph.integers(2)), segments)
    graph.add_many("Unique", key, outputs=["distinct", "first", "inverse"], sorted=0)
    places = graph.add("Reshape", "inverse", graph.add("Shape", "token_ids"))
    flat = [graph.add("Reshape", name, graph.integers(-1)) for name in (tokens, positions, segments)]
    return _Distinct(_embeddings(graph, shape, *(graph.add("Gather", name, "first") for name in flat)), places)


def _embeddings(graph: _Graph, shape: Shape, tokens: Name, positions: Name, segments: Name) -> Name:
    words = graph.rows("embeddings.word_embeddings.weight", tokens)
    places = graph.rows("embeddings.position_embeddings.weight", positions)
    kinds = graph.rows("embeddings.token_type_embeddings.weight", segments)
    total = graph.add("Add", graph.add("Add", words, kinds), places)
    norm = (graph.vector(f"embeddings.LayerNorm.{part}") for part in ("weight", "bias"))
    return graph.add("LayerNormalization", total, *norm, epsilon=shape.epsilon)


def _attend(graph: _Graph, shape: Shape, layer: int, states: Name, distinct: _Distinct) -> Name:
    """The attention of every token to all. The keys' bias is left out: it adds the same to all logits of a softmax."""
    prefix = f"encoder.layer.{layer}.attention"
    rows = distinct.embeddings if layer == 0 else states
    query, key, value = (
        graph.add("MatMul", rows, graph.matrix(f"{prefix}.self.{part}.weight")) for part in ("query", "key", "value")
    )
    query = graph.add("Add", query, graph.vector(f"{prefix}.self.query.bias"))
    if layer == 0:
        query, key, value = (graph.add("Gather", part, distinct.places) for part in (query, key, value))
    return _attention_output(graph, layer, _multi_head(graph, shape, query, key, value))


def _multi_head(graph: _Graph, shape: Shape, *parts: Name) -> Name:
    """ONNX Runtime's attention, which is a third faster without a mask."""
    plain = _attention_alone(shape, parts, output=f"plain_{parts[0]}")
    masked = _attention_alone(shape, (*parts, "", "mask"), output=f"masked_{parts[0]}")
    return graph.add("If", IS_FULL, then_branch=plain, else_branch=masked)


def _attention_alone(shape: Shape, inputs: tuple[Name, ...], *, output: Name) -> Any:
    """A branch of an `If`."""
    node = helper.make_node("MultiHeadAttention", inputs, [output], domain=FUSED, num_heads=shape.n_heads)
    return helper.make_graph([node], output, [], [helper.make_tensor_value_info(output, TensorProto.FLOAT, None)])


def _attention_output(graph: _Graph, layer: int, gathered: Name) -> Name:
    """The values' bias is added only here: an average leaves it as it is."""
    prefix = f"encoder.layer.{layer}.attention"
    gathered = graph.add("Add", gathered, graph.vector(f"{prefix}.self.value.bias"))
    return graph.add("MatMul", gathered, graph.matrix(f"{prefix}.output.dense.weight"))


def _attend_last(graph: _Graph, shape: Shape, read: Name, states: Name) -> Name:
    """The attention to all of the tokens that the head reads.

    query · (states @ keys) = (query @ keys.T) · states, and attention @ (states @ values) = (attention @ states) @
    values: two small products in place of two large ones."""
    queries = _queries_by_keys(graph, shape, read)  # pair, head and read, width
    attention = graph.add("FusedMatMul", queries, states, transB=1, alpha=shape.head_width**-0.5)
    attention = graph.add("Softmax", graph.add("Add", attention, _padding(graph)), axis=-1)
    averages = graph.add("MatMul", attention, states)  # pair, head and read, width
    return _attention_output(graph, shape.n_layers - 1, _averages_by_values(graph, shape, averages))


def _queries_by_keys(graph: _Graph, shape: Shape, read: Name) -> Name:
    prefix = f"encoder.layer.{shape.n_layers - 1}.attention.self"
    query = graph.add("MatMul", read, graph.matrix(f"{prefix}.query.weight"))
    query = graph.add("Add", query, graph.vector(f"{prefix}.query.bias"))
    query = graph.add("Reshape", query, graph.integers(0, 0, shape.n_heads, shape.head_width))
    query = graph.add("Transpose", query, perm=[0, 2, 1, 3])  # pair, head, read, part
    keys = _matrix_by_head(graph, shape, f"{prefix}.key.weight", perm=[1, 2, 0])  # head, part, width
    return graph.add("Reshape", graph.add("MatMul", query, keys), graph.integers(0, -1, shape.width))


def _averages_by_values(graph: _Graph, shape: Shape, averages: Name) -> Name:
    key = f"encoder.layer.{shape.n_layers - 1}.attention.self.value.weight"
    values = _matrix_by_head(graph, shape, key, perm=[1, 0, 2])  # head, width, part
    averages = graph.add("Reshape", averages, graph.integers(0, shape.n_heads, -1, shape.width))
    gathered = graph.add("Transpose", graph.add("MatMul", averages, values), perm=[0, 2, 1, 3])
    return graph.add("Reshape", gathered, graph.integers(0, 0, shape.width))  # pair, read, width


def _matrix_by_head(graph: _Graph, shape: Shape, key: str, *, perm: list[int]) -> Name:
    """A matrix for each head, reordered from (width, head, part) when the file is opened."""
    parts = graph.integers(shape.width, shape.n_heads, shape.head_width)
    return graph.add("Transpose", graph.add("Reshape", graph.matrix(key), parts), perm=perm)


def _padding(graph: _Graph) -> Name:
    """0 for a token and far below 0 for padding, (n_pairs, 1, n_tokens)."""
    is_padding = graph.add("Sub", graph.number(1), graph.cast("mask", TensorProto.FLOAT))
    return graph.add("Unsqueeze", graph.add("Mul", is_padding, graph.number(FAR_BELOW)), graph.integers(1))


def _feed_forward(graph: _Graph, shape: Shape, layer: int, attended: Name, states: Name) -> Name:
    """The rest of a layer, token by token."""
    prefix = f"encoder.layer.{layer}"
    states = _add_and_norm(graph, shape, f"{prefix}.attention.output", attended, states)
    inner = graph.add("MatMul", states, graph.matrix(f"{prefix}.intermediate.dense.weight"))
    inner = graph.add("Gelu", graph.add("Add", inner, graph.vector(f"{prefix}.intermediate.dense.bias")))
    outer = graph.add("MatMul", inner, graph.matrix(f"{prefix}.output.dense.weight"))
    return _add_and_norm(graph, shape, f"{prefix}.output", outer, states)


def _add_and_norm(graph: _Graph, shape: Shape, prefix: str, change: Name, states: Name) -> Name:
    change = graph.add("Add", change, graph.vector(f"{prefix}.dense.bias"))
    norm = (graph.vector(f"{prefix}.LayerNorm.{part}") for part in ("weight", "bias"))
    return graph.add("LayerNormalization", graph.add("Add", change, states), *norm, epsilon=shape.epsilon)


def _read_states(graph: _Graph, head: Head, states: Name) -> Name:
    """The states of the tokens that the head reads, (n_pairs, n_read, width)."""
    if head == "emb":
        marks = graph.add("Unsqueeze", graph.cast("marks", TensorProto.INT64), graph.integers(-1))
        return graph.add("GatherND", states, marks, batch_dims=1)
    return graph.add("Gather", states, graph.integers(0), axis=1)


def _emb_scores(graph: _Graph, marked: Name) -> None:
    """The dot product of the state of the item's mark and the mean of the mention's two."""
    start, end, entity = (graph.add("Gather", marked, graph.constant(np.array(place)), axis=1) for place in range(3))
    mention = graph.add("Mul", graph.add("Add", start, end), graph.number(0.5))
    products = graph.add("Mul", mention, entity)
    graph.add("ReduceSum", products, graph.integers(-1), keepdims=0, output="scores")


def _cls_scores(graph: _Graph, first: Name) -> None:
    """A linear layer over the pooled [CLS]."""
    pooled = graph.add("MatMul", first, graph.matrix("pooler.dense.weight"))
    pooled = graph.add("Tanh", graph.add("Add", pooled, graph.vector("pooler.dense.bias")))
    logit = graph.add("MatMul", pooled, graph.matrix("classifier.weight"))
    logit = graph.add("Add", logit, graph.vector("classifier.bias"))  # (n_pairs, 1, 1)
    graph.add("Reshape", logit, graph.integers(-1), output="scores")


def _without_prefix(weights: Weights) -> dict[str, NDArray[np.float32]]:
    """Names without `bert.`, which only a classifier's encoder has."""
    return {key.removeprefix("bert."): value for key, value in weights.items()}
