"""Retrieval by embeddings: vectors of items and queries, and their dot product.

Items are embedded once and kept in half precision, which an index stores. Embeddings come from a model with
`embed_items` and `embed_queries`, such as a dual encoder, or from the user (`user_embeddings.py`). What comes in is
checked here: shapes, finite numbers, widths."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from anncur.arrays import FloatMatrix, Positions
from anncur.errors import AnncurError, AnncurWarning, FingerprintError, InputError, RetrieverError
from anncur.items import Item, Query
from anncur.retrievers.base import Arrays, foreign_code
from anncur.vectors.half import halved, inner_products

EMBEDDINGS = "embeddings"  # the name of the retriever that the user's embeddings make, and that of its array
ITEMS_AT_ONCE = 1024  # a part: some seconds of a small model, which is what a kill may cost
SAME = 2e-2  # of a vector's length: models give slightly other numbers in other batches, and half precision rounds
N_NAMED = 5  # ids in a message


@runtime_checkable
class Embedder(Protocol):
    """A model that embeds items and queries, a row for each; the dot product of rows is the score."""

    @property
    def name(self) -> str: ...

    def fingerprint(self) -> str:
        """Names the model: the same fingerprint, the same embeddings."""
        ...

    def embed_items(self, items: Sequence[Item], /) -> Any: ...

    def embed_queries(self, queries: Sequence[Query], /) -> Any: ...


class EmbeddingRetriever:
    """Scores items by the dot product of embeddings, of an `Embedder`."""

    arrays: tuple[str, ...] = (EMBEDDINGS,)

    def __init__(self, embedder: Embedder) -> None:
        self.name = embedder.name
        self.stored_as = embedder.name
        self.embedder = embedder
        self._parts: list[FloatMatrix] = []

    @property
    def items_per_part(self) -> int:
        """As many as are embedded before they are stored."""
        return int(getattr(self.embedder, "items_per_part", ITEMS_AT_ONCE))

    def load(self) -> object:
        """Load the model, if it has to be; an error where it is missing."""
        load = getattr(self.embedder, "load", None)
        return load() if callable(load) else None

    def fingerprint(self) -> str:
        return self.embedder.fingerprint()

    def encode(self, items: Sequence[Item], start: int) -> Arrays:
        with foreign_code(self.name, f"to embed {len(items)} items"):
            found = self.embedder.embed_items(items)
        rows = checked_rows(found, len(items), what=f"the embeddings of items by the retriever {self.name}")
        check_finite(rows, items, name=self.name)
        return {EMBEDDINGS: halved(rows)}

    def continues(self, items: Sequence[Item], part: Arrays) -> bool:
        return True

    def select(self, part: Arrays, rows: Positions) -> Arrays:
        return {EMBEDDINGS: part[EMBEDDINGS][rows]}

    def fit(self, items: Iterable[Item]) -> None:
        everything, step = list(items), self.items_per_part
        starts = range(0, len(everything), step)
        self.restore([self.encode(everything[start : start + step], start) for start in starts])

    def restore(self, parts: Sequence[Arrays]) -> None:
        self._parts = [part[EMBEDDINGS] for part in parts]

    def scores(self, queries: Sequence[Query]) -> FloatMatrix:
        assert self._parts, "a retriever is fitted or restored before it is asked"
        query_vectors = self.embed_queries(queries, width=self._parts[0].shape[1])
        return np.concatenate([inner_products(part, query_vectors) for part in self._parts], axis=1)

    def item_vectors(self) -> FloatMatrix:
        """The embeddings of items, (n_items, width); in half precision where that holds them."""
        assert self._parts, "a retriever is fitted or restored before it is asked"
        if len(self._parts) > 1:
            self._parts = [np.concatenate(self._parts)]
        return self._parts[0]

    def has_item_vectors(self) -> bool:
        """Always; tells it without making one array of them."""
        return True

    def embed_queries(self, queries: Sequence[Query], *, width: int) -> FloatMatrix:
        """The embeddings of queries, (n_queries, width)."""
        with foreign_code(self.name, f"to embed {len(queries)} queries"):
            found = self.embedder.embed_queries(queries)
        rows = checked_rows(found, len(queries), what=f"the embeddings of queries by the retriever {self.name}")
        if rows.shape[1] != width:
            raise RetrieverError(
                f"the retriever {self.name} must embed queries like items, with {width} numbers each, got "
                f"{rows.shape[1]}; is it the model that items were embedded with?"
            )
        if not np.isfinite(rows).all():
            raise RetrieverError(f"the retriever {self.name} must embed queries as finite numbers, got NaN or infinity")
        return rows

    def check_same(self, items: Sequence[Item], stored: Arrays) -> None:
        """Refuse an embedder that embeds these items otherwise than they are stored."""
        found = self.encode(items, 0)[EMBEDDINGS].astype(np.float32)
        there = stored[EMBEDDINGS].astype(np.float32)
        check_width(self.name, found.shape[1], there.shape[1])
        is_other = np.linalg.norm(found - there, axis=1) > SAME * np.linalg.norm(there, axis=1) + 1e-6
        if is_other.any():
            ids = ", ".join(item.id for item, other in zip(items, is_other.tolist(), strict=True) if other)
            raise FingerprintError(
                f"the retriever {self.name} embeds items that are in the index ({ids}) otherwise than they are stored; "
                "pass the model that it was built with, or build the index again"
            )


def checked_rows(
    found: Any, n_rows: int, *, what: str, error: type[AnncurError] = RetrieverError
) -> NDArray[np.float32]:
    """Embeddings as float32, if they are numbers with the right number of rows."""
    try:
        rows = np.asarray(found)
    except ValueError as cause:
        raise error(f"{what} must be numbers, a row for each: {cause}") from cause
    if rows.ndim != 2 or len(rows) != n_rows or not rows.shape[1] or rows.dtype.kind not in "fiu":
        raise error(f"{what} must be numbers, a row for each of {n_rows}, got {rows.dtype} of shape {rows.shape}")
    with np.errstate(over="ignore"):  # what single precision can't hold becomes infinite, and is refused as such
        return rows.astype(np.float32, copy=False)


def check_finite(
    rows: FloatMatrix, items: Sequence[Item], *, name: str, error: type[AnncurError] = RetrieverError
) -> None:
    """Refuse NaN and infinity, and warn of embeddings without a direction, with the ids of their items."""
    is_finite = np.asarray(np.isfinite(rows).all(axis=1))
    if not is_finite.all():
        raise error(
            f"embeddings must be finite in single precision, got NaN or infinity for {_named(items, ~is_finite)}"
        )
    is_zero = np.asarray(np.logical_not(rows.any(axis=1)))
    if is_zero.any():
        warnings.warn(
            f"the embeddings of {_named(items, is_zero)} are all zeros: the retriever {name} gives them the score 0 "
            "for every query",
            AnncurWarning,
            stacklevel=2,
        )


def check_width(name: str, found: int, stored: int) -> None:
    """Refuse embeddings of another width than those that are stored."""
    if found != stored:
        raise InputError(
            f"the embeddings of new items must have {stored} numbers each, as those in the index have, got {found}; is "
            f"it the model that the retriever {name} was built with?"
        )


def _named(items: Sequence[Item], is_meant: NDArray[np.bool_]) -> str:
    ids = [items[place].id for place in np.flatnonzero(is_meant).tolist()]
    more = f" and {len(ids) - N_NAMED:,} more" if len(ids) > N_NAMED else ""
    return f"item(s) {', '.join(map(repr, ids[:N_NAMED]))}{more}"
