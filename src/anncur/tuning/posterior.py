"""Tunes the method posterior on held-out anchor queries, by the recall that its own rounds reach.

Chooses the share of item embeddings, the initial candidates, the weight of retrievers in the prior mean and which of
them are used, the noise and the size of rounds, one after the other; then records what the chosen settings find after
how many pairs, and calibrates the estimate of recall on the same queries. For comparison it also records what
re-ranking with each retriever would find, and the spectrum of the scores. Reads the exact anchor scores of all items
or, when there are very many, of a sample; costs no pairs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anncur.arrays import FloatMatrix, FloatVector, Positions
from anncur.caching import Cache
from anncur.factors.posterior import centred_items, item_model
from anncur.factors.spectrum import spectrum
from anncur.items import Query
from anncur.progress import Progress, silent
from anncur.retrievers.base import Retriever, item_vectors
from anncur.retrievers.features import (
    DEFAULT_RETRIEVER_WEIGHT,
    NamedCoefficients,
    predict_sample,
    regress,
    sampled_features,
)
from anncur.search.feedback import LEAST_ANCHORS
from anncur.search.model import PriorMeans
from anncur.search.posterior import N_RECALL_FEATURES, PosteriorSearch
from anncur.search.settings import KS, NEVER, PosteriorSettings, RecallCurve, Tuned
from anncur.tuning.calibration import CALIBRATED_KS, calibrate
from anncur.tuning.held_out import ItemScores, Sample, make_folds, take_sample

STAGE = "tuning posterior"
MOST_HELD_OUT = 96  # queries in all folds together
N_FOLDS = 6
MOST_PAIRS = 500  # the largest budget that is tried
BUDGETS = (50, 100, 200)  # that count for the choice, with every k of KS below them
TRIED: dict[str, tuple[Any, ...]] = {  # in the order in which they are chosen
    "embedding_share": (0.0, 0.1, 0.3, 0.6),
    "n_initial": (0, 5, 10, 20),
    "retriever_weight": (0.0, DEFAULT_RETRIEVER_WEIGHT, 1.0),
    "retrievers": (),  # all of them, or each alone
    "noise_share": (0.01, 0.05, 0.2),
    "min_round_size": (5, 20),
}
LEAST_TO_CHOOSE = 12  # anchor queries; with fewer, a choice would follow chance
LEAST_GAIN = 0.001  # of recall; less is no reason to leave what is simpler


@dataclass(frozen=True)
class _Choice:
    """Settings but for the coefficients, which every fold regresses on its own."""

    retrievers: tuple[str, ...]
    settings: PosteriorSettings


@dataclass(frozen=True, eq=False)
class _Trial:
    """What some settings found for the held-out queries, (n_held_out, depth), and the features after every round."""

    found_after: NDArray[np.int32]
    n_scored: FloatVector  # pairs at the end of every round
    features: FloatMatrix  # (n_rounds, n_held_out, number of calibrated ks, N_RECALL_FEATURES), if asked for
    recall: FloatMatrix  # (n_rounds, n_held_out, number of calibrated ks), as it truly was


def tune_posterior(
    scores: ItemScores,
    queries: Sequence[Query],
    retrievers: Mapping[str, Retriever],
    *,
    rng: np.random.Generator,
    progress: Progress = silent,
) -> Tuned:
    """Choose settings; `retrievers` are fitted to the items."""
    if scores.n_anchor_queries < 2 * LEAST_ANCHORS:
        return Tuned()
    bench = _Bench.make(scores, queries, retrievers, rng)
    settings = PosteriorSettings(embeddings_of=next(iter(bench.embeddings), None), embedding_share=0.3)
    choice = _Choice(tuple(retrievers), settings)
    if scores.n_anchor_queries >= LEAST_TO_CHOOSE:
        choice = _choose(bench, choice, progress)
    trial = bench.run(choice)
    progress(STAGE, len(TRIED) + 1, len(TRIED) + 1)
    return Tuned(
        settings=replace(choice.settings, coefficients=bench.coefficients(choice.retrievers)),
        curve=RecallCurve(trial.found_after, int(min(trial.n_scored[-1], scores.n_items))),
        calibration=calibrate(trial.features, trial.recall, trial.n_scored, bench.ks(CALIBRATED_KS)),
        rerank_curves={name: RecallCurve(bench.rerank(name), scores.n_items) for name in retrievers},
        spectrum=spectrum(values for _, values in scores.parts()),
    )


def _choose(bench: _Bench, choice: _Choice, progress: Progress) -> _Choice:
    """One kind of setting after the other, the others as they are."""
    best = bench.worth(choice)
    for number, name in enumerate(TRIED):
        progress(STAGE, number, len(TRIED) + 1)
        for other in _others(choice, name):
            worth = bench.worth(other)
            if worth > best + LEAST_GAIN:
                choice, best = other, worth
    return choice


def _others(choice: _Choice, name: str) -> Iterator[_Choice]:
    """The same with other values of one setting, where it has any effect; or with each retriever alone."""
    if name == "retrievers":
        yield from (replace(choice, retrievers=(each,)) for each in choice.retrievers if len(choice.retrievers) > 1)
        return
    has_effect = {
        "embedding_share": choice.settings.embeddings_of,
        "n_initial": choice.retrievers,
        "retriever_weight": choice.retrievers,
    }
    for value in TRIED[name] if has_effect.get(name, True) else ():
        if value != getattr(choice.settings, name):
            yield replace(choice, settings=replace(choice.settings, **{name: value}))


@dataclass(frozen=True, eq=False)
class _View:
    """Items as the anchor queries outside a fold show them, and what retrievers predict for the fold's own queries."""

    offsets: FloatVector  # (n_sampled,)
    vectors: FloatMatrix  # (n_sampled, width)
    predicted: FloatMatrix | None  # (n_held_out, n_sampled)


@dataclass(frozen=True, eq=False)
class _Bench:
    """Where settings are tried: a sample of items, and anchor queries of which some are held out in turn."""

    sample: Sample
    folds: list[Positions]
    features: dict[str, FloatMatrix]  # (n_features, n_queries, n_sampled)
    embeddings: dict[str, FloatMatrix]  # (n_sampled, width)
    views: Cache[_View]

    @classmethod
    def make(
        cls,
        scores: ItemScores,
        queries: Sequence[Query],
        retrievers: Mapping[str, Retriever],
        rng: np.random.Generator,
    ) -> _Bench:
        n_queries = scores.n_anchor_queries
        held_out = rng.permutation(n_queries)[:MOST_HELD_OUT]
        sample = take_sample(scores, held_out, rng)
        folds = make_folds(queries, held_out, n_folds=min(N_FOLDS, n_queries // LEAST_ANCHORS))
        vectors = {name: item_vectors(retriever) for name, retriever in retrievers.items()}
        return cls(
            sample,
            folds,
            sampled_features(retrievers, queries, sample.positions),
            {name: found[sample.positions] for name, found in vectors.items() if found is not None},
            Cache(2 * len(folds)),  # for as long as two choices take turns
        )

    def ks(self, wanted: Sequence[int]) -> tuple[int, ...]:
        """Those that there are enough items for."""
        return tuple(k for k in wanted if k <= self.sample.depth) or (1,)

    def coefficients(self, names: Sequence[str]) -> NamedCoefficients:
        """Of retrievers, from all anchor queries."""
        found = regress(self.sample.vectors.T, {name: self.features[name] for name in names})
        return tuple(found.items())

    def worth(self, choice: _Choice) -> float:
        """The mean recall over every k and budget that counts."""
        budgets = [budget for budget in BUDGETS if budget <= len(self.sample.vectors) // 2]
        budgets = budgets or [max(1, len(self.sample.vectors) // 4)]
        folds = [self._run_fold(choice, fold, budgets[-1], with_features=False) for fold in self.folds]
        found_after = np.concatenate([trial.found_after for trial in folds])
        counted = [(k, budget) for k in self.ks(KS) for budget in budgets if k < budget] or [(1, budgets[0])]
        return float(np.mean([(found_after[:, :k] <= budget).mean() for k, budget in counted]))

    def run(self, choice: _Choice) -> _Trial:
        """Hold out each fold in turn, with the features of every round."""
        n_pairs = min(MOST_PAIRS, len(self.sample.vectors))
        trials = [self._run_fold(choice, fold, n_pairs, with_features=True) for fold in self.folds]
        return _Trial(
            np.concatenate([trial.found_after for trial in trials]),
            trials[0].n_scored,
            np.concatenate([trial.features for trial in trials], axis=1),
            np.concatenate([trial.recall for trial in trials], axis=1),
        )

    def rerank(self, name: str) -> NDArray[np.int32]:
        """After how many pairs a retriever's own order comes to each of the truly best items. (n_held_out, depth)"""
        own_scores = self.features[name][0]  # standardised, which leaves their order
        orders = [np.argsort(-own_scores[fold], axis=1, kind="stable") for fold in self.folds]
        found = [
            self._found_after(fold, order, self._n_pairs(order)) for fold, order in zip(self.folds, orders, strict=True)
        ]
        n_items = round(self.sample.weights.sum())
        found_after: NDArray[np.int32] = np.minimum(np.concatenate(found), n_items)  # else rounding may add one
        return found_after

    def _run_fold(self, choice: _Choice, fold: Positions, n_pairs: int, *, with_features: bool) -> _Trial:
        search = self._search(choice, fold)
        truth = self.sample.vectors[:, fold].T.astype(np.float64)  # (n_held_out, n_sampled)
        ks = self.ks(CALIBRATED_KS)
        ends, features = [], []
        for size in choice.settings.round_sizes(n_pairs):
            positions = np.stack([proposal.positions for proposal in search.propose(size)])
            search.observe(positions, np.take_along_axis(truth, positions, axis=1))
            ends.append(search.scored.shape[1])
            if with_features:
                features.append(search.recall_features(ks))
        spent = self._n_pairs(search.scored)
        return _Trial(
            self._found_after(fold, search.scored, spent),
            spent[:, np.array(ends) - 1].mean(axis=0),
            np.stack(features) if features else np.empty((0, len(fold), len(ks), N_RECALL_FEATURES)),
            self._recall(fold, search.scored, ends, ks) if with_features else np.empty((0, len(fold), len(ks))),
        )

    def _search(self, choice: _Choice, fold: Positions) -> PosteriorSearch:
        """A search for the queries of a fold that knows nothing of them."""
        settings, weight = choice.settings, choice.settings.retriever_weight
        key = (fold.tobytes(), choice.retrievers, weight)
        view = self.views.get(key, lambda: self._view(choice, fold))
        model = item_model(
            view.offsets,
            view.vectors,
            noise_share=settings.noise_share,
            embeddings=None if settings.embeddings_of is None else self.embeddings[settings.embeddings_of],
            embedding_share=settings.embedding_share,
        )
        fitted = None if view.predicted is None or not weight else weight * view.predicted
        prior = PriorMeans(model.offsets, fitted, view.predicted if settings.n_initial else None)
        return PosteriorSearch(model, prior, len(fold))

    def _view(self, choice: _Choice, fold: Positions) -> _View:
        others = np.setdiff1d(np.arange(self.sample.vectors.shape[1]), fold)
        anchor_scores, weight = self.sample.vectors[:, others], choice.settings.retriever_weight
        chosen = {name: self.features[name] for name in choice.retrievers}
        coefficients = regress(anchor_scores.T, {name: found[:, others] for name, found in chosen.items()})
        if not coefficients:
            return _View(*centred_items(anchor_scores), None)
        predicted = predict_sample(chosen, coefficients)  # (n_queries, n_sampled)
        fitted = (weight * predicted[others]).T if weight else None
        return _View(*centred_items(anchor_scores, fitted), predicted[fold])

    def _n_pairs(self, scored: Positions) -> FloatMatrix:
        """The pairs up to each item in the order of scoring, as they would be among all items; like `scored`."""
        n_pairs: FloatMatrix = np.minimum(np.ceil(np.cumsum(self.sample.weights[scored], axis=1)), NEVER)
        return n_pairs

    def _found_after(self, fold: Positions, scored: Positions, spent: FloatMatrix) -> NDArray[np.int32]:
        """What had been spent when each of the truly best items was scored. (n_held_out, depth)"""
        rows = []
        for query, positions, so_far in zip(fold.tolist(), scored, spent, strict=True):
            after = np.full(len(self.sample.vectors), NEVER, dtype=np.int32)
            after[positions] = so_far
            rivals = self.sample.rivals(query)
            rows.append(self.sample.best_found(query, rivals, after[rivals]))
        return np.stack(rows)

    def _recall(self, fold: Positions, scored: Positions, ends: Sequence[int], ks: Sequence[int]) -> FloatMatrix:
        """At the end of every round, (n_rounds, n_held_out, len(ks))."""
        steps = np.broadcast_to(np.arange(1, scored.shape[1] + 1), scored.shape)
        found_at = self._found_after(fold, scored, steps)
        return np.array([[(found_at[:, :k] <= end).mean(axis=1) for k in ks] for end in ends]).swapaxes(1, 2)
