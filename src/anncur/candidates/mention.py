"""Retrievers that haven't learnt what a mention is see the mention alone: its context would drown it."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence

from anncur.arrays import FloatMatrix
from anncur.candidates.base import Retriever, item_vectors
from anncur.items import Item, Query


class MentionOnly:
    """Another retriever, asked for the mention of a query that has one."""

    def __init__(self, retriever: Retriever) -> None:
        self._retriever = retriever

    def __copy__(self) -> MentionOnly:
        """With a retriever of its own: copies are fitted to different items."""
        return MentionOnly(copy.copy(self._retriever))

    @property
    def name(self) -> str:
        return self._retriever.name

    def fit(self, items: Iterable[Item]) -> None:
        self._retriever.fit(items)

    def scores(self, queries: Sequence[Query]) -> FloatMatrix:
        return self._retriever.scores([query.mention_alone() for query in queries])

    def item_vectors(self) -> FloatMatrix | None:
        return item_vectors(self._retriever)
