"""The item model of the method posterior, made of anchor scores, retrievers, tuned settings and the feedback model.

Reads exact scores and retrievers, feeds `posterior.py`. Costs no pairs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from anncur.anchors import sample_positions
from anncur.arrays import FloatMatrix, FloatVector, Positions
from anncur.caching import Cache
from anncur.errors import InputError
from anncur.factors.posterior import ItemModel, fit_items
from anncur.items import Query
from anncur.retrievers.base import Retriever, item_vectors
from anncur.retrievers.features import NamedCoefficients, predict, predict_items, regress, sampled_features
from anncur.search.feedback import LEAST_ANCHORS, FeedbackModel, anchor_residuals, feedback_part, join
from anncur.search.settings import PosteriorSettings, Tuned

LONE_COEFFICIENTS = (1.0, 0.0)  # of a retriever where nothing can be regressed: its standardised scores as they are


@dataclass(frozen=True, eq=False)
class PriorMeans:
    """Score estimates before anything is scored: the items' offsets, and what retrievers predict for each query.

    `initial` are the retriever predictions that the first round ranks by, where it doesn't rank by prior means."""

    offsets: FloatVector  # (n_items,)
    fitted: FloatMatrix | None = None  # (n_queries, n_items)
    initial: FloatMatrix | None = None  # (n_queries, n_items)

    def between(self, start: int, stop: int) -> FloatMatrix:
        offsets = self.offsets[start:stop]
        return offsets[None] if self.fitted is None else offsets + self.fitted[:, start:stop]

    def at(self, positions: Positions) -> FloatMatrix:
        """Of some items for each query; both are (n_queries, n)."""
        offsets = self.offsets[positions]
        return offsets if self.fitted is None else offsets + np.take_along_axis(self.fitted, positions, axis=1)

    def keep(self, rows: Positions) -> PriorMeans:
        """Those of some of the queries only, after the first round."""
        return PriorMeans(self.offsets, None if self.fitted is None else self.fitted[rows])


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

    def settings(self) -> PosteriorSettings:
        """As tuned, with the feedback model's coefficients where there is one; where nothing was tuned, all retrievers
        with coefficients regressed on the anchor queries."""
        if self.feedback is None:
            return self.own_settings()
        tuned = self.tuned.settings or PosteriorSettings()
        if not self.feedback.coefficients:  # no retriever in the prior mean; the first round may still rank by them
            return replace(tuned, retriever_weight=0.0)
        return replace(tuned, coefficients=self.feedback.coefficients, retriever_weight=1.0)

    def own_settings(self) -> PosteriorSettings:
        """The same without the feedback model."""
        return self.tuned.settings or PosteriorSettings(coefficients=self.coefficients(list(self._retrievers)))

    def coefficients(self, retrievers: Sequence[str]) -> NamedCoefficients:
        """Coefficients of some of the retrievers, regressed on the anchor queries.

        Without enough of these, only the first retriever is used."""
        check_known(retrievers, self._retrievers)
        if len(self._queries) < LEAST_ANCHORS:
            return tuple((name, LONE_COEFFICIENTS) for name in retrievers[:1])
        sample = sample_positions(len(self.anchor_scores), np.random.default_rng(0))
        chosen = {name: self._retrievers[name] for name in retrievers}
        found = regress(self.anchor_scores[sample].T, sampled_features(chosen, self._queries, sample))
        return tuple(found.items())

    def item_model(self, settings: PosteriorSettings) -> ItemModel:
        """The items' offsets and vectors; made once."""
        return self._item_models.get(settings.of_items, lambda: self._make(settings))

    def prior(self, settings: PosteriorSettings, queries: Sequence[Query]) -> PriorMeans:
        """Score estimates for queries before anything is scored."""
        offsets, weight = self.item_model(settings).offsets, settings.retriever_weight
        if not settings.coefficients or not (weight or settings.n_initial):
            return PriorMeans(offsets)
        retriever_scores = {name: self._retrievers[name].scores(queries) for name in settings.retrievers}
        predicted = predict(retriever_scores, dict(settings.coefficients))
        return PriorMeans(offsets, weight * predicted if weight else None, predicted if settings.n_initial else None)

    def _make(self, settings: PosteriorSettings) -> ItemModel:
        n_items = len(self.anchor_scores)
        if self.feedback is not None and settings.in_mean == self.feedback.coefficients:
            return self._make_with(self.feedback, settings)
        if len(self._queries) < LEAST_ANCHORS:  # nothing is known of the scorer, not even the scale of its scores
            return fit_items(np.empty((n_items, 0), dtype=np.float32), noise_share=1.0)
        fitted = predict_items(self._retrievers, dict(settings.in_mean), self._queries, n_items)
        return self._fit(self.anchor_scores, fitted, settings)

    def _make_with(self, feedback: FeedbackModel, settings: PosteriorSettings) -> ItemModel:
        """The feedback model's vectors, and beside them those of its residuals on the anchor queries."""
        if len(self._queries) < LEAST_ANCHORS:
            return ItemModel(feedback.offsets, feedback.vectors, feedback.noise)
        residuals = anchor_residuals(self.anchor_scores, self._queries, self._retrievers, dict(settings.in_mean))
        residual_model = self._fit(residuals, feedback_part(feedback, residuals), settings)
        return join(feedback, residual_model, noise_share=settings.noise_share)

    def _fit(self, scores: FloatMatrix, fitted: FloatMatrix | None, settings: PosteriorSettings) -> ItemModel:
        name = settings.embeddings_of
        return fit_items(
            scores,
            fitted,
            noise_share=settings.noise_share,
            embeddings=None if name is None else item_vectors(self._retrievers[name]),
            embedding_share=settings.embedding_share,
        )


def check_known(names: Sequence[str], retrievers: Mapping[str, Retriever]) -> None:
    """Refuse retrievers that an index doesn't have."""
    for name in names:
        if name not in retrievers:
            had = ", ".join(retrievers) or "none"
            raise InputError(f"this index has the retrievers: {had}; build it with retrievers={(*retrievers, name)!r}")
