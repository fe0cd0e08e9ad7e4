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
from anncur.factors.items import MOST_COMPONENTS, centred_items, in_components, item_model, principal_components
from anncur.factors.spectrum import spectrum
from anncur.item_scores import ItemScores
from anncur.items import Query
from anncur.progress import Progress, silent
from anncur.retrievers.base import Retriever, embedding_source, item_vectors
from anncur.retrievers.features import (
    DEFAULT_RETRIEVER_WEIGHT,
    Regression,
    predict_sample,
    regress,
    sampled_features,
)
from anncur.search.drift import DriftReference
from anncur.search.feedback import LEAST_ANCHORS
from anncur.search.posterior_search import PosteriorSearch
from anncur.search.prior import make_prior
from anncur.search.settings import FEW_ANCHORS, KS, MANY_ANCHORS, PosteriorSettings, RecallCurve, Tuned
from anncur.tuning.calibration import CALIBRATED_KS, calibrate
from anncur.tuning.held_out import Sample, make_folds, take_sample
from anncur.tuning.trial import MOST_PAIRS, Trial, join_trials, rerank_found_after, run_trial, usable_ks

STAGE = "tuning posterior"
MOST_HELD_OUT = 96  # queries in all folds together
N_FOLDS = 6
BUDGETS = (50, 100, 200)  # that count for the choice, with every k of KS below them
TRIED: dict[str, tuple[Any, ...]] = {  # in the order in which they are chosen
    "embedding_share": (0.0, 0.1, 0.3, 0.6),
    "n_initial": (0, 5, 10, 20),
    "own_share": (0.0, 0.5),
    "retriever_weight": (0.0, DEFAULT_RETRIEVER_WEIGHT, 1.0),
    "retrievers": (),  # all of them, each alone, or none
    "noise_share": (0.01, 0.05, 0.2),
    "min_round_size": (5, 20),
}
LEAST_TO_CHOOSE = 12  # anchor queries; with fewer, a choice would follow chance
LEAST_GAIN = 0.001  # of recall; less is no reason to leave what is simpler
LEAST_ERRORS = 0.5  # standard errors of a gain that is one: several values are tried, and the best of them may be luck


@dataclass(frozen=True)
class _Choice:
    """Settings but for the coefficients, which every fold regresses on its own."""

    retrievers: tuple[str, ...]
    settings: PosteriorSettings


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
    can_choose = scores.n_anchor_queries >= LEAST_TO_CHOOSE
    settings = replace(MANY_ANCHORS if can_choose else FEW_ANCHORS, embeddings_of=bench.embeddings_of)
    choice = _Choice(tuple(retrievers), settings)
    if can_choose:
        choice = _choose(bench, choice, progress)
    trial = bench.run(choice)
    progress(STAGE, len(TRIED) + 1, len(TRIED) + 1)
    return Tuned(
        settings=choice.settings.with_regression(bench.regression(choice.retrievers)),
        curve=RecallCurve(trial.found_after, int(min(trial.n_scored[-1], scores.n_items))),
        calibration=calibrate(trial.features, trial.recall, trial.n_scored, usable_ks(CALIBRATED_KS, bench.sample)),
        rerank_curves={name: RecallCurve(bench.rerank(name), scores.n_items) for name in retrievers},
        spectrum=spectrum(values for _, values in scores.parts()),
        drift=DriftReference.of(trial.surprises, trial.best_scores),
    )


def _choose(bench: _Bench, choice: _Choice, progress: Progress) -> _Choice:
    """One kind of setting after the other, the others as they are."""
    best = bench.worth(choice)
    for number, name in enumerate(TRIED):
        progress(STAGE, number, len(TRIED) + 1)
        for other in _others(choice, name):
            worth = bench.worth(other)
            if _is_better(worth, best):
                choice, best = other, worth
    return choice


def _is_better(worth: FloatVector, best: FloatVector) -> bool:
    """Whether recalls of the same queries rose by more than what is simpler is worth, and than chance often gives."""
    gains = worth - best
    error = float(gains.std() / np.sqrt(len(gains)))
    return bool(gains.mean() > max(LEAST_GAIN, LEAST_ERRORS * error))


def _others(choice: _Choice, name: str) -> Iterator[_Choice]:
    """The same with other values of one setting, where it has any effect; or with each retriever alone, or none."""
    if name == "retrievers":
        alone = [(each,) for each in choice.retrievers if len(choice.retrievers) > 1]
        yield from (replace(choice, retrievers=some) for some in [*alone, ()] if some != choice.retrievers)
        return
    has_effect = {
        "embedding_share": choice.settings.embeddings_of,
        "n_initial": choice.retrievers,
        "own_share": choice.retrievers,
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
    features: list[FloatMatrix]  # of the fold's own queries, (N_FEATURES, n_held_out, n_sampled) for each retriever
    regression: Regression


@dataclass(frozen=True, eq=False)
class _Bench:
    """Where settings are tried: a sample of items, and anchor queries of which some are held out in turn."""

    sample: Sample
    folds: list[Positions]
    features: dict[str, FloatMatrix]  # (n_features, n_queries, n_sampled)
    embeddings_of: str | None
    embeddings: FloatMatrix | None  # (n_sampled, width)
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
        source = embedding_source(retrievers)
        embeddings = None if source is None else item_vectors(retrievers[source])
        return cls(
            sample,
            folds,
            sampled_features(retrievers, queries, sample.positions),
            source,
            None if embeddings is None else embeddings[sample.positions],
            Cache(2 * len(folds)),  # for as long as two choices take turns
        )

    def regression(self, names: Sequence[str]) -> Regression:
        """Of exact scores on retrievers, from all anchor queries."""
        return regress(self.sample.vectors.T, {name: self.features[name] for name in names})

    def worth(self, choice: _Choice) -> FloatVector:
        """The mean recall of each held-out query over every k and budget that counts. (n_held_out,)"""
        budgets = [budget for budget in BUDGETS if budget <= len(self.sample.vectors) // 2]
        budgets = budgets or [max(1, len(self.sample.vectors) // 4)]
        folds = [self._run_fold(choice, fold, budgets[-1], with_features=False) for fold in self.folds]
        found_after = np.concatenate([trial.found_after for trial in folds])
        counted = [(k, budget) for k in usable_ks(KS, self.sample) for budget in budgets if k < budget] or [
            (1, budgets[0])
        ]
        mean: FloatVector = np.mean([(found_after[:, :k] <= budget).mean(axis=1) for k, budget in counted], axis=0)
        return mean

    def run(self, choice: _Choice) -> Trial:
        """Hold out each fold in turn, with the features of every round."""
        n_pairs = min(MOST_PAIRS, len(self.sample.vectors))
        return join_trials([self._run_fold(choice, fold, n_pairs, with_features=True) for fold in self.folds])

    def rerank(self, name: str) -> NDArray[np.int32]:
        """After how many pairs a retriever's own order comes to each of the truly best items. (n_held_out, depth)"""
        own_scores = self.features[name][0]  # standardised, which leaves their order
        return np.concatenate([rerank_found_after(self.sample, fold, own_scores[fold]) for fold in self.folds])

    def _run_fold(self, choice: _Choice, fold: Positions, n_pairs: int, *, with_features: bool) -> Trial:
        sizes = choice.settings.round_sizes(n_pairs)
        return run_trial(self._search(choice, fold), self.sample, fold, sizes, with_features=with_features)

    def _search(self, choice: _Choice, fold: Positions) -> PosteriorSearch:
        """A search for the queries of a fold that knows nothing of them."""
        settings, weight = choice.settings, choice.settings.retriever_weight
        key = (fold.tobytes(), choice.retrievers, weight)
        view = self.views.get(key, lambda: self._view(choice, fold))
        model = item_model(
            view.offsets,
            view.vectors,
            noise_share=settings.noise_share,
            embeddings=self.embeddings,
            embedding_share=settings.embedding_share,
        )
        prior = make_prior(model.offsets, view.features, settings.with_regression(view.regression))
        return PosteriorSearch(model, prior, len(fold))

    def _view(self, choice: _Choice, fold: Positions) -> _View:
        others = np.setdiff1d(np.arange(self.sample.vectors.shape[1]), fold)
        anchor_scores, weight = self.sample.vectors[:, others], choice.settings.retriever_weight
        chosen = {name: self.features[name] for name in choice.retrievers}
        seen = {name: of_one[:, others] for name, of_one in chosen.items()}
        found = regress(anchor_scores.T, seen)
        fitted = None
        if weight and found.coefficients:
            fitted = (weight * predict_sample(seen, dict(found.coefficients))).T
        offsets, centred = centred_items(anchor_scores, fitted)
        vectors = in_components(centred, principal_components(centred, MOST_COMPONENTS))
        return _View(offsets, vectors, [of_one[:, fold] for of_one in chosen.values()], found)
