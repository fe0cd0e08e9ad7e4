"""Turn a model's folder into one .onnx file that holds all that scoring needs, for `scorers/onnx.py`.

Reads what `checkpoint.py` describes, or a BertForSequenceClassification as transformers saves it; writes the graph of
`graph.py` with the model's card and its tokenizer among the metadata. Needs `onnx` and `safetensors`, but no torch."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from anncur.errors import FileFormatError, InputError
from anncur.items import Item, Query
from anncur.models.checkpoint import CARD, ModelCard, parse_object
from anncur.tokens import PairFormat, PairTokenizer

WeightFormat: TypeAlias = Literal["float32", "compact", "int8"]
WEIGHT_FORMATS: tuple[WeightFormat, ...] = ("float32", "compact", "int8")
CARD_KEY, TOKENIZER_KEY, N_TOKENS_KEY = "anncur.json", "tokenizer.json", "n_tokens"  # of the file's metadata
PLAIN_LENGTH = 256  # tokens of a query, and of an item, where no card says it


@dataclass(frozen=True, slots=True)
class ScoreChange:
    """How far the scores of an exported model are from the original's."""

    n_pairs: int
    mean_difference: float
    max_difference: float
    rank_correlation: float


@dataclass(frozen=True, slots=True)
class ExportReport:
    """What an export wrote, and what it changed if there were pairs to try it on."""

    file: Path
    n_bytes: int
    change: ScoreChange | None


def export(
    folder: str | Path,
    out_file: str | Path,
    *,
    weights: WeightFormat = "float32",
    sample: Sequence[tuple[Query, Item]] = (),
) -> ExportReport:
    """Write a model's folder as one file.

    `compact` stores every weight in one byte, but computes in float32: the file is a quarter as large.
    `int8` also computes in whole numbers, which is faster, and changes scores: they then depend a little on the pairs
    that are scored together. With `sample`, the report says how far scores are from those of float32."""
    whole = export_bytes(folder, weights=weights)
    change = None
    if sample:
        original = whole if weights == "float32" else export_bytes(folder)
        change = _compared(_scores(original, sample), _scores(whole, sample))
    _write_at_once(Path(out_file), whole)
    return ExportReport(Path(out_file), len(whole), change)


def is_exportable(folder: str | Path) -> bool:
    """Whether a model's network is one that has a graph here."""
    return _read_config(Path(folder)).get("model_type") == "bert"


def export_bytes(folder: str | Path, *, weights: WeightFormat = "float32") -> bytes:
    """The same in memory."""
    if weights not in WEIGHT_FORMATS:
        raise InputError(f"weights must be one of {', '.join(WEIGHT_FORMATS)}, got {weights!r}")
    graph = _graph_module()
    config, arrays = _read_config(Path(folder)), _read_weights(Path(folder))
    shape = graph.Shape.from_config(config)
    card = _read_card(Path(folder), arrays, shape.n_positions)
    _check_room(card.text, shape.n_positions)
    backend = {
        "float32": graph.FLOAT32,
        "compact": graph.Backend(embeddings="int8", layers="int8"),
        "int8": graph.Backend(embeddings="int8"),
    }
    whole: bytes = graph.build_graph(
        arrays, shape, card.head, backend=backend[weights], metadata=_metadata(Path(folder), card, arrays)
    )
    return _in_whole_numbers(whole) if weights == "int8" else whole


def _graph_module() -> ModuleType:
    try:
        import safetensors  # noqa: F401

        from anncur.models import graph
    except ImportError as error:
        raise InputError(
            f"exporting a model needs onnx and safetensors ({error}): pip install 'anncur[train]'"
        ) from error
    return graph


def _read_config(folder: Path) -> dict[str, Any]:
    file = folder / "config.json"
    if not file.is_file():
        raise InputError(f"no file {file}; pass the folder of a model, with config.json and model.safetensors")
    return parse_object(file.read_text(encoding="utf-8", errors="replace"), where=str(file))


def _read_weights(folder: Path) -> dict[str, NDArray[np.float32]]:
    from safetensors.numpy import load_file

    file = folder / "model.safetensors"
    if not file.is_file():
        raise InputError(f"no file {file}; save the model with save_pretrained(…), in one file")
    try:
        return {key: np.asarray(value, dtype=np.float32) for key, value in load_file(file).items()}
    except Exception as error:  # safetensors raises errors of many kinds
        raise FileFormatError(f"{file}: can't be read as float weights: {error}; save it again in float32") from error


def _read_card(folder: Path, arrays: Mapping[str, NDArray[np.float32]], n_positions: int) -> ModelCard:
    """The folder's card; a classifier with one output needs none."""
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
        CARD_KEY: json.dumps({"format": 1, **asdict(card)}, sort_keys=True),
        TOKENIZER_KEY: tokenizer.json,
        N_TOKENS_KEY: str(len(tables[0]) if tables else 0),
    }


def _in_whole_numbers(whole: bytes) -> bytes:
    """Products by constant matrices in int8; the scale of what they are multiplied with is found on the way."""
    import onnx
    from onnxruntime.quantization import QuantType, quantize_dynamic

    model = onnx.load_from_string(whole)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "quantised.onnx"
        quantize_dynamic(
            model,
            file,
            op_types_to_quantize=["MatMul"],
            per_channel=True,
            weight_type=QuantType.QInt8,
            extra_options={"DefaultTensorType": onnx.TensorProto.FLOAT},  # it doesn't know what our operators give
        )
        return file.read_bytes()


def _scores(whole: bytes, pairs: Sequence[tuple[Query, Item]]) -> NDArray[np.float64]:
    """Pair by pair, because this is about the model and not about speed."""
    from onnxruntime import InferenceSession

    session = InferenceSession(whole, providers=["CPUExecutionProvider"])
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


def _write_at_once(file: Path, whole: bytes) -> None:
    """Under another name first: whoever reads the file sees the old one or the new one."""
    draft = file.with_name(f".{file.name}.{os.getpid()}.draft")
    try:
        draft.write_bytes(whole)
        draft.replace(file)
    finally:
        draft.unlink(missing_ok=True)
