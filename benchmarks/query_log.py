"""What an index without anchor queries learns from its searches, on a real score matrix.

    python benchmarks/traffic.py DATA --work FOLDER [--scorer maxsim] [--seeds 3]

Mentions come in as searches of 100 calls each; after some of them the index learns. Recall of the scorer's true top 10
on queries of other documents, against an index that spent as many calls on full rows of anchor queries, and with 20
anchor queries before and after searches. Searches that measure don't explore, and aren't learnt from. A rerun makes
what is missing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

import anncur
from anncur.cli.frame import show_progress
from anncur.evaluation.recall import recalls
from anncur.evaluation.rows import Batch, Cell, Row, RowFile, grouped, mean, select
from anncur.evaluation.study import Sizes, Study, store_retrievers
from anncur.retrievers.loading import load_retriever
from matrices import make_parser, read_task, read_world

EXPERIMENT = "traffic"
K, SEARCH_BUDGET, BUDGETS = 10, 100, (50, 100, 200)
STAGES = (0, 100, 500, 1000)  # searches
EXPLORES = (0.0, 0.05)
N_ANCHORS, N_TESTS, N_QUERIES, N_ITEMS = 20, 200, 1300, 5000
RESULTS = Path(__file__).parent / "results" / "traffic.jsonl"


@dataclass(frozen=True)
class Way:
    """What an index has: anchor queries, and what it learnt from so many searches or, if it doesn't, their calls' worth
    of anchor queries."""

    name: str
    anchors: slice  # of the queries that come in
    stages: tuple[int, ...] = STAGES
    explore: float | None = None
    is_learning: bool = True


WAYS = (
    *(Way(f"searches, explore {explore}", slice(0), explore=explore) for explore in EXPLORES),
    *(
        Way("full rows of as many calls", slice(N_ANCHORS, N_ANCHORS + n * SEARCH_BUDGET // N_ITEMS), (n,), None, False)
        for n in STAGES[1:]
    ),
    Way(f"{N_ANCHORS} anchor queries", slice(N_ANCHORS)),
)


def main() -> None:
    """Measure what is missing, and print the mean recall of every stage."""
    options = make_parser(__doc__, scorer="maxsim", world="noun.artifact", n_seeds=3, out=RESULTS).parse_args()
    world = read_world(options.data, options.world, N_QUERIES, N_ITEMS)
    file = RowFile(options.out)
    with show_progress(as_json=False) as progress:
        task = read_task(world, options.scorer, options.work, progress)
        sizes = Sizes(n_anchor_queries=(STAGES[-1] + N_ANCHORS,), n_tests=N_TESTS, n_seeds=options.seeds)
        study = Study(task, store_retrievers([load_retriever("bm25")], task), sizes)
        file.make_missing(batches(study), stage="learning from traffic", progress=progress)
    print(f"{'budget':<48}" + "".join(f"{budget:>8}" for budget in BUDGETS))
    kept = select(file.rows, experiment=EXPERIMENT, data=study.data)
    for (way, part), rows in grouped(kept, "method", "part").items():
        means = [100 * mean(select(rows, cost=budget), "recall") for budget in BUDGETS]
        print(f"{f'{way}, {part}':<48}" + "".join(f"{recall:>8.1f}" for recall in means))


def batches(study: Study) -> Iterator[Batch]:
    """Every way with every seed; an index that learns is measured at all its stages in one go."""
    for seed in range(study.sizes.n_seeds):
        for way in WAYS:
            cells = [
                study.cell(EXPERIMENT, way.name, seed=seed, k=K, cost=budget, part=f"{n_searches} searches")
                for n_searches in way.stages
                for budget in BUDGETS
            ]
            yield Batch(cells, partial(measure, study, way))


def measure(study: Study, way: Way, missing: Sequence[Cell]) -> Iterator[Row]:
    """Rows of one way with one seed, stage by stage."""
    split = study.sound_split(missing[0].seed)
    incoming = study.task.queries_at(np.random.default_rng(missing[0].seed).permutation(split.anchors))
    tests, exact_scores = study.task.queries_at(split.tests), study.task.exact_scores[split.tests]
    for n_searches, index in learning(study, way, incoming):
        for cell in missing:
            if cell.part == f"{n_searches} searches":
                answers = index.search_many(tests, K, cell.cost)
                yield Row(cell, {"recall": recalls(answers, exact_scores, K).mean()})


def learning(study: Study, way: Way, incoming: list[anncur.Query]) -> Iterator[tuple[int, anncur.Index]]:
    """After so many searches, the index with what it has learnt; what is searched in that one teaches nothing."""
    scorer, queries = study.task.scorer(), incoming[N_ANCHORS:] if way.is_learning else []
    with TemporaryDirectory() as folder:
        path = Path(folder) / "traffic.anncur"
        index = anncur.Index.build(
            study.task.items,
            scorer,
            incoming[way.anchors],
            path=path,
            retrievers=study.retrievers,
            log_queries=len(queries),
            explore=way.explore,
        )
        for before, n_searches in pairwise([0, *way.stages]):
            if queries and n_searches:
                index.search_many(queries[before:n_searches], K, SEARCH_BUDGET)
                index.learn()
            yield n_searches, anncur.Index.open(path, scorer, retrievers=study.retrievers)


if __name__ == "__main__":
    main()
