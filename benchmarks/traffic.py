"""What an index without anchor queries learns from its searches, on the bundled sample.

    python benchmarks/traffic.py [--out benchmarks/results/traffic.jsonl]

The sample's anchor queries come in as searches of 100 calls each; after some of them the index learns. Recall of the
scorer's true top 10 on the 50 test queries, against an index that spent as many calls on full rows of anchor queries,
and with 20 anchor queries before and after searches. Mean of several seeds, which are orders of the queries."""

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
from anncur.datasets.sample import sample_anchor_queries, sample_items, sample_test_queries
from anncur.evaluation.recall import mean_recall
from circumstances import circumstances
from cur_choices import stored_scorer

K, SEARCH_BUDGET, BUDGETS = 10, 100, (50, 100, 200)
STAGES = (0, 50, 150)  # searches
EXPLORES = (0.0, 0.05, 0.2)
N_ANCHORS = 20
N_SEEDS = 3
RESULTS = Path(__file__).parent / "results" / "traffic.jsonl"


def main() -> None:
    """Print the mean recall of every stage, and write a row for every seed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--seeds", type=int, default=N_SEEDS)
    arguments = parser.parse_args()
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    recalls: dict[str, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    with arguments.out.open("w") as file:
        for row in rows(arguments.seeds):
            file.write(json.dumps({**circumstances(), **row}) + "\n")
            file.flush()
            recalls[f"{row['way']}, {row['n_searches']} searches"][row["budget"]].append(row["recall"])
    print(f"{'budget':<48}" + "".join(f"{budget:>8}" for budget in BUDGETS))
    for way, by_budget in recalls.items():
        print(f"{way:<48}" + "".join(f"{100 * np.mean(by_budget[budget]):>8.1f}" for budget in BUDGETS))


def rows(n_seeds: int) -> Iterator[dict[str, Any]]:
    """One row per way, number of searches, budget and seed."""
    for seed in range(n_seeds):
        all_queries = sample_anchor_queries()
        queries = [all_queries[position] for position in np.random.default_rng(seed).permutation(len(all_queries))]
        for explore in EXPLORES:
            for n_searches, recalls in learning([], queries, STAGES, explore):
                yield from told(recalls, f"searches, explore {explore}", n_searches, seed)
        for n_searches in STAGES[1:]:
            n_rows = n_searches * SEARCH_BUDGET // len(sample_items())
            for _, recalls in learning(queries[:n_rows], [], (0,)):
                yield from told(recalls, "full rows of as many calls", n_searches, seed)
        for n_searches, recalls in learning(queries[:N_ANCHORS], queries[N_ANCHORS:], (0, len(queries) - N_ANCHORS)):
            yield from told(recalls, f"{N_ANCHORS} anchor queries", n_searches, seed)


def learning(
    anchor_queries: Sequence[anncur.Query],
    queries: Sequence[anncur.Query],
    stages: Sequence[int],
    explore: float | None = None,
) -> Iterator[tuple[int, dict[int, float]]]:
    """Recall by budget after so many searches; those that measure don't explore, and aren't learnt from."""
    scorer, test_queries = stored_scorer(), sample_test_queries()
    with TemporaryDirectory() as folder:
        path = Path(folder) / "sample.anncur"
        index = anncur.Index.build(
            path, scorer, sample_items(), anchor_queries, keep_traffic=len(queries), explore=explore
        )
        truth = anncur.Index.open(path, scorer).search_many(test_queries, K, method="exhaustive")
        for before, n_searches in pairwise([0, *stages]):
            if n_searches:
                index.search_many(queries[before:n_searches], K, SEARCH_BUDGET)
                index.learn()
            measuring = anncur.Index.open(path, scorer)
            found = {budget: measuring.search_many(test_queries, K, budget) for budget in BUDGETS}
            yield n_searches, {budget: mean_recall(hits, truth, k=K) for budget, hits in found.items()}


def told(recalls: dict[int, float], way: str, n_searches: int, seed: int) -> Iterator[dict[str, Any]]:
    """Rows of one measurement."""
    for budget, recall in recalls.items():
        yield {"way": way, "n_searches": n_searches, "k": K, "budget": budget, "seed": seed, "recall": recall}


if __name__ == "__main__":
    main()
