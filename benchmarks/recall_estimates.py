"""How far `estimated_recall` can be trusted, and what `target_recall` costs, on real score matrices.

    python benchmarks/recall_estimates.py DATA --work FOLDER --scorer maxsim|builtin|MODEL [--queries 620] [--seeds 5]

The index is calibrated on its own 200 anchor queries and tested on queries of other documents. For every k and budget
the mean estimate beside the mean recall, the mean absolute error of a query's estimate, and the root of the mean
squared one beside that of the best constant, which is the test queries' own mean. For every target the recall that was
reached and the mean calls, beside the fixed budget that gives the same recall."""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

import anncur
from adaptive import retrievers_for, split_for
from anncur.arrays import FloatMatrix, FloatVector
from anncur.cli.frame import show_progress
from anncur.evaluation.protocols import KS, build, cells
from anncur.evaluation.recall import recalls
from anncur.evaluation.tasks import Split, Task
from circumstances import circumstances
from matrices import read_task, read_world

N_ANCHORS = 200
TARGETS = (0.8, 0.9, 0.95)
MOST_CALLS = 2000
RESULTS = Path(__file__).parent / "results" / "recall_estimates.jsonl"


def main() -> None:
    """Measure every seed, write rows, and print their means."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--work", type=Path, required=True, help="where matrices are kept")
    parser.add_argument("--scorer", default="builtin")
    parser.add_argument("--world", default="noun.animal")
    parser.add_argument("--queries", type=int, default=620)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    world = read_world(options.data, options.world, 700, 5000)
    rows: list[dict[str, Any]] = []
    with show_progress(as_json=False) as progress, options.out.open("a") as file:
        task = read_task(world, options.scorer, options.work, progress, n_rows=options.queries)
        retrievers = retrievers_for(world)
        for seed in range(options.seeds):
            split = split_for(task, N_ANCHORS, seed)
            index = build(task, split, retrievers, seed=seed, progress=progress)
            for row in measured(index, task, split):
                rows.append(row)
                file.write(json.dumps({**circumstances(), "task": task.name, "seed": seed, **row}) + "\n")
            progress(f"{task.name}, recall estimates", seed + 1, options.seeds)
    show(rows)


def measured(index: anncur.Index, task: Task, split: Split) -> Iterator[dict[str, Any]]:
    """Rows of estimates for every cell, and of targets for every k."""
    queries = [task.queries[position] for position in split.tests.tolist()]
    exact_scores = task.exact_scores[split.tests]
    for k, budget in cells():
        answers = index.search_many(queries, k, budget)
        estimates = np.array([hits.estimated_recall for hits in answers])
        truth = recalls(answers, exact_scores, k)
        yield {
            "what": "estimate",
            "k": k,
            "budget": budget,
            "recall": truth.mean(),
            "estimate": estimates.mean(),
            "error": np.abs(estimates - truth).mean(),
            "squared_error": np.square(estimates - truth).mean(),
            "squared_error_of_constant": truth.var(),
        }
    curves = recall_by_calls(index, queries, exact_scores)
    for k in KS:
        for target in TARGETS:
            answers = index.search_many(queries, k, target_recall=target)
            reached, calls = recalls(answers, exact_scores, k).mean(), np.mean([hits.calls for hits in answers])
            enough = np.flatnonzero(curves[k] >= reached - 1e-12)
            fixed = int(enough[0]) + 1 if len(enough) else None
            yield {"what": "target", "k": k, "target": target, "recall": reached, "calls": calls, "fixed": fixed}


def recall_by_calls(
    index: anncur.Index, queries: list[anncur.Query], exact_scores: FloatMatrix
) -> dict[int, FloatVector]:
    """The mean recall after every call, for each k: a larger budget goes on where a smaller one ends."""
    answers = index.search_many(queries, max(KS), MOST_CALLS)
    kth_best = -np.sort(-exact_scores, axis=1)
    found: dict[int, FloatVector] = {}
    for k in KS:
        curves = []
        for hits, row in zip(answers, kth_best, strict=True):
            scores = np.concatenate([step.exact_scores for step in hits.trace])
            curves.append(np.minimum(np.cumsum(scores >= row[k - 1]), k) / k)
        found[k] = np.mean(curves, axis=0)
    return found


def show(rows: list[dict[str, Any]]) -> None:
    """Means over seeds."""
    by_cell: dict[tuple[Any, ...], list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        by_cell[row["what"], row["k"], row.get("budget", row.get("target"))].append(row)
    print(f"{'k, budget':>10} {'recall':>7} {'estimate':>9} {'error':>7} {'squared':>8} {'of constant':>12}")
    for (what, k, budget), some in by_cell.items():
        if what == "estimate":
            print(
                f"{f'{k}, {budget}':>10} {mean(some, 'recall'):>7.3f} {mean(some, 'estimate'):>9.3f} "
                f"{mean(some, 'error'):>7.3f} {mean(some, 'squared_error') ** 0.5:>8.3f} "
                f"{mean(some, 'squared_error_of_constant') ** 0.5:>12.3f}"
            )
    print(f"{'k, target':>10} {'recall':>7} {'calls':>7} {'fixed budget of the same recall':>32}")
    for (what, k, target), some in by_cell.items():
        if what == "target":
            fixed = "above 2000" if any(row["fixed"] is None for row in some) else f"{mean(some, 'fixed'):.0f}"
            print(f"{f'{k}, {target}':>10} {mean(some, 'recall'):>7.3f} {mean(some, 'calls'):>7.0f} {fixed:>32}")


def mean(rows: list[dict[str, Any]], name: str) -> float:
    """Over seeds."""
    return float(np.mean([row[name] for row in rows]))


if __name__ == "__main__":
    main()
