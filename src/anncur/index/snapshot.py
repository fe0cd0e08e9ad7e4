"""One version of an index, as searches see it: the items that are there, their vectors, and what was learnt.

Never changed: adding or removing items makes another one."""

from __future__ import annotations

import copy
import hashlib
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from anncur.anchors import order_anchors
from anncur.arrays import FloatMatrix, Positions
from anncur.candidates.base import Retriever, item_vectors
from anncur.factors.cur import CurFactors
from anncur.index.build import Learned
from anncur.index.item_store import Store
from anncur.index.lesson_file import encode_lesson
from anncur.index.tuned_file import encode_tuned
from anncur.items import Item, Items, Query, TextDigest, unknown_id
from anncur.search.base import Knowledge
from anncur.search.beliefs import Beliefs


@dataclass(frozen=True, eq=False)
class Prepared:
    """Items with what a scorer made of them, and the fingerprint of that scorer."""

    scorer: str
    items: Items


@dataclass(frozen=True, eq=False)
class Snapshot:
    """Items, and what is known of them."""

    version: int
    queries: Sequence[Query]
    items: Items
    knowledge: Knowledge
    n_chosen: int  # of the anchor items, those that a method chose
    prepared: Prepared | None = None

    def items_for(self, scorer: str) -> Items:
        """The items as the scorer of this fingerprint gets them: what another one made of them is not for it."""
        if self.prepared is None or self.prepared.scorer != scorer:
            return self.items
        return self.prepared.items

    def digest(self) -> str:
        """A hash of all that this version holds."""
        digest = TextDigest()
        for query in self.queries:
            digest.add(query.id, query.marked_text)
        for item in self.items:
            digest.add_item(item)
        factors, splits = self.knowledge.factors, self.knowledge.splits
        for array in (factors.item_vectors, factors.anchor_order[: self.n_chosen], splits.ranks):
            digest.add(hashlib.sha256(np.ascontiguousarray(array).data).hexdigest())
        digest.add(*(f"{split.n_anchor_items} {split.cutoff!r}" for split in splits.splits))
        tuned = self.knowledge.beliefs.tuned
        if tuned.settings is not None:
            digest.add(encode_tuned(tuned).decode())
        lesson = self.knowledge.beliefs.lesson
        if lesson is not None:
            digest.add(*(hashlib.sha256(content).hexdigest() for content in encode_lesson(lesson).values()))
        return str(digest)


def make_snapshot(
    version: int,
    queries: Sequence[Query],
    items: Items,
    item_vectors: FloatMatrix,
    *,
    learned: Learned,
    retrievers: Mapping[str, Retriever],
    seed: int,
    prepared: Prepared | None = None,
) -> Snapshot:
    """Bring together what belongs to the items that are there; positions are theirs."""
    order = order_anchors(learned.anchor_items, len(items), np.random.default_rng(seed))
    lazy = fitted_on_use(retrievers, items)
    beliefs = Beliefs(item_vectors, queries, lazy, learned.tuned, learned.lesson)
    knowledge = Knowledge(len(items), CurFactors(item_vectors, order), learned.splits, lazy, beliefs, queries)
    return Snapshot(version, queries, items, knowledge, n_chosen=len(learned.anchor_items), prepared=prepared)


class StoredItems:
    """`Items` that are spread over stores, without those that were removed."""

    def __init__(self, stores: Sequence[Store], rows: Sequence[Positions]) -> None:
        self._stores = stores
        self._rows = rows  # of each store, those that are there, in ascending order
        self._starts = np.concatenate([[0], np.cumsum([len(some) for some in rows])]).astype(np.int64)

    def __len__(self) -> int:
        return int(self._starts[-1])

    def __getitem__(self, position: int) -> Item:
        if not -len(self) <= position < len(self):
            raise IndexError(position)
        return self.take(np.array([position % len(self)]))[0]

    def __iter__(self) -> Iterator[Item]:
        for store, rows in zip(self._stores, self._rows, strict=True):
            for start in range(0, len(rows), 1000):
                yield from store.take(rows[start : start + 1000])

    def take(self, positions: Positions) -> list[Item]:
        homes = np.searchsorted(self._starts, positions, side="right") - 1
        found: dict[int, Item] = {}
        for home in np.unique(homes).tolist():
            wanted = positions[homes == home]
            items = self._stores[home].take(self._rows[home][wanted - self._starts[home]])
            found.update(zip(wanted.tolist(), items, strict=True))
        return [found[position] for position in positions.tolist()]

    def position(self, item_id: str) -> int:
        home, row = self.row(item_id)
        return int(self._starts[home] + np.searchsorted(self._rows[home], row))

    def row(self, item_id: str) -> tuple[int, int]:
        """The store that holds an id, and its row there."""
        for home, (store, rows) in enumerate(zip(self._stores, self._rows, strict=True)):
            row = store.row(item_id)
            if row is not None:
                place = int(np.searchsorted(rows, row))
                if place < len(rows) and rows[place] == row:
                    return home, row
        raise unknown_id(item_id)


def fitted_on_use(retrievers: Mapping[str, Retriever], items: Items) -> dict[str, Retriever]:
    """Copies of retrievers, for these items."""
    return {name: FittedOnUse(retriever, items) for name, retriever in retrievers.items()}


class FittedOnUse:
    """A retriever that is fitted when it is first asked: most searches never ask."""

    def __init__(self, retriever: Retriever, items: Items) -> None:
        self.name = retriever.name
        self._retriever = copy.copy(retriever)  # other versions of the index have it fitted to other items
        self._items = items
        self._is_fitted = False
        self._lock = threading.Lock()

    def fit(self, items: Iterable[Item]) -> None:
        """Nothing yet."""

    def scores(self, queries: Sequence[Query]) -> FloatMatrix:
        return self._fitted().scores(queries)

    def item_vectors(self) -> FloatMatrix | None:
        return item_vectors(self._fitted())

    def _fitted(self) -> Retriever:
        with self._lock:
            if not self._is_fitted:
                self._retriever.fit(self._items)
                self._is_fitted = True
        return self._retriever
