"""Mentions as tokens, and the candidates that each is trained on: its gold entity and negatives.

Reads worlds (`datasets/zeshel.py`) and retrievers, feeds `encoders.py` and `jobs.py`. Positions and tokens only: needs
no torch and knows no model."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from anncur.arrays import FloatMatrix, Positions
from anncur.datasets.zeshel import LinkingWorld
from anncur.errors import InputError
from anncur.items import Query, TextDigest
from anncur.numbers import number, whole_number
from anncur.progress import Progress, silent
from anncur.ranking import top_k
from anncur.retrievers.base import Retriever
from anncur.tokens import PairTokenizer, Tokens

Pool: TypeAlias = NDArray[np.int64]  # (n_mentions, n), negatives of a world's mentions to draw from
Candidates: TypeAlias = NDArray[np.int64]  # (n_examples, n_candidates), positions in the example's world, gold first

MAX_SHORT_WORDS = 8  # on either side of a mention in a short context
QUERIES_AT_ONCE = 256  # bounds the block of retriever scores over all items


@dataclass(frozen=True, slots=True)
class NegativeSettings:
    """How many negatives a mention has: a share drawn from all entities, the others from its `pool` best."""

    n: int = 63
    pool: int = 63
    random_share: float = 0.0

    def __post_init__(self) -> None:
        whole_number("negatives", self.n, least=1)
        whole_number("pool", self.pool, least=1)
        number("random_share", self.random_share, least=0, most=1)


@dataclass(frozen=True)
class Examples:
    """Mentions of several worlds as tokens, numbered through."""

    worlds: list[LinkingWorld]
    tokenizer: PairTokenizer
    chosen: list[Positions]  # positions of the chosen mentions, for each world
    short_contexts: float = 0.0  # share of mentions that lose most of their context

    @classmethod
    def draw(cls, worlds: Sequence[LinkingWorld], tokenizer: PairTokenizer, *, n: int | None, seed: int) -> Examples:
        """All mentions, or `n` of them, from every world in proportion."""
        rng = np.random.default_rng(seed)
        sizes = [len(world.mentions) for world in worlds]
        owner = np.repeat(np.arange(len(worlds)), sizes)
        place = np.concatenate([np.arange(size) for size in sizes])
        kept = np.sort(rng.permutation(len(owner))[:n])
        return cls(list(worlds), tokenizer, [place[kept][owner[kept] == world] for world in range(len(worlds))])

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
        """The gold entity of each example."""
        return np.concatenate(
            [np.array(world.golds)[mentions] for world, mentions in zip(self.worlds, self.chosen, strict=True)]
        )

    @cached_property
    def queries(self) -> list[Tokens]:
        """The query of each example."""
        queries = [
            world.mentions[mention].query
            for world, mentions in zip(self.worlds, self.chosen, strict=True)
            for mention in mentions
        ]
        rng = np.random.default_rng(0)
        is_short = rng.random(len(queries)) < self.short_contexts
        n_words = rng.integers(0, MAX_SHORT_WORDS + 1, size=(len(queries), 2)).tolist()
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

    def by_world(self, rows: NDArray[np.int64]) -> list[NDArray[np.int64]]:
        """One array per world, from one row per example."""
        return np.split(rows, np.cumsum([len(mentions) for mentions in self.chosen])[:-1])

    @cached_property
    def texts(self) -> str:
        """A digest of all that is read: the entities of every world, these mentions and their gold entities."""
        digest = TextDigest()
        for world, mentions in zip(self.worlds, self.chosen, strict=True):
            for item in world.items:
                digest.add_item(item)
            for mention in (world.mentions[place] for place in mentions):
                digest.add(mention.entity_id, mention.query.marked_text)
        return str(digest)[:12]

    def describe(self) -> str:
        """A short name of which examples these are; `texts` is a digest of their texts."""
        digest = hashlib.sha256()
        for world, mentions in zip(self.worlds, self.chosen, strict=True):
            digest.update(f"{world.name} {len(world.items)} {mentions.tolist()}".encode())
        short = f", {self.short_contexts:.0%} short" if self.short_contexts else ""
        return f"{len(self)} mentions {digest.hexdigest()[:12]}{short}"


def shortened(query: Query, n_left: int, n_right: int) -> Query:
    """A query with only `n_left` words before its mention and `n_right` after it."""
    if query.mention is None:
        return query
    start, end = query.mention
    left = " ".join(query.text[:start].split()[-n_left:]) + " " if n_left and start else ""
    right = " " + " ".join(query.text[end:].split()[:n_right]) if n_right and end < len(query.text) else ""
    return Query(left + query.text[start:end] + right, query.id, (len(left), len(left) + end - start))


def pool_size(examples: Examples, n: int) -> int:
    """At most `n`, and no more than every world has negatives."""
    smallest = min(examples.worlds, key=lambda world: len(world.items))
    if len(smallest.items) < 2:
        raise InputError(f"world {smallest.name!r} has {len(smallest.items)} entities; a negative needs at least 2")
    return min(n, len(smallest.items) - 1)


def pools(
    examples: Examples, retriever: Retriever | None, n: int, *, seed: int = 0, progress: Progress = silent
) -> list[Pool]:
    """Negatives to draw from, for each world: a retriever's best, or random ones.

    A retriever's are fewer where a world is small."""
    n = n if retriever is None else pool_size(examples, n)
    found = []
    for n_before, (world, mentions) in enumerate(zip(examples.worlds, examples.chosen, strict=True)):
        if retriever is None:
            rng = np.random.default_rng([seed, n_before])
            found.append(random_negatives(np.array(world.golds)[mentions], len(world.items), n, rng))
        elif len(mentions):
            retriever.fit(list(world.items))
            found.append(retrieved_negatives(world, mentions, retriever, n))
        else:
            found.append(np.empty((0, n), dtype=np.int64))
        progress("negatives", n_before + 1, len(examples.worlds))
    return found


def retrieved_negatives(world: LinkingWorld, mentions: Positions, retriever: Retriever, n: int) -> Pool:
    """The `n` negatives with the highest retriever scores, best first; fewer where the world is small."""
    golds = np.array(world.golds)[mentions]
    rows = []
    for start in range(0, len(mentions), QUERIES_AT_ONCE):
        batch = slice(start, start + QUERIES_AT_ONCE)
        scores = retriever.scores([world.mentions[mention].query for mention in mentions[batch]])
        scores[np.arange(len(scores)), golds[batch]] = -np.inf
        rows += [top_k(row, min(n, len(world.items) - 1)) for row in scores]
    return np.stack(rows)


def draw_candidates(
    examples: Examples, pools: Sequence[Pool], settings: NegativeSettings, *, seed: Sequence[int]
) -> Candidates:
    """The gold entity of every example and newly drawn negatives."""
    rng = np.random.default_rng(list(seed))
    rows = []
    for world, mentions, pool in zip(examples.worlds, examples.chosen, pools, strict=True):
        golds = np.array(world.golds)[mentions]
        drawn = drawn_negatives(pool, golds, len(world.items), settings.n, random_share=settings.random_share, rng=rng)
        rows.append(np.hstack([golds[:, None], drawn]))
    return np.concatenate(rows)


def drawn_negatives(
    pool: Pool, golds: Positions, n_items: int, n: int, *, random_share: float, rng: np.random.Generator
) -> NDArray[np.int64]:
    """Draw `n` negatives for each mention: a share at random, the others from its pool, the best ones more often.

    (n_mentions, n)"""
    n_random = max(round(n * random_share), n - pool.shape[1])
    weights = 1.0 / np.arange(2, pool.shape[1] + 2)
    keys = rng.exponential(size=pool.shape) / weights  # the smallest keys are a weighted draw without replacement
    chosen = np.argsort(keys, axis=1)[:, : n - n_random]
    return np.hstack([np.take_along_axis(pool, chosen, axis=1), random_negatives(golds, n_items, n_random, rng)])


def random_negatives(golds: Positions, n_items: int, n: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Draw `n` negatives for each gold entity, with replacement. (n_mentions, n)"""
    if n_items < 2:
        raise InputError(f"a world needs at least 2 entities to have a negative, got {n_items}")
    drawn = rng.integers(0, n_items - 1, size=(len(golds), n))
    return drawn + (drawn >= golds[:, None])  # skips the gold entity


def whole_pool(examples: Examples, pools: Sequence[Pool]) -> Candidates:
    """The gold entity of every example and as much of its pool as every world has."""
    n = min(pool.shape[1] for pool in pools)
    return np.hstack([examples.golds[:, None], np.concatenate([pool[:, :n] for pool in pools])])


def shuffled_batches(
    candidates: Candidates, size: int, *, seed: Sequence[int]
) -> Sequence[tuple[Positions, Candidates]]:
    """Examples and their candidates, in a random order."""
    order = np.random.default_rng(list(seed)).permutation(len(candidates))
    chosen = [order[start : start + size] for start in range(0, len(order), size)]
    return [(rows, candidates[rows]) for rows in chosen]


def macro_accuracy(scores: FloatMatrix, owner: Positions) -> float:
    """The share of examples whose gold entity scores highest without a tie, averaged over worlds."""
    is_right = scores[:, 0] > scores[:, 1:].max(axis=1)
    return float(np.mean([is_right[owner == world].mean() for world in np.unique(owner)]))
