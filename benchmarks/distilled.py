"""Dual encoders as first stages: how much of the cross-encoder's true top k is among their best items.

    python benchmarks/distilled.py MODEL…

MODEL is the folder of a dual encoder, trained on links or distilled from the bundled index (`anncur distill
src/anncur/assets/sample/animals.anncur`); the untouched MiniLM and the lexical retrievers stand beside them. The world
is the bundled sample, 2,000 animals, and the scorer the built-in cross-encoder; its 50 test queries were in no
training."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from anncur.datasets.sample import sample_items, sample_test_queries, sample_test_scores
from anncur.evaluation.protocol import points
from anncur.ranking import top_k
from anncur.retrievers.loading import load_retriever
from common import new_parser, write_rows

POINTS = points(budgets=(50, 100, 200))
OTHERS = ("tfidf", "bm25", "minilm")


def main() -> None:
    """Print a table, and write a row for every model, k and budget."""
    parser = new_parser(__doc__, "distilled.jsonl")
    parser.add_argument("models", nargs="*", type=Path)
    options = parser.parse_args()
    print(f"{'k, budget':<16}" + "".join(f"{f'{k}, {budget}':>10}" for k, budget in POINTS))
    rows = []
    for source in (*OTHERS, *map(str, options.models)):
        found = measure(source)
        rows += found
        print(f"{Path(source).name:<16}" + "".join(f"{100 * row['recall']:>10.1f}" for row in found), flush=True)
    write_rows(options.out, rows)


def measure(source: str) -> list[dict[str, Any]]:
    """A row for every k and budget: the mean share of the true top k among the retriever's best."""
    retriever = load_retriever(source)
    retriever.fit(sample_items())
    cheap, exact = retriever.scores(sample_test_queries()), sample_test_scores()
    pairs = list(zip(cheap, exact, strict=True))
    return [
        {
            "model": Path(source).name,
            "k": k,
            "budget": budget,
            "recall": float(np.mean([np.isin(top_k(true, k), top_k(row, budget)).mean() for row, true in pairs])),
        }
        for k, budget in POINTS
    ]


if __name__ == "__main__":
    main()
