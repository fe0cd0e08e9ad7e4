"""Embeddings of the user's own, as the retriever "embeddings": given as an array or a function, and by queries.

Feeds `embeddings.py`, which scores by them."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from anncur.arrays import FloatMatrix
from anncur.caching import Cache
from anncur.errors import AnncurError, InputError
from anncur.importing import import_named
from anncur.items import Item, Query
from anncur.retrievers.base import Arrays
from anncur.retrievers.embeddings import (
    EMBEDDINGS,
    ITEMS_AT_ONCE,
    EmbeddingRetriever,
    check_finite,
    check_width,
    checked_rows,
)
from anncur.vectors.half import halved

ROWS_AT_ONCE = 65_536  # a part of an array that is there

EmbedItems: TypeAlias = Callable[[Sequence[Item]], Any]  # a row for each item
EmbedQueries: TypeAlias = Callable[[Sequence[Query]], Any]  # a row for each query
EmbeddingsLike: TypeAlias = "EmbedItems | NDArray[Any] | Sequence[Sequence[float]]"


class UserEmbeddings:
    """Embeddings of the user's own: of items an array or a function, of queries a function or its name, or what each
    query brings itself."""

    name = EMBEDDINGS

    def __init__(self, items: EmbeddingsLike | None = None, queries: EmbedQueries | str | None = None) -> None:
        self._embed_items = items if callable(items) else None
        self._rows = None if items is None or callable(items) else as_array(items)
        if queries is not None and not callable(queries) and not isinstance(queries, str):
            raise InputError(
                f"embed_queries must be a function of a list of queries, or its package.module:name, got {queries!r}"
            )
        self._queries = queries
        self._loaded: Cache[EmbedQueries] = Cache()

    @property
    def queries_name(self) -> str:
        """By which an index remembers how queries are embedded; empty where it can't."""
        return self._queries if isinstance(self._queries, str) else ""

    @property
    def has_items(self) -> bool:
        """Whether new items can be embedded."""
        return self._embed_items is not None or self._rows is not None

    @property
    def has_array(self) -> bool:
        """Whether embeddings of items were given as they are."""
        return self._rows is not None

    @property
    def embeds_queries(self) -> bool:
        """Whether queries that bring no embedding can be embedded."""
        return self._queries is not None

    @property
    def items_per_part(self) -> int:
        """An array is there already: nothing is lost with a part."""
        return ITEMS_AT_ONCE if self._rows is None else ROWS_AT_ONCE

    def with_items(self, items: EmbeddingsLike | None) -> UserEmbeddings:
        """The same for other items; None keeps the function, and lets go of an array."""
        changed = copy.copy(self)
        changed._rows = None
        if items is not None:
            changed._embed_items = items if callable(items) else None
            changed._rows = None if callable(items) else as_array(items)
        return changed

    def with_queries(self, name: str) -> UserEmbeddings:
        """The same with the function that an index remembers, unless another one was given."""
        if self._queries is not None or not name:
            return self
        return UserEmbeddings(self._embed_items if self._rows is None else self._rows, name)

    def check_count(self, n_items: int) -> None:
        """Refuse an array that hasn't a row for each item."""
        if self._rows is not None and len(self._rows) != n_items:
            raise InputError(
                f"embeddings must have a row for each of {n_items:,} items, in their order, got {len(self._rows):,}"
            )

    def fingerprint(self) -> str:
        return ""  # functions have none; `check_same` compares what they give

    def load(self) -> object:
        """Find the function that embeds queries, if it was named."""
        return self._function() if self._queries is not None else None

    def embed_items(self, items: Sequence[Item]) -> Any:
        assert self._embed_items is not None
        return self._embed_items(items)

    def embed_queries(self, queries: Sequence[Query]) -> Any:
        return self._function()(queries)

    def rows(self, start: int, stop: int) -> NDArray[Any] | None:
        """Some rows of the array, if one was given."""
        return None if self._rows is None else self._rows[start:stop]

    def _function(self) -> EmbedQueries:
        return self._loaded.get(None, self._load)

    def _load(self) -> EmbedQueries:
        given = self._queries
        found = import_named(given, "function for embed_queries") if isinstance(given, str) else given
        if not callable(found):
            raise InputError(f"embed_queries must be a function of a list of queries, got {found!r}")
        return found


def own_embeddings(
    embeddings: EmbeddingsLike | None, embed_queries: EmbedQueries | str | None
) -> UserEmbeddings | None:
    """Embeddings of the user's own, if there are some."""
    if embeddings is None and embed_queries is not None:
        raise InputError("embed_queries goes with embeddings, those of the items")
    return None if embeddings is None else UserEmbeddings(embeddings, embed_queries)


class UserRetriever(EmbeddingRetriever):
    """The retriever "embeddings": a query's own embedding goes before what `embed_queries` would make of it."""

    embedder: UserEmbeddings

    def __init__(self, embeddings: UserEmbeddings) -> None:
        super().__init__(embeddings)

    def encode(self, items: Sequence[Item], start: int) -> Arrays:
        given = self.embedder.rows(start, start + len(items))
        if given is None:
            return super().encode(items, start)
        rows = checked_rows(given, len(items), what="embeddings", error=InputError)
        check_finite(rows, items, name=self.name, error=InputError)
        return {EMBEDDINGS: halved(rows)}

    @property
    def queries_name(self) -> str:
        """By which an index remembers how queries are embedded; empty where it can't."""
        return self.embedder.queries_name

    def with_items(self, items: EmbeddingsLike | None) -> UserRetriever:
        """The same for other items; None keeps the function, and lets go of an array."""
        return UserRetriever(self.embedder.with_items(items))

    def with_queries(self, name: str) -> UserRetriever:
        """The same with the function for queries that an index remembers, unless another one was given."""
        return UserRetriever(self.embedder.with_queries(name))

    def check_new(self, items: Sequence[Item], stored: Arrays) -> None:
        """Refuse embeddings of new items that are unlike those in the index, of which these are some."""
        given = self.embedder.rows(0, 1)
        if given is None and items:
            self.check_same(items, stored)
        elif given is not None:
            check_width(self.name, given.shape[1], stored[EMBEDDINGS].shape[1])

    def can_score(self, query: Query) -> bool:
        """Whether a query has an embedding, or can be embedded."""
        return query.embedding is not None or self.embedder.embeds_queries

    def continues(self, items: Sequence[Item], part: Arrays) -> bool:
        if self.embedder.has_array:
            return False  # it may be another one, and storing it again takes no time
        try:
            self.check_same(items, part)
        except AnncurError:
            return False
        return True

    def embed_queries(self, queries: Sequence[Query], *, width: int) -> FloatMatrix:
        self.check_queries(queries)
        rows = np.empty((len(queries), width), dtype=np.float32)
        bare = [place for place, query in enumerate(queries) if query.embedding is None]
        if bare:
            rows[bare] = super().embed_queries([queries[place] for place in bare], width=width)
        for place, query in enumerate(queries):
            if query.embedding is not None:
                if len(query.embedding) != width:
                    raise InputError(
                        f"a query's embedding must have {width} numbers, as those of the items have, got "
                        f"{len(query.embedding)} for {query.text[:60]!r}"
                    )
                rows[place] = query.embedding
        return rows

    def check_queries(self, queries: Sequence[Query]) -> None:
        """Refuse queries that bring no embedding, where nothing can make one."""
        bare = next((query for query in queries if not self.can_score(query)), None)
        if bare is not None:
            raise InputError(
                f"the query {bare.text[:60]!r} has no embedding; give it one, as Query(text, embedding=…) or as the "
                "'embedding' of its JSON line, or give the index embed_queries, a function of a list of queries"
            )


def as_array(embeddings: object) -> NDArray[Any]:
    """Embeddings that were given as they are, as an array of numbers with two axes."""
    try:
        rows = np.asarray(embeddings)
    except ValueError as error:
        raise InputError(f"embeddings must be an array with a row for each item: {error}") from error
    if rows.ndim != 2 or not rows.shape[1] or rows.dtype.kind not in "fiu":
        raise InputError(
            "embeddings must be numbers with a row for each item, or a function of a list of items giving them, got "
            f"{rows.dtype} of shape {rows.shape}"
        )
    return rows
