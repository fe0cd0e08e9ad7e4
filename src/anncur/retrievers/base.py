"""What a retriever is, and how an index asks one: fitted when it is first needed, and its answers checked.

Reads items and queries; knows nothing of the scorer."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol, runtime_checkable

import numpy as np

from anncur.arrays import FloatMatrix, FloatVector
from anncur.caching import Cache
from anncur.errors import AnncurError, RetrieverError
from anncur.items import Item, Items, Query

UNKNOWN_GAP = 1e-3  # of the spread of the known scores: how far below them the unknown items are put


@runtime_checkable
class Retriever(Protocol):
    """Scores items for a query, cheaply.

    `fit` is called once with the items in their order, before any `scores`. One whose items have embeddings may have
    a method `item_vectors()` that gives them, (n_items, width)."""

    @property
    def name(self) -> str: ...

    def fit(self, items: Iterable[Item], /) -> None: ...

    def scores(self, queries: Sequence[Query], /) -> Any:
        """A finite number for every query and item, (n_queries, n_items), higher is better; or for each query (id,
        score) pairs of some items, when it knows only its best."""
        ...


def item_vectors(retriever: Retriever) -> FloatMatrix | None:
    """A retriever's own vectors of the items, (n_items, width), if it has a method `item_vectors` that gives some."""
    find = getattr(retriever, "item_vectors", None)
    found: FloatMatrix | None = None if find is None else find()
    return found


def fitted_on_use(retrievers: Mapping[str, Retriever], items: Items) -> dict[str, Retriever]:
    """Copies of retrievers, for these items."""
    return {name: FittedRetriever(name, retriever, items) for name, retriever in retrievers.items()}


class FittedRetriever:
    """A retriever and the items of one version of an index. Fitted when it is first asked, and its answers checked."""

    def __init__(self, name: str, retriever: Retriever, items: Items) -> None:
        self.name = name
        self._retriever = retriever
        self._items = items
        self._fitted: Cache[Retriever] = Cache()

    def fit(self, items: Iterable[Item]) -> None:
        """Nothing yet."""

    def scores(self, queries: Sequence[Query]) -> FloatMatrix:
        fitted = self._fit()
        with self._foreign("to score"):
            answer = fitted.scores(queries)
            if not isinstance(answer, np.ndarray):
                answer = [row if isinstance(row, np.ndarray) else list(row) for row in answer]
        with self._foreign("to give a number for every query and item, or (id, score) pairs for each query,"):
            return self._checked(answer, len(queries))

    def item_vectors(self) -> FloatMatrix | None:
        fitted = self._fit()
        with self._foreign("to give its item vectors"):
            found = item_vectors(fitted)
            if found is not None and (np.shape(found)[:1] != (len(self._items),) or not _is_finite(np.asarray(found))):
                raise RetrieverError(
                    f"item_vectors() of the retriever {self.name} must give a row of finite numbers for each of "
                    f"{len(self._items)} items, got shape {np.shape(found)}"
                )
        return found

    def _fit(self) -> Retriever:
        return self._fitted.get(None, self._fit_now)

    def _fit_now(self) -> Retriever:
        retriever = copy.copy(self._retriever)  # other versions of the index have it fitted to other items
        with self._foreign(f"to fit {len(self._items)} items"):
            retriever.fit(self._items)
        return retriever

    def _checked(self, answer: Any, n_queries: int) -> FloatMatrix:
        if isinstance(answer, list) and answer and all(_is_scored_ids(row) for row in answer):
            answer = np.stack([self._spread(row) for row in answer])
        rows: FloatMatrix = np.asarray(answer)
        expected = (n_queries, len(self._items))
        if rows.shape != expected or rows.dtype.kind not in "fiub":
            raise RetrieverError(
                f"the retriever {self.name} must give a number for every query and item, {expected} in all, or (id, "
                f"score) pairs for each query; got {rows.dtype} of shape {rows.shape}"
            )
        rows = _as_floats(rows)
        if not _is_finite(rows):
            raise RetrieverError(
                f"the retriever {self.name} must give finite numbers, got NaN or infinity; if it knows only its best "
                "items, let it give (id, score) pairs of these for each query"
            )
        return rows

    def _spread(self, scored: list[tuple[str, float]]) -> FloatVector:
        """Scores of all items from those of some: the others come just below."""
        known = np.array([score for _, score in scored], dtype=np.float64)
        if not len(known):
            return np.zeros(len(self._items))
        gap = UNKNOWN_GAP * (known.max() - known.min()) or 1.0
        row = np.full(len(self._items), known.min() - gap)
        row[[self._items.position(item_id) for item_id, _ in scored]] = known
        return row

    @contextmanager
    def _foreign(self, doing: str) -> Iterator[None]:
        """Around somebody else's code: anything may come out of it."""
        try:
            yield
        except AnncurError:
            raise
        except Exception as error:
            raise RetrieverError(
                f"the retriever {self.name} failed {doing} with {type(error).__name__}: {error}"
            ) from error


def _is_scored_ids(row: Any) -> bool:
    """Whether an answer for one query is (id, score) pairs; an empty one may be."""
    return isinstance(row, list) and all(isinstance(pair, tuple) and len(pair) == 2 for pair in row)


def _as_floats(rows: FloatMatrix) -> FloatMatrix:
    """The same numbers as float32 where it holds them all, else as float64: unsigned ones can't be negated."""
    dtype = np.float32 if np.can_cast(rows.dtype, np.float32) else np.float64
    return rows.astype(dtype, copy=False)


def _is_finite(rows: FloatMatrix) -> bool:
    """Also of very many numbers at little cost: what isn't finite makes the sum so."""
    return bool(np.isfinite(rows.sum(dtype=np.float64)))
