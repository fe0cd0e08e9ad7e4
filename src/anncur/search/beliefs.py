"""What an index believes of scores that it hasn't seen: tuned settings, and the item model made of them."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from anncur.anchors import sample_positions
from anncur.arrays import FloatMatrix, FloatVector
from anncur.candidates.base import Retriever, item_vectors
from anncur.candidates.prior import CAUTION, explain, explain_items, regress, sampled_features, scaled
from anncur.errors import InputError
from anncur.factors.posterior import ItemModel, fit_items
from anncur.items import Query
from anncur.search.calibration import Calibration
from anncur.search.guesses import PriorMeans
from anncur.search.lesson import LEAST_ANCHORS, Lesson, anchor_rest, join, lesson_part

NEVER = np.iinfo(np.int32).max
LONE_COEFFICIENTS = (1.0, 0.0)


@dataclass(frozen=True)
class PosteriorSettings:
    """What tuning chooses.

    `noise_share` and `side_share` are shares of an item's variance: what the anchor queries leave unexplained, and what
    is left to the vectors of the retriever `side`. `coefficients` are those of the retrievers, whose part in the prior
    mean has the given `weight`. The first round scores as many items as the `opening` has, the best by what retrievers
    say alone; without an opening it scores `first` items, the best by the prior mean. Every other round scores `growth`
    times what has been scored, but not fewer than `first`."""

    noise_share: float = 0.05
    coefficients: tuple[tuple[str, tuple[float, ...]], ...] = ()
    side: str | None = None
    side_share: float = 0.0
    weight: float = CAUTION
    opening: int = 5
    first: int = 5
    growth: float = 0.15

    @property
    def retrievers(self) -> tuple[str, ...]:
        """Those that have a say."""
        return tuple(name for name, _ in self.coefficients)

    @property
    def in_mean(self) -> tuple[tuple[str, tuple[float, ...]], ...]:
        """The coefficients with their weight; none where they have no part in the prior mean."""
        return tuple(scaled(dict(self.coefficients), self.weight).items()) if self.weight else ()

    @property
    def of_items(self) -> PosteriorSettings:
        """The same with the rounds as they are by default: what the item model depends on."""
        return replace(self, **{name: getattr(PosteriorSettings, name) for name in ("opening", "first", "growth")})

    def round_sizes(self, budget: int) -> Iterator[int]:
        """How many items each round scores."""
        scored = 0
        while scored < budget:
            size = (self.opening or self.first) if not scored else max(self.first, round(self.growth * scored))
            yield min(size, budget - scored)
            scored += size


@dataclass(frozen=True, eq=False)
class RecallCurve:
    """After how many calls the truly best items of held-out queries were found, best first. (n_held_out, depth)"""

    found_after: NDArray[np.int32] = field(default_factory=lambda: np.empty((0, 0), dtype=np.int32))
    most_calls: int = 0  # that were tried

    def recall(self, k: int, budget: int) -> float | None:
        """The mean recall of held-out queries, where it is known."""
        by_query = self.recall_by_query(k, budget)
        return None if by_query is None else float(by_query.mean())

    def recall_by_query(self, k: int, budget: int) -> FloatVector | None:
        """The recall of each held-out query, where it is known. (n_held_out,)"""
        n_held_out, depth = self.found_after.shape
        if not n_held_out or k > depth or budget > self.most_calls:
            return None
        by_query: FloatVector = (self.found_after[:, :k] <= budget).mean(axis=1)
        return by_query

    def budget(self, k: int, recall: float) -> int | None:
        """The least budget that gave this recall, where one did."""
        n_held_out, depth = self.found_after.shape
        if not n_held_out or k > depth:
            return None
        after = np.sort(self.found_after[:, :k], axis=None)
        n_found = int(np.ceil(recall * len(after) - 1e-9))  # a recall that was measured here is a whole number of them
        needed = int(after[min(len(after), max(1, n_found)) - 1])
        return None if needed > self.most_calls else max(k, needed)


@dataclass(frozen=True, eq=False)
class Tuned:
    """What tuning found: settings (None where there was nothing to tune on), and what they are worth.

    For comparison, `rerank_curves` tell what re-ranking with each retriever would have found for the same queries, and
    `spectrum` how simple the exact scores are (see `factors/spectrum.py`); an index of an older version has neither."""

    settings: PosteriorSettings | None = None
    curve: RecallCurve = field(default_factory=RecallCurve)
    calibration: Calibration = field(default_factory=Calibration)
    rerank_curves: Mapping[str, RecallCurve] = field(default_factory=dict)
    spectrum: tuple[float, ...] = ()


class Beliefs:
    """Exact scores of the anchor queries, retrievers, what was tuned and what searches taught, as the method posterior
    needs them."""

    def __init__(
        self,
        anchor_scores: FloatMatrix,
        queries: Sequence[Query],
        retrievers: Mapping[str, Retriever],
        tuned: Tuned,
        lesson: Lesson | None = None,
    ) -> None:
        self._anchor_scores = anchor_scores  # (n_items, n_anchor_queries)
        self._queries = queries
        self._retrievers = retrievers
        self._tuned = tuned
        self._lesson = lesson
        self._made: dict[PosteriorSettings, ItemModel] = {}
        self._making = threading.Lock()

    @property
    def tuned(self) -> Tuned:
        """What tuning found."""
        return self._tuned

    @property
    def anchor_scores(self) -> FloatMatrix:
        """Exact scores of the anchor queries, (n_items, n_anchor_queries)."""
        return self._anchor_scores

    @property
    def lesson(self) -> Lesson | None:
        """What searches taught, if anything was learnt from them."""
        return self._lesson

    def settings(self) -> PosteriorSettings:
        """As tuned, but with retrievers as searches value them where that was learnt; where nothing was tuned, all
        retrievers as the anchor queries value them."""
        if self._lesson is not None:
            tuned = self._tuned.settings or PosteriorSettings()
            if not self._lesson.coefficients:  # retrievers have no part in the prior mean, but may open
                return replace(tuned, weight=0.0)
            return replace(tuned, coefficients=self._lesson.coefficients, weight=1.0)
        return self.own_settings()

    def own_settings(self) -> PosteriorSettings:
        """The same without what searches taught."""
        return self._tuned.settings or PosteriorSettings(coefficients=self.coefficients(list(self._retrievers)))

    def coefficients(self, retrievers: Sequence[str]) -> tuple[tuple[str, tuple[float, ...]], ...]:
        """What some of the retrievers are worth, regressed on the anchor queries.

        Without these, the first retriever has the only say."""
        check_known(retrievers, self._retrievers)
        if len(self._queries) < LEAST_ANCHORS:
            return tuple((name, LONE_COEFFICIENTS) for name in retrievers[:1])
        sample = sample_positions(len(self._anchor_scores), np.random.default_rng(0))
        chosen = {name: self._retrievers[name] for name in retrievers}
        found = regress(self._anchor_scores[sample].T, sampled_features(chosen, self._queries, sample))
        return tuple(found.items())

    def model(self, settings: PosteriorSettings) -> ItemModel:
        """The items' offsets and vectors; made once."""
        key = settings.of_items
        with self._making:
            if key not in self._made:
                self._made = {key: self._make(settings)}
            return self._made[key]

    def prior(self, settings: PosteriorSettings, queries: Sequence[Query]) -> PriorMeans:
        """What is guessed for queries before anything is scored."""
        offsets = self.model(settings).offsets
        if not settings.coefficients or not (settings.weight or settings.opening):
            return PriorMeans(offsets)
        cheap_scores = {name: self._retrievers[name].scores(queries) for name in settings.retrievers}
        said = explain(cheap_scores, dict(settings.coefficients))
        return PriorMeans(
            offsets, settings.weight * said if settings.weight else None, said if settings.opening else None
        )

    def _make(self, settings: PosteriorSettings) -> ItemModel:
        n_items = len(self._anchor_scores)
        if self._lesson is not None and settings.in_mean == self._lesson.coefficients:
            return self._make_with(self._lesson, settings)
        if len(self._queries) < LEAST_ANCHORS:  # nothing is known of the scorer, not even the scale of its scores
            return fit_items(np.empty((n_items, 0), dtype=np.float32), noise_share=1.0)
        explained = explain_items(self._retrievers, dict(settings.in_mean), self._queries, n_items)
        return self._fit(self._anchor_scores, explained, settings)

    def _make_with(self, lesson: Lesson, settings: PosteriorSettings) -> ItemModel:
        """The lesson's directions, and beside them what it leaves of the anchor queries' scores."""
        if len(self._queries) < LEAST_ANCHORS:
            return ItemModel(lesson.offsets, lesson.vectors, lesson.noise)
        rest = anchor_rest(self._anchor_scores, self._queries, self._retrievers, dict(settings.in_mean))
        fitted = self._fit(rest, lesson_part(lesson, rest), settings)
        return join(lesson, fitted, noise_share=settings.noise_share)

    def _fit(self, scores: FloatMatrix, explained: FloatMatrix | None, settings: PosteriorSettings) -> ItemModel:
        side = None if settings.side is None else item_vectors(self._retrievers[settings.side])
        return fit_items(
            scores,
            explained,
            noise_share=settings.noise_share,
            side_vectors=side,
            side_share=settings.side_share,
        )


def check_known(names: Sequence[str], retrievers: Mapping[str, Retriever]) -> None:
    """Refuse retrievers that an index doesn't have."""
    for name in names:
        if name not in retrievers:
            had = ", ".join(retrievers) or "none"
            raise InputError(f"this index has the retrievers: {had}; build it with retrievers={(*retrievers, name)!r}")
