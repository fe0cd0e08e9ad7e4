"""Which items of a version pass a filter: conditions over metadata, ids, or a mask.

Reads what users pass and metadata in columns, a part for each segment; feeds `searching.py` with candidates."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from anncur.arrays import NO_POSITIONS, Positions
from anncur.caching import Cache
from anncur.candidates import Candidates
from anncur.columns import MetadataColumns, merged_kinds
from anncur.errors import InputError, UnknownIdError
from anncur.filters import parse_filter
from anncur.items import Items

# conditions over metadata, ids, or a mask over the items in their order
Filter: TypeAlias = Mapping[str, Any] | Iterable[str] | NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class MetadataPart:
    """Metadata of some stored items, and the rows of those that are live, in ascending order."""

    columns: MetadataColumns
    rows: Positions


class Metadata:
    """Metadata of all items of a version; its parts are made when a filter first needs them."""

    def __init__(self, make: Callable[[], Sequence[MetadataPart]]) -> None:
        self._make = make
        self._parts: Cache[Sequence[MetadataPart]] = Cache()

    def passing(self, conditions: Mapping[str, Any]) -> Positions:
        """The positions of the items that meet these conditions, in ascending order."""
        condition = parse_filter(conditions)
        parts = self._parts.get(None, self._make)
        condition.check(merged_kinds(part.columns for part in parts))
        return np.flatnonzero(np.concatenate([condition.passing(part.columns)[part.rows] for part in parts]))


def candidates(filter: Filter | None, items: Items, metadata: Metadata) -> Candidates:
    """The items that a search may score."""
    if filter is None:
        return Candidates(len(items))
    if isinstance(filter, Mapping):
        return Candidates(len(items), metadata.passing(filter))
    if isinstance(filter, np.ndarray) and filter.dtype == np.bool_:
        return Candidates(len(items), _of_mask(filter, len(items)))
    return Candidates(len(items), _of_ids(filter, items))


def _of_mask(mask: NDArray[np.bool_], n_items: int) -> Positions:
    if mask.shape != (n_items,):
        raise InputError(
            f"a mask must have a value for each of {n_items} items, got shape {mask.shape}; after items were added or "
            "removed it must be made again"
        )
    return np.flatnonzero(mask)


def _of_ids(ids: object, items: Items) -> Positions:
    """Those of the ids that are there: a list from elsewhere may be ahead of the index, or behind it."""
    if isinstance(ids, (str, bytes)) or not isinstance(ids, Iterable):
        raise InputError(
            "filter must be conditions over metadata such as {'lang': 'en'}, a list of ids, or a mask, got "
            f"{ids!r:.60}"
        )
    found = {position for item_id in ids if (position := _position(item_id, items)) is not None}
    return np.array(sorted(found), dtype=np.int64) if found else NO_POSITIONS


def _position(item_id: object, items: Items) -> int | None:
    if not isinstance(item_id, str):
        raise InputError(f"a filter of ids must hold strings, got {item_id!r:.60}; a mask is an array of booleans")
    try:
        return items.position(item_id)
    except UnknownIdError:
        return None
