"""What a collection is that can be searched as it is: items with embeddings, ranked by a vector database.

Knows nothing of scorers. Whoever has another database can write a `Collection` of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias, runtime_checkable

import numpy as np

from anncur.arrays import FloatMatrix, FloatVector
from anncur.errors import InputError
from anncur.filters import Condition
from anncur.items import Item

RowId: TypeAlias = int | str  # an id as the database has it
PRODUCT, COSINE, DISTANCE = "ip", "cosine", "l2"
METRICS = (PRODUCT, COSINE, DISTANCE)


@dataclass(frozen=True)
class Names:
    """How the columns are called; a metadata column of JSON, or several, or all others."""

    id: str = "id"
    text: str = "text"
    title: str | None = None
    embedding: str = "embedding"
    metadata: str | tuple[str, ...] | None = None


@dataclass(frozen=True, eq=False)
class FoundRows:
    """Some rows of a collection, best first where they were ranked."""

    ids: Sequence[RowId]
    embeddings: FloatMatrix  # (n, width)


@dataclass(frozen=True, eq=False)
class Selection:
    """The items that a search may score: all, those that meet a condition, or those with some ids."""

    condition: Condition | None = None
    ids: tuple[str, ...] | None = None


EVERYTHING = Selection()


@runtime_checkable
class Collection(Protocol):
    """Items with embeddings in a database, which is never written to. Thread-safe.

    `metric` is how its embeddings are compared: "ip", "cosine" or "l2"; `width` is that of the embeddings."""

    @property
    def name(self) -> str: ...

    @property
    def metric(self) -> str: ...

    @property
    def width(self) -> int: ...

    def check(self, selection: Selection, /) -> None:
        """Refuse conditions on fields that there aren't."""
        ...

    def count(self, selection: Selection, /, *, most: int) -> int:
        """How many items with an embedding are selected, counted up to `most`."""
        ...

    def sample(self, n: int, /, *, seed: int) -> FoundRows:
        """About n rows, as random as it can be had at little cost."""
        ...

    def nearest(
        self,
        points: FloatMatrix,
        n_best: int,
        /,
        *,
        exclude: Sequence[Sequence[RowId]],
        selection: Selection,
        is_thorough: bool = False,
    ) -> list[FoundRows]:
        """For each point the `n_best` selected rows that its metric puts first, without those in its `exclude`.

        Where too few come, it is asked again to be thorough: at whatever cost, all that there are."""
        ...

    def items(self, ids: Sequence[RowId], /) -> list[Item]:
        """The items of some rows, in their order."""
        ...


def found_rows(collection: Collection, ids: Sequence[RowId], embeddings: Sequence[FloatVector]) -> FoundRows:
    """Rows of what a database gave."""
    for row_id, embedding in zip(ids, embeddings, strict=True):
        if len(embedding) != collection.width:
            raise InputError(
                f"the embeddings of {collection.name} must have {collection.width} numbers each, got "
                f"{len(embedding)} for the item {row_id!r}; correct or remove it there"
            )
    rows = np.asarray(embeddings, dtype=np.float32) if len(ids) else np.empty((0, collection.width), dtype=np.float32)
    return FoundRows(ids, rows)


def check_rows(collection: Collection, rows: FoundRows) -> FoundRows:
    """The same; refused where an id is there twice, or an embedding isn't one."""
    if rows.embeddings.shape != (len(rows.ids), collection.width):
        raise InputError(
            f"{collection.name} must give {len(rows.ids)} embeddings of {collection.width} numbers, one for each id, "
            f"got an array of {rows.embeddings.shape}"
        )
    if len(set(rows.ids)) < len(rows.ids):
        twice = next(row_id for row_id, n in Counter(rows.ids).items() if n > 1)
        raise InputError(
            f"the ids of {collection.name} must be unique, got {twice!r} more than once; name another as id=…, or "
            "attach to a view with one row for each id"
        )
    is_finite = np.isfinite(rows.embeddings).all(axis=1)
    if not is_finite.all():
        raise InputError(
            f"the embeddings of {collection.name} must be finite, got one that isn't for the item "
            f"{rows.ids[int(np.argmin(is_finite))]!r}; correct or remove it there"
        )
    return rows
