"""Reciprocal-rank fusion: an item scores by its places in the rankings of other retrievers.

In an index it asks the other retrievers of that index, so that nothing is fitted or computed twice; alone, it has the
default ones of its own."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from anncur.arrays import FloatMatrix, FloatVector
from anncur.items import Item, Query
from anncur.retrievers.base import Retriever

CONSTANT = 60  # of Cormack, Clarke and Büttcher (2009): how little the first places differ


class Rrf:
    """The sum over `retrievers` of 1 / (60 + rank); items with the same score share the mean of their ranks.

    So the many items that hold no word of a query are behind those that do, and none of them is first by chance."""

    name = "rrf"

    def __init__(self, retrievers: Sequence[Retriever] = ()) -> None:
        self._retrievers = retrievers

    def over(self, others: Mapping[str, Retriever]) -> Retriever:
        """The same over retrievers that are fitted by somebody else."""
        fused = copy.copy(self)
        fused._retrievers = list(others.values())
        return fused

    def fit(self, items: Iterable[Item]) -> None:
        everything = list(items)
        self._retrievers = self._retrievers or _defaults()
        for retriever in self._retrievers:
            retriever.fit(everything)

    def scores(self, queries: Sequence[Query]) -> FloatMatrix:
        total: FloatMatrix = np.sum([_reciprocals(retriever.scores(queries)) for retriever in self._retrievers], axis=0)
        return total


def _reciprocals(rows: FloatMatrix) -> FloatMatrix:
    """1 / (60 + rank) for each query and item."""
    return np.stack([1 / (CONSTANT + mean_ranks(row)) for row in rows]).astype(np.float32)


def mean_ranks(scores: FloatVector) -> FloatVector:
    """The rank of each, the highest is 1; those that are the same share the mean of their ranks."""
    order = np.argsort(scores, kind="stable")[::-1]
    ordered = scores[order]
    begins = np.flatnonzero(np.concatenate([[True], ordered[1:] != ordered[:-1]]))
    ends = np.append(begins[1:], len(scores))
    ranks = np.empty(len(scores))
    ranks[order] = np.repeat((begins + ends + 1) / 2, ends - begins)
    return ranks


def _defaults() -> list[Retriever]:
    from anncur.retrievers.loading import default_retrievers, load_retriever

    return [load_retriever(name) for name in default_retrievers(has_embeddings=False)]
