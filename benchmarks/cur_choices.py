"""What the defaults of ANNCUR gain on the bundled sample: the choice of anchor items, of the split and of the cutoff.

    python benchmarks/cur_choices.py [--out benchmarks/results/cur_choices.jsonl]

Recall of the scorer's true top k on the sample's 50 test queries, mean of several seeds; half the anchor queries are
left out at random in each, so that the seeds differ in more than the anchors."""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
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
from anncur.evaluation.rows import circumstances
from anncur.factors.cur import PAPER_CUTOFF
from anncur.index.folder import FolderBackend
from anncur.scorers.stored import StoredScorer

CELLS = [(1, 50), (1, 100), (1, 200), (10, 50), (10, 100), (10, 200), (50, 100), (50, 200)]  # k and budget
N_ANCHOR_QUERIES, N_SEEDS = 100, 5
RESULTS = Path(__file__).parent / "results" / "cur_choices.jsonl"


def main() -> None:
    """Print the mean recall of every choice, and write a row for every seed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=RESULTS)
    out: Path = parser.parse_args().out
    out.parent.mkdir(parents=True, exist_ok=True)
    recalls: dict[str, dict[tuple[int, int], list[float]]] = defaultdict(lambda: defaultdict(list))
    with out.open("w") as file:
        for row in rows():
            file.write(json.dumps({**circumstances(), **row}) + "\n")
            recalls[row["choice"]][row["k"], row["budget"]].append(row["recall"])
    print(f"{'k, budget':<42}" + "".join(f"{f'{k}, {budget}':>9}" for k, budget in CELLS))
    for choice, of_cells in recalls.items():
        print(f"{choice:<42}" + "".join(f"{100 * np.mean(of_cells[cell]):>9.1f}" for cell in CELLS))


def rows() -> Iterator[dict[str, Any]]:
    """One row per choice, cell and seed."""
    scorer = stored_scorer()
    items, test_queries, all_anchors = sample_items(), sample_test_queries(), sample_anchor_queries()
    for seed in range(N_SEEDS):
        chosen = np.random.default_rng(seed).permutation(len(all_anchors))[:N_ANCHOR_QUERIES]
        anchor_queries = [all_anchors[position] for position in chosen]
        for anchors in ANCHOR_METHODS:
            index = anncur.Index.build(items, scorer, anchor_queries, anchors=anchors, retrievers=(), seed=seed)
            truth = index.search_many(test_queries, 50, method="exhaustive")
            for k, budget in CELLS:
                for tuning, method in methods(budget).items():
                    found = index.search_many(test_queries, k, budget, method)
                    recall = mean_recall(found, truth, k=k)
                    yield {"choice": f"{anchors}, {tuning}", "k": k, "budget": budget, "seed": seed, "recall": recall}


def stored_scorer() -> StoredScorer:
    """The built-in cross-encoder's scores, of anchor queries from the ready index and of test queries."""
    version = FolderBackend(SAMPLE_INDEX).newest()
    exact_scores = np.vstack([version.vectors().T, sample_test_scores()])
    ids = [item.id for item in version.items()]
    return StoredScorer(exact_scores, [*version.queries(), *sample_test_queries()], ids)


def methods(budget: int) -> dict[str, anncur.Anncur]:
    """The ways to set split and cutoff."""
    return {
        "tuned split and cutoff": anncur.Anncur(),
        "half, tuned cutoff": anncur.Anncur(budget // 2),
        "half, paper's cutoff": anncur.Anncur(budget // 2, PAPER_CUTOFF),
    }


if __name__ == "__main__":
    main()
