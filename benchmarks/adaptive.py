"""All methods side by side on real score matrices: recall of the scorer's own top k for every budget.

    python benchmarks/adaptive.py DATA --work FOLDER --scorer maxsim|builtin|MODEL [--queries 620] [--seeds 5]

The protocol is `sound`: anchors and test queries come from different documents, settings are chosen on held-out anchor
queries, every pair counts once. All methods have the same anchor queries and retrievers. A row is written for every
method, seed, k and budget as it is made, and a rerun makes what is missing. At the end, differences to posterior with
intervals over documents, of which queries and seeds are repeated measurements."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any, TypeAlias

import anncur
from anncur.cli.frame import show_progress
from anncur.evaluation.intervals import difference
from anncur.evaluation.protocol import SOUND, build, points
from anncur.evaluation.rows import Batch, Cell, Row, RowFile, distinct, grouped, mean, select
from anncur.evaluation.scoreboard import DOCUMENTS, Trial, documents, measure_cells
from anncur.evaluation.study import Sizes, Study, store_retrievers
from anncur.evaluation.worlds import ScoredWorld
from anncur.progress import Progress
from anncur.retrievers.loading import load_retriever
from anncur.search.base import Method
from matrices import make_parser, read_world, score_world

EXPERIMENT = "adaptive"
RETRIEVERS = ("bm25", "tfidf", "minilm")
N_TESTS, WORLD_SHAPE = 200, (700, 5000)
OURS = "posterior, 200 anchors"

ByPoint: TypeAlias = dict[tuple[Any, ...], list[Row]]  # by k and budget


@dataclass(frozen=True)
class Variant:
    """A method with a number of anchor queries."""

    n_anchors: int
    method: Method


VARIANTS = {
    **{f"re-rank {name}": Variant(200, anncur.Rerank(name)) for name in RETRIEVERS},
    "ANNCUR": Variant(200, anncur.Anncur()),
    **{f"ADACUR from {name}": Variant(200, anncur.Adacur(retriever=name)) for name in ("bm25", "minilm")},
    "ADACUR from minilm, 20 rounds": Variant(200, anncur.Adacur(retriever="minilm", n_rounds=20)),
    "AXN, transductive": Variant(200, anncur.Axn(retriever="minilm")),
    "AXN, 1,000 scores a row": Variant(200, anncur.Axn(retriever="minilm", n_scored=1000)),
    "AXN, inductive": Variant(200, anncur.Axn(retriever="minilm", kind="inductive")),
    OURS: Variant(200, anncur.Posterior()),
    "posterior, 40 anchors": Variant(40, anncur.Posterior()),
    "ADACUR from minilm, 400 anchors": Variant(400, anncur.Adacur(retriever="minilm")),
}

N_ANCHORS = sorted({variant.n_anchors for variant in VARIANTS.values()})


def main() -> None:
    """Measure what is missing, and print two tables."""
    parser = make_parser(__doc__, n_queries=620, n_seeds=5, out="adaptive.jsonl")
    names = list(VARIANTS)
    parser.add_argument("--variants", nargs="+", default=names, choices=names, metavar="NAME", help="only these")
    options = parser.parse_args()
    file = RowFile(options.out)
    with show_progress(as_json=False) as progress:
        study = read_study(options, progress)
        file.make_missing(batches(study, options.variants, progress), stage="all methods", progress=progress)
    show(select(file.rows, experiment=EXPERIMENT, data=study.data), study.world)


def read_study(options: argparse.Namespace, progress: Progress) -> Study:
    """What is measured: a seed's test queries are the same for any number of anchor queries."""
    drawn = read_world(options.data, options.world, *WORLD_SHAPE)
    world = score_world(drawn, options.scorer, options.work, progress, n_rows=options.queries)
    sizes = Sizes(n_anchor_queries=N_ANCHORS[-1], n_tests=N_TESTS, n_seeds=options.seeds)
    return Study(world, [], sizes).fitted()


def batches(study: Study, names: Sequence[str], progress: Progress) -> Iterator[Batch]:
    """Every variant for which there are enough exact scores; those with the same anchor queries come together."""
    trial_of = trials(study, progress)
    for seed in range(study.sizes.n_seeds):
        yield documents(study, EXPERIMENT, protocol=SOUND, seed=seed)
        for n_anchors in N_ANCHORS:
            for name in names:
                if VARIANTS[name].n_anchors == n_anchors <= study.sizes.n_anchor_queries:
                    yield batch(study, name, seed, trial_of)


def batch(study: Study, name: str, seed: int, trial_of: Callable[[int, int], Trial]) -> Batch:
    """One variant with one seed."""
    variant = VARIANTS[name]
    columns = {"protocol": SOUND, "seed": seed, "n_anchor_queries": variant.n_anchors}

    def measure(missing: Sequence[Cell]) -> Iterator[Row]:
        yield from measure_cells(trial_of(seed, variant.n_anchors), variant.method, missing)

    return Batch([study.cell(EXPERIMENT, name, k=k, cost=budget, **columns) for k, budget in points()], measure)


def trials(study: Study, progress: Progress) -> Callable[[int, int], Trial]:
    """The trial of a seed and a number of anchor queries; retrievers are loaded when the first is needed."""
    stored = cache(lambda: store_retrievers(map(load_retriever, RETRIEVERS), study.world))

    @lru_cache(maxsize=1)  # an index is as large as its anchor scores
    def trial(seed: int, n_anchors: int) -> Trial:
        split = study.sound_split(seed).fewer(n_anchors, seed)
        return Trial(study.world, split, build(study.world, split, stored(), seed=seed, progress=progress))

    return trial


def show(rows: Sequence[Row], world: ScoredWorld) -> None:
    """Recall of every method in every cell, and how far each is from ours."""
    measured = [row for row in rows if row.cell.method != DOCUMENTS]
    methods = {name: grouped(some, "k", "cost") for (name,), some in grouped(measured, "method").items()}
    print(f"{world.name}, {world.scorer_name}: recall in %, mean of {len(distinct(measured, 'seed'))} seeds")
    print(f"{'k, budget':<34}" + "".join(f"{f'{k}, {budget}':>9}" for k, budget in points()))
    for method, by_point in methods.items():
        print(f"{method:<34}" + "".join(f"{100 * mean(by_point[point], 'recall'):>9.1f}" for point in points()))
    if OURS in methods:
        print("\nours less theirs, in points, with 95% intervals")
        show_differences(methods.pop(OURS), methods, select(rows, method=DOCUMENTS))


def show_differences(ours: ByPoint, others: dict[str, ByPoint], of_tests: Sequence[Row]) -> None:
    """A line for each of the others; `of_tests` are the rows that list the documents of the test queries."""
    for method, theirs in others.items():
        found = [difference(ours[point], theirs[point], of_tests) for point in points()]
        shown = (f"{100 * one.mean:.1f} ({100 * one.low:.1f}..{100 * one.high:.1f})" for one in found)
        print(f"{method:<34}" + "".join(f"{text:>20}" for text in shown))


if __name__ == "__main__":
    main()
