"""What methods are measured on: queries, items, and the exact scores of all their pairs.

Feeds the protocols, in which methods search as if the scores were still to be paid for."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from anncur.arrays import FloatMatrix, Positions
from anncur.datasets.beir import Qrels
from anncur.errors import InputError
from anncur.items import Item, Query
from anncur.planning.pilot import RequestTime
from anncur.scorers.stored import StoredScorer


@dataclass(frozen=True, eq=False)
class ScoredWorld:
    """Queries and items with the exact scores of all pairs; `groups` are the documents that the queries come from.

    `qrels` are judgements of items by the queries' ids, `seconds_per_pair` is how long the scorer took for all pairs,
    `request_time` how long for one request. `n_corpus_items` is the size of the corpus, where items were drawn from
    it."""

    name: str
    queries: Sequence[Query]
    groups: Sequence[str]
    items: Sequence[Item]
    exact_scores: FloatMatrix  # (n_queries, n_items)
    scorer_name: str = ""
    qrels: Qrels | None = None
    seconds_per_pair: float | None = None
    request_time: RequestTime | None = None
    n_corpus_items: int | None = None

    def __post_init__(self) -> None:
        shape = (len(self.queries), len(self.items))
        if self.exact_scores.shape != shape or len(self.groups) != len(self.queries):
            raise InputError(
                f"a scored world needs a group for each query and a score for each pair, {shape[0]} and {shape}, "
                f"got {len(self.groups)} and {self.exact_scores.shape}"
            )

    def scorer(self) -> StoredScorer:
        """A scorer that looks the exact scores up; another scorer's on the same world has another fingerprint."""
        fingerprint = ", ".join(filter(None, (self.name, self.scorer_name)))
        return StoredScorer(self.exact_scores, self.queries, [item.id for item in self.items], fingerprint=fingerprint)

    def digest(self) -> str:
        """A short name of the exact scores, and of the queries and items that they belong to."""
        names = [*(query.marked_text for query in self.queries), *(item.id for item in self.items), *self.groups]
        content = "\0".join(names).encode() + np.ascontiguousarray(self.exact_scores).tobytes()
        return hashlib.sha256(content).hexdigest()[:12]

    def queries_at(self, positions: Positions) -> list[Query]:
        """Some of the queries, such as one side of a split."""
        return [self.queries[position] for position in positions.tolist()]

    def take_items(self, positions: Positions) -> ScoredWorld:
        """The same queries on some of the items only."""
        items = [self.items[position] for position in positions.tolist()]
        return replace(self, items=items, exact_scores=self.exact_scores[:, positions])


@dataclass(frozen=True, eq=False)
class QuerySplit:
    """Which queries are anchors, and which ones methods are measured on; both are positions."""

    anchors: Positions
    tests: Positions

    def fewer(self, n_anchors: int, seed: int) -> QuerySplit:
        """The same tests with `n_anchors` of the anchors at random; for one seed, fewer are a subset of more."""
        drawn = np.random.default_rng(seed).permutation(self.anchors)[:n_anchors]
        return QuerySplit(np.sort(drawn), self.tests)


def split_by_group(groups: Sequence[str], *, n_anchors: int, n_tests: int, seed: int) -> QuerySplit:
    """Draw at least `n_tests` test queries, as whole groups, and anchor queries from the other groups.

    So nothing is measured on a document that the index has seen. Groups that would leave too few anchor queries are
    skipped."""
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
    return QuerySplit(np.sort(rng.permutation(np.flatnonzero(~is_test))[:n_anchors]), np.flatnonzero(is_test))
