"""What the defaults of ANNCUR gain on the bundled sample: the choice of anchor items, of the split and of the cutoff.

    python benchmarks/cur_choices.py

Recall of the scorer's true top k on the sample's 50 test queries, mean of several seeds; half the anchor queries are
left out at random in each, so that the seeds differ in more than the anchors."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

import anncur
from anncur.anchors import ANCHOR_METHODS
from anncur.datasets.sample import (
    SAMPLE_INDEX,
    sample_anchor_queries,
    sample_items,
    sample_test_queries,
    sample_test_scores,
)
from anncur.evaluation.recall import mean_recall
from anncur.factors.cur import PAPER_CUTOFF
from anncur.scorers.stored import StoredScorer
from common import new_parser, write_rows

POINTS = [(1, 50), (1, 100), (1, 200), (10, 50), (10, 100), (10, 200), (50, 100), (50, 200)]  # k and budget
N_ANCHOR_QUERIES, N_SEEDS = 100, 5


def main() -> None:
    """Print the mean recall of every choice, and write a row for every seed."""
    out = new_parser(__doc__, "cur_choices.jsonl").parse_args().out
    measured = list(rows())
    write_rows(out, measured)
    recalls: dict[str, dict[tuple[int, int], list[float]]] = {}
    for row in measured:
        recalls.setdefault(row["choice"], {}).setdefault((row["k"], row["budget"]), []).append(row["recall"])
    print(f"{'k, budget':<42}" + "".join(f"{f'{k}, {budget}':>9}" for k, budget in POINTS))
    for choice, of_points in recalls.items():
        print(f"{choice:<42}" + "".join(f"{100 * np.mean(of_points[point]):>9.1f}" for point in POINTS))


def rows() -> Iterator[dict[str, Any]]:
    """One row per choice, seed, k and budget."""
    scorer = stored_scorer()
    items, test_queries, all_anchors = sample_items(), sample_test_queries(), sample_anchor_queries()
    for seed in range(N_SEEDS):
        chosen = np.random.default_rng(seed).permutation(len(all_anchors))[:N_ANCHOR_QUERIES]
        anchor_queries = [all_anchors[position] for position in chosen]
        for anchors in ANCHOR_METHODS:
            index = anncur.Index.build(items, scorer, anchor_queries, anchor_method=anchors, retrievers=(), seed=seed)
            truth = index.search_many(test_queries, 50, method="exhaustive")
            for k, budget in POINTS:
                for tuning, method in methods(budget).items():
                    found = index.search_many(test_queries, k, budget, method)
                    recall = mean_recall(found, truth, k=k)
                    yield {"choice": f"{anchors}, {tuning}", "k": k, "budget": budget, "seed": seed, "recall": recall}


def stored_scorer() -> StoredScorer:
    """The built-in cross-encoder's scores, of anchor queries from the ready index and of test queries."""
    index = anncur.Index.open(SAMPLE_INDEX)
    exact_scores = np.vstack([index.anchor_scores().T, sample_test_scores()])
    return StoredScorer(exact_scores, [*index.anchor_queries, *sample_test_queries()], [item.id for item in index])


def methods(budget: int) -> dict[str, anncur.Anncur]:
    """The ways to set split and cutoff."""
    return {
        "tuned split and cutoff": anncur.Anncur(),
        "half, tuned cutoff": anncur.Anncur(budget // 2),
        "half, paper's cutoff": anncur.Anncur(budget // 2, PAPER_CUTOFF),
    }


if __name__ == "__main__":
    main()
