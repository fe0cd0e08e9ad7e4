"""Models of sentence-transformers as dual encoders, by name or folder. Needs the extra `st`.

Vectors are as the model gives them, with its own prompts for queries and for documents, normalised if it does that."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from anncur.arrays import FloatMatrix
from anncur.errors import InputError
from anncur.items import Item, Query


def open_sentence_transformer(name: str) -> SentenceTransformerModel:
    """The model of a folder, or of a name on the hub."""
    try:
        from sentence_transformers import SentenceTransformer
    except ImportError as error:
        raise InputError(
            f"the retriever 'st:{name}' needs sentence-transformers ({error}): pip install 'anncur[st]'"
        ) from error
    try:
        return SentenceTransformerModel(SentenceTransformer(name))
    except Exception as error:  # loading a model may raise anything
        raise InputError(
            f"no retriever 'st:{name}': sentence-transformers can't load it: {error}; give the folder or name of a "
            "SentenceTransformer"
        ) from error


class SentenceTransformerModel:
    """A SentenceTransformer that embeds queries and items."""

    def __init__(self, model: Any) -> None:
        self._model = model

    def embed_queries(self, queries: Sequence[Query]) -> FloatMatrix:
        """(n_queries, width)"""
        texts = [query.marked_text for query in queries]
        return _as_rows(self._model.encode_query(texts, show_progress_bar=False))

    def embed_items(self, items: Sequence[Item]) -> FloatMatrix:
        """(n_items, width)"""
        texts = [item.full_text for item in items]
        return _as_rows(self._model.encode_document(texts, show_progress_bar=False))

    def fingerprint(self) -> str:
        """Names weights, modules, pooling, lengths and prompts."""
        model = self._model
        settings = [
            [(type(module).__name__, str(getattr(module, "pooling_mode", ""))) for module in model],
            model.max_seq_length,
            sorted(model.prompts.items()),
            model.default_prompt_name,
        ]
        digest = hashlib.sha256(repr(settings).encode())
        for weight in model.state_dict().values():  # without their names, which differ between versions of the library
            digest.update(repr(tuple(weight.shape)).encode())
            digest.update(weight.detach().cpu().float().numpy().tobytes())
        return f"st:{digest.hexdigest()[:16]}"


def _as_rows(vectors: Any) -> FloatMatrix:
    return np.asarray(vectors, dtype=np.float32)
