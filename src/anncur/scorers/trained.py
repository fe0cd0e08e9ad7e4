"""Scores pairs with a model's folder in torch: for networks other than BERT, which have no fast graph."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

from anncur.arrays import FloatVector
from anncur.items import Item, Query
from anncur.models.checkpoint import CARD
from anncur.models.encoders import load_cross_encoder
from anncur.tokens import Tokens

PARTS = (CARD, "config.json", "tokenizer.json", "model.safetensors")


class TrainedScorer:
    """A cross-encoder as `anncur train` leaves it."""

    def __init__(self, folder: Path) -> None:
        self._model = load_cross_encoder(folder)
        self.tokenizer = self._model.tokenizer
        contents = b"".join(hashlib.sha256((folder / part).read_bytes()).digest() for part in PARTS)
        self.fingerprint = f"torch:{hashlib.sha256(contents).hexdigest()[:16]}"

    def score(self, query: Query, items: Sequence[Item]) -> FloatVector:
        return self.score_tokens([self.tokenizer.query(query)] * len(items), self.tokenizer.items(items))

    def score_tokens(self, queries: Sequence[Tokens], items: Sequence[Tokens]) -> FloatVector:
        """Raw scores of tokenised queries, each with the item at the same place."""
        return self._model.score_tokens(queries, items)
