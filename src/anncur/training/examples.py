"""Mentions in tokens, the candidates that each is trained on, and how candidates are scored.

Reads worlds (`datasets/zeshel.py`) and retrievers, feeds the tasks of cross-encoders and dual encoders."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from anncur.arrays import FloatMatrix, Positions
from anncur.datasets.zeshel import LinkingWorld
from anncur.errors import InputError
from anncur.items import Query, TextDigest
from anncur.models.encoders import CrossEncoder
from anncur.progress import Progress, silent
from anncur.retrievers.base import Retriever
from anncur.tokens import PairTokenizer, Tokens
from anncur.training.negatives import (
    Candidates,
    NegativeSettings,
    drawn_negatives,
    random_negatives,
    retrieved_negatives,
)

MOST_SHORT_WORDS = 8  # on either side of a mention in a short context
PAIRS_AT_ONCE = 4096  # enough to find pairs of like lengths


@dataclass(frozen=True)
class Examples:
    """Mentions of several worlds in tokens, numbered through."""

    worlds: list[LinkingWorld]
    tokenizer: PairTokenizer
    chosen: list[Positions]  # of each world, which of its mentions
    short_contexts: float = 0.0  # the share of mentions that lose most of their context

    @classmethod
    def draw(cls, worlds: Sequence[LinkingWorld], tokenizer: PairTokenizer, *, n: int | None, seed: int) -> Examples:
        """All mentions, or `n` of them, from every world in proportion."""
        rng = np.random.default_rng(seed)
        sizes = [len(world.mentions) for world in worlds]
        owner = np.repeat(np.arange(len(worlds)), sizes)
        place = np.concatenate([np.arange(size) for size in sizes])
        kept = np.sort(rng.permutation(len(owner))[:n])
        return cls(list(worlds), tokenizer, [place[kept][owner[kept] == number] for number in range(len(worlds))])

    @classmethod
    def draw_from_each(
        cls, worlds: Sequence[LinkingWorld], tokenizer: PairTokenizer, *, n: int | None, seed: int
    ) -> Examples:
        """All mentions, or at most `n` of every world."""
        rng = np.random.default_rng(seed)
        chosen = [np.sort(rng.permutation(len(world.mentions))[:n]) for world in worlds]
        return cls(list(worlds), tokenizer, chosen)

    def __len__(self) -> int:
        return sum(map(len, self.chosen))

    @cached_property
    def owner(self) -> Positions:
        """The world of each example."""
        return np.repeat(np.arange(len(self.worlds)), [len(mentions) for mentions in self.chosen])

    @cached_property
    def golds(self) -> Positions:
        """The right entity of each example."""
        return np.concatenate(
            [np.array(world.golds)[mentions] for world, mentions in zip(self.worlds, self.chosen, strict=True)]
        )

    @cached_property
    def queries(self) -> list[Tokens]:
        """Each example's query."""
        queries = [
            world.mentions[mention].query
            for world, mentions in zip(self.worlds, self.chosen, strict=True)
            for mention in mentions
        ]
        rng = np.random.default_rng(0)
        is_short = rng.random(len(queries)) < self.short_contexts
        n_words = rng.integers(0, MOST_SHORT_WORDS + 1, size=(len(queries), 2)).tolist()
        cut = [
            shortened(query, *sides) if short else query
            for query, short, sides in zip(queries, is_short, n_words, strict=True)
        ]
        return self.tokenizer.queries(cut)

    @cached_property
    def items(self) -> list[list[Tokens]]:
        """The entities of each world."""
        return [self.tokenizer.items(list(world.items)) for world in self.worlds]

    def pairs(self, examples: Positions, candidates: Candidates) -> tuple[list[Tokens], list[Tokens]]:
        """Queries and items of some examples with their candidates, example by example."""
        queries = [self.queries[example] for example in examples for _ in range(candidates.shape[1])]
        worlds = [self.items[self.owner[example]] for example in examples]
        items = [world[position] for world, row in zip(worlds, candidates.tolist(), strict=True) for position in row]
        return queries, items

    @cached_property
    def texts(self) -> str:
        """A short name of all that is read: the entities of every world, these mentions and their answers."""
        digest = TextDigest()
        for world, mentions in zip(self.worlds, self.chosen, strict=True):
            for item in world.items:
                digest.add_item(item)
            for mention in (world.mentions[place] for place in mentions):
                digest.add(mention.entity_id, mention.query.marked_text)
        return str(digest)[:12]

    def describe(self) -> str:
        """A short name of which examples these are; `texts` tells what they say."""
        digest = hashlib.sha256()
        for world, mentions in zip(self.worlds, self.chosen, strict=True):
            digest.update(f"{world.name} {len(world.items)} {mentions.tolist()}".encode())
        short = f", {self.short_contexts:.0%} short" if self.short_contexts else ""
        return f"{len(self)} mentions {digest.hexdigest()[:12]}{short}"


def shortened(query: Query, n_left: int, n_right: int) -> Query:
    """A query with only so many words before and after its mention."""
    if query.mention is None:
        return query
    start, end = query.mention
    left = " ".join(query.text[:start].split()[-n_left:]) + " " if n_left and start else ""
    right = " " + " ".join(query.text[end:].split()[:n_right]) if n_right and end < len(query.text) else ""
    return Query(left + query.text[start:end] + right, query.id, (len(left), len(left) + end - start))


def pool_size(examples: Examples, n: int) -> int:
    """At most `n`, and no more than every world has wrong entities."""
    smallest = min(examples.worlds, key=lambda world: len(world.items))
    if len(smallest.items) < 2:
        raise InputError(f"world {smallest.name!r} has {len(smallest.items)} entities; a wrong one needs at least 2")
    return min(n, len(smallest.items) - 1)


def pools(
    examples: Examples, retriever: Retriever | None, n: int, *, seed: int = 0, progress: Progress = silent
) -> list[NDArray[np.int64]]:
    """Negatives to draw from, of each world: a retriever's best, or random ones. (n_mentions, n) each

    A retriever's are fewer where a world is small."""
    n = n if retriever is None else pool_size(examples, n)
    found = []
    for number, (world, mentions) in enumerate(zip(examples.worlds, examples.chosen, strict=True)):
        if retriever is None:
            rng = np.random.default_rng([seed, number])
            found.append(random_negatives(np.array(world.golds)[mentions], len(world.items), n, rng))
        elif len(mentions):
            retriever.fit(list(world.items))
            found.append(retrieved_negatives(world, mentions, retriever, n))
        else:
            found.append(np.empty((0, n), dtype=np.int64))
        progress("negatives", number + 1, len(examples.worlds))
    return found


def draw_candidates(
    examples: Examples, pools: Sequence[NDArray[np.int64]], settings: NegativeSettings, *, seed: Sequence[int]
) -> Candidates:
    """The right entity and freshly drawn negatives of every example."""
    rng = np.random.default_rng(list(seed))
    rows = []
    for world, mentions, pool in zip(examples.worlds, examples.chosen, pools, strict=True):
        golds = np.array(world.golds)[mentions]
        drawn = drawn_negatives(pool, golds, len(world.items), settings.n, random_share=settings.random_share, rng=rng)
        rows.append(np.hstack([golds[:, None], drawn]))
    return np.concatenate(rows)


def whole_pool(examples: Examples, pools: Sequence[NDArray[np.int64]]) -> Candidates:
    """The right entity and as much of its pool as every world has."""
    n = min(pool.shape[1] for pool in pools)
    return np.hstack([examples.golds[:, None], np.concatenate([pool[:, :n] for pool in pools])])


def shuffled_batches(
    candidates: Candidates, size: int, *, seed: Sequence[int]
) -> Sequence[tuple[Positions, Candidates]]:
    """Rows and their candidates, in a random order."""
    order = np.random.default_rng(list(seed)).permutation(len(candidates))
    chosen = [order[start : start + size] for start in range(0, len(order), size)]
    return [(rows, candidates[rows]) for rows in chosen]


def split_by_world(examples: Examples, rows: NDArray[np.int64]) -> list[NDArray[np.int64]]:
    """One row per example, as one array per world."""
    return np.split(rows, np.cumsum([len(mentions) for mentions in examples.chosen])[:-1])


def score_candidates(
    model: CrossEncoder, examples: Examples, candidates: Candidates, rows: Positions | None = None
) -> FloatMatrix:
    """Exact scores of the candidates of all examples, or of some rows. (n_rows, n_candidates)"""
    rows = np.arange(len(candidates)) if rows is None else rows
    blocks = np.array_split(rows, max(1, len(rows) * candidates.shape[1] // PAIRS_AT_ONCE))
    scores = [model.score_tokens(*examples.pairs(block, candidates[block])).reshape(len(block), -1) for block in blocks]
    return np.concatenate(scores)


def macro_accuracy(scores: FloatMatrix, owner: Positions) -> float:
    """The share of mentions whose first candidate wins alone, averaged over worlds."""
    is_right = scores[:, 0] > scores[:, 1:].max(axis=1)
    return float(np.mean([is_right[owner == world].mean() for world in np.unique(owner)]))
