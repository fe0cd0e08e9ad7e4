"""Which columns or fields of a collection are used, and items made of its rows, for all databases.

Reads `Names`, feeds the collections. Opens no connection."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, TypeVar

from anncur.attached.base import Names, RowId
from anncur.errors import DatabaseError, InputError
from anncur.items import Item

T = TypeVar("T")


def check_named(collection: str, names: Names, there: Collection[str], *, what: str, has_others: bool = False) -> None:
    """Refuse names that aren't there; with `has_others`, only id and embedding must be."""
    several = names.metadata if isinstance(names.metadata, tuple) else (names.metadata,)
    others = () if has_others else (names.text, names.title, *several)
    for name in filter(None, (names.id, names.embedding, *others)):
        if name not in there:
            raise InputError(f"{collection} has no {what} {name!r}; it has {', '.join(there)}: name those to use")


def metadata_names(
    names: Names, kinds: Mapping[str, frozenset[str]], *, json_names: Collection[str]
) -> tuple[str | None, list[str]]:
    """The column of JSON that holds the metadata, if there is one, and else the columns; by default all that can be
    filtered by, whose `kinds` of value are known."""
    if isinstance(names.metadata, str) and names.metadata in json_names:
        return names.metadata, []
    if names.metadata is not None:
        several = (names.metadata,) if isinstance(names.metadata, str) else names.metadata
        return None, [name for name in several if name in kinds]
    used = (names.id, names.text, names.title, names.embedding)
    return None, [name for name, held in kinds.items() if held and name not in used]


def item_of(collection: str, names: Names, row: Mapping[str, Any], *, json_name: str | None) -> Item:
    """Of what a row has by column; all that has no other use is metadata."""
    named = {*names.metadata} if isinstance(names.metadata, tuple) else {names.metadata} - {json_name}
    used = {names.id, names.text, names.title, names.embedding, json_name} - named
    metadata = _object(collection, names, row, json_name) if json_name else {}
    metadata.update({name: value for name, value in row.items() if name not in used and value is not None})
    title = str(row.get(names.title) or "") if names.title else ""
    return Item(str(row[names.id]), str(row.get(names.text) or ""), title, metadata)


def in_order(collection: str, found: Mapping[RowId, T], ids: Sequence[RowId]) -> list[T]:
    """What was found by id."""
    missing = [one for one in ids if one not in found]
    if missing:
        raise DatabaseError(f"{collection} no longer has the item {missing[0]!r}; it is being changed: search again")
    return [found[one] for one in ids]


def _object(collection: str, names: Names, row: Mapping[str, Any], json_name: str) -> dict[str, Any]:
    value = row.get(json_name)
    if value is not None and not isinstance(value, Mapping):
        raise InputError(
            f"{json_name!r} of {collection} must hold JSON objects, got a {type(value).__name__} for the item "
            f"{row[names.id]!r}; name another as metadata=…"
        )
    return dict(value or {})
