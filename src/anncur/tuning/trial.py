"""Lets searches run over queries whose exact scores are all known, and records what they find after how many pairs.

Reads a sample of the items, in which an item may stand for several (`held_out.py`); feeds `posterior.py` and
`measure.py`. Costs no pairs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from anncur.arrays import FloatMatrix, FloatVector, Positions
from anncur.search.drift import PAIRS_COMPARED
from anncur.search.posterior_search import N_RECALL_FEATURES, PosteriorSearch
from anncur.search.settings import NEVER
from anncur.tuning.calibration import CALIBRATED_KS
from anncur.tuning.held_out import Sample

MOST_PAIRS = 500  # the largest budget that is tried


@dataclass(frozen=True, eq=False)
class Trial:
    """What searches found for some queries, (n_queries, depth), and the features after every round."""

    found_after: NDArray[np.int32]
    n_scored: FloatVector  # pairs at the end of every round
    features: FloatMatrix  # (n_rounds, n_queries, number of calibrated ks, N_RECALL_FEATURES), if asked for
    recall: FloatMatrix  # (n_rounds, n_queries, number of calibrated ks), as it truly was
    surprises: FloatMatrix  # of the first pairs, (number of `PAIRS_COMPARED` that are reached, n_queries), if asked for
    best_scores: FloatMatrix  # the same of their best scores


def join_trials(trials: Sequence[Trial]) -> Trial:
    """Those of all queries together."""
    return Trial(
        np.concatenate([trial.found_after for trial in trials]),
        trials[0].n_scored,
        np.concatenate([trial.features for trial in trials], axis=1),
        np.concatenate([trial.recall for trial in trials], axis=1),
        np.concatenate([trial.surprises for trial in trials], axis=1),
        np.concatenate([trial.best_scores for trial in trials], axis=1),
    )


def usable_ks(wanted: Iterable[int], sample: Sample) -> tuple[int, ...]:
    """Those that there are enough items for."""
    return tuple(k for k in wanted if k <= sample.depth) or (1,)


def run_trial(
    search: PosteriorSearch, sample: Sample, queries: Positions, sizes: Iterable[int], *, with_features: bool = True
) -> Trial:
    """Run a search for some of the sample's queries in rounds of these sizes."""
    truth = sample.vectors[:, queries].T.astype(np.float64)  # (n_queries, n_sampled)
    ks = usable_ks(CALIBRATED_KS, sample)
    ends, features = [], []
    for size in sizes:
        positions = np.stack([proposal.positions for proposal in search.propose(size)])
        search.observe(positions, np.take_along_axis(truth, positions, axis=1))
        ends.append(search.scored.shape[1])
        if with_features:
            features.append(search.recall_features(ks))
    compared = [n_first for n_first in PAIRS_COMPARED if features and n_first <= search.scored.shape[1]]
    spent = _n_pairs(sample, search.scored)
    return Trial(
        _found_after(sample, queries, search.scored, spent),
        spent[:, np.array(ends) - 1].mean(axis=0),
        np.stack(features) if features else np.empty((0, len(queries), len(ks), N_RECALL_FEATURES)),
        _recall(sample, queries, search.scored, ends, ks) if features else np.empty((0, len(queries), len(ks))),
        np.array([search.surprises(n_first) for n_first in compared]).reshape(len(compared), len(queries)),
        np.array([search.best_scores(n_first) for n_first in compared]).reshape(len(compared), len(queries)),
    )


def rerank_found_after(sample: Sample, queries: Positions, retriever_scores: FloatMatrix) -> NDArray[np.int32]:
    """After how many pairs a retriever's own order comes to each of the truly best items. (n_queries, depth)"""
    orders = np.argsort(-retriever_scores, axis=1, kind="stable")
    found = _found_after(sample, queries, orders, _n_pairs(sample, orders))
    return np.minimum(found, np.int32(round(sample.weights.sum())))  # else rounding may add one


def _n_pairs(sample: Sample, scored: Positions) -> FloatMatrix:
    """The pairs up to each item in the order of scoring, as they would be among all items; like `scored`."""
    n_pairs: FloatMatrix = np.minimum(np.ceil(np.cumsum(sample.weights[scored], axis=1)), NEVER)
    return n_pairs


def _found_after(sample: Sample, queries: Positions, scored: Positions, spent: FloatMatrix) -> NDArray[np.int32]:
    """What had been spent when each of the truly best items was scored. (n_queries, depth)"""
    rows = []
    for query, positions, so_far in zip(queries.tolist(), scored, spent, strict=True):
        after = np.full(len(sample.vectors), NEVER, dtype=np.int32)
        after[positions] = so_far
        rivals = sample.rivals(query)
        rows.append(sample.best_found(query, rivals, after[rivals]))
    return np.stack(rows)


def _recall(
    sample: Sample, queries: Positions, scored: Positions, ends: Sequence[int], ks: Sequence[int]
) -> FloatMatrix:
    """At the end of every round, (n_rounds, n_queries, len(ks))."""
    steps = np.broadcast_to(np.arange(1, scored.shape[1] + 1), scored.shape)
    found_at = _found_after(sample, queries, scored, steps)
    return np.array([[(found_at[:, :k] <= end).mean(axis=1) for k in ks] for end in ends]).swapaxes(1, 2)
