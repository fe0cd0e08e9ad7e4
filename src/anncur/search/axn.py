"""AXN: adaptive search over item vectors that were factorised from sparse scores.

The index's anchor scores are used as if only the items that a retriever likes best had been scored for each anchor
query (`search/sparse_factors.py`). A search begins with the retriever's best items; each round solves least squares for
the query on what was scored so far, draws it towards the retriever's own query vector, and takes the best guesses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from anncur.arrays import FloatMatrix, Positions
from anncur.errors import InputError
from anncur.factors.least_squares import LEAST_CUTOFF, least_squares_items
from anncur.factors.posterior import ItemModel
from anncur.numbers import number, whole_number
from anncur.ranking import top_k
from anncur.search.base import Block, Knowledge, Proposal, Rounds
from anncur.search.guesses import PriorMeans, best_guesses
from anncur.search.regression import even_rounds, regression_rounds
from anncur.search.sparse_factors import INDUCTIVE, TRANSDUCTIVE, FactorSettings, SparseFactors, fit_sparse

KINDS = (TRANSDUCTIVE, INDUCTIVE)


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

    def rounds(self, block: Block, knowledge: Knowledge) -> Rounds:
        factors, model = self._made(knowledge)
        sizes = even_rounds(block.budget, self.n_rounds)
        first: list[Positions] = []
        dual: list[FloatMatrix] = []
        for query in block.queries:  # a row per query over all items is the largest thing here, so one at a time
            row = factors.retriever.scores([query])
            first.append(top_k(row[0], sizes[0]))
            dual.append(factors.query_vectors(row))
        dual_vectors = np.concatenate(dual)

        def propose(query_vectors: FloatMatrix, scored: Positions, size: int) -> Sequence[Proposal]:
            mixed = (1 - self.dual_share) * query_vectors + self.dual_share * dual_vectors
            prior = PriorMeans(model.offsets)
            return best_guesses(model.vectors, mixed, n_best=size, exclude=list(scored), prior=prior)

        return (yield from regression_rounds(model, np.stack(first), sizes[1:], propose))

    def _made(self, knowledge: Knowledge) -> tuple[SparseFactors, ItemModel]:
        if not knowledge.anchor_queries:
            raise InputError("axn needs anchor queries and this index has none; build it with some, or use rerank")
        settings = FactorSettings(self.kind, self.retriever, self.n_scored, self.pull, self.seed)

        def make() -> tuple[SparseFactors, ItemModel]:
            factors = fit_sparse(knowledge, settings)
            return factors, least_squares_items(factors.vectors, cutoff=self.cutoff, level=factors.level)

        return knowledge.derived.once(self.name, (settings, self.cutoff), make)
