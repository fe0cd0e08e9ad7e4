"""Item vectors from rows that were scored only in part, as searches leave them behind.

The model is that of `factors/posterior.py`,

    score = offset + item vector . query vector + noise,

with short vectors. What searches score depends on nothing but what they had scored before and on cheap retrievers, so a
fit by likelihood takes no harm from seeing mostly high scores, where averages would. Expectation and maximisation in
turns: queries' vectors given the items, then items' offsets and vectors given the queries. An item's offset and vector
have a Gaussian prior that is fitted along with them: the posterior mean of an item that was scored once or twice is
mostly the prior mean, and that of an item that never was scored is just that.

Pure NumPy in float64: no files, no models."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from anncur.arrays import NO_POSITIONS, NO_SCORES, FloatMatrix, FloatVector, Positions

MOST_RANK = 32
QUERIES_PER_COMPONENT = 8
N_STEPS = 20
RIDGE = 1e-2  # of a feature's own variance, as for full rows
PAIRS_AT_ONCE = 512  # second moments of queries' vectors that are gathered at a time: they should stay in cache
LEAST_NOISE_SHARE = 1e-4  # of the variance of the scores: in a world without noise, EM would come to rest nowhere
JITTER = 1e-9


@dataclass(frozen=True, eq=False)
class PartialRows:
    """Scores of some items under each of some queries: those of query i lie between `starts[i]` and `starts[i + 1]`.

    `features` are those of retriever scores of the same pairs, (n_pairs, n_features)."""

    starts: Positions  # (n_queries + 1,)
    items: Positions  # (n_pairs,)
    scores: FloatVector  # (n_pairs,)
    features: FloatMatrix

    @classmethod
    def of(cls, items: list[Positions], scores: list[FloatVector], features: list[FloatMatrix]) -> PartialRows:
        """From one array per query of each kind."""
        starts = np.concatenate([[0], np.cumsum([len(some) for some in items])]).astype(np.int64)
        width = features[0].shape[1] if features else 0
        return cls(
            starts,
            np.concatenate([NO_POSITIONS, *items]),
            np.concatenate([NO_SCORES, *scores]),
            np.concatenate([np.empty((0, width)), *features]),
        )

    @property
    def n_queries(self) -> int:
        """With at least one score or none."""
        return len(self.starts) - 1

    @property
    def queries(self) -> Positions:
        """The query of each pair."""
        return np.repeat(np.arange(self.n_queries), np.diff(self.starts))


@dataclass(frozen=True, eq=False)
class PartialFit:
    """Offset and vector side by side: the posterior means of items that were scored, and the prior mean."""

    items: Positions  # that have rows in `posterior_means`
    posterior_means: FloatMatrix  # (len(items), 1 + rank)
    prior_mean: FloatVector  # (1 + rank,), the mean of the items' prior
    full_vectors: FloatMatrix  # (n_full, rank), of the queries with full rows
    noise: float
    coefficients: FloatVector  # (n_features,)


def rank_for(n_queries: int) -> int:
    """The width of vectors that `n_queries` queries can determine."""
    return max(1, min(MOST_RANK, n_queries // QUERIES_PER_COMPONENT))


def fit_partial(
    rows: PartialRows,
    full_scores: FloatMatrix,
    *,
    rank: int | None = None,
    n_steps: int = N_STEPS,
    rng: np.random.Generator,
) -> PartialFit:
    """Offsets and vectors from partial rows together with full ones, (n_items, n_full).

    What retrievers predict must have been taken off the scores, or else `rows.features` holds their features, and their
    coefficients are fitted along with the rest."""
    n_items, n_full = full_scores.shape
    in_part = np.unique(rows.items)
    never = np.setdiff1d(np.arange(n_items), in_part) if n_full else NO_POSITIONS  # in part, only in full
    seen = np.concatenate([in_part, never])
    compact = replace(rows, items=np.searchsorted(in_part, rows.items))
    rank = rank_for(rows.n_queries + n_full) if rank is None else rank
    state = _begin(compact, full_scores[seen].astype(np.float64), len(seen), rank, rng)
    for _ in range(n_steps):
        state = state.step()
    return PartialFit(
        seen,
        state.posterior_means,
        state.prior_mean,
        state.full_mean,
        noise=state.noise,
        coefficients=state.coefficients,
    )


def _begin(rows: PartialRows, full_scores: FloatMatrix, n_seen: int, rank: int, rng: np.random.Generator) -> _State:
    """Where EM begins: queries' vectors drawn at random, and all items at the mean score."""
    coefficients = _within_queries(rows)
    residuals = rows.scores - rows.features @ coefficients
    level = _mean(residuals.sum() + full_scores.sum(), residuals.size + full_scores.size)
    squares = np.square(residuals - level).sum() + np.square(full_scores - level).sum()
    variance = _mean(squares, residuals.size + full_scores.size) or 1.0
    prior_mean = np.concatenate([[level], np.zeros(rank)])
    spread = np.diag(np.concatenate([[variance], np.full(rank, variance / rank)]))
    n_full = full_scores.shape[1]
    return _State(
        rows=rows,
        full_scores=full_scores,
        by_item=np.argsort(rows.items, kind="stable"),
        posterior_means=np.tile(prior_mean, (n_seen, 1)),
        variances=np.zeros(n_seen),
        prior_mean=prior_mean,
        spread=spread,
        noise=variance / 2,
        least_noise=LEAST_NOISE_SHARE * variance,
        coefficients=coefficients,
        mean=rng.standard_normal((rows.n_queries, rank)),
        covariance=np.zeros((rows.n_queries, rank, rank)),
        full_mean=rng.standard_normal((n_full, rank)),
        full_covariance=np.zeros((rank, rank)),
    )


@dataclass(frozen=True, eq=False)
class _State:
    """EM between two steps. Items are those that were scored."""

    rows: PartialRows
    full_scores: FloatMatrix
    by_item: Positions  # the pairs, sorted by item
    posterior_means: FloatMatrix  # (n_items, 1 + rank), offsets and vectors
    variances: FloatVector  # (n_items,), the variance that not knowing them better adds to a score
    prior_mean: FloatVector
    spread: FloatMatrix  # (1 + rank, 1 + rank), covariance of the items' prior
    noise: float
    least_noise: float
    coefficients: FloatVector
    mean: FloatMatrix  # (n_queries, rank), the posterior of queries' vectors
    covariance: FloatMatrix  # (n_queries, rank, rank)
    full_mean: FloatMatrix  # (n_full, rank)
    full_covariance: FloatMatrix  # (rank, rank), the same for all of them

    @property
    def residuals(self) -> FloatVector:
        """The scores of the pairs without what retrievers account for."""
        residuals: FloatVector = self.rows.scores - self.rows.features @ self.coefficients
        return residuals

    def step(self) -> _State:
        """Items given queries, retrievers given both, queries given all."""
        return self._whitened()._with_items()._with_coefficients()._with_queries()

    def _whitened(self) -> _State:
        """The same model with queries' vectors of mean 0 and covariance 1, which is their prior.

        EM alone would come there too, in many small steps."""
        n_queries = len(self.mean) + len(self.full_mean)
        centre = (self.mean.sum(axis=0) + self.full_mean.sum(axis=0)) / n_queries
        mean, full_mean = self.mean - centre, self.full_mean - centre
        total = mean.T @ mean + full_mean.T @ full_mean
        total += self.covariance.sum(axis=0) + len(full_mean) * self.full_covariance
        root = np.linalg.cholesky(total / n_queries + JITTER * np.eye(len(total)))
        inverse = np.linalg.inv(root)
        turn = np.zeros_like(self.spread)  # what it makes of offset and vector
        turn[0, 0], turn[0, 1:], turn[1:, 1:] = 1, centre, root.T
        return replace(
            self,
            mean=mean @ inverse.T,
            full_mean=full_mean @ inverse.T,
            covariance=inverse @ self.covariance @ inverse.T,
            full_covariance=inverse @ self.full_covariance @ inverse.T,
            prior_mean=turn @ self.prior_mean,
            spread=turn @ self.spread @ turn.T,
        )

    def _with_items(self) -> _State:
        prior = np.linalg.inv(self.spread)
        full_moments, full_ones = _moments(self.full_mean, self.full_covariance), _with_one(self.full_mean)
        full_products = self.full_scores @ full_ones  # (n_items, 1 + rank)
        posterior_means, variances = np.empty_like(self.posterior_means), np.empty_like(self.variances)
        spread, left = np.zeros_like(self.spread), 0.0
        for part, moments, products in self._sums_by_item():
            sums, wanted = moments + full_moments, products + full_products[part]
            inverse = np.linalg.inv(sums / self.noise + prior)  # (n_some or 1, width, width)
            found = (inverse @ (wanted / self.noise + prior @ self.prior_mean)[..., None])[..., 0]
            posterior_means[part], variances[part] = found, np.trace(inverse, axis1=1, axis2=2)
            n_each = len(found) / len(inverse)  # items that share an inverse
            spread += n_each * inverse.sum(axis=0)
            left += n_each * float(np.einsum("jab,jab->", inverse, sums))
            left += float(np.einsum("ja,ja->", found, (sums @ found[..., None])[..., 0] - 2 * wanted))
        prior_mean = posterior_means.mean(axis=0)
        spread = (spread + (posterior_means - prior_mean).T @ (posterior_means - prior_mean)) / len(posterior_means)
        squares = float(np.square(self.residuals).sum() + np.square(self.full_scores).sum())
        noise = (squares + left) / (self.rows.scores.size + self.full_scores.size)
        return replace(
            self,
            posterior_means=posterior_means,
            variances=variances,
            prior_mean=prior_mean,
            spread=spread + JITTER * np.trace(spread) * np.eye(len(spread)),
            noise=max(noise, self.least_noise),
        )

    def _sums_by_item(self) -> Iterator[tuple[slice, FloatMatrix, FloatMatrix]]:
        """For some items at a time: sums over their pairs of the queries' second moments, and of score by query.

        The items that have no pairs, only full rows, come last and share their sums."""
        ones = _with_one(self.mean)
        of_queries = ones[:, :, None] * ones[:, None, :]
        of_queries[:, 1:, 1:] += self.covariance
        queries, residuals = self.rows.queries[self.by_item], self.residuals[self.by_item]
        ends = np.cumsum(np.bincount(self.rows.items))
        first, start = 0, 0
        while first < len(ends):
            last = max(first + 1, int(np.searchsorted(ends, start + PAIRS_AT_ONCE, side="right")))
            pairs = slice(start, int(ends[last - 1]))
            borders = np.concatenate([[start], ends[first : last - 1]]) - start
            moments = np.add.reduceat(of_queries[queries[pairs]], borders)
            yield slice(first, last), moments, np.add.reduceat(residuals[pairs, None] * ones[queries[pairs]], borders)
            first, start = last, int(ends[last - 1])
        if first < len(self.posterior_means):
            width = len(self.prior_mean)
            yield slice(first, None), np.zeros((1, width, width)), np.zeros((1, width))

    def _with_coefficients(self) -> _State:
        """Least squares, held back a little, for what items and queries leave."""
        features = self.rows.features
        if not features.shape[1]:
            return self
        guesses = np.einsum("pa,pa->p", self.posterior_means[self.rows.items], _with_one(self.mean)[self.rows.queries])
        squares = features.T @ features + RIDGE * len(features) * np.eye(features.shape[1])
        return replace(self, coefficients=np.linalg.solve(squares, features.T @ (self.rows.scores - guesses)))

    def _with_queries(self) -> _State:
        """An item of large variance counts as a noisy one."""
        offsets, vectors, residuals = self.posterior_means[:, 0], self.posterior_means[:, 1:], self.residuals
        weights = 1 / (self.noise + self.variances)
        mean, covariance = np.empty_like(self.mean), np.empty_like(self.covariance)
        identity = np.eye(vectors.shape[1])
        for query, (start, stop) in enumerate(zip(self.rows.starts[:-1], self.rows.starts[1:], strict=True)):
            items = self.rows.items[start:stop]
            weighted = vectors[items] * weights[items, None]
            covariance[query] = np.linalg.inv(identity + weighted.T @ vectors[items])
            mean[query] = covariance[query] @ (weighted.T @ (residuals[start:stop] - offsets[items]))
        if not len(self.full_mean):
            return replace(self, mean=mean, covariance=covariance)
        weighted = vectors * weights[:, None]
        full_covariance = np.linalg.inv(identity + weighted.T @ vectors)
        full_mean = (self.full_scores.T @ weighted - offsets @ weighted) @ full_covariance
        return replace(self, mean=mean, covariance=covariance, full_mean=full_mean, full_covariance=full_covariance)


def _within_queries(rows: PartialRows) -> FloatVector:
    """Coefficients of the features for scores and features as they differ from their mean over a query's pairs."""
    if not rows.features.shape[1]:
        return np.zeros(0)
    both = np.column_stack([rows.scores, rows.features])
    for start, stop in zip(rows.starts[:-1], rows.starts[1:], strict=True):
        both[start:stop] -= both[start:stop].mean(axis=0) if stop > start else 0
    target, features = both[:, 0], both[:, 1:]
    squares = features.T @ features + RIDGE * len(features) * np.eye(features.shape[1])
    found: FloatVector = np.linalg.solve(squares, features.T @ target)
    return found


def _with_one(vectors: FloatMatrix) -> FloatMatrix:
    return np.column_stack([np.ones(len(vectors)), vectors])


def _moments(mean: FloatMatrix, covariance: FloatMatrix) -> FloatMatrix:
    """The sum over queries with a common covariance of their second moments, (1 + rank, 1 + rank)."""
    ones = _with_one(mean)
    total = ones.T @ ones
    total[1:, 1:] += len(mean) * covariance
    return total


def _mean(total: float, n: int) -> float:
    return float(total) / max(1, n)
