"""What an index without anchor queries learns from its searches, on a real score matrix.

    python benchmarks/traffic.py DATA --work FOLDER [--scorer maxsim] [--seeds 3]

Mentions come in as searches of 100 calls each; after some of them the index learns. Recall of the scorer's true top 10
on queries of other documents, against an index that spent as many calls on full rows of anchor queries, and with 20
anchor queries before and after searches. Searches that measure don't explore, and aren't learnt from."""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

import anncur
from anncur.arrays import Positions
from anncur.candidates.loading import load_retriever
from anncur.candidates.stored import StoredRetriever
from anncur.cli.frame import show_progress
from anncur.evaluation.recall import recalls
from anncur.evaluation.tasks import Task, split_by_group
from circumstances import circumstances
from matrices import read_task, read_world

K, SEARCH_BUDGET, BUDGETS = 10, 100, (50, 100, 200)
STAGES = (0, 100, 500, 1000)  # searches
EXPLORES = (0.0, 0.05)
N_ANCHORS, N_TESTS, N_QUERIES, N_ITEMS = 20, 200, 1300, 5000
RESULTS = Path(__file__).parent / "results" / "traffic.jsonl"


def main() -> None:
    """Print the mean recall of every stage, and write a row for every seed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--work", type=Path, required=True, help="where matrices are kept")
    parser.add_argument("--scorer", default="maxsim")
    parser.add_argument("--world", default="noun.artifact")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    world = read_world(options.data, options.world, N_QUERIES, N_ITEMS)
    found: dict[str, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    with show_progress(as_json=False) as progress, options.out.open("w") as file:
        task = read_task(world, options.scorer, options.work, progress)
        retriever = StoredRetriever(load_retriever("bm25"), task.queries, task.items)
        for seed in range(options.seeds):
            for row in rows(Traffic(task, retriever, seed)):
                file.write(json.dumps({**circumstances(), "task": task.name, "seed": seed, **row}) + "\n")
                file.flush()
                found[f"{row['way']}, {row['n_searches']} searches"][row["budget"]].append(row["recall"])
            progress("learning from traffic", seed + 1, options.seeds)
    print(f"{'budget':<48}" + "".join(f"{budget:>8}" for budget in BUDGETS))
    for way, by_budget in found.items():
        print(f"{way:<48}" + "".join(f"{100 * np.mean(by_budget[budget]):>8.1f}" for budget in BUDGETS))


class Traffic:
    """One order of the queries that come in, and the queries of other documents that are measured with."""

    def __init__(self, task: Task, retriever: StoredRetriever, seed: int) -> None:
        split = split_by_group(task.groups, n_anchors=STAGES[-1] + N_ANCHORS, n_tests=N_TESTS, seed=seed)
        self._task = task
        self._retriever = retriever
        self._tests = split.tests
        self.incoming = self._queries(np.random.default_rng(seed).permutation(split.anchors))

    def learning(
        self,
        anchor_queries: Sequence[anncur.Query],
        queries: Sequence[anncur.Query],
        stages: Sequence[int],
        explore: float | None = None,
    ) -> Iterator[tuple[int, dict[int, float]]]:
        """Recall by budget after so many searches."""
        scorer, tests, own = self._task.scorer(), self._queries(self._tests), [self._retriever]
        with TemporaryDirectory() as folder:
            path = Path(folder) / "traffic.anncur"
            index = anncur.Index.build(
                path,
                scorer,
                self._task.items,
                anchor_queries,
                retrievers=own,
                keep_traffic=len(queries),
                explore=explore,
            )
            for before, n_searches in pairwise([0, *stages]):
                if n_searches:
                    index.search_many(queries[before:n_searches], K, SEARCH_BUDGET)
                    index.learn()
                measuring = anncur.Index.open(path, scorer, retrievers=own)
                answers = {budget: measuring.search_many(tests, K, budget) for budget in BUDGETS}
                exact_scores = self._task.exact_scores[self._tests]
                yield n_searches, {budget: recalls(hits, exact_scores, K).mean() for budget, hits in answers.items()}

    def _queries(self, positions: Positions) -> list[anncur.Query]:
        return [self._task.queries[position] for position in positions.tolist()]


def rows(traffic: Traffic) -> Iterator[dict[str, Any]]:
    """One row per way, number of searches and budget."""
    queries = traffic.incoming[N_ANCHORS:]
    for explore in EXPLORES:
        for n_searches, by_budget in traffic.learning([], queries, STAGES, explore):
            yield from told(by_budget, f"searches, explore {explore}", n_searches)
    for n_searches in STAGES[1:]:
        n_rows = n_searches * SEARCH_BUDGET // N_ITEMS
        for _, by_budget in traffic.learning(queries[:n_rows], [], (0,)):
            yield from told(by_budget, "full rows of as many calls", n_searches)
    for n_searches, by_budget in traffic.learning(traffic.incoming[:N_ANCHORS], queries, STAGES):
        yield from told(by_budget, f"{N_ANCHORS} anchor queries", n_searches)


def told(by_budget: dict[int, float], way: str, n_searches: int) -> Iterator[dict[str, Any]]:
    """Rows of one measurement."""
    for budget, recall in by_budget.items():
        yield {"way": way, "n_searches": n_searches, "k": K, "budget": budget, "recall": recall}


if __name__ == "__main__":
    main()
