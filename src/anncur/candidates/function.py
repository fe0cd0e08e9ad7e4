"""A user's own function as a retriever."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias

import numpy as np

from anncur.arrays import FloatMatrix
from anncur.errors import AnncurError, InputError
from anncur.items import Item, Query

RetrieverFunction: TypeAlias = Callable[[Query, Sequence[Item]], Any]


class FunctionRetriever:
    """Calls `function(query, items)` for a number per item, higher is better, and checks what comes back.

    An index remembers it by its name, so it must have one: a lambda has none."""

    def __init__(self, function: RetrieverFunction) -> None:
        name = getattr(function, "__name__", type(function).__name__)
        if name == "<lambda>":
            raise InputError("a retriever that is a function needs a name to be remembered by; define it with def")
        self.name: str = name
        self._function = function
        self._items: list[Item] = []

    def fit(self, items: Iterable[Item]) -> None:
        self._items = list(items)

    def scores(self, queries: Sequence[Query]) -> FloatMatrix:
        return np.stack([self._row(query) for query in queries])

    def _row(self, query: Query) -> FloatMatrix:
        try:
            row = np.asarray(self._function(query, self._items), dtype=np.float32)
        except AnncurError:
            raise
        except Exception as error:
            raise InputError(f"the retriever {self.name} failed with {type(error).__name__}: {error}") from error
        if row.shape != (len(self._items),) or not np.isfinite(row).all():
            raise InputError(
                f"the retriever {self.name} must return one finite number per item, {len(self._items)} in all, "
                f"got an array of shape {row.shape}"
                + ("" if np.isfinite(row).all() else " with numbers that are not finite")
            )
        return row
