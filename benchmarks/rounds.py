"""What fewer rounds cost: recall of posterior with at most n of them.

    python benchmarks/rounds.py [sample|DATA --work FOLDER --scorer maxsim|MODEL] [--anchors 0 20 150] [--rounds 3 4 6]

Each round waits for the scorer, so that a scorer with latency leaves few of them (`search/schedule.py`). Differences
are to the rounds that the method takes by itself, in points, with 95% intervals over test queries and seeds. Data and
options are those of `first_query.py`."""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np

from anncur.arrays import FloatVector
from anncur.cli.frame import show_progress
from anncur.evaluation.recall import recalls
from anncur.evaluation.scoreboard import Trial
from common import new_parser, write_rows
from first_query import BOTH, BUDGETS, KS, SAMPLE, add_matrix_options, read_study, trials

Recalls = dict[tuple[int | None, int, int], list[FloatVector]]  # of test queries, by rounds, budget and k


def main() -> None:
    """Measure every number of anchor queries and rounds, print a table, and write rows."""
    options = parse()
    with show_progress(as_json=False) as progress:
        study = read_study(options, progress)
    trial_of, rows = trials(study, options.work), []
    print(f"{'anchors':>7} {'rounds':>6} " + " ".join(f"{f'k {k}, {budget}':>18}" for k in KS for budget in BUDGETS))
    for n_anchors in options.anchors:
        found: Recalls = {}
        for seed in range(study.sizes.n_seeds):
            measure(trial_of(seed, n_anchors, BOTH), [None, *options.rounds], found)
        for n_rounds in [None, *options.rounds]:
            cells = [compared(found, n_rounds, budget, k) for k in KS for budget in BUDGETS]
            rows += [{"data": study.data, "n_anchor_queries": n_anchors, "max_rounds": n_rounds, **of} for of in cells]
            shown = (f"{of['recall']:>6.1f} {of['difference']:>+5.1f} ±{of['error']:<4.1f}" for of in cells)
            print(f"{n_anchors:>7} {n_rounds or 'all':>6} " + " ".join(shown))
    write_rows(options.out, rows)


def parse() -> argparse.Namespace:
    """What is asked for."""
    parser = new_parser(__doc__, "rounds.jsonl")
    parser.add_argument("data", nargs="?", default=SAMPLE)
    add_matrix_options(parser)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--anchors", type=int, nargs="+", default=[0, 20, 150])
    parser.add_argument("--rounds", type=int, nargs="+", default=[3, 4, 6])
    return parser.parse_args()


def measure(trial: Trial, rounds: list[int | None], found: Recalls) -> None:
    """Add the recall of each test query, for each number of rounds, budget and k."""
    queries = [trial.world.queries[place] for place in trial.split.tests]
    exact_scores = np.asarray(trial.world.exact_scores)[trial.split.tests]
    for n_rounds in rounds:
        for budget in BUDGETS:
            answers = trial.index.search_many(queries, max(KS), budget, max_rounds=n_rounds, progress=False)
            for k in KS:
                found.setdefault((n_rounds, budget, k), []).append(recalls(answers, exact_scores, k))


def compared(found: Recalls, n_rounds: int | None, budget: int, k: int) -> dict[str, Any]:
    """One cell: recall, and its difference to that of all rounds."""
    recall, free = (100 * np.concatenate(found[rounds, budget, k]) for rounds in (n_rounds, None))
    error = 1.96 * (recall - free).std(ddof=1) / np.sqrt(len(recall))
    return {"k": k, "budget": budget, "recall": recall.mean(), "difference": (recall - free).mean(), "error": error}


if __name__ == "__main__":
    main()
