"""What a retriever is, and how an index asks one: fitted when it is first needed, and its answers checked.

A retriever that can say what it derives from items has it stored in an index, and is restored from that instead of
being fitted. Reads items and queries; knows nothing of the scorer, and nothing of files."""

from __future__ import annotations

import copy
import operator
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from anncur.arrays import FloatMatrix, FloatVector, Positions
from anncur.caching import Cache
from anncur.errors import AnncurError, FingerprintError, RetrieverError, UnknownIdError
from anncur.items import Item, Items, Query

BY_WORDS = ("bm25", "tfidf")
STORED_WORDS = "words"  # what retrievers by words derive from items
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


Arrays: TypeAlias = Mapping[str, NDArray[Any]]  # by name; what is derived from some items


@runtime_checkable
class EncodingRetriever(Protocol):
    """A retriever whose fitting is mostly done for each item alone: an index stores that, and no other process does it
    again.

    What it derives from up to `items_per_part` items is a part: the arrays of these names, the last of which has a row
    for each item. Retrievers with the same `stored_as` share their parts. `restore` is called instead of `fit`, with
    the parts of all items in their order."""

    stored_as: str
    arrays: tuple[str, ...]

    @property
    def name(self) -> str: ...

    @property
    def items_per_part(self) -> int: ...

    def fingerprint(self) -> str:
        """Names what parts depend on beside the items, such as a model; empty where that has no name."""
        ...

    def encode(self, items: Sequence[Item], start: int, /) -> Arrays:
        """The part of these items; `start` is the place of the first among all that are being stored."""
        ...

    def continues(self, items: Sequence[Item], part: Arrays, /) -> bool:
        """Whether encoding can go on behind a part that another process stored of these items, under the same
        fingerprint."""
        ...

    def select(self, part: Arrays, rows: Positions, /) -> Arrays:
        """The same part with some of its items only, in ascending order."""
        ...

    def restore(self, parts: Sequence[Arrays], /) -> None: ...

    def fit(self, items: Iterable[Item], /) -> None: ...

    def scores(self, queries: Sequence[Query], /) -> Any: ...


@runtime_checkable
class ProjectingRetriever(EncodingRetriever, Protocol):
    """One that also has vectors of items in a basis that is fitted once, to the items that an index is built of.

    The basis is stored too, and items that are added are projected onto it."""

    projected: tuple[str, ...]

    def fit_basis(self, parts: Sequence[Arrays], /) -> Arrays: ...

    def project(self, part: Arrays, basis: Arrays, /) -> Arrays:
        """What is stored of a part beside what it has."""
        ...


@dataclass(frozen=True, eq=False)
class Encoded:
    """What a retriever derived from the items of an index, and the fingerprint of what it derived it with."""

    parts: Sequence[Arrays]
    fingerprint: str = ""


@runtime_checkable
class FusingRetriever(Protocol):
    """A retriever that works on the scores of others: in an index, of its other retrievers."""

    def over(self, others: Mapping[str, Retriever], /) -> Retriever: ...


def item_vectors(retriever: Retriever) -> FloatMatrix | None:
    """A retriever's own vectors of the items, (n_items, width), if it has a method `item_vectors` that gives some.

    They may be float16."""
    find = getattr(retriever, "item_vectors", None)
    found: FloatMatrix | None = None if find is None else find()
    return found


def embedding_source(retrievers: Mapping[str, Retriever]) -> str | None:
    """The retriever whose item vectors are used: one by words only where there is no other."""
    by_preference = sorted(retrievers, key=lambda name: name in BY_WORDS)
    return next((name for name in by_preference if _has_item_vectors(retrievers[name])), None)


def _has_item_vectors(retriever: Retriever) -> bool:
    """Whether a retriever has vectors of the items; one that can tell it without making them has a method for it."""
    tell = getattr(retriever, "has_item_vectors", None)
    return item_vectors(retriever) is not None if tell is None else bool(tell())


def fitted_on_use(
    retrievers: Mapping[str, Retriever], items: Items, encoded: Mapping[str, Encoded] | None = None
) -> dict[str, Retriever]:
    """Copies of retrievers, for these items; those that have something `encoded` are restored from it."""
    stored = encoded or {}
    is_fused = any(isinstance(retriever, FusingRetriever) for retriever in retrievers.values())
    fitted: dict[str, Retriever] = {
        name: FittedRetriever(name, retriever, items, stored.get(name), keeps_last=is_fused)
        for name, retriever in retrievers.items()
        if not isinstance(retriever, FusingRetriever)
    }
    for name, retriever in retrievers.items():
        if isinstance(retriever, FusingRetriever):
            fitted[name] = FittedRetriever(name, retriever.over(dict(fitted)), items)
    return {name: fitted[name] for name in retrievers}


class FittedRetriever:
    """A retriever and the items of one version of an index. Fitted or restored when it is first asked, and its answers
    checked.

    With `keeps_last`, it keeps its last answer, for others that ask the same."""

    def __init__(
        self,
        name: str,
        retriever: Retriever,
        items: Items,
        encoded: Encoded | None = None,
        *,
        keeps_last: bool = False,
    ) -> None:
        self.name = name
        self._retriever = retriever
        self._items = items
        self._encoded = encoded
        self._keeps_last = keeps_last
        self._last: tuple[list[Query], FloatMatrix] | None = None  # replaced as a whole: threads may race for it
        self._is_checked = False
        self._fitted: Cache[Retriever] = Cache()
        self._vectors: Cache[FloatMatrix | None] = Cache()

    def fit(self, items: Iterable[Item]) -> None:
        """Nothing yet."""

    def scores(self, queries: Sequence[Query]) -> FloatMatrix:
        last = self._last
        if last is not None and len(last[0]) == len(queries) and all(map(operator.is_, last[0], queries)):
            return last[1]
        answer = self._ask(queries)
        if self._keeps_last:
            answer = answer.view()
            answer.flags.writeable = False  # several have it
            self._last = list(queries), answer
        return answer

    def _ask(self, queries: Sequence[Query]) -> FloatMatrix:
        fitted = self._fit()
        self._check_model(fitted)
        with foreign_code(self.name, "to score"):
            answer = fitted.scores(queries)
            if not isinstance(answer, np.ndarray):
                answer = [row if isinstance(row, np.ndarray) else list(row) for row in answer]
        with foreign_code(self.name, "to give a number for every query and item, or (id, score) pairs for each query,"):
            return self._checked(answer, len(queries))

    def can_score(self, query: Query) -> bool:
        """Whether it can score items for a query; one that needs an embedding may not."""
        find = getattr(self._retriever, "can_score", None)
        return find is None or bool(find(query))

    @property
    def is_stored(self) -> bool:
        """Whether what it derives from an item is stored with it, and so is the same whatever other items there are."""
        return self._encoded is not None

    def item_vectors(self) -> FloatMatrix | None:
        return self._vectors.get(None, self._checked_vectors)

    def has_item_vectors(self) -> bool:
        """Whether `item_vectors` gives some."""
        if self._encoded is None:
            return self.item_vectors() is not None  # checked
        return _has_item_vectors(self._fit())

    def _checked_vectors(self) -> FloatMatrix | None:
        fitted = self._fit()
        with foreign_code(self.name, "to give its item vectors"):
            found = item_vectors(fitted)
            if self._encoded is not None or found is None:  # what was stored was checked before
                return found
            if np.shape(found)[:1] != (len(self._items),) or not _is_finite(np.asarray(found)):
                raise RetrieverError(
                    f"item_vectors() of the retriever {self.name} must give a row of finite numbers for each of "
                    f"{len(self._items)} items, got shape {np.shape(found)}"
                )
        return found

    def _fit(self) -> Retriever:
        return self._fitted.get(None, self._fit_now)

    def _fit_now(self) -> Retriever:
        retriever = copy.copy(self._retriever)  # other versions of the index have it fitted to other items
        with foreign_code(self.name, f"to fit {len(self._items)} items"):
            if self._encoded is not None and isinstance(retriever, EncodingRetriever):
                retriever.restore(self._encoded.parts)
                self._encoded = Encoded((), self._encoded.fingerprint)  # it has what it needs of them
            else:
                retriever.fit(self._items)
        return retriever

    def _check_model(self, fitted: Retriever) -> None:
        """Refuse a model that isn't the one that items were encoded with; not before queries come, since what is stored
        of items serves without it."""
        if self._is_checked or self._encoded is None or not isinstance(fitted, EncodingRetriever):
            return
        check_fingerprint(fitted, self._encoded.fingerprint)
        self._is_checked = True

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
        try:
            row[[self._items.position(item_id) for item_id, _ in scored]] = known
        except UnknownIdError as error:
            raise UnknownIdError(
                f"the retriever {self.name} gave an id that no item has: {error}; let it know just the items of this "
                "index"
            ) from error
        return row


@contextmanager
def foreign_code(name: str, doing: str) -> Iterator[None]:
    """Around somebody else's code: anything may come out of it."""
    try:
        yield
    except AnncurError:
        raise
    except Exception as error:
        raise RetrieverError(f"the retriever {name} failed {doing} with {type(error).__name__}: {error}") from error


def check_fingerprint(retriever: EncodingRetriever, stored: str) -> None:
    """Refuse a retriever whose model isn't the one that the stored parts came from; without a name none is compared."""
    found = retriever.fingerprint()
    if stored and found and found != stored:
        raise FingerprintError(
            f"the retriever {retriever.name} is of another model than what the index stored of its items: {found} now, "
            f"{stored} then; put that model back, or build the index again"
        )


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
