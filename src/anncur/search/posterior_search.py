"""A block of queries in the method posterior, between rounds: what has been scored, what to score next, and how much of
the true top k has probably been found.

Reads an item model, priors of queries and exact scores; feeds `posterior.py`, and tuning, which runs searches over
queries whose scores are all known."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from anncur.arrays import NO_POSITIONS, FloatMatrix, FloatVector, Positions
from anncur.candidates import Candidates
from anncur.factors.items import ItemModel
from anncur.factors.posterior import QueryPosterior
from anncur.ranking import Explanation, top_k
from anncur.search.base import Proposal, raised
from anncur.search.calibration import Calibration
from anncur.search.drift import N_BEST, DriftReference
from anncur.search.prior import Additive, QueryPrior
from anncur.search.shortlist import Shortlist, shortlist_size
from anncur.vectors.base import VectorIndex

N_RIVALS = 40  # unscored items that may yet belong to the top k; calibration corrects for what is missed here
RIVALS_PER_K = 1.2  # more of them for each of the k
N_DRAWS = 32  # of scores from the posterior
N_RECALL_FEATURES = 3
RECALL_DIGITS = 6  # of an estimate: products of a block of queries and of one query may differ in their last digits
LATE_SHARE = 0.25  # of the pairs
UNLIKELY = 0.05  # items above `min_score` that the next round is expected to find, below which there is none
PAIRS_TRIED = 20  # before that is to be trusted
BESIDE_ENGINE = 0.25  # of a shortlist: as many more items with the highest prior means, which no engine ranks by


class PosteriorSearch:
    """A block of queries between rounds: what has been scored, and the posterior given that.

    Where nothing is known of the scale of scores, it is taken from the query's own: exact scores and prior means are
    observed as two sides of one posterior, and combined when the spread of the scores so far is known."""

    def __init__(
        self,
        model: ItemModel,
        prior: QueryPrior,
        n_queries: int,
        among: Candidates | None = None,
        *,
        engine: VectorIndex | None = None,
    ) -> None:
        self._engine = engine
        self._among = Candidates(len(model.offsets)) if among is None else among
        self._model = model
        self._prior = prior
        n_sides = 2 if prior.is_scale_free else 1
        self._posterior = QueryPosterior(n_queries, model, prior, n_sides=n_sides)
        self._centre = np.zeros(n_queries)  # of the scores of the first round, where they have no offsets
        self._shortlist: Shortlist | None = None
        self._n_initial = 0  # pairs of the first round
        self.scored: Positions = np.empty((n_queries, 0), dtype=np.int64)
        self.exact_scores: FloatMatrix = np.empty((n_queries, 0))

    def propose(self, n_best: int) -> list[Proposal]:
        """The best guesses among what has not been scored; to begin with, the retrievers' initial candidates."""
        predicted = None if self.scored.shape[1] else self._prior.predicted()
        if predicted is None:
            return self._best_guesses(n_best)
        chosen = [self._known_best(row, n_best) for row in predicted]
        if any(len(found) < n_best for found in chosen):  # filled up with best guesses
            both = zip(chosen, self._rank_all(n_best, np.arange(len(chosen)), exclude=chosen), strict=True)
            chosen = [np.concatenate([found, others.positions])[:n_best] for found, others in both]
        guesses = self._additive().at(np.stack(chosen)) + self._levels()[:, None]
        return [Proposal(positions, row) for positions, row in zip(chosen, guesses, strict=True)]

    def _known_best(self, predicted: FloatVector, n_best: int) -> Positions:
        """The items that retrievers rank highest, without those that they know nothing of, which have the lowest."""
        best = self._among.best(predicted, n_best)
        known: Positions = best[predicted[best] > predicted.min()]
        return known

    def _best_guesses(self, n_best: int, *, is_fresh: bool = True) -> list[Proposal]:
        """Among a shortlist, which is made again for the queries that have outgrown it, unless it needn't be fresh;
        with few items, among all."""
        size, everyone = shortlist_size(n_best, len(self._among)), np.arange(len(self.scored))
        if size is None:
            self._shortlist = None
            return self._rank_all(n_best, everyone, exclude=list(self.scored))
        n_left = len(self._among) - self.scored.shape[1]
        if self._shortlist is None or not self._shortlist.holds(n_best) or n_left < len(self._shortlist):
            self._shortlist = self._make_shortlist(size, everyone)
            return self._ranked(n_best)[0]
        proposals, places = self._ranked(n_best)
        stale = np.flatnonzero(self._shortlist.are_stale(places)) if is_fresh else NO_POSITIONS
        if not len(stale):
            return proposals
        self._shortlist = self._shortlist.replaced(stale, self._make_shortlist(len(self._shortlist), stale))
        return self._ranked(n_best)[0]

    def _make_shortlist(self, size: int, rows: Positions) -> Shortlist:
        exclude = list(self.scored[rows])
        if self._engine is not None and not self._among.are_few:
            return Shortlist.of(self._rank_by_engine(self._engine, size, rows, exclude), self._model.vectors)
        ranked = self._rank_all(size, rows, exclude=exclude)
        return Shortlist.of(np.stack([proposal.positions for proposal in ranked]), self._model.vectors)

    def _rank_all(self, n_best: int, rows: Positions, exclude: Sequence[Positions]) -> list[Proposal]:
        """The best of all items for some of the queries."""
        query_vectors, means = self._combined()[rows, : self._model.width], self._additive(rows)
        found = self._model.vectors.top(query_vectors, n_best, exclude=exclude, among=self._among, means=means)
        levels = self._levels()[rows].tolist()
        return [raised(Proposal(*of_query), level) for of_query, level in zip(found, levels, strict=True)]

    def _rank_by_engine(
        self, engine: VectorIndex, size: int, rows: Positions, exclude: Sequence[Positions]
    ) -> Positions:
        """The best guesses among what an engine ranks highest by offset and product, and what has the highest prior
        mean. (len(rows), size)"""
        query_vectors, means = self._combined()[rows, : self._model.width], self._additive(rows)
        with_offsets = np.hstack([query_vectors, np.ones((len(rows), 1))])
        found = engine.top(with_offsets, size, exclude=exclude, among=self._among)
        if means.features is None:  # there is no other prior mean than the offset
            return np.stack([ranked.positions for ranked in found])
        n_both = min(round((1 + BESIDE_ENGINE) * size), len(self._among) - self.scored.shape[1])
        everything = means.of_items(slice(0, len(self._model.offsets)))
        each = zip(np.broadcast_to(everything, (len(rows), everything.shape[1])), found, exclude, strict=True)
        both = np.stack([self._filled(row, ranked.positions, gone, n_both) for row, ranked, gone in each])
        guesses = self._products(both, query_vectors) + means.at(both)
        best = np.stack([top_k(row, size) for row in guesses])
        return np.take_along_axis(both, best, axis=1)

    def _filled(self, means: FloatVector, found: Positions, gone: Positions, n: int) -> Positions:
        """What was found, and the others with the highest means, n in all, in ascending order."""
        left = means.copy()
        left[found] = left[gone] = -np.inf
        return np.sort(np.concatenate([found, self._among.best(left, n - len(found))]))

    def _products(self, positions: Positions, query_vectors: FloatMatrix) -> FloatMatrix:
        """Of some items for each query; both are (n_queries, n)."""
        vectors = (self._model.vectors.take(row) for row in positions)  # one query's at a time
        return np.stack([row @ one for row, one in zip(vectors, query_vectors.astype(np.float32), strict=True)])

    def _ranked(self, n_best: int) -> tuple[list[Proposal], Positions]:
        """The best of the shortlist, and their places in it, (n_queries, n_best)."""
        assert self._shortlist is not None, "made before it is ranked"
        positions, query_vectors = self._shortlist.positions, self._combined()[:, : self._model.width]
        guesses = self._shortlist.products(query_vectors, self._model.vectors)
        guesses = guesses + self._additive().at(positions) + self._levels()[:, None]
        places = np.stack([top_k(row, n_best) for row in guesses])
        best = (np.take_along_axis(values, places, axis=1) for values in (positions, guesses))
        return [Proposal(*of_query) for of_query in zip(*best, strict=True)], places

    def _scale(self, n_first: int | None = None) -> FloatVector:
        """The spread of each query's scores so far, or of the first ones; 1 where the prior knows the scale of scores.
        (n_queries,)"""
        if not self._prior.is_scale_free or not self.scored.shape[1]:
            return np.ones(len(self.scored))
        spread: FloatVector = self.exact_scores[:, :n_first].std(axis=1)
        return np.where(spread > 0, spread, 1.0)

    def _weights(self, scale: FloatVector) -> FloatMatrix:
        """Of the sides that are observed, (n_queries, n_sides)."""
        if not self._prior.is_scale_free:
            return np.ones((len(self.scored), 1))
        return np.stack([np.ones(len(self.scored)), -scale], axis=1)

    def _combined(self) -> FloatMatrix:
        """The posterior means of query vectors and coefficients, (n_queries, width)."""
        combined: FloatMatrix = (self._posterior.solutions @ self._weights(self._scale())[..., None])[..., 0]
        return combined

    def _additive(self, rows: Positions | None = None) -> Additive:
        """What is added to products, for all queries or some."""
        scale, deviations = self._scale(), self._combined()[:, self._model.width :]
        if rows is None or len(rows) == len(self.scored):
            return self._prior.additive(scale, deviations)
        return self._prior.keep(rows).additive(scale[rows], deviations[rows])

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
        self._n_initial = self._n_initial or positions.shape[1]
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
        """The recall to expect, (n_queries,); NaN where nothing is calibrated, or only smaller k."""
        k, n_scored = min(k, len(self._among)), self.scored.shape[1]
        if k > max(calibration.ks, default=0):
            return np.full(len(self.scored), np.nan)
        recalls = calibration.apply(self.recall_features(calibration.around(k)), k=k, n_scored=n_scored)
        possible: FloatVector = np.minimum(recalls, n_scored / k).round(RECALL_DIGITS)
        return possible

    def drifts(self, reference: DriftReference) -> FloatVector:
        """How unlike the queries of the reference these are, (n_queries,); NaN where it can't be known."""
        n_compared = reference.n_compared(self.scored.shape[1])
        if not n_compared:
            return np.full(len(self.scored), np.nan)
        best_scores = self.best_scores(n_compared) if self._finds_the_best(n_compared) else None
        return reference.drifts(self.surprises(n_compared), best_scores, n_compared=n_compared)

    def _finds_the_best(self, n_first: int) -> bool:
        """Whether the first pairs hold as good items as those of any search: not where a filter may keep them out, nor
        where most were chosen before anything was scored."""
        return self._among.passing is None and 2 * self._n_initial <= n_first

    def has_enough(self, calibration: Calibration, k: int, target: float) -> NDArray[np.bool_]:
        """Which queries have reached a target on average, (n_queries,)."""
        k = min(k, len(self._among))
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
        z_scores = (score - guesses) / self._spreads(positions)
        chances = [0.5 * math.erfc(z / math.sqrt(2)) for z in z_scores.ravel().tolist()]
        expected: FloatVector = np.reshape(chances, guesses.shape).sum(axis=1)
        return expected

    def _spreads(self, positions: Positions) -> FloatMatrix:
        """The standard deviations of the posterior of some items for each query; both are (n_queries, n)."""
        variances = np.diagonal(self._posterior.covariance(positions), axis1=1, axis2=2)
        spreads: FloatMatrix = np.sqrt(variances * (np.square(self._scale()) * self._misfit())[:, None])
        return spreads

    def explained(self, proposals: Sequence[Proposal], calibration: Calibration, k: int) -> list[Proposal]:
        """The same proposals with what is known of their items now. Changes nothing of the search."""
        n_scored, shortlist = self.scored.shape[1], self._shortlist
        if not n_scored and self._prior.is_scale_free:
            return [replace(proposal, explanation=Explanation(None, None, None)) for proposal in proposals]
        positions = np.stack([proposal.positions for proposal in proposals])
        recalls = self.estimates(calibration, k) if n_scored else np.full(len(proposals), np.nan)
        self._shortlist = shortlist  # which an estimate may have made
        known = zip(self._prior_means(positions), self._spreads(positions), recalls.tolist(), strict=True)
        explanations = (Explanation(means, spreads, None if math.isnan(one) else one) for means, spreads, one in known)
        return [replace(one, explanation=found) for one, found in zip(proposals, explanations, strict=True)]

    def _prior_means(self, positions: Positions) -> FloatMatrix:
        """Score estimates before anything was scored; where the scale of scores was unknown, on that of the scores so
        far. (n_queries, n)"""
        none = np.zeros((len(self.scored), self._prior.n_columns))
        return self._prior.additive(self._scale(), none).at(positions) + self._centre[:, None]

    def recall_features(self, ks: Sequence[int]) -> FloatMatrix:
        """What tells how much of the true top k has been scored. (n_queries, len(ks), N_RECALL_FEATURES)

        The recall that the posterior itself expects; the share of the best so far that came late, because where good
        ones still come in, more are to be expected; and how far exact scores were from their posterior means."""
        ks = [min(k, len(self._among)) for k in ks]  # no answer has more items than pass a filter
        expected = self._expected_recall(ks)
        late = np.stack([self._late_share(k) for k in ks], axis=1)
        misfit = np.broadcast_to(np.log(self._misfit())[:, None], expected.shape)
        return np.stack([expected, late, misfit], axis=2)

    def _expected_recall(self, ks: Sequence[int]) -> FloatMatrix:
        """The mean over joint draws of the scores of a shortlist: the errors of items go together."""
        n_left = len(self._among) - self.scored.shape[1]
        if not n_left:
            return np.ones((len(self.scored), len(ks)))
        n_short = {k: min(round(N_RIVALS + RIVALS_PER_K * k), n_left) for k in ks}
        likely = self._best_guesses(max(n_short.values()), is_fresh=False)
        positions = np.stack([proposal.positions for proposal in likely])
        guesses = np.stack([proposal.guesses for proposal in likely if proposal.guesses is not None])
        scale = np.square(self._scale()) * self._misfit()  # some queries are less like the anchor queries than others
        covariance = self._posterior.covariance(positions) * scale[:, None, None]  # (n_queries, n_short, n_short)
        spread = np.linalg.cholesky(covariance)
        noise = np.random.default_rng(0).standard_normal((positions.shape[1], N_DRAWS))
        drawn = guesses[..., None] + spread @ noise  # (n_queries, n_short, N_DRAWS); the first are the same for any k
        found = -np.sort(-self.exact_scores, axis=1)
        return np.stack([_mean_recall(found, -np.sort(-drawn[:, : n_short[k]], axis=1), k) for k in ks], axis=1)

    def surprises(self, n_first: int) -> FloatVector:
        """How far the exact scores that were observed first were from what the model expected of them. (n_queries,)"""
        return self._misfit(n_first)

    def best_scores(self, n_first: int) -> FloatVector:
        """The mean of the highest exact scores among those that were observed first. (n_queries,)"""
        best = np.sort(self.exact_scores[:, :n_first], axis=1)[:, -N_BEST:]
        mean: FloatVector = best.mean(axis=1)
        return mean

    def _misfit(self, n_first: int | None = None) -> FloatVector:
        scale = self._scale(n_first)
        return self._posterior.misfit(self._weights(scale) / scale[:, None], n_first=n_first)

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
