"""What an experiment runs on: a scored world, the retrievers that methods may use, and sizes.

Feeds the experiments. An experiment is a function of a study that yields batches of cells to measure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

import numpy as np

from anncur.errors import InputError
from anncur.evaluation.recall import kth_best
from anncur.evaluation.rows import Cell
from anncur.evaluation.worlds import QuerySplit, ScoredWorld, split_by_group
from anncur.planning.advice import BUDGETS
from anncur.ranking import top_k
from anncur.retrievers.base import Retriever
from anncur.retrievers.stored import StoredRetriever
from anncur.search.settings import KS

DISTILLED = "@"  # stands between the name of a distilled retriever and the number of queries it was distilled from
STAGE_K = 10  # a retriever is judged by how many of the top 10
STAGE_DEPTH = 100  # are among its first 100


@dataclass(frozen=True)
class Sizes:
    """How much is measured: at most `n_anchor_queries` are anchors, at least `n_tests` queries are measured on.

    Slow methods are those that take as long as all others together."""

    ks: tuple[int, ...] = KS
    budgets: tuple[int, ...] = BUDGETS
    n_anchor_queries: int = 150
    n_tests: int = 50
    n_seeds: int = 2
    has_slow_methods: bool = True

    @property
    def n_queries(self) -> int:
        """Those that are needed for anchors and tests."""
        return self.n_anchor_queries + self.n_tests

    def with_anchors(self, n_anchor_queries: int) -> Self:
        """The same with another number of anchor queries."""
        return replace(self, n_anchor_queries=n_anchor_queries)

    def within(self, n_queries: int, n_items: int) -> Self:
        """The part of this that `n_queries` and `n_items` suffice for."""
        most_anchors = n_queries - self.n_tests
        if most_anchors < 1:
            raise InputError(
                f"{n_queries} queries leave none for anchors beside {self.n_tests} tests; take fewer tests"
            )
        if n_items <= self.budgets[0]:
            raise InputError(
                f"a benchmark needs more items than the smallest budget, {self.budgets[0]}, got {n_items}; take more "
                "of them, or score them all: so few need no search"
            )
        return replace(
            self,
            ks=up_to(self.ks, n_items - 1),
            budgets=up_to(self.budgets, n_items - 1),
            n_anchor_queries=min(self.n_anchor_queries, most_anchors),
        )


QUICK = Sizes(has_slow_methods=False)
FULL = Sizes(budgets=(*BUDGETS, 1000), n_anchor_queries=500, n_tests=200, n_seeds=5)
PRESETS = {"quick": QUICK, "full": FULL}


@dataclass(frozen=True, eq=False)
class Study:
    """A scored world with the retrievers that all methods may use.

    A retriever called `name@500` was distilled from 500 anchor queries, and is compared where there are as many;
    `distilled_from` are their texts, and where one of them is a test query it isn't compared at all. Runs in TREC's
    format go to the folder `runs`."""

    world: ScoredWorld
    retrievers: Sequence[StoredRetriever]
    sizes: Sizes = QUICK
    distilled_from: Mapping[str, Collection[str]] = field(default_factory=dict)
    runs: Path | None = None
    data: str = ""  # the digest of the exact scores, a column of all cells

    def __post_init__(self) -> None:
        if not self.data:
            object.__setattr__(self, "data", self.world.digest())

    def cell(self, experiment: str, method: str, **columns: Any) -> Cell:
        """A cell of this study."""
        known = {"world": self.world.name, "scorer": self.world.scorer_name, "n_items": len(self.world.items)}
        return Cell(experiment=experiment, method=method, **{**known, "data": self.data, **columns})

    def fitted(self) -> Self:
        """The same in sizes that the world has enough queries and items for."""
        return replace(self, sizes=self.sizes.within(*self.world.exact_scores.shape))

    def sound_split(self, seed: int) -> QuerySplit:
        """Test queries from documents that no anchor query comes from."""
        sizes = self.sizes
        return split_by_group(self.world.groups, n_anchors=sizes.n_anchor_queries, n_tests=sizes.n_tests, seed=seed)

    def retrievers_for(self, split: QuerySplit) -> list[StoredRetriever]:
        """Those that may be compared: distilled from as many queries as are anchors, and from no test query."""
        tests = {query.marked_text for query in self.world.queries_at(split.tests)}
        sizes = ("", str(len(split.anchors)))
        return [
            each
            for each in self.retrievers
            if each.name.partition(DISTILLED)[2] in sizes and tests.isdisjoint(self.distilled_from.get(each.name, ()))
        ]

    @property
    def undistilled(self) -> list[StoredRetriever]:
        """Those that other methods may use: one that was distilled from the queries that a method is tuned on would
        look too good."""
        return [each for each in self.retrievers if DISTILLED not in each.name]

    def first_stage(self) -> StoredRetriever:
        """What other methods begin with: the retriever that finds the most for the anchor queries of the first seed,
        among those with item vectors, if there are any."""
        if not self.undistilled:
            raise InputError("methods need at least one retriever that was not distilled; pass one such as bm25")
        with_vectors = [each for each in self.undistilled if each.item_vectors() is not None]
        return max(with_vectors or self.undistilled, key=self._found_by)

    def _found_by(self, retriever: StoredRetriever) -> float:
        """The share of the anchor queries' top items among the retriever's first ones."""
        anchors, n_items = self.sound_split(0).anchors, len(self.world.items)
        k, depth = min(STAGE_K, n_items), min(STAGE_DEPTH, n_items)
        exact_scores, ranked_by = self.world.exact_scores[anchors], retriever.scores(self.world.queries_at(anchors))
        rows = zip(exact_scores, ranked_by, kth_best(exact_scores, k), strict=True)
        found = [min(k, int((exact[top_k(own, depth)] >= least).sum())) for exact, own, least in rows]
        return float(np.mean(found)) / k


def store_retrievers(retrievers: Iterable[Retriever], world: ScoredWorld) -> list[StoredRetriever]:
    """Retrievers with their scores of a world; of a name that is a folder's path only the last part is kept."""
    stored = [StoredRetriever(each, world.queries, world.items) for each in retrievers]
    for each in stored:
        each.name = Path(each.name).name
    return stored


def up_to(numbers: Iterable[int], most: int) -> tuple[int, ...]:
    """Those of the numbers that are at most `most`."""
    return tuple(number for number in numbers if number <= most)
