"""Dual encoders in ONNX Runtime: vectors of queries and items, without torch.

Reads the folders that `checkpoint.py` describes, and the weights of all-MiniLM-L6-v2 as transformers saves them. What
isn't a BERT runs in torch (`encoders.py`), with the same methods."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol, TypeVar

import numpy as np

from anncur.arrays import FloatMatrix
from anncur.errors import InputError
from anncur.items import Item, Query
from anncur.models.checkpoint import (
    CONFIG,
    TOKENIZER,
    WEIGHTS,
    ModelCard,
    digest_files,
    read_config,
    read_weights,
)
from anncur.models.graph import Shape, build_embedding_graph, is_supported
from anncur.models.session import Session
from anncur.tokens import PairTokenizer, Tokens

TEXTS_AT_ONCE = 8192  # whose tokens are in memory together
QUERY_TOWER = "query"  # the subfolder of a dual encoder whose towers are separate

Text = TypeVar("Text", Item, Query)


class EmbeddingModel(Protocol):
    """Embeds queries and items so that the dot product of two vectors is a score."""

    def embed_queries(self, queries: Sequence[Query], /) -> FloatMatrix: ...

    def embed_items(self, items: Sequence[Item], /) -> FloatMatrix: ...

    def fingerprint(self) -> str:
        """Names what decides the vectors: weights, pooling, lengths, marks."""
        ...


class OnnxDualEncoder:
    """A dual encoder in ONNX Runtime; safe to call from several threads."""

    def __init__(self, folder: Path, card: ModelCard, *, threads: int | None = None) -> None:
        self._folder, self._card = folder, card
        self.tokenizer = PairTokenizer.from_folder(folder, card.text)
        self._items = _tower(folder, card, threads)
        self._queries = self._items if card.is_shared else _tower(folder / QUERY_TOWER, card, threads)

    def embed_queries(self, queries: Sequence[Query]) -> FloatMatrix:
        """(n_queries, width)"""
        return self._embed(queries, self.tokenizer.queries, self._queries, are_items=False)

    def embed_items(self, items: Sequence[Item]) -> FloatMatrix:
        """(n_items, width)"""
        return self._embed(items, self.tokenizer.items, self._items, are_items=True)

    def fingerprint(self) -> str:
        """Names the contents of the folder."""
        return dual_encoder_fingerprint(self._folder, self._card)

    def _embed(
        self,
        texts: Sequence[Text],
        tokenise: Callable[[Sequence[Text]], list[Tokens]],
        tower: Session,
        *,
        are_items: bool,
    ) -> FloatMatrix:
        def embed(tokens: list[Tokens]) -> FloatMatrix:
            return tower.run(
                [len(text) for text in tokens],
                lambda chosen: self.tokenizer.single([tokens[place] for place in chosen], are_items=are_items),
            )

        starts = range(0, max(len(texts), 1), TEXTS_AT_ONCE)
        return np.concatenate([embed(tokenise(texts[start : start + TEXTS_AT_ONCE])) for start in starts])


def open_dual_encoder(folder: str | Path) -> EmbeddingModel:
    """The dual encoder of a folder that `anncur train` wrote: in ONNX Runtime if it is a BERT, else in torch."""
    card = ModelCard.read(folder, kind="dual-encoder")
    if is_supported(read_config(Path(folder))):
        return OnnxDualEncoder(Path(folder), card)
    try:
        from anncur.models.encoders import load_dual_encoder
    except ModuleNotFoundError as error:
        raise InputError(
            f"the dual encoder in {folder} is no BERT and needs {error.name}; run pip install 'anncur[train]'"
        ) from error
    return load_dual_encoder(folder)


def dual_encoder_fingerprint(folder: str | Path, card: ModelCard | None = None) -> str:
    """Names what decides the vectors of a folder's dual encoder, by the contents of its files; reads no model."""
    card = card or ModelCard.read(folder, kind="dual-encoder")
    towers = [Path(folder), *([] if card.is_shared else [Path(folder) / QUERY_TOWER])]
    files = [Path(folder) / TOKENIZER, *(tower / name for tower in towers for name in (CONFIG, WEIGHTS))]
    return f"dual-encoder:{hashlib.sha256((card.json + digest_files(files)).encode()).hexdigest()[:16]}"


def _tower(folder: Path, card: ModelCard, threads: int | None) -> Session:
    shape = Shape.from_config(read_config(folder))
    n_positions = max(card.text.query_length, 1 + card.text.item_length)  # an item has its [CLS] besides
    if n_positions > shape.n_positions:
        raise InputError(
            f"texts of {n_positions} tokens are longer than the {shape.n_positions} that this network can read"
        )
    return Session(build_embedding_graph(read_weights(folder), shape, card.head), threads=threads, where=str(folder))
