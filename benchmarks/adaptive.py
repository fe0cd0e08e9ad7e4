"""All methods side by side on real score matrices: recall of the scorer's own top k for every budget.

    python benchmarks/adaptive.py DATA --work FOLDER --scorer maxsim|builtin|MODEL [--queries 620] [--seeds 5]

The protocol is `sound`: anchors and test queries come from different documents, settings are chosen on held-out anchor
queries, every distinct call counts once. All methods have the same anchor queries and retrievers. A row is written for
every method, seed, k and budget as it is made, and a rerun makes what is missing. At the end, differences to posterior
with intervals over documents, of which queries and seeds are repeated measurements."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import anncur
from anncur.arrays import FloatVector
from anncur.candidates.loading import load_retriever
from anncur.candidates.stored import StoredRetriever
from anncur.cli.frame import show_progress
from anncur.evaluation.intervals import Interval, clustered_interval
from anncur.evaluation.protocols import build, cells, measure
from anncur.evaluation.tasks import Split, Task, split_by_group
from anncur.progress import Progress
from anncur.search.base import Policy
from circumstances import circumstances
from matrices import World, read_task, read_world

RETRIEVERS = ("bm25", "tfidf", "minilm")
N_TESTS = 200
OURS = "posterior, 200 anchors"
RESULTS = Path(__file__).parent / "results" / "adaptive.jsonl"


@dataclass(frozen=True)
class Way:
    """A method with a number of anchor queries."""

    n_anchors: int
    policy: Policy


WAYS = {
    **{f"re-rank {name}": Way(200, anncur.Rerank(name)) for name in RETRIEVERS},
    "ANNCUR": Way(200, anncur.OneShot()),
    **{f"ADACUR from {name}": Way(200, anncur.Adacur(retriever=name)) for name in ("bm25", "minilm")},
    "AXN, transductive": Way(200, anncur.Axn(retriever="minilm")),
    "AXN, 1,000 scores a row": Way(200, anncur.Axn(retriever="minilm", n_scored=1000)),
    "AXN, inductive": Way(200, anncur.Axn(retriever="minilm", kind="inductive")),
    OURS: Way(200, anncur.Posterior()),
    "posterior, 40 anchors": Way(40, anncur.Posterior()),
    "ADACUR from minilm, 400 anchors": Way(400, anncur.Adacur(retriever="minilm")),
}


def main() -> None:
    """Measure what is missing, and print two tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--work", type=Path, required=True, help="where matrices are kept")
    parser.add_argument("--scorer", default="builtin")
    parser.add_argument("--world", default="noun.animal")
    parser.add_argument("--queries", type=int, default=620, help="those with exact scores, anchors and tests together")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--ways", nargs="+", default=list(WAYS), choices=list(WAYS), metavar="WAY")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    world = read_world(options.data, options.world, 700, 5000)
    with show_progress(as_json=False) as progress:
        task = read_task(world, options.scorer, options.work, progress, n_rows=options.queries)
        run = Run(task, retrievers_for(world), options.out, progress)
        for seed in range(options.seeds):
            run.measure(seed, options.ways)
    show(run.kept(), task)


class Run:
    """The measurements of one task, kept as rows."""

    def __init__(self, task: Task, retrievers: list[StoredRetriever], out: Path, progress: Progress) -> None:
        self._task = task
        self._retrievers = retrievers
        self._out = out
        self._progress = progress

    def kept(self) -> list[dict[str, Any]]:
        """The rows of this task that there are."""
        lines = self._out.read_text().splitlines() if self._out.exists() else []
        return [row for row in map(json.loads, lines) if row["task"] == self._task.name]

    def measure(self, seed: int, ways: list[str]) -> None:
        """Make the rows of one seed that are missing."""
        done = {row["method"] for row in self.kept() if row["seed"] == seed}
        missing = {name: WAYS[name] for name in ways if name not in done}
        for n_anchors in sorted({way.n_anchors for way in missing.values()}):
            if n_anchors > most_anchors(self._task):
                continue  # there are too few exact scores
            split = split_for(self._task, n_anchors, seed)
            index = build(self._task, split, self._retrievers, seed=seed, progress=self._progress)
            for name, way in missing.items():
                if way.n_anchors == n_anchors:
                    self._keep(name, way, index, split, seed)
                    self._progress(f"{self._task.name}, seed {seed}, {name}", 1, 1)

    def _keep(self, name: str, way: Way, index: anncur.Index, split: Split, seed: int) -> None:
        self._out.parent.mkdir(parents=True, exist_ok=True)
        with self._out.open("a") as file:
            for outcome in measure(index, self._task, split, way.policy):
                row = {
                    "task": self._task.name,
                    "method": name,
                    "n_anchors": way.n_anchors,
                    "k": outcome.k,
                    "budget": outcome.budget,
                    "seed": seed,
                    "recall": outcome.recalls.mean(),
                    "calls": outcome.calls.mean(),
                    "seconds": outcome.seconds,
                    "tests": split.tests.tolist() if (outcome.k, outcome.budget) == cells()[0] else None,
                    "n_found": np.rint(outcome.recalls * outcome.k).astype(int).tolist(),
                }
                file.write(json.dumps({**circumstances(), **row}) + "\n")


def retrievers_for(world: World) -> list[StoredRetriever]:
    """Those that all methods have, with their scores of all queries."""
    return [StoredRetriever(load_retriever(name), world.queries, world.items) for name in RETRIEVERS]


def split_for(task: Task, n_anchors: int, seed: int) -> Split:
    """A seed's test queries are the same for any number of anchor queries, which are drawn from all others."""
    widest = split_by_group(task.groups, n_anchors=most_anchors(task), n_tests=N_TESTS, seed=seed)
    drawn = np.random.default_rng(seed).permutation(widest.anchors)[:n_anchors]
    return Split(np.sort(drawn), widest.tests)


def most_anchors(task: Task) -> int:
    """The most anchor queries of any way that the task has enough exact scores for."""
    return max(way.n_anchors for way in WAYS.values() if way.n_anchors + N_TESTS <= len(task.queries))


def show(rows: list[dict[str, Any]], task: Task) -> None:
    """Recall of every method in every cell, and how far each is from ours."""
    methods = list(dict.fromkeys(row["method"] for row in rows))
    print(f"{task.name}: recall in %, mean of {len({row['seed'] for row in rows})} seeds")
    print(f"{'k, budget':<34}" + "".join(f"{f'{k}, {budget}':>9}" for k, budget in cells()))
    for method in methods:
        means = [100 * np.mean([row["recall"] for row in some]) for some in of_cells(rows, method)]
        print(f"{method:<34}" + "".join(f"{mean:>9.1f}" for mean in means))
    print("\nours less theirs, in points, with 95% intervals")
    for method in methods:
        if method != OURS:
            found = [difference(rows, OURS, method, cell, task) for cell in cells()]
            told = (f"{100 * one.mean:.1f} ({100 * one.low:.1f}..{100 * one.high:.1f})" for one in found)
            print(f"{method:<34}" + "".join(f"{text:>20}" for text in told))


def of_cells(rows: list[dict[str, Any]], method: str) -> Iterator[list[dict[str, Any]]]:
    """The rows of a method, cell by cell, those of all seeds together."""
    for k, budget in cells():
        yield [row for row in rows if (row["method"], row["k"], row["budget"]) == (method, k, budget)]


def difference(rows: list[dict[str, Any]], ours: str, theirs: str, cell: tuple[int, int], task: Task) -> Interval:
    """Of recall, over the queries of all seeds that both were measured with."""
    found, missed = by_query(rows, ours, cell), by_query(rows, theirs, cell)
    seeds = sorted(found.keys() & missed.keys())
    tests = {row["seed"]: row["tests"] for row in rows if row["tests"]}
    groups = [task.groups[place] for seed in seeds for place in tests[seed]]
    return clustered_interval(np.concatenate([found[seed] - missed[seed] for seed in seeds]), groups)


def by_query(rows: list[dict[str, Any]], method: str, cell: tuple[int, int]) -> dict[int, FloatVector]:
    """The recalls of a method in a cell, by seed."""
    wanted = [row for row in rows if row["method"] == method and (row["k"], row["budget"]) == cell]
    return {row["seed"]: np.array(row["n_found"]) / row["k"] for row in wanted}


if __name__ == "__main__":
    main()
