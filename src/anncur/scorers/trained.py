"""Scores pairs in torch, with the folder of a network other than BERT: a BERT is exported and needs no torch."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from anncur.arrays import FloatVector
from anncur.items import Item, Query
from anncur.models.checkpoint import CARD, CONFIG, TOKENIZER, WEIGHTS, digest_files
from anncur.models.encoders import load_cross_encoder
from anncur.tokens import Tokens

PARTS = (CARD, CONFIG, TOKENIZER, WEIGHTS)


class TrainedScorer:
    """A cross-encoder in a folder that `anncur train` wrote."""

    def __init__(self, folder: Path) -> None:
        self._model = load_cross_encoder(folder)
        self.tokenizer = self._model.tokenizer
        self.fingerprint = f"torch:{digest_files(folder / part for part in PARTS)[:16]}"

    def score(self, query: Query, items: Sequence[Item]) -> FloatVector:
        return self.score_tokens([self.tokenizer.query(query)] * len(items), self.tokenizer.items(items))

    def score_tokens(self, queries: Sequence[Tokens], items: Sequence[Tokens]) -> FloatVector:
        """Raw scores of tokenised queries, each with the item at the same position."""
        return self._model.score_tokens(queries, items)
