"""Score the bundled sample with the built-in cross-encoder: its ready index, and exact scores of the test queries.

    python scripts/make_sample_scores.py

Reads the texts in src/anncur/assets/sample/ and src/anncur/assets/builtin.onnx. Can be stopped and run again; with
another model or other texts, delete the old index first."""

from __future__ import annotations

import numpy as np

import anncur
from anncur.cli.frame import show_progress
from anncur.datasets.sample import SAMPLE, SAMPLE_INDEX, sample_anchor_queries, sample_items, sample_test_queries


def main() -> None:
    """Write the index and the scores."""
    scorer = anncur.load_scorer("builtin")
    items, queries = sample_items(), sample_test_queries()
    with show_progress(as_json=False) as progress:
        anncur.Index.build(
            items,
            scorer,
            sample_anchor_queries(),
            path=SAMPLE_INDEX,
            retrievers=("bm25", "tfidf"),
            scorer_name="builtin",
            progress=progress,
        ).gc()
        rows = []
        for number, query in enumerate(queries):
            rows.append(scorer.score(query, items))
            progress("test queries", number + 1, len(queries))
    np.save(SAMPLE / "test_scores.npy", np.stack(rows).astype(np.float32))
    (SAMPLE_INDEX / "lock").unlink(missing_ok=True)


if __name__ == "__main__":
    main()
