"""A model's folder, and its card `anncur.json`: the kind of the model and the format of its texts.

    config.json, model.safetensors   as transformers writes them ([EMB]: the encoder; [CLS]: a sequence classifier)
    tokenizer.json                   as the tokenizers library writes it
    anncur.json                      the `ModelCard` below
    model.ready/                     after a kill only: a newer model, which the next training moves to its place

Needs no torch: what runs in ONNX Runtime reads it too."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from anncur.errors import DamagedError, FileFormatError, InputError
from anncur.tokens import PairFormat

CARD = "anncur.json"
CONFIG, WEIGHTS, TOKENIZER = "config.json", "model.safetensors", "tokenizer.json"
READY = "model.ready"
Kind: TypeAlias = Literal["cross-encoder", "dual-encoder"]
Head: TypeAlias = Literal[
    "emb", "cls", "mean"
]  # states that are read: those of three marks, the pooled [CLS], or the mean
HEADS: dict[str, tuple[Head, ...]] = {"cross-encoder": ("emb", "cls"), "dual-encoder": ("cls", "mean")}


@dataclass(frozen=True, slots=True)
class ModelCard:
    """What running a model needs, beside its weights and tokenizer."""

    kind: Kind
    head: Head
    text: PairFormat
    is_shared: bool = True  # one tower for queries and items, in a dual encoder

    def write(self, folder: Path) -> None:
        """Write `anncur.json`."""
        folder.mkdir(parents=True, exist_ok=True)
        (folder / CARD).write_text(json.dumps({"format": 1, **asdict(self)}, indent=2) + "\n", encoding="utf-8")

    @property
    def json(self) -> str:
        """The card in one line, the same for the same card."""
        return json.dumps({"format": 1, **asdict(self)}, sort_keys=True)

    @classmethod
    def read(cls, folder: str | Path, *, kind: Kind) -> ModelCard:
        """Read a folder's `anncur.json`, and refuse one of another kind."""
        file = Path(folder) / CARD
        if (Path(folder) / READY).exists():
            raise DamagedError(
                f"{folder} holds parts of two models: a training was killed while it moved the newer one to its place; "
                f"run it again, or move all that is in {Path(folder) / READY} one folder up and delete that folder"
            )
        if not file.is_file():
            raise InputError(f"no {file}; pass a folder that `anncur train` or `anncur distill` wrote")
        card = cls.from_json(file.read_text(encoding="utf-8", errors="replace"), where=str(file))
        if card.kind != kind:
            raise InputError(f"{folder} holds a {card.kind}, where a {kind} is needed; pass another folder")
        return card

    @classmethod
    def from_json(cls, text: str, *, where: str) -> ModelCard:
        """Read a card from the text that `write` wrote; errors name `where` it is from."""
        record = parse_object(text, where=where)
        version = record.pop("format", None)
        if version != 1:
            raise FileFormatError(f"{where}: format {version!r} is not known here; a newer anncur may read it")
        try:
            card = replace(cls(**record), text=PairFormat(**record["text"]))
            is_known = card.head in HEADS.get(card.kind, ())
        except (TypeError, KeyError, InputError) as error:
            raise FileFormatError(f"{where}: not a model's description: {error}") from error
        if not is_known:
            raise FileFormatError(f"{where}: a {card.kind} with the head {card.head!r} is not known here")
        return card


def read_config(folder: Path) -> dict[str, Any]:
    """Read a folder's config.json."""
    file = folder / CONFIG
    if not file.is_file():
        raise InputError(f"no file {file}; pass the folder of a model, with {CONFIG} and {WEIGHTS}")
    return parse_object(file.read_text(encoding="utf-8", errors="replace"), where=str(file))


def read_weights(folder: Path) -> dict[str, NDArray[np.float32]]:
    """Read a folder's weights, under the names of transformers."""
    from safetensors.numpy import load_file  # here, because a card is read without it

    file = folder / WEIGHTS
    if not file.is_file():
        raise InputError(f"no file {file}; save the model with save_pretrained(…), in one file")
    try:
        return {key: np.asarray(value, dtype=np.float32) for key, value in load_file(file).items()}
    except Exception as error:  # safetensors raises errors of many kinds
        raise FileFormatError(f"{file}: can't be read as float weights: {error}; save it again in float32") from error


def digest_files(files: Iterable[Path]) -> str:
    """A digest of the files' contents, in their order."""
    whole = hashlib.sha256()
    for file in files:
        try:
            with file.open("rb") as content:
                whole.update(hashlib.file_digest(content, "sha256").digest())
        except FileNotFoundError as error:
            raise InputError(f"no file {file}; a model's folder must hold it") from error
    return whole.hexdigest()


def parse_object(text: str, *, where: str) -> dict[str, Any]:
    """Read a text that must be one JSON object; errors name `where` it is from."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise FileFormatError(f"{where}: not JSON: {error}") from error
    if not isinstance(found, dict):
        raise FileFormatError(f"{where}: must hold one JSON object, got {type(found).__name__}")
    return found
