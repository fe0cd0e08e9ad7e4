"""The ground of an experiment: queries, items, and the exact scores of all their pairs.

Feeds `protocols.py`, which lets methods search as if the scores were still to be paid for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from anncur.arrays import FloatMatrix, Positions
from anncur.errors import InputError
from anncur.items import Item, Query
from anncur.scorers.stored import StoredScorer


@dataclass(frozen=True, eq=False)
class Task:
    """Queries and items with the exact scores of all pairs; `groups` are the documents that the queries come from."""

    name: str
    queries: Sequence[Query]
    groups: Sequence[str]
    items: Sequence[Item]
    exact_scores: FloatMatrix  # (n_queries, n_items)

    def __post_init__(self) -> None:
        shape = (len(self.queries), len(self.items))
        if self.exact_scores.shape != shape or len(self.groups) != len(self.queries):
            raise InputError(
                f"a task needs a group for each query and a score for each pair, {shape[0]} and {shape}, "
                f"got {len(self.groups)} and {self.exact_scores.shape}"
            )

    def scorer(self) -> StoredScorer:
        """A scorer that looks the exact scores up."""
        return StoredScorer(self.exact_scores, self.queries, [item.id for item in self.items], fingerprint=self.name)


@dataclass(frozen=True, eq=False)
class Split:
    """Which queries of a task are anchors, and which ones methods are measured on."""

    anchors: Positions
    tests: Positions


def split_by_group(groups: Sequence[str], *, n_anchors: int, n_tests: int, seed: int) -> Split:
    """Draw at least `n_tests` test queries, as whole groups, and anchor queries from the other groups.

    So nothing is measured on a document that the index has seen. Groups that would leave too few anchor queries are
    passed over."""
    rng = np.random.default_rng(seed)
    names, group_of = np.unique(np.asarray(groups), return_inverse=True)
    sizes = np.bincount(group_of, minlength=len(names))
    most_tests = len(groups) - n_anchors
    chosen: list[int] = []
    total = 0
    for group in rng.permutation(len(names)).tolist():
        if total < n_tests and total + sizes[group] <= most_tests:
            chosen.append(group)
            total += int(sizes[group])
    if total < n_tests:
        raise InputError(
            f"{len(groups)} queries in {len(names)} groups don't give {n_tests} test queries and {n_anchors} anchor "
            "queries of other groups; take fewer of them"
        )
    is_test = np.isin(group_of, chosen)
    return Split(np.sort(rng.permutation(np.flatnonzero(~is_test))[:n_anchors]), np.flatnonzero(is_test))
