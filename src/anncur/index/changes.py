"""Changes of an index's items, as both backends make them: which items come in, and where those that stay are then.

Reads what users pass and what is there, feeds `memory.py` and `folder_changes.py`. Costs no pairs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from anncur.arrays import FloatMatrix, Positions
from anncur.errors import InputError
from anncur.filling import Known
from anncur.items import (
    Item,
    ItemLike,
    Items,
    Query,
    as_item,
    duplicate_id,
    is_taken,
    metadata_json,
    no_items,
    taken_id,
)
from anncur.retrievers.base import Retriever
from anncur.retrievers.embeddings import EMBEDDINGS
from anncur.retrievers.user_embeddings import UserRetriever
from anncur.tuning.derive import Derived


class Incoming:
    """Items that come in, compared with those that are there as they are read; iterated over once.

    Gives those that are to be stored: all of them, with ids that must be new; or with `replaces` those that are new or
    differ from what is there."""

    def __init__(self, items: Iterable[ItemLike], there: Items, *, replaces: bool) -> None:
        self._items = items
        self._there = there
        self._replaces = replaces
        self.n_given = 0
        self.places: list[int] = []  # of those that are stored, among all that were given
        self.replaced: dict[str, int] = {}  # ids of items that others come in place of, and their positions
        self.same_text: dict[str, int] = {}  # of these, those whose exact scores stay

    def __iter__(self) -> Iterator[Item]:
        for item in self._changed() if self._replaces else self._new():
            self.places.append(self.n_given - 1)
            yield item

    def peek(self) -> Iterator[Item] | None:
        """The items that are to be stored; None where all that were given are there already.

        Nothing at all can be upserted, as what changed may be nothing, but not added."""
        taken = iter(self)
        first = next(taken, None)
        if first is None:
            if not self._replaces:
                raise no_items()
            return None
        return _chained(first, taken)

    @property
    def positions(self) -> Positions:
        """The positions of the items that others come in place of, in ascending order."""
        return np.array(sorted(self.replaced.values()), dtype=np.int64)

    @property
    def rescored(self) -> list[str]:
        """The ids of items whose exact scores are others now."""
        return [item_id for item_id in self.replaced if item_id not in self.same_text]

    def sources(self, items: Iterable[Item]) -> Positions:
        """For each of the items that are stored the position whose scores it takes over, -1 where it has none."""
        return np.array([self.same_text.get(item.id, -1) for item in items], dtype=np.int64)

    def _new(self) -> Iterator[Item]:
        """All items, refusing those whose id is taken; a bare text gets the next number that is free."""
        number = len(self._there)
        for item in self._items:
            while isinstance(item, str) and is_taken(str(number), self._there):
                number += 1
            new = as_item(item, position=number)
            if is_taken(new.id, self._there):
                raise taken_id(new.id)
            number += 1
            self.n_given += 1
            yield new

    def _changed(self) -> Iterator[Item]:
        """The items that are new or differ from what is there; the same id twice is refused."""
        seen: dict[str, int] = {}
        for place, item in enumerate(self._items):
            if isinstance(item, str):
                raise InputError(
                    f"an item to upsert needs an id of its own, got a bare text at position {place}; pass "
                    "Item(id='…', text='…') or a dict with 'id' and 'text'"
                )
            new = as_item(item, position=place)
            if seen.setdefault(new.id, place) != place:
                raise duplicate_id(new.id, seen[new.id], place)
            self.n_given += 1
            if self._differs(new):
                yield new

    def _differs(self, new: Item) -> bool:
        """Whether an item isn't there, or another one under its id; which is then remembered."""
        if not is_taken(new.id, self._there):
            return True
        position = self._there.position(new.id)
        old = self._there[position]
        has_same_text = (old.text, old.title) == (new.text, new.title)
        if has_same_text and metadata_json(old) == metadata_json(new):
            return False
        self.replaced[new.id] = position
        if has_same_text:
            self.same_text[new.id] = position
        return True


def taken_over(rows: Mapping[str, int], scores_of: Callable[[Positions], FloatMatrix]) -> Known | None:
    """What is known of items in whose text nothing changed: the scores of these rows, by id."""
    if not rows:
        return None

    def known(items: Sequence[Item], queries: Sequence[Query]) -> FloatMatrix:
        values = np.full((len(items), len(queries)), np.nan, dtype=np.float32)
        places = [place for place, item in enumerate(items) if item.id in rows]
        if places:
            values[places] = scores_of(np.array([rows[items[place].id] for place in places], dtype=np.int64))
        return values

    return known


def embeddings_of_stored(encoders: Mapping[str, Retriever], incoming: Incoming) -> dict[str, Retriever]:
    """The same retrievers; of an array of embeddings, which has a row for each item that was given, the rows of those
    that are stored."""
    own = encoders.get(EMBEDDINGS)
    if not isinstance(own, UserRetriever) or not own.embedder.has_array:
        return dict(encoders)
    own.embedder.check_count(incoming.n_given)
    if len(incoming.places) == incoming.n_given:
        return dict(encoders)
    rows = own.embedder.rows(0, incoming.n_given)
    assert rows is not None
    return {**encoders, EMBEDDINGS: own.with_items(rows[incoming.places])}


def rearranged(derived: Derived, sources: Positions, n_before: int) -> Derived:
    """What was derived of `n_before` items, when each place has the item that was at `sources` before; -1 is a new one.

    An item that is there twice is meant at its last place."""
    is_old = sources >= 0
    places = np.full(n_before, -1, dtype=np.int64)
    places[sources[is_old]] = np.flatnonzero(is_old)
    anchor_items = places[derived.anchor_items]
    feedback = derived.feedback
    if feedback is not None:
        feedback = feedback.take(np.where(is_old, sources, n_before))  # past the last: the prior mean
    return replace(derived, anchor_items=anchor_items[anchor_items >= 0], feedback=feedback)


def _chained(first: Item, others: Iterator[Item]) -> Iterator[Item]:
    yield first
    yield from others
