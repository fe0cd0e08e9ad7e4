"""Score the bundled sample with the built-in cross-encoder: its ready index, and exact scores of the test queries.

    python scripts/make_sample_scores.py [--out FOLDER]

Reads the texts in src/anncur/assets/sample/ and src/anncur/assets/builtin.onnx, writes into src/anncur/assets/sample/.
Can be stopped and run again; with another model or other texts, delete the old index first."""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

import numpy as np

import anncur
from anncur.cli.frame import show_progress
from anncur.datasets.sample import SAMPLE, SAMPLE_INDEX, sample_anchor_queries, sample_items, sample_test_queries
from anncur.storage.files import LOCK, LOCKS, WRITER


def main() -> None:
    """Write the index and the scores."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=SAMPLE)
    out: Path = parser.parse_args().out
    index = out / SAMPLE_INDEX.name
    scorer = anncur.load_scorer("builtin")
    items, queries = sample_items(), sample_test_queries()
    with show_progress(as_json=False) as progress:
        anncur.Index.build(
            items,
            scorer,
            sample_anchor_queries(),
            path=index,
            retrievers=("bm25", "tfidf"),
            scorer_name="builtin",
            progress=progress,
        ).gc()
        rows = []
        for number, query in enumerate(queries):
            rows.append(scorer.score(query, items))
            progress("test queries", number + 1, len(queries))
    np.save(out / "test_scores.npy", np.stack(rows).astype(np.float32))
    for name in (LOCK, WRITER):
        (index / name).unlink(missing_ok=True)
    shutil.rmtree(index / LOCKS, ignore_errors=True)


if __name__ == "__main__":
    main()
