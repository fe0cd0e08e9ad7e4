"""What a search with ANNCUR costs beyond the scorer's own time, against the bare product and top-k on the same data.

    python benchmarks/search_overhead.py [--items 10000 100000 1000000]

Both sides run alternately in one process, so a noisy machine disturbs both; the ratio of the medians is what counts.
Peak memory is what is allocated on top of the vectors, measured in runs of its own, without what the answers keep."""

from __future__ import annotations

import time
import tracemalloc
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import anncur
from anncur.index.scorer import IndexScorer
from anncur.index.searching import QueryLogSettings
from anncur.index.snapshot import Snapshot, make_snapshot
from anncur.scorers.stability import StabilityWatch
from anncur.search.splits import SplitTable
from anncur.tuning.derive import Derived
from common import bare_search, new_parser, overhead, take_turns, write_rows

WIDTH, BUDGET, N_ANCHOR_ITEMS, K = 200, 200, 100, 10


class TimedScorer:
    """Answers at once with a fixed number per item, and knows how long that took."""

    fingerprint = "timed"

    def __init__(self, n_items: int) -> None:
        self._scores = np.random.default_rng(1).normal(size=n_items)
        self.seconds = 0.0

    def score(self, query: anncur.Query, items: Sequence[anncur.Item]) -> Any:
        """The items' numbers, the same for every query."""
        started = time.perf_counter()
        scores = self._scores[[int(item.id) for item in items]]
        self.seconds += time.perf_counter() - started
        return scores


def main() -> None:
    """Measure every size, print a table, and write rows."""
    parser = new_parser(__doc__, "search_overhead.jsonl")
    parser.add_argument("--items", type=int, nargs="+", default=[10_000, 100_000, 1_000_000])
    arguments = parser.parse_args()
    print(f"{'items':>9} {'queries':>7} {'bare ms':>9} {'overhead ms':>11} {'ratio':>6} {'peak MB':>8}")
    rows = []
    for n_items in arguments.items:
        for row in measure(n_items):
            rows.append(row)
            print(
                f"{row['n_items']:>9,} {row['n_queries']:>7} {row['bare_ms']:>9.2f} {row['overhead_ms']:>11.2f} "
                f"{row['ratio']:>6.2f} {row['peak_mb']:>8.1f}"
            )
    write_rows(arguments.out, rows)


def measure(n_items: int) -> list[dict[str, Any]]:
    """Rows for one size: a single query, a block of 64, and memory for several blocks."""
    scorer = TimedScorer(n_items)
    index, item_vectors = make_index(scorer, n_items)
    queries = [anncur.Query(f"query {number}") for number in range(256)]
    query_vectors = np.random.default_rng(2).normal(size=(64, WIDTH)).astype(np.float32)
    rows = []
    for n_queries in (1, 64, 256):
        n_runs = max(3, min(30, 3_000_000 // (n_items * n_queries)))
        variants: dict[str, Callable[[], float]] = {
            "bare": lambda n=n_queries: repeat_bare(item_vectors, query_vectors, n),
            "ours": lambda n=n_queries: overhead(lambda: search(index, queries[:n]), scorer),
        }
        bare, ours = take_turns(variants, n_turns=n_runs).values()
        rows.append(
            {
                "n_items": n_items,
                "n_queries": n_queries,
                "bare_ms": 1000 * bare / n_queries,
                "overhead_ms": 1000 * ours / n_queries,
                "ratio": ours / bare,
                "peak_mb": peak_memory(index, queries[:n_queries]) / 2**20,
                "width": WIDTH,
                "budget": BUDGET,
                "seed": 0,
            }
        )
    return rows


class RandomBackend:
    """An index over random vectors, without the cost of scoring anchors."""

    def __init__(self, n_items: int) -> None:
        rng = np.random.default_rng(0)
        self.item_vectors = rng.normal(size=(n_items, WIDTH)).astype(np.float32)
        self._items = anncur.Corpus(f"item {number}" for number in range(n_items))

    def load(self) -> Snapshot:
        """The only version there is."""
        no_splits = SplitTable([], np.empty((0, 0, 0), dtype=np.int16))  # so half of the budget goes to anchors
        derived = Derived(np.empty(0, dtype=np.int64), no_splits)
        return make_snapshot(
            1, self._items, self.item_vectors, anchor_queries=(), derived=derived, retrievers={}, seed=0
        )


def make_index(scorer: TimedScorer, n_items: int) -> tuple[anncur.Index, np.ndarray]:
    """An index, and its vectors."""
    backend = RandomBackend(n_items)
    index = anncur.Index(backend, IndexScorer(scorer), watch=StabilityWatch(), log_settings=QueryLogSettings())
    return index, backend.item_vectors


def repeat_bare(item_vectors: np.ndarray, query_vectors: np.ndarray, n_queries: int) -> float:
    """Seconds of bare products with top-k, in blocks of 64."""
    started = time.perf_counter()
    for start in range(0, n_queries, 64):
        bare_search(item_vectors, query_vectors[: min(64, n_queries - start)], BUDGET - N_ANCHOR_ITEMS)
    return time.perf_counter() - started


def search(index: anncur.Index, queries: list[anncur.Query]) -> list[anncur.Hits]:
    """What is measured."""
    return index.search_many(queries, K, BUDGET, method="anncur")


def peak_memory(index: anncur.Index, queries: list[anncur.Query]) -> int:
    """Bytes at the highest point of a search, without what its answers keep."""
    tracemalloc.start()
    answers = search(index, queries)
    kept, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(answers) == len(queries)
    return peak - kept


if __name__ == "__main__":
    main()
