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
from anncur.factors.posterior import (
    ItemModel,
    beside_offsets,
    fit_items,
    join_embeddings,
    noise_of,
    share_with_embeddings,
)
from anncur.items import Query
from anncur.retrievers.base import Retriever, embedding_source, item_vectors
from anncur.retrievers.features import (
    N_FEATURES,
    Regression,
    features,
    predict_items,
    regress,
    sampled_features,
)
from anncur.search.feedback import LEAST_ANCHORS, FeedbackModel, anchor_residuals, feedback_part, join
from anncur.search.prior import QueryPrior, make_prior
from anncur.search.settings import FEEDBACK_ALONE, FEW_ANCHORS, NO_ANCHORS, PosteriorSettings, Tuned

FIRST_SLOPE = 0.7  # of all retrievers together, where nothing can be regressed: in units of the spread of scores
FIRST_SPREAD = 1.0  # of each retriever's coefficient there
FIRST_LEVEL = 10.0  # spread of a query's level there
FEEDBACK_SPREAD = 0.3  # the same beside a feedback model, in units of the spread of its residuals
FEEDBACK_LEVEL = 1.0


class PosteriorModel:
    """What the method posterior knows of items: anchor scores, retrievers, tuned settings and the feedback model."""

    def __init__(
        self,
        anchor_scores: FloatMatrix,
        queries: Sequence[Query],
        retrievers: Mapping[str, Retriever],
        tuned: Tuned,
        feedback: FeedbackModel | None = None,
    ) -> None:
        self.anchor_scores = anchor_scores  # (n_items, n_anchor_queries)
        self.tuned = tuned
        self.feedback = feedback
        self._queries = queries
        self._retrievers = retrievers
        self._item_models: Cache[ItemModel] = Cache()
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
        """The same without the feedback model."""
        return self.tuned.settings or self.default_settings(list(self._retrievers))

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

    def regression(self, retrievers: Sequence[str]) -> Regression:
        """Of exact scores on features of some of the retrievers, over the anchor queries."""
        check_known(retrievers, self._retrievers)
        sample = sample_positions(len(self.anchor_scores), np.random.default_rng(0))
        chosen = {name: self._retrievers[name] for name in retrievers}
        return regress(self.anchor_scores[sample].T, sampled_features(chosen, self._queries, sample))

    def item_model(self, settings: PosteriorSettings) -> ItemModel:
        """The items' offsets and vectors; made once."""
        return self._item_models.get(settings.of_items, lambda: self._make(settings))

    def prior(self, settings: PosteriorSettings, queries: Sequence[Query]) -> QueryPrior:
        """What is known of queries' scores before anything is scored."""
        found = [features(self._retrievers[name].scores(queries)) for name in settings.retrievers]
        return self.prior_from(settings, found)

    def prior_from(
        self, settings: PosteriorSettings, feature_rows: Sequence[FloatMatrix], items: Positions | None = None
    ) -> QueryPrior:
        """The same from features that were taken before, of all items or some."""
        offsets = self.item_model(settings).offsets
        is_scale_free = len(self._queries) < LEAST_ANCHORS and not self._uses_feedback(settings)
        chosen = offsets if items is None else offsets[items]
        return make_prior(chosen, feature_rows, settings, is_scale_free=is_scale_free)

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
        n_items = len(self.anchor_scores)
        if self.feedback is not None and self._uses_feedback(settings):
            return self._make_with(self.feedback, settings)
        if len(self._queries) < LEAST_ANCHORS:
            return self._fit(np.empty((n_items, 0), dtype=np.float32), None, settings)
        fitted = predict_items(self._retrievers, dict(settings.in_mean), self._queries, n_items)
        return self._fit(self.anchor_scores, fitted, settings)

    def _make_with(self, feedback: FeedbackModel, settings: PosteriorSettings) -> ItemModel:
        """The feedback model's vectors, and beside them those of its residuals on the anchor queries."""
        if len(self._queries) < LEAST_ANCHORS:
            return join_embeddings(
                ItemModel(
                    feedback.offsets,
                    beside_offsets(feedback.offsets, feedback.vectors),
                    noise_of(settings.noise_share, feedback.variance),
                ),
                self._embeddings(settings),
                variance=settings.embedding_share * feedback.variance,
            )
        residuals = anchor_residuals(self.anchor_scores, self._queries, self._retrievers, dict(settings.in_mean))
        residual_model = fit_items(residuals, feedback_part(feedback, residuals), noise_share=settings.noise_share)
        joined = join(feedback, residual_model, noise_share=settings.noise_share)
        shared = share_with_embeddings(joined, self._embeddings(settings), share=settings.embedding_share)
        return replace(shared, vectors=beside_offsets(feedback.offsets, shared.vectors))

    def _fit(self, scores: FloatMatrix, fitted: FloatMatrix | None, settings: PosteriorSettings) -> ItemModel:
        return fit_items(
            scores,
            fitted,
            noise_share=settings.noise_share,
            embeddings=self._embeddings(settings),
            embedding_share=settings.embedding_share,
        )

    def _embeddings(self, settings: PosteriorSettings) -> FloatMatrix | None:
        name = settings.embeddings_of
        return None if name is None else item_vectors(self._retrievers[name])


def check_known(names: Sequence[str], retrievers: Mapping[str, Retriever]) -> None:
    """Refuse retrievers that an index doesn't have."""
    for name in names:
        if name not in retrievers:
            had = ", ".join(retrievers) or "none"
            raise InputError(f"this index has the retrievers: {had}; build it with retrievers={(*retrievers, name)!r}")
