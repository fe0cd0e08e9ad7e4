"""Export a model's folder as one .onnx file with all that scoring needs, for `scorers/onnx.py`.

Reads what `checkpoint.py` describes, or a BertForSequenceClassification as transformers saves it; writes the graph of
`graph.py` with the model's card and its tokenizer among the metadata. Needs no torch, and `onnx` only for `int8`."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from anncur.errors import InputError
from anncur.items import Item, Query
from anncur.models.checkpoint import CARD, ModelCard, read_config, read_weights
from anncur.models.graph import Shape, build_graph, is_supported
from anncur.models.nodes import FLOAT32, Backend
from anncur.tokens import PairFormat, PairTokenizer

WeightFormat: TypeAlias = Literal["float32", "compact", "int8"]
WEIGHT_FORMATS: tuple[WeightFormat, ...] = ("float32", "compact", "int8")
CARD_KEY, TOKENIZER_KEY, N_TOKENS_KEY = "anncur.json", "tokenizer.json", "n_tokens"  # keys of the file's metadata
PLAIN_LENGTH = 256  # tokens of a query, and of an item, for a model without a card


@dataclass(frozen=True, slots=True)
class ScoreChange:
    """How far the scores of an exported model are from the original's."""

    n_pairs: int
    mean_difference: float
    max_difference: float
    rank_correlation: float


@dataclass(frozen=True, slots=True)
class ExportReport:
    """The file that was written, and how far its scores moved on the sample, if one was given."""

    file: Path
    n_bytes: int
    change: ScoreChange | None


def export(
    model: str | Path,
    out: str | Path,
    *,
    weights: WeightFormat = "float32",
    sample: Sequence[tuple[Query, Item]] = (),
) -> ExportReport:
    """Write a model's folder as one file.

    `compact` stores every weight in one byte, but computes in float32: the file is a quarter as large.
    `int8` also multiplies integers, which is faster, and changes scores: they then depend a little on the pairs that
    are scored together. With `sample`, the report measures how far scores are from those of float32."""
    content = export_bytes(model, weights=weights)
    change = None
    if sample:
        original = content if weights == "float32" else export_bytes(model)
        change = _compared(_scores(original, sample), _scores(content, sample))
    _replace_file(Path(out), content)
    return ExportReport(Path(out), len(content), change)


def is_exportable(model: str | Path) -> bool:
    """Whether a model's network can be exported: only a BERT can."""
    return is_supported(read_config(Path(model)))


def export_bytes(model: str | Path, *, weights: WeightFormat = "float32") -> bytes:
    """Like `export`, in memory."""
    if weights not in WEIGHT_FORMATS:
        raise InputError(f"weights must be one of {', '.join(WEIGHT_FORMATS)}, got {weights!r}")
    folder = Path(model)
    config, arrays = read_config(folder), read_weights(folder)
    shape = Shape.from_config(config)
    card = _read_card(folder, arrays, shape.n_positions)
    _check_room(card.text, shape.n_positions)
    backend = {
        "float32": FLOAT32,
        "compact": Backend(embeddings="int8", layers="int8"),
        "int8": Backend(embeddings="int8"),
    }
    content = build_graph(arrays, shape, card.head, backend=backend[weights], metadata=_metadata(folder, card, arrays))
    return _with_integer_products(content) if weights == "int8" else content


def _read_card(folder: Path, arrays: Mapping[str, NDArray[np.float32]], n_positions: int) -> ModelCard:
    """The folder's card; the default one for a classifier with one output."""
    if (folder / CARD).is_file():
        return ModelCard.read(folder, kind="cross-encoder")
    outputs = arrays.get("classifier.weight", np.empty((0, 0))).shape[0]
    if outputs != 1:
        raise InputError(
            f"a model without {CARD} must be a BertForSequenceClassification with one output, but {folder} has "
            f"{outputs or 'no classifier'}; train one with num_labels=1"
        )
    length = min(PLAIN_LENGTH, n_positions // 2)
    return ModelCard("cross-encoder", "cls", PairFormat(length, length, marks=False))


def _check_room(text: PairFormat, n_positions: int) -> None:
    if text.query_length + text.item_length > n_positions:
        raise InputError(
            f"query_length and item_length must fit into the model's {n_positions} positions together, got "
            f"{text.query_length} and {text.item_length}; shorten them in {CARD}"
        )


def _metadata(folder: Path, card: ModelCard, arrays: Mapping[str, NDArray[np.float32]]) -> dict[str, str]:
    tokenizer = PairTokenizer.from_folder(folder, card.text)
    tables = [value for key, value in arrays.items() if key.endswith("embeddings.word_embeddings.weight")]
    return {
        CARD_KEY: card.json,
        TOKENIZER_KEY: tokenizer.json,
        N_TOKENS_KEY: str(len(tables[0]) if tables else 0),
    }


def _with_integer_products(content: bytes) -> bytes:
    """Quantise products with constant matrices to int8; the scales of the other factors are measured at inference."""
    try:
        import onnx
    except ImportError as error:
        raise InputError(f"int8 weights need onnx ({error}): pip install 'anncur[train]'") from error
    from onnxruntime.quantization import QuantType, quantize_dynamic

    model = onnx.load_from_string(content)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "quantised.onnx"
        quantize_dynamic(
            model,
            file,
            op_types_to_quantize=["MatMul"],
            per_channel=True,
            weight_type=QuantType.QInt8,
            extra_options={"DefaultTensorType": onnx.TensorProto.FLOAT},  # it can't infer the types of our operators
        )
        return file.read_bytes()


def _scores(content: bytes, pairs: Sequence[tuple[Query, Item]]) -> NDArray[np.float64]:
    """One pair at a time: with int8, scores depend on the batch."""
    from onnxruntime import InferenceSession

    session = InferenceSession(content, providers=["CPUExecutionProvider"])
    metadata = session.get_modelmeta().custom_metadata_map
    card = ModelCard.from_json(metadata[CARD_KEY], where=CARD_KEY)
    tokenizer = PairTokenizer.from_json(metadata[TOKENIZER_KEY], card.text)
    found = []
    for query, item in pairs:
        batch = tokenizer.assemble(tokenizer.queries([query]), tokenizer.items([item]))
        (scores,) = session.run(None, {value.name: getattr(batch, value.name) for value in session.get_inputs()})
        found.append(scores[0])
    return np.array(found, dtype=np.float64)


def _compared(original: NDArray[np.float64], changed: NDArray[np.float64]) -> ScoreChange:
    differences = np.abs(original - changed)
    ranks = [scores.argsort().argsort() for scores in (original, changed)]
    correlation = float(np.corrcoef(ranks[0], ranks[1])[0, 1]) if len(original) > 1 else 1.0
    return ScoreChange(len(original), float(differences.mean()), float(differences.max()), correlation)


def _replace_file(file: Path, content: bytes) -> None:
    """Write under another name, then rename: a reader gets the old file or the new one."""
    temporary = file.with_name(f".{file.name}.{os.getpid()}.part")
    try:
        temporary.write_bytes(content)
        temporary.replace(file)
    finally:
        temporary.unlink(missing_ok=True)
