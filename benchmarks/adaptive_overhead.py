"""What adaptive search costs beyond the scorer's own time: posterior against ADACUR solved from scratch, and against as
many bare products with top-k as there are rounds.

    python benchmarks/adaptive_overhead.py [--profile]

All sides take turns in one process, so a noisy machine disturbs all of them; the ratios of the medians are what counts.
The built-in cross-encoder's own time for as many pairs is measured on the bundled sample, in the same run."""

from __future__ import annotations

import cProfile
import pstats
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import anncur
from anncur.datasets.sample import sample_items, sample_test_queries
from common import bare_search, new_parser, overhead, take_turns, write_rows

N_ITEMS, N_ANCHORS, BUDGET, N_ROUNDS, K = 10_000, 500, 200, 10, 10
AT_ROUND = BUDGET // N_ROUNDS
RANK, N_TESTS, AT_ONCE = 120, 64, 64
N_TURNS = 7


class TimedScorer:
    """A matrix of scores whose components shrink as one over their number; adds up the time that it took to answer."""

    fingerprint = "timed"

    def __init__(self) -> None:
        rng = np.random.default_rng(0)
        n_queries = N_ANCHORS + N_TESTS
        left = rng.normal(size=(n_queries, RANK)) / np.arange(1, RANK + 1)
        self.exact_scores = left @ rng.normal(size=(RANK, N_ITEMS)) + 0.05 * rng.normal(size=(n_queries, N_ITEMS))
        self.seconds = 0.0

    def score(self, query: anncur.Query, items: Sequence[anncur.Item]) -> Any:
        """By the numbers that stand in the ids."""
        started = time.perf_counter()
        scores = self.exact_scores[int(query.id), [int(item.id) for item in items]]
        self.seconds += time.perf_counter() - started
        return scores


def main() -> None:
    """Measure one query at a time and blocks of 64, print a table, and write rows."""
    parser = new_parser(__doc__, "adaptive_overhead.jsonl")
    parser.add_argument("--profile", action="store_true", help="show where the time of posterior goes")
    arguments = parser.parse_args()
    scorer = TimedScorer()
    items, queries = texts(N_ITEMS, "item"), texts(N_ANCHORS + N_TESTS, "query")
    index = anncur.Index.build(
        [anncur.Item(str(number), text) for number, text in enumerate(items)],
        scorer,
        [anncur.Query(text, str(number)) for number, text in enumerate(queries[:N_ANCHORS])],
    )
    tests = [anncur.Query(text, str(N_ANCHORS + number)) for number, text in enumerate(queries[N_ANCHORS:])]
    if arguments.profile:
        show_profile(index, tests)
    measured = rows(scorer, index, tests)
    write_rows(arguments.out, measured)
    for row in measured:
        print(f"{row['way']:<46} {row['at_once']:>3} at once {row['ms']:>9.2f} ms per query")


def rows(scorer: TimedScorer, index: anncur.Index, tests: list[anncur.Query]) -> list[dict[str, Any]]:
    """Milliseconds per query of every method, and of what it is compared with."""
    methods = {
        f"posterior, {N_ROUNDS} rounds": anncur.Posterior(n_initial=AT_ROUND, min_round_size=AT_ROUND, growth=0.0),
        "posterior, its own rounds": anncur.Posterior(),
        f"adacur, {N_ROUNDS} rounds": anncur.Adacur(),
    }
    anchor_scores = scorer.exact_scores[:N_ANCHORS].astype(np.float32)
    item_vectors = np.ascontiguousarray(anchor_scores.T)
    found = []
    for n_queries in (1, AT_ONCE):
        variants: dict[str, Callable[[], float]] = {
            name: lambda n=n_queries, method=method: overhead(
                lambda: index.search_many(tests[:n], K, BUDGET, method=method), scorer
            )
            for name, method in methods.items()
        }
        variants[f"{N_ROUNDS} bare products with top-k"] = lambda n=n_queries: bare(item_vectors, n)
        if n_queries == 1:  # it has no blocks: every query's anchors are its own
            variants["adacur from scratch"] = lambda: from_scratch(anchor_scores, scorer.exact_scores[N_ANCHORS])
        else:
            variants["built-in cross-encoder itself"] = built_in
        for name, seconds in take_turns(variants, n_turns=N_TURNS).items():
            shared = {"way": name, "at_once": n_queries, "n_items": N_ITEMS, "n_anchors": N_ANCHORS, "budget": BUDGET}
            per_query = seconds / (1 if name.startswith("built-in") else n_queries)
            found.append({**shared, "ms": 1000 * per_query})
    return found


def bare(item_vectors: np.ndarray, n_queries: int) -> float:
    """Seconds of one product and top-k a round."""
    query_vectors = np.random.default_rng(1).normal(size=(n_queries, item_vectors.shape[1])).astype(np.float32)
    started = time.perf_counter()
    for _ in range(N_ROUNDS):
        bare_search(item_vectors, query_vectors, AT_ROUND)
    return time.perf_counter() - started


def from_scratch(anchor_scores: np.ndarray, exact_scores: np.ndarray) -> float:
    """Seconds of ADACUR for one query with a fresh pseudo-inverse in each round."""
    started = time.perf_counter()
    scored = np.random.default_rng(0).choice(N_ITEMS, AT_ROUND, replace=False)
    for _ in range(N_ROUNDS - 1):
        query_vector = exact_scores[scored] @ np.linalg.pinv(anchor_scores[:, scored])
        guesses = query_vector @ anchor_scores
        guesses[scored] = -np.inf
        scored = np.concatenate([scored, np.argpartition(guesses, -AT_ROUND)[-AT_ROUND:]])
    return time.perf_counter() - started


def built_in() -> float:
    """Seconds that the built-in cross-encoder takes for one query's pairs."""
    scorer = anncur.load_scorer("builtin")
    query, items = sample_test_queries()[0], list(sample_items())[:BUDGET]
    scorer.score(query, items[:8])  # its first request reads the model
    started = time.perf_counter()
    scorer.score(query, items)
    return time.perf_counter() - started


def texts(n: int, kind: str) -> list[str]:
    """Different texts of words that are as rare as words are."""
    rng = np.random.default_rng(len(kind))
    return [f"{kind}{number} " + " ".join(f"w{word}" for word in rng.zipf(1.3, size=12)) for number in range(n)]


def show_profile(index: anncur.Index, tests: list[anncur.Query]) -> None:
    """Where the time of a block goes, the costliest functions first."""
    index.search_many(tests, K, BUDGET)
    with cProfile.Profile() as profile:
        index.search_many(tests, K, BUDGET)
    pstats.Stats(profile).sort_stats("tottime").print_stats(14)


if __name__ == "__main__":
    main()
