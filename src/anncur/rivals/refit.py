"""ReFIT (Reddy and others, 2023): the query's embedding is fitted to the scorer, and retrieves again.

The first round takes a retriever's best items. Then gradient steps move the query's vector until the softmax of its
products with the scored items is like the softmax of their exact scores, and the items nearest to it come next."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from anncur.arrays import FloatMatrix
from anncur.numbers import number, whole_number
from anncur.rivals.embedded import embedded
from anncur.search.base import Knowledge, Proposal, QueryBlock, Rounds, best_guesses
from anncur.search.regression import even_rounds
from anncur.vectors.exact import ExactVectors

LEAST_TEMPERATURE = 1e-3


@dataclass(frozen=True)
class Refit:
    """Scores items in `n_rounds` rounds of the same size, and fits the query before each but the first.

    A fit begins with the query's own vector and takes `n_steps` steps. `temperature` is that of both softmaxes, in
    units of the spread of their scores. `retriever` is the named one, else the one whose item vectors the index
    uses."""

    n_rounds: int = 2
    n_steps: int = 100
    temperature: float = 1.0
    retriever: str | None = None
    name: ClassVar[str] = "refit"
    is_exact: ClassVar[bool] = False

    def __post_init__(self) -> None:
        for name, least in (("n_rounds", 1), ("n_steps", 0)):
            object.__setattr__(self, name, whole_number(name, getattr(self, name), least=least))
        object.__setattr__(self, "temperature", number("temperature", self.temperature, least=LEAST_TEMPERATURE))

    def rounds(self, block: QueryBlock, knowledge: Knowledge) -> Rounds:
        source, among = embedded(knowledge, self.retriever, method=self.name), block.candidates(knowledge)
        sizes = even_rounds(block.budget, block.schedule.at_most(self.n_rounds))
        scored, query_vectors = source.begin(block.queries, among, sizes[0])
        everything, exact_scores = ExactVectors(source.vectors), np.empty((len(block.queries), 0))
        new = scored
        for size in sizes[1:]:
            answered = yield [Proposal(positions) for positions in new]
            exact_scores = np.concatenate([exact_scores, np.stack(answered)], axis=1)
            fitted = fit_queries(
                query_vectors,
                everything.take(scored),
                exact_scores,
                temperature=self.temperature,
                n_steps=self.n_steps,
            )
            found = best_guesses(everything, fitted, n_best=size, exclude=list(scored), among=among)
            new = np.stack([proposal.positions for proposal in found])
            scored = np.concatenate([scored, new], axis=1)
        yield [Proposal(positions) for positions in new]  # products aren't guesses on the scale of the scorer
        return None


def fit_queries(
    query_vectors: FloatMatrix, vectors: FloatMatrix, exact_scores: FloatMatrix, *, temperature: float, n_steps: int
) -> FloatMatrix:
    """Query vectors, (n_queries, width), after steps down the Kullback-Leibler divergence from the scorer's softmax.

    `vectors` are those of each query's scored items, (n_queries, n_scored, width), `exact_scores` their scores. The
    path of a query stays in the span of these vectors, so that the Gram matrix serves. The length of a step is that of
    which no step goes too far: the divergence's curvature is at most the longest of the centred vectors."""
    centred = (vectors - vectors.mean(axis=1, keepdims=True)).astype(np.float64)
    gram = centred @ centred.transpose(0, 2, 1)  # (n_queries, n_scored, n_scored)
    longest = _or_one(np.einsum("qii->qi", gram).max(axis=1, keepdims=True))
    products = np.einsum("qiw,qw->qi", vectors, query_vectors)
    scale = temperature * _or_one(products.std(axis=1, keepdims=True))
    target = _softmax(exact_scores / (temperature * _or_one(exact_scores.std(axis=1, keepdims=True))))
    logits, weights = products / scale, np.zeros(products.shape)
    for _ in range(n_steps):
        step = (target - _softmax(logits)) / longest
        weights += scale * step
        logits += np.einsum("qij,qj->qi", gram, step)
    moved: FloatMatrix = query_vectors + np.einsum("qiw,qi->qw", centred, weights)
    return moved


def _softmax(rows: FloatMatrix) -> FloatMatrix:
    powers = np.exp(rows - rows.max(axis=1, keepdims=True))
    shares: FloatMatrix = powers / powers.sum(axis=1, keepdims=True)
    return shares


def _or_one(spread: FloatMatrix) -> FloatMatrix:
    """The same, with 1 where there is no spread."""
    return np.where(spread > 0, spread, 1.0)
