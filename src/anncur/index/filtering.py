"""Which items of a version pass a filter: conditions over metadata, ids, or a mask.

Reads what users pass and metadata in columns, a part for each segment; feeds `searching.py` with candidates."""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from anncur.arrays import Positions
from anncur.caching import Cache
from anncur.candidates import Candidates
from anncur.columns import MetadataColumns, merged_kinds
from anncur.errors import InputError
from anncur.filters import parse_filter
from anncur.items import Items

# conditions over metadata, ids, or a mask over the items in their order, of the version whose items it was made of
Filter: TypeAlias = Mapping[str, Any] | Iterable[str] | Iterable[bool] | NDArray[np.bool_]


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


def candidates(filter: Filter | None, items: Items, metadata: Metadata, *, takes_masks: bool = True) -> Candidates:
    """The items that a search may score.

    A mask is of the positions of one version, so that an index whose version may change by itself takes none."""
    if filter is None:
        return Candidates(len(items))
    if isinstance(filter, Mapping):
        return Candidates(len(items), metadata.passing(filter))
    values = _mask_or_ids(filter)
    if not isinstance(values, np.ndarray):
        return Candidates(len(items), items.positions(map(_checked_id, values)))
    if not takes_masks:
        raise InputError(
            "a filter of an index with refresh_seconds must be conditions or ids, got a mask; its positions may be "
            "those of other items in a newer version: pass conditions over metadata or a list of ids"
        )
    return Candidates(len(items), _of_mask(values, len(items)))


def ids_of(filter: Filter) -> list[str]:
    """The ids of a filter that is neither conditions nor a mask."""
    values = _mask_or_ids(filter)
    if isinstance(values, np.ndarray):
        raise InputError("a filter of a collection must be conditions or ids, got a mask; its items have no order")
    return [_checked_id(value) for value in values]


def _mask_or_ids(filter: object) -> NDArray[np.bool_] | list[object]:
    """A mask as an array, whatever holds its booleans; else a list of what should be ids."""
    given = np.asarray(filter) if hasattr(filter, "__array__") else filter
    if isinstance(given, str | bytes) or not isinstance(given, Iterable) or getattr(given, "ndim", 1) == 0:
        raise InputError(
            "filter must be conditions over metadata such as {'lang': 'en'}, a list of ids, or a mask, got "
            f"{reprlib.repr(filter)}"
        )
    if isinstance(given, np.ndarray) and given.dtype == np.bool_:
        return given
    values = given.tolist() if isinstance(given, np.ndarray) else list(given)
    is_mask = bool(values) and all(isinstance(value, bool | np.bool_) for value in values)
    return np.array(values, dtype=np.bool_) if is_mask else values


def _of_mask(mask: NDArray[np.bool_], n_items: int) -> Positions:
    if mask.shape != (n_items,):
        raise InputError(
            f"a mask must have a value for each of {n_items} items, got shape {mask.shape}; after items were added or "
            "removed it must be made again"
        )
    return np.flatnonzero(mask)


def _checked_id(item_id: object) -> str:
    if isinstance(item_id, Mapping):
        raise InputError(
            "conditions must be one mapping, got several in a list, and one filter holds for all queries; pass its "
            "conditions without the list, or write {'or': [{…}, {…}]}"
        )
    if not isinstance(item_id, str):
        raise InputError(
            f"a filter of ids must hold strings, got {reprlib.repr(item_id)}; a mask holds nothing but booleans"
        )
    return item_id
