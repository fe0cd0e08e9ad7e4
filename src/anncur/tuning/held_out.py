"""What tuning looks at: which anchor queries are held out together, and which items stand for all.

Queries that were cut from the same text are alike: were one of them held out and the other not, tuning would promise
more than other queries find. Items are all of them or, where there are very many, the best of the held-out queries and
some at random. Reads exact scores part by part, so that memory doesn't grow with the number of items."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from anncur.anchors import sample_positions
from anncur.arrays import FloatMatrix, FloatVector, Positions
from anncur.item_scores import ItemScores
from anncur.items import Query
from anncur.ranking import RunningTop
from anncur.search.splits import DEPTH

SHARED_WORDS = 8  # in a row, that two texts have in common only if they are of the same origin
COMMON = 0.2  # of the queries; what more of them share is a form that they are put in
LARGEST = 1 / 3  # of the queries; a larger group would leave too few others to tune on


@dataclass(frozen=True, eq=False)
class Sample:
    """Some items: `best` holds, by held-out query, the places here of its truly best items, best first.

    One rule for ties everywhere: whatever scores as much as the k-th best item counts as one of the top k."""

    positions: Positions  # in the corpus, ascending
    vectors: FloatMatrix  # (n_sampled, n_anchor_queries), exact scores
    best: Mapping[int, Positions]
    weights: FloatVector  # how many items of the corpus each stands for; 1 for the best ones

    @property
    def depth(self) -> int:
        """The number of best items that are known of each query."""
        return min(DEPTH, len(self.vectors))

    def best_found(self, query: int, candidates: Positions, found_after: NDArray[np.integer]) -> NDArray[np.integer]:
        """After how much each of a query's best items was found, best first. (depth,)

        `candidates` are places that hold the best ones and, of those that tie with the last of them, the first to be
        found; `found_after` is theirs. Items that tie are in the order in which they were found."""
        order = np.lexsort((found_after, -self.vectors[candidates, query]))
        return found_after[order[: self.depth]]

    def rivals(self, query: int) -> Positions:
        """The places of a query's best items, and of all that tie with the last of them."""
        scores = self.vectors[:, query]
        return np.flatnonzero(scores >= scores[self.best[query][-1]])


def take_sample(scores: ItemScores, held_out: Positions, rng: np.random.Generator) -> Sample:
    """Look at all items for the best of the held-out queries, and draw others at random."""
    tops = {query: RunningTop(DEPTH) for query in held_out.tolist()}
    for start, values in scores.parts():
        for query, top in tops.items():
            top.add(values[:, query].copy(), slice(start, start + len(values)))
    best = np.unique(np.concatenate([top.positions for top in tops.values()]))
    drawn = np.setdiff1d(sample_positions(scores.n_items, rng), best)
    positions = np.union1d(best, drawn)
    weights = np.ones(len(positions))
    weights[np.isin(positions, drawn)] = (scores.n_items - len(best)) / max(1, len(drawn))
    places = {query: np.searchsorted(positions, top.positions) for query, top in tops.items()}
    return Sample(positions, scores.rows(positions), places, weights)


def make_folds(queries: Sequence[Query], held_out: Positions, *, n_folds: int) -> list[Positions]:
    """Split the held-out queries into folds of about the same size, those of one text in the same fold.

    There are fewer than `n_folds` where there are fewer texts."""
    groups = related([queries[position] for position in held_out.tolist()])
    if max(map(len, groups)) > LARGEST * len(held_out):
        return list(np.array_split(held_out, n_folds))
    folds: list[list[int]] = [[] for _ in range(n_folds)]
    for group in sorted(groups, key=len, reverse=True):  # a stable sort: equals stay in their random order
        min(folds, key=len).extend(group)
    return [held_out[fold] for fold in folds if fold]


def related(queries: Sequence[Query]) -> list[list[int]]:
    """Groups of queries that share words in a row, directly or by way of others; places in the given order."""
    sharing: dict[tuple[str, ...], list[int]] = defaultdict(list)
    for place, query in enumerate(queries):
        for words in set(_runs(query.text)):
            sharing[words].append(place)
    group_of = list(range(len(queries)))  # by the lowest place that a query is known to be related to
    for places in sharing.values():
        if len(places) <= max(2, COMMON * len(queries)):
            _join(group_of, places)
    groups: dict[int, list[int]] = defaultdict(list)
    for place in range(len(queries)):
        groups[_root(group_of, place)].append(place)
    return list(groups.values())


def _runs(text: str) -> Iterator[tuple[str, ...]]:
    words = text.lower().split()
    return (tuple(words[start : start + SHARED_WORDS]) for start in range(len(words) - SHARED_WORDS + 1))


def _join(group_of: list[int], places: Sequence[int]) -> None:
    roots = [_root(group_of, place) for place in places]
    for root in roots:
        group_of[root] = min(roots)


def _root(group_of: list[int], place: int) -> int:
    while group_of[place] != place:
        group_of[place] = group_of[group_of[place]]  # shorter ways for the next
        place = group_of[place]
    return place
