"""ADACUR: CUR whose anchor items are chosen for each query, in rounds.

The item vectors are the exact scores under the anchor queries, uncentred. Each round solves least squares for the query
on all that was scored so far, guesses all other scores, and takes the best guesses, or a sample, as further anchors."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from anncur.arrays import FloatMatrix, Positions, Selector
from anncur.errors import InputError
from anncur.factors.least_squares import LEAST_CUTOFF, least_squares_items
from anncur.items import Query
from anncur.numbers import number, whole_number
from anncur.search.base import Knowledge, Proposal, QueryBlock, Rounds, best_guesses
from anncur.search.regression import even_rounds, regression_rounds
from anncur.vectors.base import Ranked
from anncur.vectors.exact import ExactVectors

RANDOM = "random"
SAMPLINGS = ("top", "softmax")


@dataclass(frozen=True)
class Adacur:
    """Scores items in `n_rounds` rounds of the same size, each by least squares on those before.

    The first round takes the best items of `retriever`: the named one, else the index's first; with "random", or where
    the index has none, items at random. Later rounds take the best guesses (`sampling="top"`), or draw from their
    softmax (`sampling="softmax"`), whose `temperature` is in units of the scorer. Principal components of the scored
    items that are shorter than `cutoff` times the longest item vector are taken for noise."""

    n_rounds: int = 10
    retriever: str | None = None
    sampling: str = "top"
    temperature: float = 1.0
    cutoff: float = 1e-5
    name: ClassVar[str] = "adacur"
    is_exact: ClassVar[bool] = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "n_rounds", whole_number("n_rounds", self.n_rounds, least=1))
        object.__setattr__(self, "temperature", number("temperature", self.temperature, least=0))
        object.__setattr__(self, "cutoff", number("cutoff", self.cutoff, least=LEAST_CUTOFF, most=1))
        if self.sampling not in SAMPLINGS:
            raise InputError(f"sampling must be one of {', '.join(SAMPLINGS)}, got {self.sampling!r}")

    def rounds(self, block: QueryBlock, knowledge: Knowledge) -> Rounds:
        vectors = knowledge.factors.item_vectors
        if vectors.shape[1] == 0:
            raise InputError("adacur needs anchor queries and this index has none; build it with some, or use rerank")
        model = knowledge.cache.get((self.name, self.cutoff), lambda: least_squares_items(vectors, cutoff=self.cutoff))
        everything, draws = ExactVectors(vectors), [_generator(query, block.seed) for query in block.queries]
        sizes, among = even_rounds(block.budget, block.schedule.at_most(self.n_rounds)), block.candidates(knowledge)

        def propose(query_vectors: FloatMatrix, scored: Positions, size: int) -> Sequence[Proposal]:
            if self.sampling == "softmax":
                noise = GumbelNoise(draws, self.temperature)
                noisy = everything.top(query_vectors, size, exclude=list(scored), among=among, means=noise)
                return _without_noise(noisy, everything, query_vectors)
            return best_guesses(everything, query_vectors, n_best=size, exclude=list(scored), among=among)

        first = self._first(block, knowledge, sizes[0], draws)
        return (yield from regression_rounds(model, first, sizes[1:], propose))

    def _first(
        self, block: QueryBlock, knowledge: Knowledge, size: int, draws: Sequence[np.random.Generator]
    ) -> Positions:
        """The items that each query begins with, (n_queries, size)."""
        among = block.candidates(knowledge)
        if self.retriever == RANDOM or (self.retriever is None and not knowledge.retrievers):
            return np.stack([draw.choice(among.first(len(among)), size, replace=False) for draw in draws])
        retriever = knowledge.retriever(self.retriever)
        # a row per query over all items is the largest thing here, so one query at a time
        return np.stack([among.best(retriever.scores([query])[0], size) for query in block.queries])


class GumbelNoise:
    """Noise that turns the best of all guesses into a draw from their softmax, without replacement.

    It stands in the place of prior means, and is drawn item after item, so that blocks of items change nothing."""

    def __init__(self, draws: Sequence[np.random.Generator], temperature: float) -> None:
        self._draws = draws
        self._temperature = temperature

    def of_items(self, items: Selector) -> FloatMatrix:
        n_items = items.stop - items.start if isinstance(items, slice) else len(items)
        return self._temperature * np.stack([draw.gumbel(size=n_items) for draw in self._draws])


def _without_noise(noisy: Sequence[Ranked], vectors: ExactVectors, query_vectors: FloatMatrix) -> list[Proposal]:
    """What was drawn, with the guesses alone."""
    drawn = [positions for positions, _ in noisy]
    both = zip(drawn, query_vectors, strict=True)
    return [Proposal(positions, vectors.take(positions) @ vector) for positions, vector in both]


def _generator(query: Query, seed: int) -> np.random.Generator:
    """Every query draws for itself, so that it draws the same among other queries."""
    return np.random.default_rng([seed, zlib.crc32(query.marked_text.encode())])
