"""All methods side by side on real score matrices: recall of the scorer's own top k for every budget.

    python benchmarks/adaptive.py DATA --work FOLDER --scorer maxsim|builtin|MODEL [--queries 620] [--seeds 5]

The protocol is `sound`: anchors and test queries come from different documents, settings are chosen on held-out anchor
queries, every distinct call counts once. All methods have the same anchor queries and retrievers. A row is written for
every method, seed, k and budget as it is made, and a rerun makes what is missing. At the end, differences to posterior
with intervals over documents, of which queries and seeds are repeated measurements."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, TypeAlias

import anncur
from anncur.cli.frame import show_progress
from anncur.evaluation.board import difference
from anncur.evaluation.experiments.scoreboard import DOCUMENTS, SOUND, Ground, documents, measure_cells
from anncur.evaluation.protocols import BUDGETS, build, cells
from anncur.evaluation.rows import Batch, Cell, Row, RowFile, distinct, grouped, mean, select
from anncur.evaluation.study import Sizes, Study, store_retrievers
from anncur.evaluation.tasks import Task
from anncur.progress import Progress
from anncur.retrievers.loading import load_retriever
from anncur.search.base import Method
from matrices import make_parser, read_task, read_world

EXPERIMENT = "adaptive"
RETRIEVERS = ("bm25", "tfidf", "minilm")
N_TESTS, WORLD_SHAPE = 200, (700, 5000)
OURS = "posterior, 200 anchors"
RESULTS = Path(__file__).parent / "results" / "adaptive.jsonl"

ByCell: TypeAlias = dict[tuple[Any, ...], list[Row]]  # by k and budget


@dataclass(frozen=True)
class Way:
    """A method with a number of anchor queries."""

    n_anchors: int
    method: Method


WAYS = {
    **{f"re-rank {name}": Way(200, anncur.Rerank(name)) for name in RETRIEVERS},
    "ANNCUR": Way(200, anncur.Anncur()),
    **{f"ADACUR from {name}": Way(200, anncur.Adacur(retriever=name)) for name in ("bm25", "minilm")},
    "ADACUR from minilm, 20 rounds": Way(200, anncur.Adacur(retriever="minilm", n_rounds=20)),
    "AXN, transductive": Way(200, anncur.Axn(retriever="minilm")),
    "AXN, 1,000 scores a row": Way(200, anncur.Axn(retriever="minilm", n_scored=1000)),
    "AXN, inductive": Way(200, anncur.Axn(retriever="minilm", kind="inductive")),
    OURS: Way(200, anncur.Posterior()),
    "posterior, 40 anchors": Way(40, anncur.Posterior()),
    "ADACUR from minilm, 400 anchors": Way(400, anncur.Adacur(retriever="minilm")),
}


def main() -> None:
    """Measure what is missing, and print two tables."""
    parser = make_parser(__doc__, n_queries=620, n_seeds=5, out=RESULTS)
    parser.add_argument("--ways", nargs="+", default=list(WAYS), choices=list(WAYS), metavar="WAY")
    options = parser.parse_args()
    file = RowFile(options.out)
    with show_progress(as_json=False) as progress:
        study = read_study(options, progress)
        file.make_missing(batches(study, options.ways, progress), stage="all methods", progress=progress)
    show(select(file.rows, experiment=EXPERIMENT, data=study.data), study.task)


def read_study(options: argparse.Namespace, progress: Progress) -> Study:
    """What is measured: a seed's test queries are the same for any number of anchor queries."""
    world = read_world(options.data, options.world, *WORLD_SHAPE)
    task = read_task(world, options.scorer, options.work, progress, n_rows=options.queries)
    n_anchors = tuple(sorted({way.n_anchors for way in WAYS.values()}))
    sizes = Sizes(costs=BUDGETS, n_anchor_queries=n_anchors, n_tests=N_TESTS, n_seeds=options.seeds)
    return Study(task, [], sizes.within(task))


def batches(study: Study, ways: Sequence[str], progress: Progress) -> Iterator[Batch]:
    """Every way for which there are enough exact scores; those with the same anchor queries come together."""
    ground_of = grounds(study, progress)
    for seed in range(study.sizes.n_seeds):
        yield documents(study, EXPERIMENT, protocol=SOUND, seed=seed)
        for n_anchors in study.sizes.n_anchor_queries:
            for name in ways:
                if WAYS[name].n_anchors == n_anchors:
                    yield batch(study, name, seed, ground_of)


def batch(study: Study, name: str, seed: int, ground_of: Callable[[int, int], Ground]) -> Batch:
    """One way with one seed."""
    way = WAYS[name]
    columns = {"protocol": SOUND, "seed": seed, "n_anchor_queries": way.n_anchors}

    def measure(missing: Sequence[Cell]) -> Iterator[Row]:
        yield from measure_cells(ground_of(seed, way.n_anchors), way.method, missing)

    return Batch([study.cell(EXPERIMENT, name, k=k, cost=budget, **columns) for k, budget in cells()], measure)


def grounds(study: Study, progress: Progress) -> Callable[[int, int], Ground]:
    """Gives the ground of a seed and a number of anchor queries; retrievers are loaded when the first is needed."""
    stored = cache(lambda: store_retrievers(map(load_retriever, RETRIEVERS), study.task))

    @lru_cache(maxsize=1)  # an index is as large as the scores that it knows
    def ground(seed: int, n_anchors: int) -> Ground:
        split = study.sound_split(seed).fewer(n_anchors, seed)
        return Ground(study.task, split, build(study.task, split, stored(), seed=seed, progress=progress))

    return ground


def show(rows: Sequence[Row], task: Task) -> None:
    """Recall of every method in every cell, and how far each is from ours."""
    measured = [row for row in rows if row.cell.method != DOCUMENTS]
    methods = {name: grouped(some, "k", "cost") for (name,), some in grouped(measured, "method").items()}
    print(f"{task.name}, {task.scorer_name}: recall in %, mean of {len(distinct(measured, 'seed'))} seeds")
    print(f"{'k, budget':<34}" + "".join(f"{f'{k}, {budget}':>9}" for k, budget in cells()))
    for method, by_cell in methods.items():
        print(f"{method:<34}" + "".join(f"{100 * mean(by_cell[cell], 'recall'):>9.1f}" for cell in cells()))
    if OURS in methods:
        print("\nours less theirs, in points, with 95% intervals")
        show_differences(methods.pop(OURS), methods, select(rows, method=DOCUMENTS))


def show_differences(ours: ByCell, others: dict[str, ByCell], of_tests: Sequence[Row]) -> None:
    """A line for each of the others; `of_tests` tell the documents of the test queries."""
    for method, theirs in others.items():
        found = [difference(ours[cell], theirs[cell], of_tests) for cell in cells()]
        told = (f"{100 * one.mean:.1f} ({100 * one.low:.1f}..{100 * one.high:.1f})" for one in found)
        print(f"{method:<34}" + "".join(f"{text:>20}" for text in told))


if __name__ == "__main__":
    main()
