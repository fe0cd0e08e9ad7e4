"""A small world with all that experiments need: scores of low rank, documents, items as queries, judgements."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

import anncur
from anncur.evaluation.study import Sizes, Study
from anncur.evaluation.tasks import ItemScores, Task
from anncur.retrievers.stored import StoredRetriever
from worlds import HashedVectors, low_rank_scores

N_QUERIES, N_ITEMS, N_ITEM_QUERIES = 60, 150, 20
SIZES = Sizes(
    ks=(1, 5),
    costs=(10, 40),
    depths=(5, 20),
    n_anchor_queries=(15, 30),
    n_anchor_items=(4, 8),
    n_tests=20,
    n_seeds=1,
    grid=(5, 10, 20),
    grid_k=5,
    grid_depth=20,
    n_grid_seeds=2,
    bar_k=5,
    bar_cost=20,
    world_sizes=(60, 100),
)


def make_task(*, noise: float = 0.1) -> Task:
    """All queries and the items as queries are of one world, so that either can stand for the other."""
    scores = low_rank_scores(N_QUERIES + N_ITEM_QUERIES, N_ITEMS, rank=4, noise=noise)
    queries = [anncur.Query(f"query {number}", f"q{number}") for number in range(N_QUERIES)]
    items = [anncur.Item(f"i{number}", f"text {number}", title=f"title {number}") for number in range(N_ITEMS)]
    best = scores[:N_QUERIES].argmax(axis=1)
    return Task(
        name="toy",
        queries=queries,
        groups=[f"document {number % 9}" for number in range(N_QUERIES)],
        items=items,
        exact_scores=scores[:N_QUERIES],
        scorer_name="toy-emb",
        item_scores=ItemScores(np.arange(0, 3 * N_ITEM_QUERIES, 3), scores[N_QUERIES:]),
        qrels={f"q{number}": {f"i{item}": 1} for number, item in enumerate(best)},
        seconds_per_pair=0.001,
    )


def make_study(runs: Path | None = None, *, noise: float = 0.1) -> Study:
    task = make_task(noise=noise)
    retriever = StoredRetriever(HashedVectors(), task.queries, task.items)
    return Study(task, [retriever], SIZES.within(task), runs=runs)


def other_head(study: Study) -> Study:
    """The same study with a scorer of another kind, of full rank."""
    scores = np.random.default_rng(1).normal(size=study.task.exact_scores.shape).astype(np.float32)
    return Study(replace(study.task, exact_scores=scores, scorer_name="toy-cls"), study.retrievers, study.sizes)
