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


def item_vectors(retriever: Retriever) -> FloatMatrix | None:
    """A retriever's own vectors of the items, (n_items, width), if it has a method `item_vectors` that gives some."""
    find = getattr(retriever, "item_vectors", None)
    found: FloatMatrix | None = None if find is None else find()
    return found
