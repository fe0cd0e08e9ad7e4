"""A scorer that reads a matrix of scores computed earlier: for experiments and replays."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from anncur.arrays import FloatMatrix, FloatVector
from anncur.errors import InputError, UnknownIdError
from anncur.items import Item, Query, QueryLike, as_queries


class StoredScorer:
    """Looks scores up by the query's marked text and the item's id.

    `exact_scores` has queries in rows and items in columns."""

    def __init__(
        self,
        exact_scores: FloatMatrix,
        queries: Iterable[QueryLike],
        item_ids: Sequence[str],
        *,
        fingerprint: str = "stored",
    ) -> None:
        self._exact_scores = np.asarray(exact_scores)
        self._rows = {query.marked_text: row for row, query in enumerate(as_queries(queries))}
        self._columns = {item_id: column for column, item_id in enumerate(item_ids)}
        self.fingerprint = fingerprint
        expected = (len(self._rows), len(self._columns))
        if self._exact_scores.shape != expected:
            raise InputError(
                f"exact_scores must have a row per distinct query and a column per distinct item id, "
                f"{expected} in all, got {self._exact_scores.shape}"
            )

    def score(self, query: Query, items: Sequence[Item]) -> FloatVector:
        try:
            row = self._rows[query.marked_text]
            columns = [self._columns[item.id] for item in items]
        except KeyError as missing:
            raise UnknownIdError(f"no stored score for {missing.args[0]!r}") from None
        stored: FloatVector = self._exact_scores[row, columns]
        return stored
