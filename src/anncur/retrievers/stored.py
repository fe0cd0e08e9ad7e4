"""A retriever that reads scores computed earlier: for experiments that build many indexes over the same items."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence

import numpy as np

from anncur.arrays import FloatMatrix, Positions
from anncur.errors import UnknownIdError
from anncur.items import Item, Query
from anncur.retrievers.base import Retriever, item_vectors


class StoredRetriever:
    """Another retriever's scores of some queries, by the queries' marked text, and its vectors of the items."""

    def __init__(self, retriever: Retriever, queries: Sequence[Query], items: Iterable[Item]) -> None:
        self.name = retriever.name
        retriever.fit(items)
        self._rows = {query.marked_text: row for row, query in enumerate(queries)}
        self._scores = retriever.scores(queries)  # (n_queries, n_items)
        self._item_vectors = item_vectors(retriever)

    def fit(self, items: Iterable[Item]) -> None:
        """Nothing: the items are those that it was made with."""

    def scores(self, queries: Sequence[Query]) -> FloatMatrix:
        try:
            rows = [self._rows[query.marked_text] for query in queries]
        except KeyError as missing:
            raise UnknownIdError(f"no stored score for {missing.args[0]!r}") from None
        return np.asarray(self._scores[rows])

    def item_vectors(self) -> FloatMatrix | None:
        return self._item_vectors

    def take_items(self, positions: Positions) -> StoredRetriever:
        """The same scores of some of the items only: a lexical one keeps the weights that it has from all of them."""
        taken = copy.copy(self)
        taken._scores = self._scores[:, positions]
        taken._item_vectors = None if self._item_vectors is None else self._item_vectors[positions]
        return taken
