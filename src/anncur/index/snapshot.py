"""One version of an index, as searches see it: the live items, and what is known of them.

Never changed: adding or removing items makes another one."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from anncur.anchors import order_anchors
from anncur.candidates import Candidates
from anncur.factors.cur import CurFactors
from anncur.index.filtering import Filter, Metadata, candidates
from anncur.item_scores import ItemScores
from anncur.items import Items, Query, TextDigest
from anncur.retrievers.base import Encoded, Retriever, fitted_on_use
from anncur.search.base import Knowledge
from anncur.search.model import PosteriorModel
from anncur.search.projection import Projected
from anncur.storage.codecs import encode_feedback, encode_tuned
from anncur.tuning.derive import Derived
from anncur.vectors.engines import KeptIndex, VectorEngine


@dataclass(frozen=True, eq=False)
class Prepared:
    """Items with what a scorer prepared of them, and the fingerprint of that scorer."""

    scorer: str
    items: Items


@dataclass(frozen=True, eq=False)
class Snapshot:
    """Items, and what is known of them."""

    version: int
    items: Items
    knowledge: Knowledge
    derived: Derived
    metadata: Metadata
    prepared: Prepared | None = None

    def candidates(self, filter: Filter | None, *, takes_masks: bool = True) -> Candidates:
        """The items that a search may score."""
        return candidates(filter, self.items, self.metadata, takes_masks=takes_masks)

    @property
    def anchor_queries(self) -> Sequence[Query]:
        """Those that every item was scored for."""
        return self.knowledge.anchor_queries

    def items_for(self, scorer: str) -> Items:
        """The items as the scorer of this fingerprint gets them: what another one prepared is not for it."""
        if self.prepared is None or self.prepared.scorer != scorer:
            return self.items
        return self.prepared.items

    def digest(self) -> str:
        """A hash of all that this version holds, but for what retrievers derived from the items."""
        digest = TextDigest()
        for query in self.anchor_queries:
            digest.add(query.id, query.marked_text)
        for item in self.items:
            digest.add_item(item)
        factors, splits = self.knowledge.factors, self.knowledge.splits
        for array in (factors.item_vectors, self.derived.anchor_items, splits.ranks):
            digest.add(hashlib.sha256(np.ascontiguousarray(array).data).hexdigest())
        digest.add(*(f"{split.n_anchor_items} {split.cutoff!r}" for split in splits.splits))
        if self.derived.tuned.settings is not None or self.derived.tuned.calibration.ks:
            digest.add(encode_tuned(self.derived.tuned).decode())
        if self.derived.feedback is not None:
            contents = encode_feedback(self.derived.feedback).values()
            digest.add(*(hashlib.sha256(content).hexdigest() for content in contents))
        return str(digest)


def make_snapshot(
    version: int,
    items: Items,
    scores: ItemScores,
    *,
    anchor_queries: Sequence[Query],
    derived: Derived,
    retrievers: Mapping[str, Retriever],
    encoded: Mapping[str, Encoded],
    projected: Projected | None = None,
    metadata: Metadata,
    engine: VectorEngine,
    kept_index: KeptIndex | None = None,
    seed: int,
    prepared: Prepared | None = None,
) -> Snapshot:
    """Bring together what belongs to the live items; positions are theirs."""
    order = order_anchors(derived.anchor_items, len(items), np.random.default_rng(seed))
    fitted = fitted_on_use(retrievers, items, encoded)
    posterior = PosteriorModel(
        scores,
        anchor_queries,
        fitted,
        derived.tuned,
        derived.feedback,
        projected=projected,
        engine=engine,
        kept_index=kept_index,
    )
    knowledge = Knowledge(
        n_items=len(items),
        factors=CurFactors(scores, order),
        splits=derived.splits,
        retrievers=fitted,
        posterior=posterior,
        anchor_queries=anchor_queries,
        engine=engine,
    )
    return Snapshot(version, items, knowledge, derived, metadata, prepared)
