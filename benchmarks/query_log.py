"""What a feedback model gains that is fitted to the query log, on a real score matrix.

    python benchmarks/query_log.py DATA --work FOLDER [--scorer maxsim] [--seeds 3]

Mentions come in as searches of 100 pairs each; after some of them the index fits its feedback model to its query log.
Recall of the scorer's true top 10 on queries of other documents, against an index that spent as many pairs on full rows
of anchor queries, and with 20 anchor queries before and after searches. Searches that measure don't explore, and aren't
logged. A rerun makes what is missing."""

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
from matrices import make_parser, read_world, score_world

EXPERIMENT = "query-log"
K, SEARCH_BUDGET, BUDGETS = 10, 100, (50, 100, 200)
STAGES = (0, 100, 500, 1000)  # searches
EXPLORES = (0.0, 0.05)
N_ANCHORS, N_TESTS, N_QUERIES, N_ITEMS = 20, 200, 1300, 5000


@dataclass(frozen=True)
class Variant:
    """What an index has: anchor queries, and a feedback model fitted to some searches or, where it logs none, anchor
    queries for as many pairs."""

    name: str
    anchors: slice  # of the queries that come in
    stages: tuple[int, ...] = STAGES
    explore: float | None = None
    is_logging: bool = True


VARIANTS = (
    *(Variant(f"searches, explore {explore}", slice(0), explore=explore) for explore in EXPLORES),
    *(
        Variant(
            "full rows of as many pairs", slice(N_ANCHORS, N_ANCHORS + n * SEARCH_BUDGET // N_ITEMS), (n,), None, False
        )
        for n in STAGES[1:]
    ),
    Variant(f"{N_ANCHORS} anchor queries", slice(N_ANCHORS)),
)


def main() -> None:
    """Measure what is missing, and print the mean recall of every stage."""
    options = make_parser(
        __doc__, scorer="maxsim", world="noun.artifact", n_seeds=3, out="query_log.jsonl"
    ).parse_args()
    drawn = read_world(options.data, options.world, N_QUERIES, N_ITEMS)
    file = RowFile(options.out)
    with show_progress(as_json=False) as progress:
        world = score_world(drawn, options.scorer, options.work, progress)
        sizes = Sizes(n_anchor_queries=STAGES[-1] + N_ANCHORS, n_tests=N_TESTS, n_seeds=options.seeds)
        study = Study(world, store_retrievers([load_retriever("bm25")], world), sizes)
        file.make_missing(batches(study), stage="feedback models", progress=progress)
    print(f"{'budget':<48}" + "".join(f"{budget:>8}" for budget in BUDGETS))
    kept = select(file.rows, experiment=EXPERIMENT, data=study.data)
    for (name, part), rows in grouped(kept, "method", "part").items():
        means = [100 * mean(select(rows, cost=budget), "recall") for budget in BUDGETS]
        print(f"{f'{name}, {part}':<48}" + "".join(f"{recall:>8.1f}" for recall in means))


def batches(study: Study) -> Iterator[Batch]:
    """Every variant with every seed; an index that logs queries is measured at all its stages together."""
    for seed in range(study.sizes.n_seeds):
        for variant in VARIANTS:
            cells = [
                study.cell(EXPERIMENT, variant.name, seed=seed, k=K, cost=budget, part=f"{n_searches} searches")
                for n_searches in variant.stages
                for budget in BUDGETS
            ]
            yield Batch(cells, partial(measure, study, variant))


def measure(study: Study, variant: Variant, missing: Sequence[Cell]) -> Iterator[Row]:
    """Rows of one variant with one seed, stage by stage."""
    split = study.sound_split(missing[0].seed)
    incoming = study.world.queries_at(np.random.default_rng(missing[0].seed).permutation(split.anchors))
    tests, exact_scores = study.world.queries_at(split.tests), study.world.exact_scores[split.tests]
    for n_searches, index in fitted_indexes(study, variant, incoming):
        for cell in missing:
            if cell.part == f"{n_searches} searches":
                answers = index.search_many(tests, K, cell.cost)
                yield Row(cell, {"recall": recalls(answers, exact_scores, K).mean()})


def fitted_indexes(study: Study, variant: Variant, incoming: list[anncur.Query]) -> Iterator[tuple[int, anncur.Index]]:
    """The number of searches so far, and the index fitted to them; searches in that one are not logged."""
    scorer, queries = study.world.scorer(), incoming[N_ANCHORS:] if variant.is_logging else []
    with TemporaryDirectory() as folder:
        path = Path(folder) / "query-log.anncur"
        index = anncur.Index.build(
            study.world.items,
            scorer,
            incoming[variant.anchors],
            path=path,
            retrievers=study.retrievers,
            log_queries=len(queries),
            explore=variant.explore,
        )
        for before, n_searches in pairwise([0, *variant.stages]):
            if queries and n_searches:
                index.search_many(queries[before:n_searches], K, SEARCH_BUDGET)
                index.learn()
            yield n_searches, anncur.Index.open(path, scorer, retrievers=study.retrievers)


if __name__ == "__main__":
    main()
