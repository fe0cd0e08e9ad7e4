"""What an experiment is done with: a task, the retrievers that methods have, and sizes.

Feeds `experiments/`. An experiment is a function of a study that gives batches of cells."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from anncur.arrays import Positions
from anncur.errors import InputError
from anncur.evaluation.paper import COSTS, random_split
from anncur.evaluation.protocols import KS
from anncur.evaluation.rows import Batch, Cell
from anncur.evaluation.tasks import Split, Task, split_by_group
from anncur.retrievers.base import Retriever
from anncur.retrievers.stored import StoredRetriever

DISTILLED = "@"  # stands between the name of a distilled retriever and the number of queries that it learnt from


@dataclass(frozen=True)
class Sizes:
    """How much is measured; as given, what the paper measured.

    `n_anchor_queries` are tried by the curves, the largest of them by the scoreboard; at least `n_tests` queries stay
    for measuring. `grid` are the numbers of anchors of the heatmaps."""

    ks: tuple[int, ...] = KS
    costs: tuple[int, ...] = COSTS
    depths: tuple[int, ...] = (1, 10, 20, 50, 100, 200, 500, 1000)
    n_anchor_queries: tuple[int, ...] = (100, 500, 2000)
    n_anchor_items: tuple[int, ...] = (50, 100, 200)
    n_tests: int = 200
    n_seeds: int = 5
    grid: tuple[int, ...] = (50, 100, 200, 500, 1000, 2000)
    grid_k: int = 10
    grid_depth: int = 500
    n_grid_seeds: int = 10
    bar_k: int = 100  # of the curves over anchor queries and over sizes of the world
    bar_cost: int = 500
    world_sizes: tuple[int, ...] = ()

    @property
    def n_queries(self) -> int:
        """Those that are needed for anchors and tests."""
        return max(self.n_anchor_queries) + self.n_tests

    def within(self, task: Task) -> Sizes:
        """What of this a task has enough queries and items for."""
        return self.among(*task.exact_scores.shape)

    def among(self, n_queries: int, n_items: int) -> Sizes:
        """What of this so many queries and items are enough for."""
        most_anchors = n_queries - self.n_tests
        if most_anchors < 1:
            raise InputError(
                f"{n_queries} queries leave none for anchors beside {self.n_tests} tests; take fewer tests"
            )
        if n_items <= self.costs[0]:
            raise InputError(
                f"a benchmark needs more items than the smallest cost, {self.costs[0]}, got {n_items}; take more of "
                "them, or score them all: so few need no search"
            )
        costs = _up_to(self.costs, n_items - 1)
        return replace(
            self,
            ks=_up_to(self.ks, n_items - 1),
            costs=costs,
            depths=_up_to(self.depths, n_items),
            n_anchor_queries=_up_to(self.n_anchor_queries, most_anchors) or (most_anchors,),
            n_anchor_items=_up_to(self.n_anchor_items, n_items - 1),
            grid=_up_to(self.grid, min(most_anchors, n_items - 1)),
            grid_k=min(self.grid_k, n_items),
            grid_depth=min(self.grid_depth, n_items),
            bar_k=min(self.bar_k, max(self.bar_cost, 1), n_items),
            bar_cost=max((cost for cost in costs if cost <= self.bar_cost), default=n_items),
            world_sizes=(*(size for size in self.world_sizes if self.bar_cost < size < n_items), n_items),
        )


QUICK = Sizes(
    costs=(50, 100, 200, 500),
    depths=(1, 10, 20, 50, 100, 200, 500),
    n_anchor_queries=(25, 50, 100, 150),
    n_tests=50,
    n_seeds=2,
    grid=(10, 25, 50, 100, 150),
    grid_depth=100,
    n_grid_seeds=3,
    bar_cost=200,
    world_sizes=(500, 1000),
)
PRESETS = {"quick": QUICK, "paper": Sizes()}


@dataclass(frozen=True, eq=False)
class Study:
    """A task with the retrievers that all methods have.

    A retriever called `name@500` was distilled from 500 anchor queries, and is compared where there are as many;
    `learnt_from` are their texts, and where one of them is a test query it isn't compared at all. With
    `is_split_by_document` the `paper` protocol has the test queries of the scoreboard's first seed, so that the same
    distilled retrievers serve both. Runs in TREC's format go to the folder `runs`."""

    task: Task
    retrievers: Sequence[StoredRetriever]
    sizes: Sizes = QUICK
    learnt_from: Mapping[str, Collection[str]] = field(default_factory=dict)
    is_split_by_document: bool = False
    runs: Path | None = None
    data: str = ""  # the digest of the scores that all cells carry

    def __post_init__(self) -> None:
        if not self.data:
            object.__setattr__(self, "data", self.task.digest())

    def cell(self, experiment: str, method: str, **columns: Any) -> Cell:
        """A cell of this study."""
        known = {"world": self.task.name, "scorer": self.task.scorer_name, "n_items": len(self.task.items)}
        return Cell(experiment=experiment, method=method, **{**known, "data": self.data, **columns})

    def sound_split(self, seed: int) -> Split:
        """Test queries from documents that no anchor query comes from."""
        n_anchors = self.sizes.n_anchor_queries[-1]
        return split_by_group(self.task.groups, n_anchors=n_anchors, n_tests=self.sizes.n_tests, seed=seed)

    def paper_split(self, n_anchors: int, seed: int = 0) -> Split:
        """Test queries at random, as the authors drew them; the same ones for any number of anchor queries."""
        most_anchors = max(n_anchors, *self.sizes.n_anchor_queries)
        if not self.is_split_by_document:
            n_queries = len(self.task.queries)
            return random_split(n_queries, n_anchors=n_anchors, n_tests=n_queries - most_anchors, seed=seed)
        return self.sound_split(seed).fewer(n_anchors, seed)

    def retrievers_for(self, split: Split) -> list[StoredRetriever]:
        """Those that may be compared: distilled from as many queries as are anchors, and from no test query."""
        tests = {query.marked_text for query in self.task.queries_at(split.tests)}
        sizes = ("", str(len(split.anchors)))
        return [
            each
            for each in self.retrievers
            if each.name.partition(DISTILLED)[2] in sizes and tests.isdisjoint(self.learnt_from.get(each.name, ()))
        ]

    @property
    def untaught(self) -> list[StoredRetriever]:
        """Those that learnt nothing from the anchor queries: only they may be a part of other methods, because a
        retriever that was distilled from the queries that a method is tuned on looks too good."""
        return [each for each in self.retrievers if DISTILLED not in each.name]

    def first_stage(self) -> StoredRetriever:
        """What adaptive methods begin with: the first retriever that has item vectors, else the first."""
        return next((each for each in self.untaught if each.item_vectors() is not None), self.untaught[0])

    def take_items(self, positions: Positions) -> Study:
        """The same with some of the items only; cells keep the digest of the whole."""
        retrievers = [each.take_items(positions) for each in self.retrievers]
        return replace(self, task=self.task.take_items(positions), retrievers=retrievers)


def store_retrievers(retrievers: Iterable[Retriever], task: Task) -> list[StoredRetriever]:
    """Retrievers with their scores of a task; one that is called by its folder keeps only the last part of the name."""
    stored = [StoredRetriever(each, task.queries, task.items) for each in retrievers]
    for each in stored:
        each.name = Path(each.name).name
    return stored


Experiment: TypeAlias = Callable[[Study], Iterator[Batch]]


def _up_to(numbers: Iterable[int], most: int) -> tuple[int, ...]:
    return tuple(number for number in numbers if number <= most)


def nested_items(n_items: int, seed: int = 0) -> Positions:
    """All positions in an order whose beginnings are worlds of smaller size."""
    return np.random.default_rng(seed).permutation(n_items)
