"""Measures a posterior model as it is, on queries that were scored on all items and that it doesn't know.

Records what it finds after how many pairs, beside plain re-ranking, and calibrates its estimate of recall on these
queries: what an index without anchor queries has instead of held-out ones. Costs no pairs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from anncur.item_scores import ItemScores
from anncur.items import Query
from anncur.retrievers.base import Retriever
from anncur.retrievers.features import sampled_features
from anncur.search.drift import DriftReference
from anncur.search.model import PosteriorModel
from anncur.search.posterior_search import PosteriorSearch
from anncur.search.settings import RecallCurve, Tuned
from anncur.tuning.calibration import CALIBRATED_KS, calibrate
from anncur.tuning.held_out import take_sample
from anncur.tuning.trial import MOST_PAIRS, join_trials, rerank_found_after, run_trial, usable_ks

QUERIES_AT_ONCE = 16  # whose posteriors are in memory together


def measure(
    model: PosteriorModel,
    scores: ItemScores,
    queries: Sequence[Query],
    retrievers: Mapping[str, Retriever],
    *,
    rng: np.random.Generator,
) -> Tuned:
    """What was tuned, with recall curves and a calibration of these queries; `scores` are theirs of all items."""
    chosen = np.arange(len(queries))
    sample = take_sample(scores, chosen, rng)
    settings, items = model.settings(), sample.positions
    features = sampled_features(retrievers, queries, items)
    item_model = model.item_model(settings).take(items)
    trials = []
    for start in range(0, len(queries), QUERIES_AT_ONCE):
        some = chosen[start : start + QUERIES_AT_ONCE]
        prior = model.prior_from(settings, [features[name][:, some] for name in settings.retrievers], items)
        sizes = settings.round_sizes(min(MOST_PAIRS, len(items)))
        trials.append(run_trial(PosteriorSearch(item_model, prior, len(some)), sample, some, sizes))
    trial = join_trials(trials)
    reranked = {name: rerank_found_after(sample, chosen, rows[0]) for name, rows in features.items()}
    return replace(
        model.tuned,
        curve=RecallCurve(trial.found_after, int(min(trial.n_scored[-1], scores.n_items))),
        calibration=calibrate(trial.features, trial.recall, trial.n_scored, usable_ks(CALIBRATED_KS, sample)),
        rerank_curves={name: RecallCurve(found, scores.n_items) for name, found in reranked.items()},
        drift=DriftReference.of(trial.surprises, trial.best_scores, n_feedback_queries=model.n_feedback_queries),
    )
