"""The item model of the method posterior, made of anchor scores, retrievers, tuned settings and the feedback model.

Reads exact scores and retrievers, feeds `posterior.py`. Costs no pairs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from anncur.anchors import sample_positions
from anncur.arrays import FloatMatrix, Positions
from anncur.caching import Cache
from anncur.errors import InputError
from anncur.factors.items import (
    MOST_COMPONENTS,
    EmbeddingBasis,
    ItemModel,
    beside_offsets,
    centred_items,
    in_components,
    item_model,
    noise_of,
    principal_components,
)
from anncur.item_scores import HeldScores, ItemScores
from anncur.items import Query
from anncur.retrievers.base import Retriever, embedding_source
from anncur.retrievers.features import N_FEATURES, Regression, regress, sampled_features
from anncur.search.drift import DriftReference
from anncur.search.feedback import LEAST_ANCHORS, FeedbackModel, anchor_residuals, feedback_part
from anncur.search.prior import LateFeatures, QueryPrior, make_prior, prior_of, used_features
from anncur.search.projection import ItemSource, Projected, fit_projection, projected_model
from anncur.search.settings import FEEDBACK_ALONE, FEW_ANCHORS, NO_ANCHORS, PosteriorSettings, Tuned
from anncur.vectors.base import VectorIndex
from anncur.vectors.engines import KeptIndex, VectorEngine

FIRST_SLOPE = 0.7  # of all retrievers together, where nothing can be regressed: in units of the spread of scores
FIRST_SPREAD = 1.0  # of each retriever's coefficient there
FIRST_LEVEL = 10.0  # spread of a query's level there
FEEDBACK_SPREAD = 0.3  # the same beside a feedback model, in units of the spread of its residuals
FEEDBACK_LEVEL = 1.0


class PosteriorModel:
    """What the method posterior knows of items: anchor scores, retrievers, tuned settings and the feedback model.

    `projected` are the items as they were projected before; under other settings they are projected on first use.
    `kept_index` is what an engine made of an earlier version."""

    def __init__(
        self,
        scores: ItemScores,
        queries: Sequence[Query],
        retrievers: Mapping[str, Retriever],
        tuned: Tuned,
        feedback: FeedbackModel | None = None,
        *,
        projected: Projected | None = None,
        engine: VectorEngine | None = None,
        kept_index: KeptIndex | None = None,
    ) -> None:
        self.scores = scores  # of the anchor queries
        self.projected = projected
        self.tuned = tuned
        self.feedback = feedback
        self._queries = queries
        self._retrievers = retrievers
        self._engine = engine or VectorEngine()
        self._kept_index = kept_index or KeptIndex()
        self._item_models: Cache[ItemModel] = Cache()
        self._engine_indexes: Cache[VectorIndex] = Cache()
        self._defaults: Cache[PosteriorSettings] = Cache(2)  # by retrievers: all of them, and those that a search names

    def settings(self) -> PosteriorSettings:
        """As tuned, with the feedback model's coefficients where there is one; where nothing was tuned, all retrievers
        with coefficients regressed on the anchor queries."""
        if self.feedback is None:
            return self.own_settings()
        if len(self._queries) < LEAST_ANCHORS:
            return self._feedback_settings(self.feedback)
        if not self.feedback.coefficients:  # no retriever in the prior mean; the first round may still rank by them
            return replace(self.own_settings(), retriever_weight=0.0)
        return replace(self.own_settings(), coefficients=self.feedback.coefficients, retriever_weight=1.0)

    def own_settings(self) -> PosteriorSettings:
        """The same without the feedback model; where nothing was tuned, as items were projected."""
        if self.tuned.settings is not None:
            return self.tuned.settings
        found = self.default_settings(list(self._retrievers))
        if self.projected is None:
            return found
        return replace(found, coefficients=self.projected.projection.settings.coefficients)

    def default_settings(self, retrievers: Sequence[str]) -> PosteriorSettings:
        """Settings with these retrievers that nothing was tuned for; made once."""
        check_known(retrievers, self._retrievers)
        return self._defaults.get(tuple(retrievers), lambda: self._make_default(retrievers))

    def _make_default(self, retrievers: Sequence[str]) -> PosteriorSettings:
        embeddings_of = embedding_source(self._retrievers)
        if len(self._queries) >= LEAST_ANCHORS:
            return replace(FEW_ANCHORS, embeddings_of=embeddings_of).with_regression(self.regression(retrievers))
        slope = FIRST_SLOPE / max(1, len(retrievers))
        return replace(
            NO_ANCHORS,
            embeddings_of=embeddings_of,
            coefficients=tuple((name, (slope, 0.0)) for name in retrievers),
            spreads=tuple((name, (FIRST_SPREAD, 0.0)) for name in retrievers),
            level_spread=FIRST_LEVEL,
        )

    def settings_with(self, retrievers: Sequence[str]) -> PosteriorSettings:
        """Its own settings with other retrievers."""
        own, other = self.own_settings(), self.default_settings(retrievers)
        named = replace(own, coefficients=other.coefficients, spreads=other.spreads, level_spread=other.level_spread)
        return named if own.own_share else replace(named, spreads=(), level_spread=0.0)

    @property
    def n_feedback_queries(self) -> int:
        """Those that the feedback model was fitted to."""
        return 0 if self.feedback is None else self.feedback.n_queries

    def drift_reference(self) -> DriftReference:
        """What queries are compared with; nothing where it was made without the feedback model, or with another."""
        found = self.tuned.drift
        return found if found.n_feedback_queries == self.n_feedback_queries else DriftReference()

    def regression(self, retrievers: Sequence[str]) -> Regression:
        """Of exact scores on features of some of the retrievers, over the anchor queries."""
        check_known(retrievers, self._retrievers)
        sample = sample_positions(self.scores.n_items, np.random.default_rng(0))
        chosen = {name: self._retrievers[name] for name in retrievers}
        return regress(self.scores.rows(sample).T, sampled_features(chosen, self._queries, sample))

    def item_model(self, settings: PosteriorSettings) -> ItemModel:
        """The items' offsets and vectors; made once."""
        return self._item_models.get(settings.of_items, lambda: self._in_precision(self._make(settings)))

    def engine_index(self, settings: PosteriorSettings) -> VectorIndex | None:
        """The items' vectors, each with its offset behind it, as an approximate engine ranks them; made once. None
        where there is no such engine, or are too few items for it."""
        if not self._engine.is_worth(self.scores.n_items):
            return None
        return self._engine_indexes.get(settings.of_items, lambda: self._make_engine_index(settings))

    def _make_engine_index(self, settings: PosteriorSettings) -> VectorIndex:
        model = self.item_model(settings)
        projected = self._projected_for(settings)
        if projected is None:
            return self._engine.index(model.vectors, model.offsets)
        return self._kept_index.get(self._engine, model.vectors, model.offsets, projected.identity)

    def _projected_for(self, settings: PosteriorSettings) -> Projected | None:
        """The items as they were projected before, if that was for these settings."""
        if self.projected is None or self._uses_feedback(settings):
            return None
        return self.projected if self.projected.projection.settings == settings.of_items else None

    def engine_recall(self) -> float:
        """The share of the best items that the engine finds."""
        index = self.engine_index(self.settings())
        return 1.0 if index is None else index.recall

    def _in_precision(self, model: ItemModel) -> ItemModel:
        return model.halved() if self._engine.precision == np.float16 else model

    def prior(self, settings: PosteriorSettings, queries: Sequence[Query]) -> QueryPrior:
        """What is known of queries' scores before anything is scored."""
        scores = [self._retrievers[name].scores(queries) for name in settings.retrievers]
        late = LateFeatures.of(scores, used_features(settings)) if scores else None
        offsets = self.item_model(settings).offsets
        return prior_of(offsets, late, settings, is_scale_free=self._is_scale_free(settings))

    def prior_from(
        self, settings: PosteriorSettings, feature_rows: Sequence[FloatMatrix], items: Positions
    ) -> QueryPrior:
        """The same from features of some items that were taken before."""
        offsets = self.item_model(settings).offsets[items]
        return make_prior(offsets, feature_rows, settings, is_scale_free=self._is_scale_free(settings))

    def _is_scale_free(self, settings: PosteriorSettings) -> bool:
        return len(self._queries) < LEAST_ANCHORS and not self._uses_feedback(settings)

    def _uses_feedback(self, settings: PosteriorSettings) -> bool:
        return self.feedback is not None and settings.in_mean == self.feedback.coefficients

    def _feedback_settings(self, feedback: FeedbackModel) -> PosteriorSettings:
        """With a feedback model alone, whose residuals tell the scale of scores."""
        scale = float(np.sqrt(feedback.variance))
        spreads = tuple((name, (FEEDBACK_SPREAD * scale,) * N_FEATURES) for name, _ in feedback.coefficients)
        return replace(
            FEEDBACK_ALONE,
            embeddings_of=embedding_source(self._retrievers),
            coefficients=feedback.coefficients,
            spreads=spreads,
            level_spread=FEEDBACK_LEVEL * scale,
        )

    def _make(self, settings: PosteriorSettings) -> ItemModel:
        if self.feedback is not None and self._uses_feedback(settings):
            return self._make_with(self.feedback, settings)
        projected = self._projected_for(settings)
        if projected is not None:
            return projected.model()
        source = self.source()
        return projected_model(fit_projection(source, settings), source)

    def source(self) -> ItemSource:
        """What items are projected from; a single anchor query has no spread, and is left out."""
        if len(self._queries) >= LEAST_ANCHORS:
            return ItemSource(self.scores, self._queries, self._retrievers)
        return ItemSource(HeldScores(np.empty((self.scores.n_items, 0))), (), self._retrievers)

    def _make_with(self, feedback: FeedbackModel, settings: PosteriorSettings) -> ItemModel:
        """The feedback model's vectors, and beside them those of its residuals on the anchor queries."""
        embeddings = self.source().embeddings(settings)
        if len(self._queries) < LEAST_ANCHORS:
            vectors = beside_offsets(feedback.offsets, feedback.vectors)
            if embeddings is not None:
                of_embeddings = EmbeddingBasis.fit(embeddings, settings.embedding_share * feedback.variance)
                vectors = np.hstack([vectors, of_embeddings.apply(embeddings)])
            return ItemModel.of(feedback.offsets, vectors, noise_of(settings.noise_share, feedback.variance))
        residuals = anchor_residuals(self.scores.all(), self._queries, self._retrievers, dict(settings.in_mean))
        offsets, centred = centred_items(residuals, feedback_part(feedback, residuals))
        of_residuals = in_components(centred, principal_components(centred, MOST_COMPONENTS))
        model = item_model(
            feedback.offsets,
            np.hstack([feedback.vectors, beside_offsets(offsets, of_residuals)]),
            noise_share=settings.noise_share,
            embeddings=embeddings,
            embedding_share=settings.embedding_share,
        )
        return replace(model, offsets=feedback.offsets + offsets)


def check_known(names: Sequence[str], retrievers: Mapping[str, Retriever]) -> None:
    """Refuse retrievers that an index doesn't have."""
    for name in names:
        if name not in retrievers:
            had = ", ".join(retrievers) or "none"
            raise InputError(f"this index has the retrievers: {had}; build it with retrievers={(*retrievers, name)!r}")
