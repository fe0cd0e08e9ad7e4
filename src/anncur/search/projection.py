"""How the items of an index become offsets and vectors, fitted once and kept for items that come later.

A projection holds all that is taken over items: the scales of retriever scores under the anchor queries, and the item
basis (`factors/items.py`). Given that, an item's offset and vector are its own: they are stored with it, and a new
version of an index projects only what is new. Reads exact scores and retrievers, feeds `model.py` and `storage/`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from anncur.arrays import FloatMatrix, FloatVector
from anncur.factors.items import ITEMS_AT_ONCE, ItemBasis, ItemModel, centred_items, most_variance
from anncur.item_scores import ItemScores
from anncur.items import Query
from anncur.retrievers.base import Retriever, item_vectors
from anncur.retrievers.features import Scale, predict_items
from anncur.search.settings import PosteriorSettings
from anncur.vectors.engines import Identity
from anncur.vectors.exact import ExactVectors

MOST_FITTED = 65_536  # items; of more, a random sample tells means and components as well


@dataclass(frozen=True, eq=False)
class Projection:
    """What turns an item's exact scores, retriever scores and embedding into its offset and vector."""

    settings: PosteriorSettings  # as far as items depend on them
    basis: ItemBasis
    n_fitted: int  # items that there were
    scales: Mapping[str, Scale] = field(default_factory=dict)  # of the anchor queries, by retriever

    def has_aged(self, n_new: int) -> bool:
        """Whether more items came since than it was fitted to: then it is fitted again."""
        return n_new > self.n_fitted


@dataclass(frozen=True, eq=False)
class Projected:
    """Offsets and vectors of the items of one version, and by what engines know them."""

    projection: Projection
    offsets: FloatVector  # (n_items,)
    vectors: ExactVectors
    most_variance: float
    identity: Identity

    def model(self) -> ItemModel:
        """As searches take it."""
        return ItemModel(self.offsets, self.vectors, self.projection.basis.noise, self.most_variance)


@dataclass(frozen=True, eq=False)
class ItemSource:
    """What items are projected from: exact scores of the anchor queries, and retrievers fitted to the items."""

    scores: ItemScores
    queries: Sequence[Query]
    retrievers: Mapping[str, Retriever]

    def embeddings(self, settings: PosteriorSettings) -> FloatMatrix | None:
        """Those of all items, if these settings use any."""
        name = settings.embeddings_of
        return None if name is None or not settings.embedding_share else item_vectors(self.retrievers[name])


def fit_projection(source: ItemSource, settings: PosteriorSettings) -> Projection:
    """The projection for these settings, fitted to all items or to a sample of very many."""
    n_items = source.scores.n_items
    sample = np.arange(n_items)
    if n_items > MOST_FITTED:
        sample = np.sort(np.random.default_rng(0).choice(n_items, MOST_FITTED, replace=False))
    found = predict_items(source.retrievers, dict(settings.in_mean), source.queries, slice(0, n_items))
    fitted = None if found is None else found.fitted[sample]
    embeddings = source.embeddings(settings)
    basis = ItemBasis.fit(
        *centred_items(source.scores.rows(sample), fitted),
        noise_share=settings.noise_share,
        embeddings=None if embeddings is None else embeddings[sample],
        embedding_share=settings.embedding_share,
    )
    return Projection(settings.of_items, basis, n_items, {} if found is None else found.scales)


def project(
    projection: Projection, source: ItemSource, start: int = 0, stop: int | None = None
) -> Iterator[tuple[FloatVector, FloatMatrix]]:
    """Offsets and vectors of the items from one position up to another, block by block."""
    stop, settings = source.scores.n_items if stop is None else stop, projection.settings
    found = predict_items(
        source.retrievers, dict(settings.in_mean), source.queries, slice(start, stop), scales=projection.scales
    )
    embeddings = source.embeddings(settings) if projection.basis.needs_embeddings else None
    for first in range(start, stop, ITEMS_AT_ONCE):
        some = slice(first, min(first + ITEMS_AT_ONCE, stop))
        fitted = None if found is None else found.fitted[some.start - start : some.stop - start]
        offsets, centred = centred_items(source.scores.rows(np.arange(some.start, some.stop)), fitted)
        yield offsets, projection.basis.apply(offsets, centred, None if embeddings is None else embeddings[some])


def projected_model(projection: Projection, source: ItemSource) -> ItemModel:
    """The model of all items, in memory."""
    offsets, vectors = zip(*project(projection, source), strict=True)
    whole = np.concatenate(vectors)
    return ItemModel(np.concatenate(offsets), ExactVectors(whole), projection.basis.noise, most_variance(whole))
