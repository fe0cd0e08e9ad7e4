"""What tuning chooses and finds: settings of the method posterior, and how much they found for held-out queries.

Plain values: written by `tuning/`, stored by `storage/codecs.py`, read by searches and by reports."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from anncur.arrays import FloatVector
from anncur.retrievers.features import DEFAULT_RETRIEVER_WEIGHT, NamedCoefficients, Regression, scaled
from anncur.search.calibration import Calibration
from anncur.search.drift import DriftReference
from anncur.search.schedule import Schedule

KS = (1, 10, 50, 100)  # that recall is reported for
NEVER = np.iinfo(np.int32).max  # as a number of pairs: the item wasn't found


@dataclass(frozen=True)
class PosteriorSettings:
    """How the method posterior searches.

    `noise_share` and `embedding_share` are shares of an item's variance: what the anchor queries leave unexplained, and
    what the item embeddings of the retriever `embeddings_of` account for. `coefficients` are the retrievers', and
    `retriever_weight` is how much of what they predict goes into the prior mean. A query's own coefficients differ from
    these by `spreads`, and its scores by `level_spread` from the offsets; `own_share` is the share of the spread over
    anchor queries that counts, because item vectors hold a part of these differences already. The first round scores
    the `n_initial` items that the retrievers rank highest; where that is 0, the `min_round_size` items with the highest
    prior mean. Every other round scores `growth` times as many items as have been scored, at least `min_round_size`."""

    noise_share: float = 0.05
    coefficients: NamedCoefficients = ()
    spreads: NamedCoefficients = ()
    level_spread: float = 0.0
    own_share: float = 0.5
    embeddings_of: str | None = None
    embedding_share: float = 0.0
    retriever_weight: float = DEFAULT_RETRIEVER_WEIGHT
    n_initial: int = 5
    min_round_size: int = 5
    growth: float = 0.15

    @property
    def retrievers(self) -> tuple[str, ...]:
        """Those that are used."""
        return tuple(name for name, _ in self.coefficients)

    @property
    def in_mean(self) -> NamedCoefficients:
        """The coefficients with their weight; none where the prior mean has no part of the retrievers'."""
        return tuple(scaled(dict(self.coefficients), self.retriever_weight).items()) if self.retriever_weight else ()

    def with_regression(self, found: Regression) -> PosteriorSettings:
        """The same with what was regressed on anchor queries."""
        spreads = tuple(scaled(dict(found.spreads), self.own_share).items()) if self.own_share else ()
        level_spread = found.level_spread if self.own_share else 0.0
        return replace(self, coefficients=found.coefficients, spreads=spreads, level_spread=level_spread)

    @property
    def of_items(self) -> PosteriorSettings:
        """The same with default rounds, and nothing of the queries' own: what the item model depends on."""
        others = ("n_initial", "min_round_size", "growth", "spreads", "level_spread", "own_share")
        return replace(self, **{name: getattr(PosteriorSettings, name) for name in others})

    def round_sizes(self, budget: int, schedule: Schedule | None = None) -> Iterator[int]:
        """How many items each round scores; a schedule may make them fewer and larger, each when it is asked for."""
        n_scored, n_rounds = 0, 0
        while n_scored < budget:
            first = self.n_initial or self.min_round_size
            size = max(self.min_round_size, round(self.growth * n_scored)) if n_scored else first
            if schedule is not None:
                size = schedule.n_pairs(size, n_scored=n_scored, n_rounds=n_rounds, budget=budget)
            yield min(size, budget - n_scored)
            n_scored, n_rounds = n_scored + size, n_rounds + 1


NO_ANCHORS = PosteriorSettings(noise_share=0.2, embedding_share=1.0, retriever_weight=1.0, n_initial=10)
FEW_ANCHORS = PosteriorSettings(noise_share=0.1, embedding_share=0.6, retriever_weight=1.0)
MANY_ANCHORS = PosteriorSettings(embedding_share=0.3)  # with which tuning begins
FEEDBACK_ALONE = PosteriorSettings(noise_share=0.3, embedding_share=0.5, retriever_weight=1.0, n_initial=10)


@dataclass(frozen=True, eq=False)
class RecallCurve:
    """After how many pairs the truly best items of held-out queries were found, best first. (n_held_out, depth)

    Of items with the same exact score, the one that was found first comes first: whichever of them is found, it counts
    as one of the true top k."""

    found_after: NDArray[np.int32] = field(default_factory=lambda: np.empty((0, 0), dtype=np.int32))
    most_calls: int = 0  # the largest budget that was tried

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

    For comparison, `rerank_curves` tell what re-ranking with each retriever would have found for the same queries,
    `spectrum` how simple the exact scores are (see `factors/spectrum.py`), `drift` how surprising the exact scores of
    the same queries were, and how high the best of them. An index of an older version has none of the three."""

    settings: PosteriorSettings | None = None
    curve: RecallCurve = field(default_factory=RecallCurve)
    calibration: Calibration = field(default_factory=Calibration)
    rerank_curves: Mapping[str, RecallCurve] = field(default_factory=dict)
    spectrum: tuple[float, ...] = ()
    drift: DriftReference = field(default_factory=DriftReference)
