"""Tunes the method posterior on held-out anchor queries, by the recall that its own rounds reach.

Chooses the share of retrievers' vectors, what a search begins with, the weight of retrievers in the prior mean and
which of them have a say, the noise and the size of the first round, one after the other; then records what the chosen
settings find after how many calls, and calibrates the estimate of recall on the same queries. For comparison it also
records what re-ranking with each retriever would find, and the spectrum of the scores. Reads the exact anchor scores of
all items or, when there are very many, of a sample; costs no calls."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anncur.arrays import FloatMatrix, FloatVector, Positions
from anncur.candidates.base import Retriever, item_vectors
from anncur.candidates.prior import CAUTION, explain_sample, regress, sampled_features
from anncur.factors.posterior import centred_items, item_model
from anncur.factors.spectrum import spectrum
from anncur.items import Query
from anncur.progress import Progress, silent
from anncur.search.beliefs import NEVER, PosteriorSettings, RecallCurve, Tuned
from anncur.search.calibration import KS, calibrate
from anncur.search.folds import make_folds
from anncur.search.guesses import PriorMeans
from anncur.search.lesson import LEAST_ANCHORS
from anncur.search.posterior import N_SIGNS, PosteriorSearch
from anncur.search.sample import ItemScores, Sample, take_sample

STAGE = "tuning posterior"
MOST_HELD_OUT = 96  # queries in all folds together
N_FOLDS = 6
MOST_CALLS = 500  # that are tried
BUDGETS = (50, 100, 200)  # that count for the choice, with every k of KS below them
TRIED: dict[str, tuple[Any, ...]] = {  # in the order in which they are chosen
    "side_share": (0.0, 0.1, 0.3, 0.6),
    "opening": (0, 5, 10, 20),
    "weight": (0.0, CAUTION, 1.0),
    "retrievers": (),  # all of them, or each alone
    "noise_share": (0.01, 0.05, 0.2),
    "first": (5, 20),
}
LEAST_TO_CHOOSE = 12  # anchor queries; with fewer, a choice would follow chance
CLEARLY = 0.001  # less is no reason to leave what is simpler


@dataclass(frozen=True)
class _Choice:
    """Settings but for the coefficients, which every fold regresses anew."""

    retrievers: tuple[str, ...]
    settings: PosteriorSettings


@dataclass(frozen=True, eq=False)
class _Trial:
    """What some settings found for the held-out queries, (n_held_out, depth), and their estimates on the way."""

    found_after: NDArray[np.int32]
    calls: FloatVector  # at the end of every round
    evidence: FloatMatrix  # (n_rounds, n_held_out, len(ks), N_SIGNS), empty where nobody asked
    recall: FloatMatrix  # (n_rounds, n_held_out, len(ks)), as it truly was


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
    choice = _Choice(tuple(retrievers), PosteriorSettings(side=next(iter(bench.side_vectors), None), side_share=0.3))
    if scores.n_anchor_queries >= LEAST_TO_CHOOSE:
        choice = _choose(bench, choice, progress)
    trial = bench.run(choice)
    most_calls = int(min(trial.calls[-1], scores.n_items))
    progress(STAGE, 1, 1)
    return Tuned(
        settings=replace(choice.settings, coefficients=bench.coefficients(choice.retrievers)),
        curve=RecallCurve(trial.found_after, most_calls),
        calibration=calibrate(trial.evidence, trial.recall, trial.calls, bench.ks),
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
            if worth > best + CLEARLY:
                choice, best = other, worth
    return choice


def _others(choice: _Choice, name: str) -> Iterator[_Choice]:
    """The same with other values of one setting, where it has any effect; or with each retriever alone."""
    if name == "retrievers":
        yield from (replace(choice, retrievers=(each,)) for each in choice.retrievers if len(choice.retrievers) > 1)
        return
    needed = {"side_share": choice.settings.side, "opening": choice.retrievers, "weight": choice.retrievers}
    for value in TRIED[name] if needed.get(name, True) else ():
        if value != getattr(choice.settings, name):
            yield replace(choice, settings=replace(choice.settings, **{name: value}))


@dataclass(frozen=True, eq=False)
class _View:
    """What the anchor queries outside a fold tell of the items, and what retrievers say of the fold's own queries."""

    offsets: FloatVector  # (n_sampled,)
    vectors: FloatMatrix  # (n_sampled, width)
    said: FloatMatrix | None  # (n_held_out, n_sampled)


@dataclass(frozen=True, eq=False)
class _Bench:
    """Where settings are tried: a sample of items, and anchor queries of which some are held out in turn."""

    sample: Sample
    folds: list[Positions]
    features: dict[str, FloatMatrix]  # (n_features, n_queries, n_sampled)
    side_vectors: dict[str, FloatMatrix]  # (n_sampled, width)
    views: dict[tuple[bytes, tuple[str, ...], float], _View] = field(default_factory=dict)

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
        vectors = {name: item_vectors(retriever) for name, retriever in retrievers.items()}
        return cls(
            sample,
            make_folds(queries, held_out, n_folds=min(N_FOLDS, n_queries // LEAST_ANCHORS)),
            sampled_features(retrievers, queries, sample.positions),
            {name: found[sample.positions] for name, found in vectors.items() if found is not None},
        )

    @property
    def ks(self) -> tuple[int, ...]:
        """Those that there are enough items for."""
        return tuple(k for k in KS if k <= self.sample.depth) or (1,)

    def coefficients(self, names: Sequence[str]) -> tuple[tuple[str, tuple[float, ...]], ...]:
        """Of retrievers, from all anchor queries."""
        found = regress(self.sample.vectors.T, {name: self.features[name] for name in names})
        return tuple(found.items())

    def worth(self, choice: _Choice) -> float:
        """The mean recall over every k and budget that counts."""
        budgets = [budget for budget in BUDGETS if budget <= len(self.sample.vectors) // 2]
        budgets = budgets or [max(1, len(self.sample.vectors) // 4)]
        folds = [self._run_fold(choice, fold, budgets[-1], with_estimates=False) for fold in self.folds]
        found_after = np.concatenate([trial.found_after for trial in folds])
        cells = [(k, budget) for k in self.ks for budget in budgets if k < budget] or [(1, budgets[0])]
        return float(np.mean([(found_after[:, :k] <= budget).mean() for k, budget in cells]))

    def run(self, choice: _Choice) -> _Trial:
        """Hold out each fold in turn, with estimates on the way."""
        n_calls = min(MOST_CALLS, len(self.sample.vectors))
        trials = [self._run_fold(choice, fold, n_calls, with_estimates=True) for fold in self.folds]
        return _Trial(
            np.concatenate([trial.found_after for trial in trials]),
            trials[0].calls,
            np.concatenate([trial.evidence for trial in trials], axis=1),
            np.concatenate([trial.recall for trial in trials], axis=1),
        )

    def rerank(self, name: str) -> NDArray[np.int32]:
        """After how many calls a retriever's own order comes to each of the truly best items. (n_held_out, depth)"""
        own_scores = self.features[name][0]  # standardised, which leaves their order
        found = [self._found_after(fold, np.argsort(-own_scores[fold], axis=1, kind="stable")) for fold in self.folds]
        n_items = round(self.sample.weights.sum())
        found_after: NDArray[np.int32] = np.minimum(np.concatenate(found), n_items)  # else rounding may add one
        return found_after

    def _run_fold(self, choice: _Choice, fold: Positions, n_calls: int, *, with_estimates: bool) -> _Trial:
        search = self._search(choice, fold)
        truth = self.sample.vectors[:, fold].T.astype(np.float64)  # (n_held_out, n_sampled)
        calls, evidence, recall = [], [], []
        for size in choice.settings.round_sizes(n_calls):
            positions = np.stack([proposal.positions for proposal in search.propose(size)])
            search.observe(positions, np.take_along_axis(truth, positions, axis=1))
            calls.append(self.sample.weights[search.scored].sum(axis=1).mean())
            if with_estimates:
                evidence.append(search.evidence(self.ks))
                recall.append(self._recall(fold, search.scored))
        none = np.empty((0, len(fold), len(self.ks), N_SIGNS))
        return _Trial(
            self._found_after(fold, search.scored),
            np.array(calls),
            np.stack(evidence) if evidence else none,
            np.stack(recall) if recall else none[..., 0],
        )

    def _search(self, choice: _Choice, fold: Positions) -> PosteriorSearch:
        """A search for the queries of a fold that knows nothing of them."""
        settings, view = choice.settings, self._view(choice, fold)
        model = item_model(
            view.offsets,
            view.vectors,
            noise_share=settings.noise_share,
            side_vectors=None if settings.side is None else self.side_vectors[settings.side],
            side_share=settings.side_share,
        )
        said = view.said
        prior = PriorMeans(
            model.offsets,
            None if said is None or not settings.weight else settings.weight * said,
            said if settings.opening else None,
        )
        return PosteriorSearch(model, prior, len(fold))

    def _view(self, choice: _Choice, fold: Positions) -> _View:
        """What a fold is searched by, kept for as long as two choices take turns."""
        key = (fold.tobytes(), choice.retrievers, choice.settings.weight)
        kept = self.views.pop(key, None)
        self.views[key] = kept or self._new_view(choice, fold)
        for oldest in list(self.views)[: -2 * len(self.folds)]:
            del self.views[oldest]
        return self.views[key]

    def _new_view(self, choice: _Choice, fold: Positions) -> _View:
        kept = np.setdiff1d(np.arange(self.sample.vectors.shape[1]), fold)
        anchor_scores, weight = self.sample.vectors[:, kept], choice.settings.weight
        chosen = {name: self.features[name] for name in choice.retrievers}
        coefficients = regress(anchor_scores.T, {name: found[:, kept] for name, found in chosen.items()})
        said = explain_sample(chosen, coefficients) if coefficients else None  # (n_queries, n_sampled)
        explained = None if said is None or not weight else (weight * said[kept]).T
        return _View(*centred_items(anchor_scores, explained), None if said is None else said[fold])

    def _found_after(self, fold: Positions, scored: Positions) -> NDArray[np.int32]:
        """After how many calls each of the truly best items was scored. (n_held_out, depth)"""
        calls = np.cumsum(self.sample.weights[scored], axis=1)
        rows = []
        for query, positions, so_far in zip(fold.tolist(), scored, calls, strict=True):
            after = np.full(len(self.sample.vectors), NEVER, dtype=np.int32)
            after[positions] = np.minimum(np.ceil(so_far), NEVER)
            rows.append(after[self.sample.best[query]])
        return np.stack(rows)

    def _recall(self, fold: Positions, scored: Positions) -> FloatMatrix:
        """(n_held_out, len(ks))"""
        is_found = [np.isin(self.sample.best[query], row) for query, row in zip(fold.tolist(), scored, strict=True)]
        return np.stack([[found[:k].mean() for k in self.ks] for found in is_found])
