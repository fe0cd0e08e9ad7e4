"""A BERT as an ONNX graph, arranged for speed on CPUs: a cross-encoder's scores, or a dual encoder's vectors.

Takes weights as NumPy arrays under the names of transformers, feeds `export.py` and `embedding.py`. The graph's inputs
are fields of `tokens.PairBatch`, its output is one score per pair, or one vector per text. Nothing is approximated;
three things are left out:

- the first layer's queries, keys and values of a token that has the same position in another pair of the batch, as
  all tokens of a query have;
- the last layer, but for the tokens that the head reads;
- the last layer's keys and values: with so few queries it is cheaper to multiply those by the keys' matrix, and the
  averages of the states by the values' matrix.

Only BERT, and only ONNX Runtime runs it, because it has operators of its own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anncur.errors import InputError
from anncur.models.checkpoint import Head
from anncur.models.nodes import FLOAT32, Backend, Dimensions, Name, Nodes, Weights
from anncur.models.onnx_format import Kind

IS_FULL = "is_full"  # name of the graph's value that is true where no pair of the batch is padded
FAR_BELOW = -1e9  # added to the attention logits of padding: their softmax is 0 in float32
SMALLEST_LENGTH = 1e-12  # of a vector that is divided by its length
TEXT_INPUTS = ("token_ids", "segment_ids", "position_ids", "mask")


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


def is_supported(config: Mapping[str, Any]) -> bool:
    """Whether this graph computes the network of a parsed config.json."""
    try:
        Shape.from_config(config)
    except InputError:
        return False
    return True


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
    graph = Nodes(_encoder_weights(weights, shape), backend)
    read = _states_read(graph, shape, head)
    (_emb_scores if head == "emb" else _cls_scores)(graph, read)
    inputs: dict[Name, Dimensions] = dict.fromkeys(TEXT_INPUTS, ("n_pairs", "n_tokens"))
    if head == "emb":
        inputs["marks"] = ("n_pairs", 3)
    return graph.serialised("cross_encoder", inputs=inputs, outputs={"scores": ("n_pairs",)}, metadata=metadata or {})


def build_embedding_graph(weights: Weights, shape: Shape, head: Head) -> bytes:
    """The bytes of an .onnx file that embeds texts: as the state of [CLS], or as the mean of all states at length 1."""
    graph = Nodes(_encoder_weights(weights, shape))
    if head == "cls":
        read = _states_read(graph, shape, head)
        graph.add("Reshape", read, graph.integers(-1, shape.width), output="vectors")
    else:
        _mean_vectors(graph, _states(graph, shape, n_layers=shape.n_layers))
    inputs = dict.fromkeys(TEXT_INPUTS, ("n_texts", "n_tokens"))
    return graph.serialised("tower", inputs=inputs, outputs={"vectors": ("n_texts", shape.width)}, metadata={})


def _states_read(graph: Nodes, shape: Shape, head: Head) -> Name:
    """The last states of the tokens that the head reads, (n_pairs, n_read, width)."""
    states = _states(graph, shape, n_layers=shape.n_layers - 1)
    read = _read_states(graph, head, states)
    attended = _attend_last(graph, shape, read, states)
    return _feed_forward(graph, shape, shape.n_layers - 1, attended, read)


def _states(graph: Nodes, shape: Shape, *, n_layers: int) -> Name:
    """The states of all tokens after some layers, (n_pairs, n_tokens, width)."""
    graph.add("Cast", graph.add("ReduceMin", "mask", keepdims=0), to=Kind.BOOL, output=IS_FULL)
    distinct = _distinct_tokens(graph, shape)
    states = graph.add("Gather", distinct.embeddings, distinct.places)
    for layer in range(n_layers):
        attended = _attend(graph, shape, layer, states, distinct)
        states = _feed_forward(graph, shape, layer, attended, states)
    return states


@dataclass(frozen=True, slots=True)
class _Distinct:
    """The tokens of a batch without duplicates, which have the same id, segment and position."""

    embeddings: Name  # (n_distinct, width)
    places: Name  # (n_pairs, n_tokens), rows of the above


def _distinct_tokens(graph: Nodes, shape: Shape) -> _Distinct:
    names = ("token_ids", "position_ids", "segment_ids")
    tokens, positions, segments = (graph.cast(name, Kind.INT64) for name in names)
    key = graph.add("Add", graph.add("Mul", tokens, graph.integers(shape.n_positions)), positions)
    key = graph.add("Add", graph.add("Mul", key, graph.integers(2)), segments)
    graph.add_many("Unique", key, outputs=["distinct", "first", "inverse"], sorted=0)
    places = graph.add("Reshape", "inverse", graph.add("Shape", "token_ids"))
    flat = [graph.add("Reshape", name, graph.integers(-1)) for name in (tokens, positions, segments)]
    return _Distinct(_embeddings(graph, shape, *(graph.add("Gather", name, "first") for name in flat)), places)


def _embeddings(graph: Nodes, shape: Shape, tokens: Name, positions: Name, segments: Name) -> Name:
    words = graph.rows("embeddings.word_embeddings.weight", tokens)
    places = graph.rows("embeddings.position_embeddings.weight", positions)
    kinds = graph.rows("embeddings.token_type_embeddings.weight", segments)
    total = graph.add("Add", graph.add("Add", words, kinds), places)
    norm = (graph.vector(f"embeddings.LayerNorm.{part}") for part in ("weight", "bias"))
    return graph.add("LayerNormalization", total, *norm, epsilon=shape.epsilon)


def _attend(graph: Nodes, shape: Shape, layer: int, states: Name, distinct: _Distinct) -> Name:
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


def _multi_head(graph: Nodes, shape: Shape, *parts: Name) -> Name:
    """ONNX Runtime's attention, which is a third faster without a mask."""
    operator, n_heads = "MultiHeadAttention", shape.n_heads
    plain = graph.branch(operator, *parts, output=f"plain_{parts[0]}", num_heads=n_heads)
    masked = graph.branch(operator, *parts, "", "mask", output=f"masked_{parts[0]}", num_heads=n_heads)
    return graph.add("If", IS_FULL, then_branch=plain, else_branch=masked)


def _attention_output(graph: Nodes, layer: int, gathered: Name) -> Name:
    """The values' bias is added only here: an average leaves it as it is."""
    prefix = f"encoder.layer.{layer}.attention"
    gathered = graph.add("Add", gathered, graph.vector(f"{prefix}.self.value.bias"))
    return graph.add("MatMul", gathered, graph.matrix(f"{prefix}.output.dense.weight"))


def _attend_last(graph: Nodes, shape: Shape, read: Name, states: Name) -> Name:
    """The attention to all of the tokens that the head reads.

    query · (states @ keys) = (query @ keys.T) · states, and attention @ (states @ values) = (attention @ states) @
    values: two small products in place of two large ones."""
    queries = _queries_by_keys(graph, shape, read)  # pair, head and read, width
    attention = graph.add("FusedMatMul", queries, states, transB=1, alpha=shape.head_width**-0.5)
    attention = graph.add("Softmax", graph.add("Add", attention, _padding(graph)), axis=-1)
    averages = graph.add("MatMul", attention, states)  # pair, head and read, width
    return _attention_output(graph, shape.n_layers - 1, _averages_by_values(graph, shape, averages))


def _queries_by_keys(graph: Nodes, shape: Shape, read: Name) -> Name:
    prefix = f"encoder.layer.{shape.n_layers - 1}.attention.self"
    query = graph.add("MatMul", read, graph.matrix(f"{prefix}.query.weight"))
    query = graph.add("Add", query, graph.vector(f"{prefix}.query.bias"))
    query = graph.add("Reshape", query, graph.integers(0, 0, shape.n_heads, shape.head_width))
    query = graph.add("Transpose", query, perm=[0, 2, 1, 3])  # pair, head, read, part
    keys = _matrix_by_head(graph, shape, f"{prefix}.key.weight", perm=[1, 2, 0])  # head, part, width
    return graph.add("Reshape", graph.add("MatMul", query, keys), graph.integers(0, -1, shape.width))


def _averages_by_values(graph: Nodes, shape: Shape, averages: Name) -> Name:
    key = f"encoder.layer.{shape.n_layers - 1}.attention.self.value.weight"
    values = _matrix_by_head(graph, shape, key, perm=[1, 0, 2])  # head, width, part
    averages = graph.add("Reshape", averages, graph.integers(0, shape.n_heads, -1, shape.width))
    gathered = graph.add("Transpose", graph.add("MatMul", averages, values), perm=[0, 2, 1, 3])
    return graph.add("Reshape", gathered, graph.integers(0, 0, shape.width))  # pair, read, width


def _matrix_by_head(graph: Nodes, shape: Shape, key: str, *, perm: list[int]) -> Name:
    """A matrix for each head, reordered from (width, head, part) when the file is opened."""
    parts = graph.integers(shape.width, shape.n_heads, shape.head_width)
    return graph.add("Transpose", graph.add("Reshape", graph.matrix(key), parts), perm=perm)


def _padding(graph: Nodes) -> Name:
    """0 for a token and far below 0 for padding, (n_pairs, 1, n_tokens)."""
    is_padding = graph.add("Sub", graph.number(1), graph.cast("mask", Kind.FLOAT))
    return graph.add("Unsqueeze", graph.add("Mul", is_padding, graph.number(FAR_BELOW)), graph.integers(1))


def _feed_forward(graph: Nodes, shape: Shape, layer: int, attended: Name, states: Name) -> Name:
    """The rest of a layer, token by token."""
    prefix = f"encoder.layer.{layer}"
    states = _add_and_norm(graph, shape, f"{prefix}.attention.output", attended, states)
    inner = graph.add("MatMul", states, graph.matrix(f"{prefix}.intermediate.dense.weight"))
    inner = graph.add("Gelu", graph.add("Add", inner, graph.vector(f"{prefix}.intermediate.dense.bias")))
    outer = graph.add("MatMul", inner, graph.matrix(f"{prefix}.output.dense.weight"))
    return _add_and_norm(graph, shape, f"{prefix}.output", outer, states)


def _add_and_norm(graph: Nodes, shape: Shape, prefix: str, change: Name, states: Name) -> Name:
    change = graph.add("Add", change, graph.vector(f"{prefix}.dense.bias"))
    norm = (graph.vector(f"{prefix}.LayerNorm.{part}") for part in ("weight", "bias"))
    return graph.add("LayerNormalization", graph.add("Add", change, states), *norm, epsilon=shape.epsilon)


def _read_states(graph: Nodes, head: Head, states: Name) -> Name:
    """The states of the tokens that the head reads, (n_pairs, n_read, width)."""
    if head == "emb":
        marks = graph.add("Unsqueeze", graph.cast("marks", Kind.INT64), graph.integers(-1))
        return graph.add("GatherND", states, marks, batch_dims=1)
    return graph.add("Gather", states, graph.integers(0), axis=1)


def _emb_scores(graph: Nodes, marked: Name) -> None:
    """The dot product of the state of the item's mark and the mean of the mention's two."""
    start, end, entity = (graph.add("Gather", marked, graph.constant(np.array(place)), axis=1) for place in range(3))
    mention = graph.add("Mul", graph.add("Add", start, end), graph.number(0.5))
    products = graph.add("Mul", mention, entity)
    graph.add("ReduceSum", products, graph.integers(-1), keepdims=0, output="scores")


def _cls_scores(graph: Nodes, first: Name) -> None:
    """A linear layer over the pooled [CLS]."""
    pooled = graph.add("MatMul", first, graph.matrix("pooler.dense.weight"))
    pooled = graph.add("Tanh", graph.add("Add", pooled, graph.vector("pooler.dense.bias")))
    logit = graph.add("MatMul", pooled, graph.matrix("classifier.weight"))
    logit = graph.add("Add", logit, graph.vector("classifier.bias"))  # (n_pairs, 1, 1)
    graph.add("Reshape", logit, graph.integers(-1), output="scores")


def _mean_vectors(graph: Nodes, states: Name) -> None:
    """The sum of the states of all tokens but padding, divided by its length."""
    mask = graph.add("Unsqueeze", graph.cast("mask", Kind.FLOAT), graph.integers(1))  # (n_texts, 1, n_tokens)
    total = graph.add("Squeeze", graph.add("MatMul", mask, states), graph.integers(1))
    length = graph.add("ReduceL2", total, axes=[-1], keepdims=1)
    graph.add("Div", total, graph.add("Max", length, graph.number(SMALLEST_LENGTH)), output="vectors")


def _encoder_weights(weights: Weights, shape: Shape) -> dict[str, NDArray[np.float32]]:
    """Names without `bert.`, which only a classifier's encoder has; refuses those of another shape."""
    found = {key.removeprefix("bert."): value for key, value in weights.items()}
    width = found.get("embeddings.word_embeddings.weight", np.empty((0, shape.width))).shape[-1]
    n_layers = len({key.split(".")[2] for key in found if key.startswith("encoder.layer.")})
    if (width, n_layers) != (shape.width, shape.n_layers):
        raise InputError(
            f"the model's weights have {n_layers} layers of width {width}, but its config.json {shape.n_layers} of "
            f"{shape.width}; copy both from the same model"
        )
    return found
