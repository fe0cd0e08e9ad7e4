"""The default method: score the best guesses of a Gaussian posterior, in rounds.

Before a search, the score estimate of an item is its prior mean: its offset, and what cheap retrievers predict for the
query. The first round scores what retrievers rank highest, if there are any; every other one the items with the highest
posterior mean that were not scored yet. The exact scores update the posterior (`factors/posterior.py`). The method
estimates its own recall, calibrated on held-out anchor queries."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from anncur.arrays import NO_POSITIONS, NO_SCORES, FloatMatrix, FloatVector, Positions
from anncur.errors import DeadlineError, InputError
from anncur.factors.posterior import ItemModel, QueryPosterior
from anncur.numbers import number, whole_number
from anncur.ranking import top_k
from anncur.search.base import Knowledge, Proposal, QueryBlock, Rounds, best_guesses
from anncur.search.calibration import Calibration
from anncur.search.candidates import Candidates
from anncur.search.model import PosteriorModel
from anncur.search.prior import Additive, QueryPrior
from anncur.search.settings import PosteriorSettings
from anncur.search.shortlist import Shortlist, shortlist_size

SHORTLIST = 40  # unscored items that may yet belong to the top k; calibration corrects for what is missed here
SHORTLIST_PER_K = 1.2  # more of them for each of the k
N_DRAWS = 32  # of scores from the posterior
N_RECALL_FEATURES = 3
LATE_SHARE = 0.25  # of the pairs
UNLIKELY = 0.05  # items above `min_score` that the next round is expected to find, below which there is none
ROUNDS_TRIED, PAIRS_TRIED = 3, 20  # before that is to be trusted


@dataclass(frozen=True)
class Posterior:
    """Scores the best guesses of a Gaussian posterior, in rounds. What is not given is as it was tuned.

    `noise_share` is the share of an item's variance that the anchor queries leave unexplained, `embedding_share` that
    of item embeddings. `retrievers` go into the prior mean: some of the index's, or () for none. The first round scores
    the `n_initial` items that the retrievers rank highest (0 for none); every other one `growth` times what has been
    scored, but at least `min_round_size`."""

    noise_share: float | None = None
    retrievers: Sequence[str] | None = None
    embedding_share: float | None = None
    n_initial: int | None = None
    min_round_size: int | None = None
    growth: float | None = None
    name: ClassVar[str] = "posterior"
    is_exact: ClassVar[bool] = False
    estimates_recall: ClassVar[bool] = True

    def __post_init__(self) -> None:
        for name in ("noise_share", "embedding_share"):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, number(name, getattr(self, name), least=0, most=1))
        for name, least in (("n_initial", 0), ("min_round_size", 1)):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, whole_number(name, getattr(self, name), least=least))
        if self.growth is not None:
            object.__setattr__(self, "growth", number("growth", self.growth, least=0))

    def rounds(self, block: QueryBlock, knowledge: Knowledge) -> Rounds:
        model = knowledge.posterior
        settings, calibration = self._settings(model), model.tuned.calibration
        if block.target_recall is not None and not calibration.ks:
            raise InputError(
                "target_recall needs an index that was tuned, with at least 4 anchor queries, or calibrated: call "
                "index.calibrate(queries), or run `anncur calibrate`"
            )
        prior = model.prior(settings, block.queries)
        noise = block.noise_share if prior.is_scale_free else block.noise
        among = block.candidates(knowledge)
        search = PosteriorSearch(model.item_model(settings).with_noise(noise), prior, len(block.queries), among)
        active = np.arange(len(block.queries))  # the others have found enough
        estimates = np.full(len(block.queries), np.nan)

        def stop(is_enough: NDArray[np.bool_]) -> None:
            """Continue without the queries that have found enough."""
            nonlocal active
            search.keep(np.flatnonzero(~is_enough))
            active = active[~is_enough]

        for n_rounds, size in enumerate(settings.round_sizes(block.budget, block.schedule)):
            if not len(active):
                break
            proposals = search.propose(size)
            if block.min_score is not None and n_rounds >= ROUNDS_TRIED and search.scored.shape[1] >= PAIRS_TRIED:
                is_enough = search.has_all_above(block.min_score, proposals)
                estimates[active] = search.estimates(calibration, block.k)
                proposals = [proposal for proposal, skip in zip(proposals, is_enough, strict=True) if not skip]
                stop(is_enough)
                if not len(active):
                    break
            try:
                answers = yield _for_all(proposals, active, len(block.queries))
            except DeadlineError:
                if search.scored.shape[1]:
                    estimates[active] = search.estimates(calibration, block.k)
                break
            positions = np.stack([proposal.positions for proposal in proposals])
            search.observe(positions, np.stack([answers[row] for row in active.tolist()]))
            if search.scored.shape[1] == block.budget or block.target_recall is not None:
                estimates[active] = search.estimates(calibration, block.k)
            if block.target_recall is not None:
                stop(search.has_enough(calibration, block.k, block.target_recall))
        return estimates.tolist() if calibration.ks else None

    def _settings(self, model: PosteriorModel) -> PosteriorSettings:
        """As tuned, but for what was given."""
        settings = model.settings()
        if self.retrievers is not None and tuple(self.retrievers) != settings.retrievers:
            settings = model.settings_with(self.retrievers)
        names = ("noise_share", "embedding_share", "n_initial", "min_round_size", "growth")
        given = {name: getattr(self, name) for name in names}
        return replace(settings, **{name: value for name, value in given.items() if value is not None})


def _for_all(proposals: Sequence[Proposal], active: Positions, n_queries: int) -> list[Proposal]:
    """Proposals for the active queries, and empty ones for the others."""
    by_query = dict(zip(active.tolist(), proposals, strict=True))
    return [by_query.get(query, Proposal(NO_POSITIONS, NO_SCORES)) for query in range(n_queries)]


def _raised(proposal: Proposal, level: float) -> Proposal:
    """The same with guesses that are higher by a query's level."""
    assert proposal.guesses is not None, "best guesses have some"
    return Proposal(proposal.positions, proposal.guesses + level)


class PosteriorSearch:
    """A block of queries between rounds: what has been scored, and the posterior given that.

    Where nothing is known of the scale of scores, it is taken from the query's own: exact scores and prior means are
    observed as two sides of one posterior, and combined when the spread of the scores so far is known."""

    def __init__(self, model: ItemModel, prior: QueryPrior, n_queries: int, among: Candidates | None = None) -> None:
        self._among = Candidates(len(model.offsets)) if among is None else among
        self._model = model
        self._prior = prior
        n_sides = 2 if prior.is_scale_free else 1
        self._posterior = QueryPosterior(n_queries, model, prior, n_sides=n_sides)
        self._centre = np.zeros(n_queries)  # of the scores of the first round, where they have no offsets
        self._shortlist: Shortlist | None = None
        self.scored: Positions = np.empty((n_queries, 0), dtype=np.int64)
        self.exact_scores: FloatMatrix = np.empty((n_queries, 0))

    def propose(self, n_best: int) -> list[Proposal]:
        """The best guesses among what has not been scored; to begin with, the retrievers' initial candidates."""
        predicted = None if self.scored.shape[1] else self._prior.predicted()
        if predicted is None:
            return self._best_guesses(n_best)
        chosen = [self._known_best(row, n_best) for row in predicted]
        if any(len(found) < n_best for found in chosen):  # filled up with best guesses
            both = zip(chosen, self._rank_all(n_best, exclude=chosen), strict=True)
            chosen = [np.concatenate([found, others.positions])[:n_best] for found, others in both]
        guesses = self._additive().at(np.stack(chosen)) + self._levels()[:, None]
        return [Proposal(positions, row) for positions, row in zip(chosen, guesses, strict=True)]

    def _known_best(self, predicted: FloatVector, n_best: int) -> Positions:
        """The items that retrievers rank highest, without those that they know nothing of, which have the lowest."""
        best = self._among.best(predicted, n_best)
        known: Positions = best[predicted[best] > predicted.min()]
        return known

    def _best_guesses(self, n_best: int) -> list[Proposal]:
        """Among the shortlist, which is made again when much more is known of the queries; with few items, among all
        of them."""
        n_scored = self.scored.shape[1]
        if self._shortlist is None or not self._shortlist.serves(n_best, n_scored):
            size = shortlist_size(n_best, n_scored, len(self._among))
            ranked = self._rank_all(size or n_best, exclude=list(self.scored))
            if size is None:
                return ranked
            self._shortlist = Shortlist(np.sort([proposal.positions for proposal in ranked], axis=1), n_scored)
        return self._ranked(self._shortlist.positions, n_best)

    def _rank_all(self, n_best: int, exclude: Sequence[Positions]) -> list[Proposal]:
        query_vectors, prior = self._combined()[:, : self._model.width], self._additive()
        found = best_guesses(
            self._model.vectors, query_vectors, n_best=n_best, exclude=exclude, among=self._among, prior=prior
        )
        return [_raised(proposal, level) for proposal, level in zip(found, self._levels().tolist(), strict=True)]

    def _ranked(self, positions: Positions, n_best: int) -> list[Proposal]:
        """The best of some items for each query, (n_queries, n), in ascending order."""
        query_vectors = self._combined()[:, : self._model.width].astype(np.float32)
        products = np.stack([self._model.vectors[row] @ one for row, one in zip(positions, query_vectors, strict=True)])
        guesses = products + self._additive().at(positions) + self._levels()[:, None]
        best = np.stack([top_k(row, n_best) for row in guesses])
        found = zip(np.take_along_axis(positions, best, 1), np.take_along_axis(guesses, best, 1), strict=True)
        return [Proposal(*of_query) for of_query in found]

    def _scale(self) -> FloatVector:
        """The spread of each query's scores so far; 1 where the prior knows the scale of scores. (n_queries,)"""
        if not self._prior.is_scale_free or not self.scored.shape[1]:
            return np.ones(len(self.scored))
        spread: FloatVector = self.exact_scores.std(axis=1)
        return np.where(spread > 0, spread, 1.0)

    def _weights(self) -> FloatMatrix:
        """Of the sides that are observed, (n_queries, n_sides)."""
        if not self._prior.is_scale_free:
            return np.ones((len(self.scored), 1))
        return np.stack([np.ones(len(self.scored)), -self._scale()], axis=1)

    def _combined(self) -> FloatMatrix:
        """The posterior means of query vectors and coefficients, (n_queries, width)."""
        combined: FloatMatrix = (self._posterior.solutions @ self._weights()[..., None])[..., 0]
        return combined

    def _additive(self) -> Additive:
        return self._prior.additive(self._scale(), self._combined()[:, self._model.width :])

    def _levels(self) -> FloatVector:
        return self._centre + self._prior.levels(self._combined()[:, self._model.width :])

    def observe(self, positions: Positions, exact_scores: FloatMatrix) -> None:
        """Take in new exact scores; both are (n_queries, n_new)."""
        means = self._prior.means_at(positions)
        residuals = exact_scores - self._model.offsets[positions]
        if self._prior.is_scale_free:
            if not self.scored.shape[1]:
                self._centre = residuals.mean(axis=1)
            self._posterior.observe(positions, np.stack([residuals - self._centre[:, None], means], axis=2))
        else:
            self._posterior.observe(positions, residuals - means)
        if self._shortlist is not None:
            self._shortlist = self._shortlist.without(positions)
        self.scored = np.concatenate([self.scored, positions], axis=1)
        self.exact_scores = np.concatenate([self.exact_scores, exact_scores], axis=1)

    def keep(self, rows: Positions) -> None:
        """Continue with some of the queries only."""
        self._prior = self._prior.keep(rows)
        self._posterior.keep(rows, self._prior)
        self._centre = self._centre[rows]
        self._shortlist = None if self._shortlist is None else self._shortlist.keep(rows)
        self.scored, self.exact_scores = self.scored[rows], self.exact_scores[rows]

    def estimates(self, calibration: Calibration, k: int) -> FloatVector:
        """The recall to expect, (n_queries,); NaN where nothing is calibrated."""
        if not calibration.ks:
            return np.full(len(self.scored), np.nan)
        features = self.recall_features(calibration.around(k))
        return calibration.apply(features, k=k, n_scored=self.scored.shape[1])

    def has_enough(self, calibration: Calibration, k: int, target: float) -> NDArray[np.bool_]:
        """Which queries have reached a target on average, (n_queries,)."""
        features = self.recall_features(calibration.around(k))
        return calibration.is_enough(features, target=target, k=k, n_scored=self.scored.shape[1])

    def has_all_above(self, score: float, proposals: Sequence[Proposal]) -> NDArray[np.bool_]:
        """Which queries probably have all items of at least this score: the last pairs held none, and none is expected
        among the proposed ones. (n_queries,)"""
        n_late = max(PAIRS_TRIED // 2, round(LATE_SHARE * self.scored.shape[1]))
        found_none = (self.exact_scores[:, -n_late:] < score).all(axis=1)
        return found_none & (self._n_expected_above(score, proposals) < UNLIKELY)

    def _n_expected_above(self, score: float, proposals: Sequence[Proposal]) -> FloatVector:
        guesses = np.stack([proposal.guesses for proposal in proposals if proposal.guesses is not None])
        positions = np.stack([proposal.positions for proposal in proposals])
        variances = np.diagonal(self._posterior.covariance(positions), axis1=1, axis2=2)
        spread = np.sqrt(variances * (np.square(self._scale()) * self._misfit())[:, None])
        chances = [0.5 * math.erfc(z / math.sqrt(2)) for z in ((score - guesses) / spread).ravel().tolist()]
        expected: FloatVector = np.reshape(chances, guesses.shape).sum(axis=1)
        return expected

    def recall_features(self, ks: Sequence[int]) -> FloatMatrix:
        """What tells how much of the true top k has been scored. (n_queries, len(ks), N_RECALL_FEATURES)

        The recall that the posterior itself expects; the share of the best so far that came late, because where good
        ones still come in, more are to be expected; and how far exact scores were from their posterior means."""
        expected = self._expected_recall(ks)
        late = np.stack([self._late_share(k) for k in ks], axis=1)
        misfit = np.broadcast_to(np.log(self._misfit())[:, None], expected.shape)
        return np.stack([expected, late, misfit], axis=2)

    def _expected_recall(self, ks: Sequence[int]) -> FloatMatrix:
        """The mean over joint draws of the scores of a shortlist: the errors of items go together."""
        n_left = len(self._among) - self.scored.shape[1]
        if not n_left:
            return np.ones((len(self.scored), len(ks)))
        n_short = {k: min(round(SHORTLIST + SHORTLIST_PER_K * k), n_left) for k in ks}
        shortlist = self.propose(max(n_short.values()))
        positions = np.stack([proposal.positions for proposal in shortlist])
        guesses = np.stack([proposal.guesses for proposal in shortlist if proposal.guesses is not None])
        scale = np.square(self._scale()) * self._misfit()  # some queries are less like the anchor queries than others
        covariance = self._posterior.covariance(positions) * scale[:, None, None]  # (n_queries, n_short, n_short)
        spread = np.linalg.cholesky(covariance)
        noise = np.random.default_rng(0).standard_normal((positions.shape[1], N_DRAWS))
        drawn = guesses[..., None] + spread @ noise  # (n_queries, n_short, N_DRAWS); the first are the same for any k
        found = -np.sort(-self.exact_scores, axis=1)
        return np.stack([_mean_recall(found, -np.sort(-drawn[:, : n_short[k]], axis=1), k) for k in ks], axis=1)

    def _misfit(self) -> FloatVector:
        return self._posterior.misfit(self._weights() / self._scale()[:, None])

    def _late_share(self, k: int) -> FloatVector:
        """The share of the best k so far that was scored among the last pairs. (n_queries,)"""
        n_scored = self.exact_scores.shape[1]
        best = np.argsort(-self.exact_scores, axis=1, kind="stable")[:, :k]
        share: FloatVector = (best >= (1 - LATE_SHARE) * n_scored).mean(axis=1)
        return share


def _mean_recall(found: FloatMatrix, drawn: FloatMatrix, k: int) -> FloatVector:
    """The mean over draws of the share of the top k that was found; both are best first. (n_queries,)"""
    missing = ((0, 0), (0, max(0, k - found.shape[1])))
    worst_first = np.pad(found[:, :k], missing, constant_values=-np.inf)[:, ::-1]
    rivals = drawn[:, :k]  # the i-th belongs to the top k if it is above the (k - i)-th best that was found
    n_rivals = (rivals > worst_first[:, : rivals.shape[1], None]).sum(axis=1)  # (n_queries, N_DRAWS)
    share: FloatVector = 1 - n_rivals.mean(axis=1) / k
    return share
