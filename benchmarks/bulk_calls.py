"""How long searches take with scorers that wait: a GPU, an endpoint, and the built-in scorer on this CPU.

    python benchmarks/bulk_calls.py [--label before] [--parts gpu endpoint builtin]

The GPU takes 10 ms and 0.05 ms for each pair of a request, and the endpoint 200 ms and 2 ms, for at most 20 pairs and 8
requests at once; both sleep, and answer with stored scores of the bundled sample. Re-ranking the same number of pairs
is what they are compared with, in the same run. To compare two versions, run this with PYTHONPATH set to the source of
the earlier one and `--label before`; an earlier version has no requests at once."""

from __future__ import annotations

import inspect
import time
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

import anncur
from anncur.datasets.sample import (
    SAMPLE_INDEX,
    sample_anchor_queries,
    sample_items,
    sample_test_queries,
    sample_test_scores,
)
from anncur.evaluation.recall import recalls
from anncur.scorers.stored import StoredScorer
from common import new_parser, take_turns, write_rows

K, N_TURNS = 10, 3
WAITING = {"gpu": (0.010, 0.00005, {"batch_size": 128}), "endpoint": (0.2, 0.002, {"batch_size": 20, "concurrency": 8})}
N_QUERIES, BUDGETS = {"gpu": 64, "endpoint": 8, "builtin": 24}, {"gpu": 200, "endpoint": 100, "builtin": 100}


class Waiting:
    """Answers with stored scores, after as long as a request takes."""

    def __init__(self, stored: StoredScorer, queries: Sequence[anncur.Query], latency: float, per_pair: float) -> None:
        self._stored, self._latency, self._per_pair = stored, latency, per_pair
        self._queries = {query.marked_text: query for query in queries}
        self._items = {item.full_text: item for item in sample_items()}
        self.fingerprint = stored.fingerprint
        self.n_requests = 0

    def __call__(self, pairs: list[tuple[str, str]]) -> list[float]:
        """The stored scores of these pairs."""
        self.n_requests += 1
        time.sleep(self._latency + self._per_pair * len(pairs))
        return [float(self._stored.score(self._queries[query], [self._items[item]])[0]) for query, item in pairs]


def main() -> None:
    """Measure, print a table, and write rows."""
    parser = new_parser(__doc__, "bulk_calls.jsonl")
    parser.add_argument("--label", default="", help="a name for the version that is measured")
    parser.add_argument("--parts", nargs="+", default=list(N_QUERIES), choices=list(N_QUERIES))
    arguments = parser.parse_args()
    rows = []
    columns = ("queries", "pairs", "method", "s", "rounds", "requests", "ratio", "recall")
    print(f"{'scorer':<9}", *(f"{column:>9}" for column in columns))
    for part in arguments.parts:
        for row in measure(part):
            rows.append({"label": arguments.label, **row})
            shown = [row["n_queries"], row["budget"], row["method"], f"{row['seconds']:.3f}"]
            shown += [row["n_rounds"], row["n_requests"], f"{row['ratio']:.2f}", f"{row['recall']:.1%}"]
            print(f"{row['scorer']:<9}", *(f"{cell:>9}" for cell in shown))
    write_rows(arguments.out, rows)


def measure(part: str) -> list[dict[str, Any]]:
    """Rows of all methods, for one query and for many."""
    world = World(part)
    many = [world.queries[place % len(world.queries)] for place in range(N_QUERIES[part])]  # some come twice
    return [row for asked in (many[:1], many) for row in world.measure(asked)]


class World:
    """The sample's index with one of the scorers."""

    def __init__(self, part: str) -> None:
        self._part, self._budget = part, BUDGETS[part]
        self.queries, self._exact_scores = sample_test_queries(), np.asarray(sample_test_scores())
        self._scorer: Waiting | None = None
        if part == "builtin":
            self._index = anncur.Index.open(SAMPLE_INDEX)
        else:
            latency, per_pair, rules = WAITING[part]
            self._scorer = Waiting(*_stored(), latency, per_pair)
            self._index = anncur.Index.open(SAMPLE_INDEX, _loaded(self._scorer, rules))

    def measure(self, asked: Sequence[anncur.Query]) -> list[dict[str, Any]]:
        """A row for each method, timed in turns."""
        methods: dict[str, Any] = {"re-rank": anncur.Rerank("bm25"), "posterior": "posterior"}
        answers: dict[str, list[anncur.Hits]] = {}
        n_requests: dict[str, int] = {}

        def search(name: str) -> float:
            before, started = self._n_requests, time.perf_counter()
            answers[name] = self._index.search_many(asked, K, self._budget, methods[name], progress=False)
            n_requests[name] = self._n_requests - before
            return time.perf_counter() - started

        seconds = take_turns({name: partial(search, name) for name in methods}, n_turns=N_TURNS)
        true = self._exact_scores[[self.queries.index(query) for query in asked]]
        return [
            {
                "scorer": self._part,
                "n_queries": len(asked),
                "budget": self._budget,
                "method": name,
                "seconds": seconds[name],
                "n_rounds": answers[name][0].n_rounds,
                "n_requests": n_requests[name],
                "ratio": seconds[name] / seconds["re-rank"],
                "pairs_per_second": len(asked) * self._budget / seconds[name],
                "recall": float(recalls(answers[name], true, K).mean()),
            }
            for name in methods
        ]

    @property
    def _n_requests(self) -> int:
        return self._scorer.n_requests if self._scorer else 0


def _stored() -> tuple[StoredScorer, list[anncur.Query]]:
    """All scores of the sample: those of the anchor queries too, because an index checks whether a scorer changed."""
    queries = [*sample_anchor_queries(), *sample_test_queries()]
    exact_scores = np.concatenate([anncur.Index.open(SAMPLE_INDEX).anchor_scores().T, sample_test_scores()])
    return StoredScorer(exact_scores, queries, [item.id for item in sample_items()]), queries


def _loaded(scorer: Waiting, rules: dict[str, int]) -> anncur.GuardedScorer:
    """With the rules that this version knows, and the fingerprint of the scorer that the sample was scored with."""
    known = inspect.signature(anncur.load_scorer).parameters
    fingerprint = anncur.Index.open(SAMPLE_INDEX).info.scorer
    return anncur.load_scorer(
        scorer, fingerprint=fingerprint, **{name: value for name, value in rules.items() if name in known}
    )


if __name__ == "__main__":
    main()
