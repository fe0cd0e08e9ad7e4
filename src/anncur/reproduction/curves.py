"""Recall against items retrieved, against cost, against the number of anchor queries and against the size of the world.

All in the `paper` protocol: guesses of all items for the test queries, made once for each method and number of anchor
items, and recall among the best of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from anncur.arrays import FloatMatrix, Positions
from anncur.evaluation.rows import Batch, Cell, Row
from anncur.evaluation.scoreboard import ANNCUR
from anncur.evaluation.worlds import QuerySplit
from anncur.items import Query
from anncur.planning.advice import rerank_name
from anncur.reproduction.baselines import FIXED_ITEM, ITEM_CUR
from anncur.reproduction.protocol import PAPER, PAPER_BY_DOCUMENT, paper_guesses, recall_rows, splits_of
from anncur.reproduction.study import PaperStudy, nested_items
from anncur.retrievers.stored import StoredRetriever

SEED = 0  # the authors' figures have one seed of anchors


def recall_at_depth(study: PaperStudy) -> Iterator[Batch]:
    """How many of the top k are among the items retrieved; the cost of anchor items is left out."""
    for n_anchor_queries in study.sizes.curve_anchors:
        retrievers = study.retrievers_for(study.paper_split(n_anchor_queries))
        methods: list[tuple[str, int | None]] = [(rerank_name(each.name), None) for each in retrievers]
        methods += [(ANNCUR, n_anchor_items) for n_anchor_items in study.sizes.n_anchor_items]
        yield _depth_batch(study, "recall-at-depth", methods, n_anchor_queries)


def item_item(study: PaperStudy) -> Iterator[Batch]:
    """Baselines that compare items with items, beside ANNCUR with as many anchor queries as they have items."""
    if study.item_queries is None:
        return
    n_anchors = min(len(study.item_queries.items), len(study.world.queries) - study.sizes.n_tests)
    methods: list[tuple[str, int | None]] = [(FIXED_ITEM, None)]
    methods += [(name, n_items) for name in (ITEM_CUR, ANNCUR) for n_items in study.sizes.n_anchor_items]
    yield _depth_batch(study, "item-item", methods, n_anchors)


def recall_at_cost(study: PaperStudy) -> Iterator[Batch]:
    """How many of the top k are found for a cost, with all splits of it that the authors tried."""
    sizes = study.sizes
    points = [(k, cost) for cost in sizes.budgets for k in sizes.ks if k < cost]
    for n_anchor_queries in sizes.curve_anchors:
        yield _cost_batch(study, "recall-at-cost", points, n_anchor_queries)


def anchor_queries(study: PaperStudy) -> Iterator[Batch]:
    """The recall at one cost, for the numbers of anchor queries of curves and heatmaps."""
    sizes = study.sizes
    smaller = (n_anchors for n_anchors in sizes.grid if n_anchors < sizes.n_anchor_queries)
    for n_anchor_queries in sorted({*sizes.curve_anchors, *smaller}):
        yield _cost_batch(study, "anchor-queries", [(sizes.bar_k, sizes.bar_cost)], n_anchor_queries)


def world_size(study: PaperStudy) -> Iterator[Batch]:
    """The recall at one cost in nested worlds, with the same queries."""
    sizes = study.sizes
    order = nested_items(len(study.world.items))
    whole = _cost_batch(study, "world-size", [(sizes.bar_k, sizes.bar_cost)], sizes.n_anchor_queries)
    for size in sizes.world_sizes:
        cells = [replace(cell, n_items=size) for cell in whole.cells]
        yield Batch(cells, partial(_measure_among, study, np.sort(order[:size])))


def _measure_among(study: PaperStudy, items: Positions, missing: Sequence[Cell]) -> Iterator[Row]:
    """Among some of the items only, which are taken no earlier than they are needed."""
    yield from _measure(study.take_items(items), missing, study.sizes.n_anchor_queries)


class Guesses:
    """What each method guesses for the test queries, from what it knows of the anchors."""

    def __init__(self, study: PaperStudy, split: QuerySplit, seed: int = SEED) -> None:
        world = study.world
        self.exact_scores = world.exact_scores[split.tests]
        self._anchor_scores = world.exact_scores[split.anchors]
        self._item_queries = study.item_queries
        self._order = np.random.default_rng(seed).permutation(len(world.items))
        queries = world.queries_at(split.tests)
        self._methods: dict[str, Callable[[int | None], FloatMatrix]] = {
            ANNCUR: self._anncur,
            ITEM_CUR: self._item_cur,
            FIXED_ITEM: self._fixed_item,
        }
        for retriever in study.retrievers:
            self._methods[rerank_name(retriever.name)] = partial(_retriever_scores, retriever, queries)

    def __call__(self, method: str, n_anchor_items: int | None) -> FloatMatrix:
        return self._methods[method](n_anchor_items)

    def _anncur(self, n_anchor_items: int | None) -> FloatMatrix:
        return paper_guesses(self._anchor_scores, self.exact_scores, self._order[:n_anchor_items])

    def _item_cur(self, n_anchor_items: int | None) -> FloatMatrix:
        """As ANNCUR, with items for anchor queries, and other items for anchor items."""
        assert self._item_queries is not None, "only where items were scored as queries"
        others = self._order[~np.isin(self._order, self._item_queries.items)]
        return paper_guesses(self._item_queries.exact_scores, self.exact_scores, others[:n_anchor_items])

    def _fixed_item(self, _: int | None) -> FloatMatrix:
        """Items and queries by their scores with the fixed items."""
        assert self._item_queries is not None, "only where items were scored as queries"
        guesses: FloatMatrix = self.exact_scores[:, self._item_queries.items] @ self._item_queries.exact_scores
        return guesses


def _retriever_scores(retriever: StoredRetriever, queries: Sequence[Query], _: int | None) -> FloatMatrix:
    """A retriever needs no anchor items."""
    return retriever.scores(queries)


def _depth_batch(
    study: PaperStudy, experiment: str, methods: Sequence[tuple[str, int | None]], n_anchor_queries: int
) -> Batch:
    """FixedITEM's pairs are never charged, as in the paper; those of other anchor items are."""
    cells = [
        study.cell(
            experiment,
            method,
            protocol=_protocol(study),
            seed=SEED,
            k=k,
            n_anchor_queries=n_anchor_queries,
            n_anchor_items=n_anchor_items,
            n_rerank=depth,
            cost=depth + (n_anchor_items or 0),
        )
        for method, n_anchor_items in methods
        for k in study.sizes.ks
        for depth in study.sizes.depths
        if depth >= k
    ]
    return Batch(cells, lambda missing: _measure(study, missing, n_anchor_queries))


def _cost_batch(study: PaperStudy, experiment: str, points: Sequence[tuple[int, int]], n_anchor_queries: int) -> Batch:
    """Re-ranking spends all of a cost on what it retrieves, ANNCUR all but a split of it."""
    columns = {"protocol": _protocol(study), "seed": SEED, "n_anchor_queries": n_anchor_queries}
    cells = []
    for k, cost in points:
        for retriever in study.retrievers_for(study.paper_split(n_anchor_queries)):
            method = rerank_name(retriever.name)
            cells.append(study.cell(experiment, method, k=k, cost=cost, n_rerank=cost, **columns))
        for split in splits_of(cost):
            anchors = {"n_anchor_items": split, "n_rerank": cost - split}
            cells.append(study.cell(experiment, ANNCUR, k=k, cost=cost, **anchors, **columns))
    return Batch(cells, lambda missing: _measure(study, missing, n_anchor_queries))


def _protocol(study: PaperStudy) -> str:
    return PAPER_BY_DOCUMENT if study.is_split_by_document else PAPER


def _measure(study: PaperStudy, missing: Sequence[Cell], n_anchor_queries: int) -> Iterator[Row]:
    guesses = Guesses(study, study.paper_split(n_anchor_queries))
    yield from recall_rows(missing, guesses.exact_scores, guesses)
