"""Which anchor queries are held out together in tuning.

Queries that were cut from the same text are alike: were one of them held out and the other not, tuning would promise
more than other queries find. Reads texts only, feeds `tuning.py`."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

import numpy as np

from anncur.arrays import Positions
from anncur.items import Query

SHARED_WORDS = 8  # in a row, that two texts have in common only if they are of the same origin
COMMON = 0.2  # of the queries; what more of them share is a form that they are put in
LARGEST = 1 / 3  # of the queries; a larger group would leave too few others to learn from


def make_folds(queries: Sequence[Query], held_out: Positions, *, n_folds: int) -> list[Positions]:
    """Split the held-out queries into folds of about the same size, those of one text in the same fold."""
    groups = related([queries[position] for position in held_out.tolist()])
    if max(map(len, groups)) > LARGEST * len(held_out):
        return list(np.array_split(held_out, n_folds))
    folds: list[list[int]] = [[] for _ in range(n_folds)]
    for group in sorted(groups, key=len, reverse=True):  # a stable sort: equals stay in their random order
        min(folds, key=len).extend(group)
    return [held_out[fold] for fold in folds]


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
