"""Items, queries, and the corpus that gives every item a position.

Everything downstream works on positions (integers); ids are strings that belong to the user. Texts are checked
here, once. Reads no files: `datasets/` does."""

from __future__ import annotations

import hashlib
import json
import operator
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, SupportsIndex, TypeAlias, overload

import numpy as np

from anncur.arrays import FloatVector, Positions
from anncur.errors import DuplicateIdError, InputError, InvalidTextError, UnknownIdError


@dataclass(frozen=True, slots=True)
class Item:
    """One thing that can be found.

    `prepared` is what the scorer made of this item once, kept beside it in an index and filled in for that scorer
    alone. It is no part of what the item is: not of its equality, its digest or its metadata. Don't set it."""

    id: str
    text: str
    title: str = ""
    metadata: Mapping[str, Any] = field(default_factory=dict, hash=False)
    prepared: bytes = field(default=b"", repr=False, compare=False, hash=False)

    def __post_init__(self) -> None:
        if not isinstance(self.id, str) or not self.id:
            raise InputError(f"an item's id must be a non-empty string, got {self.id!r}; pass Item(id='…', text='…')")
        owner = ("item", self.id)
        _check_text(self.id, field="id", owner=owner)
        _check_text(self.text, field="text", owner=owner)
        _check_text(self.title, field="title", owner=owner)
        if not isinstance(self.metadata, Mapping):
            raise InputError(f"{_named(owner)}: metadata must be a mapping, got {type(self.metadata).__name__}")

    @property
    def full_text(self) -> str:
        """What a scorer over text pairs sees: the title, a newline and the text; just the text without a title."""
        return f"{self.title}\n{self.text}" if self.title else self.text

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Item:
        """Read a dict with `id` (or `_id`), `text`, and perhaps `title` and `metadata`.

        Any other key goes into the metadata. Whole numbers are taken as ids."""
        known = {"id", "_id", "text", "title", "metadata"}
        metadata = record.get("metadata") or {}
        if not isinstance(metadata, Mapping):
            raise InputError(f"this item's 'metadata' must be an object, got {_shown(metadata)}")
        metadata = {**metadata, **{key: value for key, value in record.items() if key not in known}}
        return cls(
            id=_record_id(record, "item"),
            text=_record_text(record, "item"),
            title=record.get("title") or "",
            metadata=metadata,
        )


@dataclass(frozen=True, slots=True)
class Query:
    """What is looked for: a text, with perhaps one span of it (characters, end exclusive) marked as the mention.

    `embedding` is a vector for the retriever "embeddings", of an index that was built with some. It is no part of what
    the query is: not of its equality or its hash."""

    text: str
    id: str = ""
    mention: tuple[int, int] | None = None
    embedding: FloatVector | None = field(default=None, repr=False, compare=False, hash=False)

    def __post_init__(self) -> None:
        owner = ("query", self.id or self.text)
        _check_text(self.text, field="text", owner=owner)
        _check_text(self.id, field="id", owner=owner)
        if not self.text.strip():
            raise InputError("a query must hold some text, got an empty one; pass the text to search for")
        if self.mention is not None:
            object.__setattr__(self, "mention", _checked_span(self.mention, self.text, owner))
        if self.embedding is not None:
            object.__setattr__(self, "embedding", _checked_embedding(self.embedding, owner))

    @property
    def marked_text(self) -> str:
        """The text with its mention in square brackets, as scorers over text pairs see it."""
        if self.mention is None:
            return self.text
        start, end = self.mention
        return f"{self.text[:start]}[{self.text[start:end]}]{self.text[end:]}"

    @property
    def key(self) -> str:
        """What tells this text and mention from all others: the marked text, unless the text has brackets itself."""
        if "[" not in self.text and "]" not in self.text:
            return self.marked_text
        return f"{self.text}\0{'' if self.mention is None else self.mention}"  # no text holds NUL

    def mention_alone(self) -> Query:
        """The mention as a query of its own; the query itself where nothing is marked."""
        if self.mention is None:
            return self
        start, end = self.mention
        mention = self.text[start:end]
        return Query(mention, self.id, embedding=self.embedding) if mention.strip() else self

    @classmethod
    def of_item(cls, item: Item) -> Query:
        """An item as a query for other items: its title as the mention, its text as the context on the right.

        Without a title it is the text alone, and nothing is marked."""
        if not item.title.strip():
            return cls(item.text, item.id)
        return cls(f"{item.title} {item.text}".rstrip(), item.id, (0, len(item.title.rstrip())))

    @classmethod
    def marked(cls, text: str, *, id: str = "") -> Query:
        r"""Read a text in which exactly one `[…]` marks the mention; `\[` is a plain bracket."""
        _check_text(text, field="text", owner=("query", id or text))
        starts = [match.start() for match in _BRACKET.finditer(text)]
        end = text.find("]", starts[0]) if len(starts) == 1 else -1
        if len(starts) != 1 or not text[starts[0] + 1 : max(end, 0)].strip():
            raise InputError(
                f"a marked query must have exactly one [mention], got {_shown(text)}; write \\[ for a plain bracket, "
                "or pass the text unmarked"
            )
        before, inside = _unescape(text[: starts[0]]), _unescape(text[starts[0] + 1 : end])
        return cls(before + inside + _unescape(text[end + 1 :]), id, (len(before), len(before) + len(inside)))

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Query:
        """Read a dict with `text`, and perhaps `id` (or `_id`), `mention` as [start, end], and `embedding`."""
        query_id = _record_id(record, "query") if "id" in record or "_id" in record else ""
        return cls(_record_text(record, "query"), query_id, record.get("mention"), record.get("embedding"))


ItemLike: TypeAlias = Item | Mapping[str, Any] | str
QueryLike: TypeAlias = Query | Mapping[str, Any] | str


class Items(Protocol):
    """Items in a fixed order: a position for every id, an item for every position."""

    def __len__(self) -> int: ...

    def __getitem__(self, position: int, /) -> Item: ...

    def __iter__(self) -> Iterator[Item]: ...

    def take(self, positions: Positions, /) -> list[Item]:
        """The items at these positions, in their order."""
        ...

    def position(self, item_id: str, /) -> int:
        """The position of an id; `UnknownIdError` if there is none."""
        ...

    def positions(self, item_ids: Iterable[str], /) -> Positions:
        """The positions of those ids that are there, in ascending order."""
        ...


class Corpus(Sequence[Item]):
    """`Items` in memory."""

    def __init__(self, items: Iterable[ItemLike]) -> None:
        check_items(items)
        self._items: list[Item] = []
        self._positions: dict[str, int] = {}
        for item in items:
            self._append(as_item(item, position=len(self._items)))

    def _append(self, item: Item) -> None:
        position = len(self._items)
        first = self._positions.setdefault(item.id, position)
        if first != position:
            raise duplicate_id(item.id, first, position)
        self._items.append(item)

    def __len__(self) -> int:
        return len(self._items)

    @overload
    def __getitem__(self, index: int) -> Item: ...
    @overload
    def __getitem__(self, index: slice) -> list[Item]: ...
    def __getitem__(self, index: int | slice) -> Item | list[Item]:
        return self._items[index]

    def __iter__(self) -> Iterator[Item]:
        return iter(self._items)

    def take(self, positions: Positions) -> list[Item]:
        items = self._items
        return [items[position] for position in positions.tolist()]

    def position(self, item_id: str) -> int:
        try:
            return self._positions[item_id]
        except KeyError:
            raise unknown_id(item_id) from None

    def positions(self, item_ids: Iterable[str]) -> Positions:
        found = {self._positions[item_id] for item_id in item_ids if item_id in self._positions}
        return np.array(sorted(found), dtype=np.int64)


def check_items(items: object) -> None:
    """Refuse what isn't a collection of items, such as the name of a file."""
    if isinstance(items, (str, bytes, Mapping)) or not isinstance(items, Iterable) or hasattr(items, "columns"):
        raise InputError(
            f"items must be a list of items, got {type(items).__name__}; to read a file, pass "
            "anncur.read_items(path), and of a data frame its records: frame.to_dict('records')"
        )


def as_item(item: ItemLike, *, position: int) -> Item:
    """Take an item, a dict or a bare text; a bare text's id is its position."""
    if isinstance(item, Item):
        return item
    if isinstance(item, str):
        return Item(id=str(position), text=item)
    if isinstance(item, Mapping):
        return Item.from_record(item)
    raise InputError(
        f"an item must be an anncur.Item, a dict or a string, got {type(item).__name__} at position {position}"
    )


def as_query(query: QueryLike) -> Query:
    """Take a query, a dict or a string, which is plain text."""
    if isinstance(query, Query):
        return query
    if isinstance(query, Mapping):
        return Query.from_record(query)
    if not isinstance(query, str):
        raise InputError(f"a query must be a string, a dict or an anncur.Query, got {type(query).__name__}")
    return Query(query)


def as_queries(queries: Iterable[QueryLike]) -> list[Query]:
    """Take a list of queries, in any of their forms."""
    if isinstance(queries, (str, bytes, Mapping, Query)) or not isinstance(queries, Iterable):
        raise InputError(
            f"queries must be a list of queries, got {type(queries).__name__}; "
            "put a single one in a list, or pass anncur.read_queries(path) to read a file"
        )
    return [as_query(query) for query in queries]


def no_items() -> InputError:
    """The error for a collection without items."""
    return InputError("there must be at least one item, got none; the file or list is empty, or its iterator used up")


def unknown_id(item_id: str) -> UnknownIdError:
    """The error for an id that isn't there."""
    return UnknownIdError(f"no item has the id {_shown(item_id)}")


def duplicate_id(item_id: str, first: int, second: int) -> DuplicateIdError:
    """The error for an id that is there twice."""
    return DuplicateIdError(
        f"ids must be unique, got {_shown(item_id)} at positions {first} and {second}; rename or drop one"
    )


def is_taken(item_id: str, there: Items) -> bool:
    """Whether an item has this id."""
    try:
        return there.position(item_id) >= 0
    except UnknownIdError:
        return False


def taken_id(item_id: str) -> DuplicateIdError:
    """The error for a new item whose id is taken."""
    return DuplicateIdError(f"the index already has an item with the id {_shown(item_id)}; remove that first")


class TextDigest:
    """A hash of texts in their order, with their borders."""

    def __init__(self) -> None:
        self._digest = hashlib.sha256()

    def add(self, *texts: str) -> None:
        """Take in some more."""
        for text in texts:
            encoded = text.encode()
            self._digest.update(len(encoded).to_bytes(8, "little"))
            self._digest.update(encoded)

    def add_item(self, item: Item) -> None:
        """Take in all that an item is; what a scorer made of it is no part of that."""
        self.add(item.id, item.title, item.text, metadata_json(item))

    def __str__(self) -> str:
        return self._digest.hexdigest()


def digest_items(items: Iterable[Item]) -> str:
    """A hash of items in their order."""
    digest = TextDigest()
    for item in items:
        digest.add_item(item)
    return str(digest)


def metadata_json(item: Item) -> str:
    """An item's metadata as text, the same text for the same metadata."""
    try:
        text = json.dumps(dict(item.metadata), ensure_ascii=False, sort_keys=True, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise InputError(
            f"the metadata of item {_shown(item.id)} can't be stored as JSON: {error}; pass a date as "
            "value.isoformat(), an array as value.tolist(), a set as a list, and NaN as None"
        ) from error
    _check_text(text, field="metadata", owner=("item", item.id))
    return text


_BRACKET = re.compile(r"(?<!\\)\[")
Owner: TypeAlias = tuple[str, object]  # a kind of thing and the name of one, put into words only where it is wrong
_UNSTORABLE = re.compile("[\x00\ud800-\udfff]")


def _unescape(text: str) -> str:
    return text.replace(r"\[", "[")


def _check_text(text: object, *, field: str, owner: Owner) -> None:
    if not isinstance(text, str):
        raise InputError(f"{_named(owner)}: {field} must be a string, got {type(text).__name__}")
    found = _UNSTORABLE.search(text)
    if found is not None:
        kind = "a NUL character" if found.group() == "\x00" else f"the lone surrogate U+{ord(found.group()):04X}"
        raise InvalidTextError(
            f"{_named(owner)}: {field} holds {kind} at character {found.start()}; remove it, "
            "for example with text.replace('\\0', ' ').encode('utf-8', 'replace').decode()"
        )


def _checked_span(span: Any, text: str, owner: Owner) -> tuple[int, int]:
    try:
        start, end = map(operator.index, span)
    except (TypeError, ValueError):
        start, end = -1, -1
    if not 0 <= start < end <= len(text):
        raise InputError(
            f"{_named(owner)}: mention must be (start, end) with 0 <= start < end <= {len(text)} characters, "
            f"got {span!r}"
        )
    return start, end


def _checked_embedding(embedding: Any, owner: Owner) -> FloatVector:
    """A vector of single precision that nobody changes."""
    try:
        vector = np.asarray(embedding)
    except ValueError:
        vector = np.empty(0)
    if vector.ndim != 1 or not len(vector) or vector.dtype.kind not in "fiu":
        raise InputError(
            f"{_named(owner)}: embedding must be a list of numbers, got {vector.dtype} of shape {vector.shape}"
        )
    with np.errstate(over="ignore"):
        single = np.array(vector, dtype=np.float32)
    if not np.isfinite(single).all():
        raise InputError(f"{_named(owner)}: embedding must be finite numbers, got NaN or infinity")
    single.flags.writeable = False
    return single


def _record_id(record: Mapping[str, Any], kind: str) -> str:
    found = record["id"] if record.get("id") is not None else record.get("_id")
    if isinstance(found, SupportsIndex) and not isinstance(found, bool):
        return str(operator.index(found))
    if not isinstance(found, str) or not found:
        raise InputError(
            f"this {kind} needs an 'id' (or '_id') that is a non-empty string or a whole number: "
            f"{_shown(str(dict(record)))}"
        )
    return found


def _record_text(record: Mapping[str, Any], kind: str) -> str:
    text = record.get("text")
    if not isinstance(text, str):
        raise InputError(f"this {kind} needs a 'text' that is a string: {_shown(str(dict(record)))}")
    return text


def _named(owner: Owner) -> str:
    kind, name = owner
    return f"{kind} {_shown(name)}"


def _shown(text: object, limit: int = 60) -> str:
    """A repr that is short and safe to print."""
    shown = ascii(text)
    return shown if len(shown) <= limit else shown[: limit - 2] + "…'"
