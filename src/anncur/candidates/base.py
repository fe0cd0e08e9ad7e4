"""What a retriever is, and how it is named."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol, runtime_checkable

from anncur.arrays import FloatMatrix
from anncur.items import Item, Query


@runtime_checkable
class Retriever(Protocol):
    """Scores all items for a query, cheaply.

    `fit` is called once with the items in their order, before any `scores`."""

    @property
    def name(self) -> str: ...

    def fit(self, items: Iterable[Item], /) -> None: ...

    def scores(self, queries: Sequence[Query], /) -> FloatMatrix:
        """(n_queries, n_items), higher is better."""
        ...
