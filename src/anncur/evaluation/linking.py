"""Entity linking: a retriever finds candidates, a scorer ranks them, and the right entity should come first.

Rankers are compared on the same candidates. Accuracy counts all mentions, normalised accuracy those whose entity is
among the candidates; both are averaged over worlds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from anncur.arrays import FloatMatrix, Positions
from anncur.datasets.zeshel import LinkingWorld
from anncur.errors import InputError
from anncur.numbers import whole_number
from anncur.progress import Progress, silent
from anncur.ranking import top_k
from anncur.retrievers.base import Retriever
from anncur.scorers.guard import GuardedScorer

Ranker: TypeAlias = Callable[[LinkingWorld, NDArray[np.int64]], FloatMatrix]  # scores of (n_mentions, n_candidates)
QUERIES_AT_ONCE = 256
MACRO = "macro average"


@dataclass(frozen=True, slots=True)
class LinkingRow:
    """How well one ranker links the mentions of one world."""

    world: str
    ranker: str
    n_mentions: int
    n_candidates: int
    recall: float  # of the candidates
    accuracy: float
    normalised_accuracy: float


def link(
    worlds: Iterable[LinkingWorld],
    retriever: Retriever,
    rankers: dict[str, Ranker],
    *,
    n_candidates: int = 64,
    progress: Progress = silent,
) -> Iterator[LinkingRow]:
    """Rows of every world and ranker, and at the end of their averages over worlds."""
    whole_number("n_candidates", n_candidates, least=1)
    rows: list[LinkingRow] = []
    for world in worlds:
        if not world.mentions:
            raise InputError(f"world {world.name!r} has no mentions to link")
        candidates = find_candidates(world, retriever, n_candidates)
        for number, (name, ranker) in enumerate(rankers.items()):
            rows.append(_row(world, name, candidates, ranker(world, candidates)))
            progress(f"linking {world.name}", number + 1, len(rankers))
            yield rows[-1]
    if not rows:
        raise InputError("there must be at least one world to link and one ranker, got none")
    for name in rankers:
        yield _average([row for row in rows if row.ranker == name])


def find_candidates(world: LinkingWorld, retriever: Retriever, n: int) -> NDArray[np.int64]:
    """A retriever's best items for every mention, best first. (n_mentions, n)"""
    retriever.fit(world.items)
    queries = world.queries
    blocks = (queries[start : start + QUERIES_AT_ONCE] for start in range(0, len(queries), QUERIES_AT_ONCE))
    return np.stack([top_k(row, min(n, len(world.items))) for block in blocks for row in retriever.scores(block)])


def by_scorer(scorer: GuardedScorer, progress: Progress = silent) -> Ranker:
    """Rank candidates by exact scores."""
    at_once = scorer.rules.batch_size

    def rank(world: LinkingWorld, candidates: NDArray[np.int64]) -> FloatMatrix:
        scores = np.empty(candidates.shape)
        for row, (query, positions) in enumerate(zip(world.queries, candidates, strict=True)):
            for start in range(0, len(positions), at_once):
                batch = slice(start, start + at_once)
                scores[row, batch] = scorer.score(query, world.items.take(positions[batch]))
            progress(f"scoring {world.name}", row + 1, len(candidates))
        return scores

    return rank


def by_retriever(retriever: Retriever, *, is_fitted: bool = False) -> Ranker:
    """Rank candidates by a retriever's scores; one that has just found them is fitted already."""

    def rank(world: LinkingWorld, candidates: NDArray[np.int64]) -> FloatMatrix:
        if not is_fitted:
            retriever.fit(world.items)
        queries = world.queries
        rows = [
            np.take_along_axis(
                retriever.scores(queries[start : start + QUERIES_AT_ONCE]),
                candidates[start : start + QUERIES_AT_ONCE],
                axis=1,
            )
            for start in range(0, len(queries), QUERIES_AT_ONCE)
        ]
        return np.concatenate(rows)

    return rank


def sample_mentions(world: LinkingWorld, n: int | None, *, seed: int = 0) -> LinkingWorld:
    """A world with at most `n` of its mentions, drawn at random."""
    if n is None or whole_number("mentions", n, least=1) >= len(world.mentions):
        return world
    chosen: Positions = np.sort(np.random.default_rng(seed).permutation(len(world.mentions))[:n])
    return replace(
        world, mentions=[world.mentions[place] for place in chosen], golds=[world.golds[place] for place in chosen]
    )


def _row(world: LinkingWorld, name: str, candidates: NDArray[np.int64], scores: FloatMatrix) -> LinkingRow:
    golds = np.array(world.golds)
    chosen = candidates[np.arange(len(candidates)), scores.argmax(axis=1)]  # the first of equals, as in every ranking
    recall = float((candidates == golds[:, None]).any(axis=1).mean())
    accuracy = float((chosen == golds).mean())
    normalised = accuracy / recall if recall else 0.0
    return LinkingRow(world.name, name, len(golds), candidates.shape[1], recall, accuracy, normalised)


def _average(rows: Sequence[LinkingRow]) -> LinkingRow:
    def mean(name: str) -> float:
        return float(np.mean([getattr(row, name) for row in rows]))

    return LinkingRow(
        MACRO,
        rows[0].ranker,
        sum(row.n_mentions for row in rows),
        rows[0].n_candidates,
        mean("recall"),
        mean("accuracy"),
        mean("normalised_accuracy"),
    )
