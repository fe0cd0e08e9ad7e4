"""Which wrong entities a mention is trained against: random ones, or those that a retriever takes for right.

Reads worlds and retrievers, feeds `examples.py`. Arithmetic on positions: knows no model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from anncur.arrays import Positions
from anncur.datasets.zeshel import LinkingWorld
from anncur.errors import InputError
from anncur.numbers import number, whole_number
from anncur.ranking import top_k
from anncur.retrievers.base import Retriever

QUERIES_AT_ONCE = 256  # bounds the block of scores over all items


Candidates: TypeAlias = NDArray[np.int64]  # (n_mentions, n_candidates), positions in its world, the right one first


@dataclass(frozen=True, slots=True)
class NegativeSettings:
    """How many negatives a mention has: drawn from a retriever's best `pool`, apart from a share at random."""

    n: int = 63
    pool: int = 63
    random_share: float = 0.0

    def __post_init__(self) -> None:
        whole_number("negatives", self.n, least=1)
        whole_number("pool", self.pool, least=1)
        number("random_share", self.random_share, least=0, most=1)


def random_negatives(golds: Positions, n_items: int, n: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Draw `n` wrong items for each gold one, with replacement. (n_mentions, n)"""
    if n_items < 2:
        raise InputError(f"a world needs at least 2 entities to have a wrong one, got {n_items}")
    drawn = rng.integers(0, n_items - 1, size=(len(golds), n))
    return drawn + (drawn >= golds[:, None])  # skip the gold one


def retrieved_negatives(world: LinkingWorld, mentions: Positions, retriever: Retriever, n: int) -> NDArray[np.int64]:
    """The `n` wrong items that a retriever likes best, best first; fewer where the world is small. (n_mentions, n)"""
    golds = np.array(world.golds)[mentions]
    rows = []
    for start in range(0, len(mentions), QUERIES_AT_ONCE):
        batch = slice(start, start + QUERIES_AT_ONCE)
        scores = retriever.scores([world.mentions[mention].query for mention in mentions[batch]])
        scores[np.arange(len(scores)), golds[batch]] = -np.inf
        rows += [top_k(row, min(n, len(world.items) - 1)) for row in scores]
    return np.stack(rows)


def drawn_negatives(
    pool: NDArray[np.int64], golds: Positions, n_items: int, n: int, *, random_share: float, rng: np.random.Generator
) -> NDArray[np.int64]:
    """Draw `n` negatives for each mention: a share at random, the others from its pool, the best ones more often.

    (n_mentions, n)"""
    n_random = max(round(n * random_share), n - pool.shape[1])
    weights = 1.0 / np.arange(2, pool.shape[1] + 2)
    keys = rng.exponential(size=pool.shape) / weights  # the smallest keys are a weighted draw without replacement
    chosen = np.argsort(keys, axis=1)[:, : n - n_random]
    return np.hstack([np.take_along_axis(pool, chosen, axis=1), random_negatives(golds, n_items, n_random, rng)])
