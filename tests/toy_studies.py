"""A small world with all that experiments need: scores of low rank, documents, items as queries, judgements."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

import anncur
from anncur.evaluation.experiments import Experiment, run_experiments
from anncur.evaluation.rows import Cell, Row, RowFile
from anncur.evaluation.scoreboard import DOCUMENTS
from anncur.evaluation.study import Sizes, Study
from anncur.evaluation.worlds import ScoredWorld
from anncur.reproduction.study import ItemQueries, PaperSizes, PaperStudy
from anncur.retrievers.stored import StoredRetriever
from worlds import HashedVectors, low_rank_scores

TIMES = {"seconds", "version", "commit", "hardware", "numpy"}
AnyStudy = TypeVar("AnyStudy", bound=Study)
N_QUERIES, N_ITEMS, N_ITEM_QUERIES = 60, 150, 20
SIZES = Sizes(ks=(1, 5), budgets=(10, 40), n_anchor_queries=30, n_tests=20, n_seeds=1)
PAPER_SIZES = PaperSizes(
    ks=(1, 5),
    budgets=(10, 40),
    n_anchor_queries=30,
    n_tests=20,
    n_seeds=1,
    fewer_anchors=(15,),
    depths=(5, 20),
    n_anchor_items=(4, 8),
    grid=(5, 10, 20),
    grid_k=5,
    grid_depth=20,
    n_grid_seeds=2,
    bar_k=5,
    bar_cost=20,
    world_sizes=(60, 100),
)


def make_world(*, noise: float = 0.1) -> ScoredWorld:
    return _make(noise=noise)[0]


def make_study(runs: Path | None = None, *, noise: float = 0.1) -> Study:
    world = make_world(noise=noise)
    return Study(world, [StoredRetriever(HashedVectors(), world.queries, world.items)], SIZES, runs=runs).fitted()


def make_paper_study(runs: Path | None = None, *, noise: float = 0.1) -> PaperStudy:
    world, item_queries = _make(noise=noise)
    retrievers = [StoredRetriever(HashedVectors(), world.queries, world.items)]
    return PaperStudy(world, retrievers, PAPER_SIZES, runs=runs, item_queries=item_queries).fitted()


def other_head(study: PaperStudy) -> PaperStudy:
    """The same study with a scorer of another kind, of full rank."""
    scores = np.random.default_rng(1).normal(size=study.world.exact_scores.shape).astype(np.float32)
    world = replace(study.world, exact_scores=scores, scorer_name="toy-cls")
    return PaperStudy(world, study.retrievers, study.sizes)


def add_distilled(study: AnyStudy, name: str) -> AnyStudy:
    """The study with a second retriever, of this name."""
    distilled = StoredRetriever(HashedVectors(), study.world.queries, study.world.items)
    distilled.name = name
    return replace(study, retrievers=[*study.retrievers, distilled])


def measure(study: AnyStudy, experiments: Mapping[str, Experiment[AnyStudy]], name: str, folder: Path) -> list[Row]:
    """The rows of one experiment."""
    file = RowFile(folder / "rows.jsonl")
    run_experiments(study, file, {name: experiments[name]})
    return file.rows


def without_times(rows: list[Row]) -> list[tuple[Any, Any]]:
    """Cells and values, but for those that differ from run to run."""
    return [(row.cell, {name: value for name, value in row.values.items() if name not in TIMES}) for row in rows]


def check_rerun(
    study: AnyStudy, experiments: Mapping[str, Experiment[AnyStudy]], name: str, rows: list[Row], folder: Path
) -> None:
    """A fixed seed gives the same rows twice, and a rerun makes none."""
    again = measure(study, experiments, name, folder)
    assert again
    assert without_times(again) == without_times(rows)
    assert run_experiments(study, RowFile(folder / "rows.jsonl"), {name: experiments[name]}) == 0
    cells = [row.cell for row in rows]
    expected = {("toy", "toy-emb", name, study.data)}
    assert {(cell.world, cell.scorer, cell.experiment, cell.data) for cell in cells} == expected


def scoreboard_rows(found: dict[str, list[list[int]]], k: int = 4) -> list[Row]:
    """What each method found for the queries of each seed, four queries of two documents."""
    n_seeds = len(next(iter(found.values())))
    board = Cell("scoreboard", "toy", DOCUMENTS, n_anchor_queries=9, n_items=1000)
    rows = [Row(replace(board, seed=seed), {"groups": [0, 0, 1, 1]}) for seed in range(n_seeds)]
    for method, of_seeds in found.items():
        for seed, counts in enumerate(of_seeds):
            cell = replace(board, method=method, seed=seed, k=k, cost=50)
            rows.append(Row(cell, {"found": counts, "recall": sum(counts) / (4 * k), "calls": 50, "seconds": 0.1}))
    return rows


def _make(*, noise: float) -> tuple[ScoredWorld, ItemQueries]:
    """All queries and the items as queries are of one world, so that either can stand for the other."""
    scores = low_rank_scores(N_QUERIES + N_ITEM_QUERIES, N_ITEMS, rank=4, noise=noise)
    best = scores[:N_QUERIES].argmax(axis=1)
    world = ScoredWorld(
        name="toy",
        queries=[anncur.Query(f"query {number}", f"q{number}") for number in range(N_QUERIES)],
        groups=[f"document {number % 9}" for number in range(N_QUERIES)],
        items=[anncur.Item(f"i{number}", f"text {number}", title=f"title {number}") for number in range(N_ITEMS)],
        exact_scores=scores[:N_QUERIES],
        scorer_name="toy-emb",
        qrels={f"q{number}": {f"i{item}": 1} for number, item in enumerate(best)},
        seconds_per_pair=0.001,
    )
    return world, ItemQueries(np.arange(0, 3 * N_ITEM_QUERIES, 3), scores[N_QUERIES:])
