"""What the paper's experiments run on: a study with their sizes and, for some of them, items scored as queries.

Feeds the experiments of this package."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

import numpy as np

from anncur.arrays import FloatMatrix, Positions
from anncur.engines.base import Engine
from anncur.engines.local import LOCAL
from anncur.evaluation.own import OnCost, score_pairs
from anncur.evaluation.study import Sizes, Study, up_to
from anncur.evaluation.worlds import QuerySplit, ScoredWorld
from anncur.items import Query
from anncur.progress import Progress, silent
from anncur.reproduction.protocol import random_split
from anncur.scorers.guard import GuardedScorer

COSTS = (50, 100, 200, 500, 1000)


@dataclass(frozen=True)
class PaperSizes(Sizes):
    """How much is measured; the defaults are the paper's.

    Curves are drawn for `fewer_anchors` too, beside `n_anchor_queries`. `grid` are the numbers of anchors of the
    heatmaps, `bar_k` and `bar_cost` those of the curves over anchor queries and over sizes of the world."""

    budgets: tuple[int, ...] = COSTS
    n_anchor_queries: int = 2000
    n_tests: int = 200
    n_seeds: int = 5
    fewer_anchors: tuple[int, ...] = (100, 500)
    depths: tuple[int, ...] = (1, 10, 20, 50, 100, 200, 500, 1000)
    n_anchor_items: tuple[int, ...] = (50, 100, 200)
    grid: tuple[int, ...] = (50, 100, 200, 500, 1000, 2000)
    grid_k: int = 10
    grid_depth: int = 500
    n_grid_seeds: int = 10
    bar_k: int = 100
    bar_cost: int = 500
    world_sizes: tuple[int, ...] = ()

    @property
    def curve_anchors(self) -> tuple[int, ...]:
        """All numbers of anchor queries that curves are drawn for, the largest last."""
        return (*self.fewer_anchors, self.n_anchor_queries)

    def with_anchors(self, n_anchor_queries: int) -> Self:
        fewer = up_to(self.curve_anchors, n_anchor_queries - 1)
        return replace(self, fewer_anchors=fewer, n_anchor_queries=n_anchor_queries)

    def within(self, n_queries: int, n_items: int) -> Self:
        most_anchors = n_queries - self.n_tests
        fitting = super().within(n_queries, n_items)
        anchors = up_to(self.curve_anchors, most_anchors) or (most_anchors,)
        return replace(
            fitting,
            fewer_anchors=anchors[:-1],
            n_anchor_queries=anchors[-1],
            depths=up_to(self.depths, n_items),
            n_anchor_items=up_to(self.n_anchor_items, n_items - 1),
            grid=up_to(self.grid, min(most_anchors, n_items - 1)),
            grid_k=min(self.grid_k, n_items),
            grid_depth=min(self.grid_depth, n_items),
            bar_k=min(self.bar_k, max(self.bar_cost, 1), n_items),
            bar_cost=max((cost for cost in fitting.budgets if cost <= self.bar_cost), default=n_items),
            world_sizes=(*(size for size in self.world_sizes if self.bar_cost < size < n_items), n_items),
        )


QUICK = PaperSizes(
    budgets=(50, 100, 200, 500),
    n_anchor_queries=150,
    n_tests=50,
    n_seeds=2,
    fewer_anchors=(25, 50, 100),
    depths=(1, 10, 20, 50, 100, 200, 500),
    grid=(10, 25, 50, 100, 150),
    grid_depth=100,
    n_grid_seeds=3,
    bar_cost=200,
    world_sizes=(500, 1000),
)
PRESETS = {"quick": QUICK, "paper": PaperSizes()}


@dataclass(frozen=True, eq=False)
class ItemQueries:
    """Some items as queries (see `Query.of_item`), with their exact scores on all items."""

    items: Positions
    exact_scores: FloatMatrix  # (those items, n_items)


@dataclass(frozen=True, eq=False)
class PaperStudy(Study):
    """A study in the paper's sizes.

    With `is_split_by_document` the `paper` protocol has the test queries of the scoreboard's first seed, so that the
    same distilled retrievers serve both."""

    sizes: PaperSizes = QUICK
    item_queries: ItemQueries | None = None
    is_split_by_document: bool = False

    def paper_split(self, n_anchors: int, seed: int = 0) -> QuerySplit:
        """Test queries at random, as the authors drew them; the same ones for any number of anchor queries."""
        if self.is_split_by_document:
            return self.sound_split(seed).fewer(n_anchors, seed)
        n_queries = len(self.world.queries)
        n_tests = n_queries - max(n_anchors, *self.sizes.curve_anchors)
        return random_split(n_queries, n_anchors=n_anchors, n_tests=n_tests, seed=seed)

    def take_items(self, positions: Positions) -> Self:
        """The same with some of the items only; cells keep the digest of the whole."""
        retrievers = [each.take_items(positions) for each in self.retrievers]
        return replace(self, world=self.world.take_items(positions), retrievers=retrievers, item_queries=None)


def nested_items(n_items: int, seed: int = 0) -> Positions:
    """All positions in an order whose beginnings are worlds of smaller size."""
    return np.random.default_rng(seed).permutation(n_items)


def score_items(
    world: ScoredWorld,
    scorer: GuardedScorer,
    folder: Path,
    n: int,
    *,
    seed: int,
    on_cost: OnCost,
    engine: Engine = LOCAL,
    progress: Progress = silent,
) -> ItemQueries:
    """The exact scores of `n` items as queries, drawn at random, with different texts."""
    chosen: dict[str, int] = {}
    for position in np.random.default_rng(seed).permutation(len(world.items)).tolist():
        if len(chosen) < n and world.items[position].full_text.strip():
            chosen.setdefault(Query.of_item(world.items[position]).marked_text, position)
    positions: Positions = np.array(list(chosen.values()), dtype=np.int64)
    queries = [Query.of_item(world.items[position]) for position in positions.tolist()]
    exact_scores, _ = score_pairs(
        world.items, queries, scorer, folder, on_cost=on_cost, engine=engine, progress=progress
    )
    return ItemQueries(positions, exact_scores)
