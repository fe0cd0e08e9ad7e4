"""AXN: adaptive search over item vectors that were factorised from sparse scores.

The index's anchor scores are used as if only the items that a retriever ranks highest had been scored for each anchor
query. A search begins with the retriever's best items; each round solves least squares for the query on what was scored
so far, pulls it towards the retriever's own query vector, and takes the best guesses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from anncur.arrays import FloatMatrix, Positions
from anncur.errors import InputError
from anncur.factors.items import ItemModel, gram
from anncur.factors.least_squares import LEAST_CUTOFF, least_squares_items
from anncur.factors.sparse import SparseScores, Start, factorise, singular_start, straight_line
from anncur.numbers import number, whole_number
from anncur.ranking import top_k
from anncur.retrievers.base import Retriever, embedding_source, item_vectors
from anncur.search.base import Knowledge, Proposal, QueryBlock, Rounds, best_guesses, raised
from anncur.search.regression import even_rounds, regression_rounds

TRANSDUCTIVE, INDUCTIVE = "transductive", "inductive"
KINDS = (TRANSDUCTIVE, INDUCTIVE)
MOST_COMPONENTS = 128  # of vectors that no dual encoder gives
ROWS_AT_ONCE = 16
ITEMS_AT_ONCE = 8192
SAME = 1e-10  # a share of the largest eigenvalue, so 1e-5 of the longest component: what is shorter is rounding


@dataclass(frozen=True)
class Axn:
    """Scores items in `n_rounds` rounds of the same size, the first by a retriever, each other by least squares.

    `dual_share` is the weight of the retriever's own query vector beside that of least squares. Item vectors are made
    when they are first needed, from `n_scored` scores of each anchor query: free ones, pulled towards the retriever's
    with the weight of `pull` scores (`kind="transductive"`), or what a small network, trained from `seed`, makes of the
    retriever's (`kind="inductive"`). `retriever` is the named one, else the index's first that has item vectors, such
    as a dual encoder, else its first. `cutoff` is as for ADACUR."""

    n_rounds: int = 10
    dual_share: float = 0.05
    kind: str = TRANSDUCTIVE
    retriever: str | None = None
    n_scored: int = 100
    pull: float = 1.0
    cutoff: float = 1e-5
    seed: int = 0
    name: ClassVar[str] = "axn"
    is_exact: ClassVar[bool] = False

    def __post_init__(self) -> None:
        for name, least in (("n_rounds", 1), ("n_scored", 1), ("seed", 0)):
            object.__setattr__(self, name, whole_number(name, getattr(self, name), least=least))
        object.__setattr__(self, "dual_share", number("dual_share", self.dual_share, least=0, most=1))
        object.__setattr__(self, "pull", number("pull", self.pull, least=LEAST_CUTOFF))
        object.__setattr__(self, "cutoff", number("cutoff", self.cutoff, least=LEAST_CUTOFF, most=1))
        if self.kind not in KINDS:
            raise InputError(f"kind must be one of {', '.join(KINDS)}, got {self.kind!r}")

    def rounds(self, block: QueryBlock, knowledge: Knowledge) -> Rounds:
        factors, model = self._made(knowledge)
        sizes, among = even_rounds(block.budget, block.schedule.at_most(self.n_rounds)), block.candidates(knowledge)
        first: list[Positions] = []
        dual: list[FloatMatrix] = []
        for query in block.queries:  # a row per query over all items is the largest thing here, so one at a time
            row = factors.retriever.scores([query])
            first.append(among.best(row[0], sizes[0]))
            dual.append(factors.query_vectors(row))
        dual_vectors = np.concatenate(dual)

        def propose(query_vectors: FloatMatrix, scored: Positions, size: int) -> Sequence[Proposal]:
            mixed = (1 - self.dual_share) * query_vectors + self.dual_share * dual_vectors
            found = best_guesses(model.vectors, mixed, n_best=size, exclude=list(scored), among=among)
            return [raised(proposal, factors.level) for proposal in found]

        return (yield from regression_rounds(model, np.stack(first), sizes[1:], propose))

    def _made(self, knowledge: Knowledge) -> tuple[SparseFactors, ItemModel]:
        if not knowledge.anchor_queries:
            raise InputError("axn needs anchor queries and this index has none; build it with some, or use rerank")
        settings = FactorSettings(self.kind, self.retriever, self.n_scored, self.pull, self.seed)

        def make() -> tuple[SparseFactors, ItemModel]:
            factors = fit_sparse(knowledge, settings)
            return factors, least_squares_items(factors.vectors, cutoff=self.cutoff, level=factors.level)

        made: tuple[SparseFactors, ItemModel] = knowledge.cache.get((self.name, settings, self.cutoff), make)
        return made


@dataclass(frozen=True)
class FactorSettings:
    """How vectors are made, as for `Axn`."""

    kind: str
    retriever: str | None
    n_scored: int
    pull: float
    seed: int


@dataclass(frozen=True, eq=False)
class SparseFactors:
    """A score is about `level` + item vector . query vector, or `intercept` + `slope` x the score of the retriever."""

    retriever: Retriever
    vectors: FloatMatrix  # (n_items, width)
    level: float
    intercept: float
    slope: float
    reference: Reference

    def query_vectors(self, cheap_scores: FloatMatrix) -> FloatMatrix:
        """Those that the retriever would have, on the scale of the scorer. (n_queries, width)"""
        return self.reference.fit(self.intercept - self.level + self.slope * cheap_scores)


class Reference:
    """Item vectors on which scores of all items become query vectors, by least squares.

    With the item vectors and the scores of a dual encoder, they are the query vectors of this dual encoder."""

    def __init__(self, vectors: FloatMatrix) -> None:
        self._vectors = vectors  # (n_items, width)
        self._inverse = np.linalg.pinv(gram(vectors), rcond=SAME, hermitian=True)

    def fit(self, scores: FloatMatrix) -> FloatMatrix:
        """(n_queries, width) from scores of all items, (n_queries, n_items)."""
        total = np.zeros((len(scores), self._vectors.shape[1]))
        for start in range(0, len(self._vectors), ITEMS_AT_ONCE):
            part = slice(start, start + ITEMS_AT_ONCE)
            total += scores[:, part].astype(np.float64) @ self._vectors[part].astype(np.float64)
        fitted: FloatMatrix = total @ self._inverse
        return fitted


def fit_sparse(knowledge: Knowledge, settings: FactorSettings) -> SparseFactors:
    """Factors of the anchor queries' sparse scores; begins with the retriever's own item vectors, if it has some."""
    retriever = _retriever(knowledge, settings.retriever)
    own = item_vectors(retriever)
    if own is not None:
        return _from_own_vectors(knowledge, settings, retriever, own)
    if settings.kind == INDUCTIVE:
        raise InputError(
            f"kind='{INDUCTIVE}' needs a retriever with item vectors, and {retriever.name} has none; build the index "
            f"with a dual encoder, such as retrievers=('minilm',), or take kind='{TRANSDUCTIVE}'"
        )
    return _from_scores_alone(knowledge, settings, retriever)


def _retriever(knowledge: Knowledge, name: str | None) -> Retriever:
    """The named one, or the one whose item vectors are used, or the first."""
    return knowledge.retriever(name or embedding_source(knowledge.retrievers))


def _from_own_vectors(
    knowledge: Knowledge, settings: FactorSettings, retriever: Retriever, own: FloatMatrix
) -> SparseFactors:
    reference = Reference(own)
    pairs = _pairs(knowledge, settings, retriever, reference)
    intercept, slope = straight_line(pairs.cheap_scores, pairs.exact_scores)
    sparse = SparseScores(pairs.items, pairs.exact_scores - intercept)
    start = Start(slope * pairs.queries, own)
    vectors = (
        factorise(sparse, start, pull=settings.pull)
        if settings.kind == TRANSDUCTIVE
        else _train_gated(sparse, start, settings.seed)
    )
    return SparseFactors(retriever, vectors, intercept, intercept, slope, reference)


def _from_scores_alone(knowledge: Knowledge, settings: FactorSettings, retriever: Retriever) -> SparseFactors:
    """What was not scored counts as the least that was, so that items of which nothing is known come last."""
    pairs = _pairs(knowledge, settings, retriever, None)
    intercept, slope = straight_line(pairs.cheap_scores, pairs.exact_scores)
    level = float(pairs.exact_scores.min())
    sparse = SparseScores(pairs.items, pairs.exact_scores - level)
    start = singular_start(sparse, knowledge.n_items, width=MOST_COMPONENTS)
    vectors = factorise(sparse, start, pull=settings.pull)
    return SparseFactors(retriever, vectors, level, intercept, slope, Reference(vectors))


@dataclass(frozen=True, eq=False)
class _Pairs:
    """Of each anchor query, the items that the retriever likes best. (n_queries, n_scored)"""

    items: Positions
    cheap_scores: FloatMatrix
    exact_scores: FloatMatrix
    queries: FloatMatrix  # the retriever's query vectors, (n_queries, width), where there is a reference for them


def _pairs(knowledge: Knowledge, settings: FactorSettings, retriever: Retriever, reference: Reference | None) -> _Pairs:
    queries, n_scored = knowledge.anchor_queries, min(settings.n_scored, knowledge.n_items)
    items = np.empty((len(queries), n_scored), dtype=np.int64)
    cheap = np.empty((len(queries), n_scored))
    vectors: list[FloatMatrix] = []
    for start in range(0, len(queries), ROWS_AT_ONCE):
        rows = retriever.scores(queries[start : start + ROWS_AT_ONCE])
        best = np.stack([top_k(row, n_scored) for row in rows])
        items[start : start + len(rows)] = best
        cheap[start : start + len(rows)] = np.take_along_axis(rows, best, axis=1)
        vectors.append(np.empty((len(rows), 0)) if reference is None else reference.fit(rows))
    exact = knowledge.factors.item_vectors[items, np.arange(len(queries))[:, None]].astype(np.float64)
    return _Pairs(items, cheap, exact, np.concatenate(vectors))


def _train_gated(sparse: SparseScores, start: Start, seed: int) -> FloatMatrix:
    try:
        from anncur.factors.gated import train_gated
    except ModuleNotFoundError as error:
        raise InputError(f"kind='{INDUCTIVE}' needs {error.name}; run pip install 'anncur[train]'") from error
    return train_gated(sparse, start, seed=seed)
