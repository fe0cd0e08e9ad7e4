"""The ground of an experiment: queries, items, and the exact scores of all their pairs.

Feeds protocols, which let methods search as if the scores were still to be paid for."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from anncur.arrays import FloatMatrix, Positions
from anncur.datasets.beir import Qrels
from anncur.errors import InputError
from anncur.items import Item, Query
from anncur.scorers.stored import StoredScorer


@dataclass(frozen=True, eq=False)
class ItemScores:
    """The exact scores of some items as queries (see `Query.of_item`) on all items."""

    items: Positions
    exact_scores: FloatMatrix  # (those items, n_items)


@dataclass(frozen=True, eq=False)
class Task:
    """Queries and items with the exact scores of all pairs; `groups` are the documents that the queries come from.

    What else is known is for some experiments only: scores of items as queries, what judges said of items by the
    queries' ids, and the seconds that a pair took to score."""

    name: str
    queries: Sequence[Query]
    groups: Sequence[str]
    items: Sequence[Item]
    exact_scores: FloatMatrix  # (n_queries, n_items)
    scorer_name: str = ""
    item_scores: ItemScores | None = None
    qrels: Qrels | None = None
    seconds_per_pair: float | None = None

    def __post_init__(self) -> None:
        shape = (len(self.queries), len(self.items))
        if self.exact_scores.shape != shape or len(self.groups) != len(self.queries):
            raise InputError(
                f"a task needs a group for each query and a score for each pair, {shape[0]} and {shape}, "
                f"got {len(self.groups)} and {self.exact_scores.shape}"
            )

    def scorer(self) -> StoredScorer:
        """A scorer that looks the exact scores up; another scorer's on the same world has another fingerprint."""
        fingerprint = ", ".join(filter(None, (self.name, self.scorer_name)))
        return StoredScorer(self.exact_scores, self.queries, [item.id for item in self.items], fingerprint=fingerprint)

    def digest(self) -> str:
        """A short name of the exact scores, and of what they are the scores of."""
        names = [*(query.marked_text for query in self.queries), *(item.id for item in self.items), *self.groups]
        content = "\0".join(names).encode() + np.ascontiguousarray(self.exact_scores).tobytes()
        return hashlib.sha256(content).hexdigest()[:12]

    def queries_at(self, positions: Positions) -> list[Query]:
        """Some of the queries, as of a split."""
        return [self.queries[position] for position in positions.tolist()]

    def take_items(self, positions: Positions) -> Task:
        """The same queries on some of the items only; scores of items as queries are left behind."""
        items = [self.items[position] for position in positions.tolist()]
        return replace(self, items=items, exact_scores=self.exact_scores[:, positions], item_scores=None)

    def item_task(self) -> Task:
        """The same task with the items that were scored as queries in front of the queries."""
        assert self.item_scores is not None, "only where items were scored as queries"
        queries = [Query.of_item(self.items[position]) for position in self.item_scores.items.tolist()]
        exact_scores = np.concatenate([self.item_scores.exact_scores, self.exact_scores])
        groups = [*(f"item {query.id}" for query in queries), *self.groups]
        return replace(self, queries=[*queries, *self.queries], groups=groups, exact_scores=exact_scores)


@dataclass(frozen=True, eq=False)
class Split:
    """Which queries of a task are anchors, and which ones methods are measured on."""

    anchors: Positions
    tests: Positions

    def fewer(self, n_anchors: int, seed: int) -> Split:
        """The same tests with so many of the anchors, drawn at random: few of a seed are among many of that seed."""
        drawn = np.random.default_rng(seed).permutation(self.anchors)[:n_anchors]
        return Split(np.sort(drawn), self.tests)


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
