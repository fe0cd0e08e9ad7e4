"""What fewer rounds cost: recall of posterior with at most n of them, on the bundled sample.

    python benchmarks/rounds.py [--anchors 0 20 150] [--rounds 2 3 4 6]

Each round waits for the scorer, so that a scorer with latency leaves few of them (`search/schedule.py`). Differences
are to the rounds that the method takes by itself, in points, with 95% intervals over test queries."""

from __future__ import annotations

from typing import Any

import numpy as np

import anncur
from anncur.datasets.sample import SAMPLE_INDEX, load_sample, sample_test_scores
from anncur.evaluation.recall import recalls
from anncur.scorers.stored import StoredScorer
from common import new_parser, write_rows

KS, BUDGETS = (1, 10, 50), (50, 100, 200)


def main() -> None:
    """Measure every number of anchor queries and rounds, print a table, and write rows."""
    parser = new_parser(__doc__, "rounds.jsonl")
    parser.add_argument("--anchors", type=int, nargs="+", default=[0, 20, 150])
    parser.add_argument("--rounds", type=int, nargs="+", default=[2, 3, 4, 6])
    arguments = parser.parse_args()
    rows: list[dict[str, Any]] = []
    print(f"{'anchors':>7} {'rounds':>6} " + " ".join(f"{f'k {k}, {budget}':>18}" for k in KS for budget in BUDGETS))
    for n_anchors in arguments.anchors:
        index = make_index(n_anchors)
        free = {budget: measured(index, budget, None) for budget in BUDGETS}
        for n_rounds in [None, *arguments.rounds]:
            found = {budget: measured(index, budget, n_rounds) for budget in BUDGETS}
            cells = []
            for k in KS:
                for budget in BUDGETS:
                    difference = 100 * (found[budget][k] - free[budget][k])
                    error = 1.96 * difference.std(ddof=1) / np.sqrt(len(difference))
                    recall = 100 * found[budget][k].mean()
                    cell = {"k": k, "budget": budget, "recall": recall, "difference": difference.mean(), "error": error}
                    rows.append({"n_anchor_queries": n_anchors, "max_rounds": n_rounds, **cell})
                    cells.append(f"{recall:>6.1f} {difference.mean():>+5.1f} ±{error:<4.1f}")
            print(f"{n_anchors:>7} {n_rounds or 'all':>6} " + " ".join(cells))
    write_rows(arguments.out, rows)


def make_index(n_anchors: int) -> anncur.Index:
    """Of the sample, with some of its anchor queries."""
    sample = load_sample()
    queries = [*sample.anchor_queries, *sample.test_queries]
    exact_scores = np.concatenate([anncur.Index.open(SAMPLE_INDEX).anchor_scores().T, sample_test_scores()])
    scorer = StoredScorer(exact_scores, queries, [item.id for item in sample.items])
    return anncur.Index.build(sample.items, scorer, sample.anchor_queries[:n_anchors], progress=False)


def measured(index: anncur.Index, budget: int, max_rounds: int | None) -> dict[int, np.ndarray]:
    """The recall of each test query, for each k."""
    queries, exact_scores = load_sample().test_queries, np.asarray(sample_test_scores())
    answers = index.search_many(queries, max(KS), budget, max_rounds=max_rounds, progress=False)
    return {k: recalls(answers, exact_scores, k) for k in KS}


if __name__ == "__main__":
    main()
