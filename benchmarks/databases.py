"""Rounds of a search whose items are ranked by a vector database, beside exact ranking and faiss.

    python benchmarks/databases.py [--items 1000000] [--engines exact faiss:ivf pgvector milvus]

Items are those of `scale.py`: synthetic, with the spectrum of the bundled sample, and scores under 200 anchor queries
as vectors. A search takes 15 rounds of 30 pairs. Its time is divided into the scorer's, ours, the database's own, and
the way there and back, which is the network (here the loopback interface or a Unix socket) and the driver: what a
request for as many keys takes that ranks nothing. The rest of a request is the database's own. Servers are those of
`tests/servers.py`, as they come, and end with the benchmark."""

from __future__ import annotations

import contextlib
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from anncur.arrays import FloatMatrix, Positions
from anncur.candidates import Candidates
from anncur.factors.items import ItemModel, centred_items, item_model
from anncur.search.posterior_search import PosteriorSearch
from anncur.search.prior import QueryPrior
from anncur.threads import one_blas_thread
from anncur.vectors.base import VectorIndex
from anncur.vectors.database import DatabaseVectors, Keys
from anncur.vectors.engines import VectorEngine
from anncur.vectors.pgvector import PgvectorTable
from common import new_parser, write_rows
from scale import N_ANCHORS, Synthetic, hidden_vectors

sys.path.append(str(Path(__file__).parent.parent / "tests"))
from servers import milvus_server, postgres_server

N_ROUNDS, ROUND_SIZE, N_QUERIES, BLOCK, K = 15, 30, 20, 16, 10
N_TURNS = 11
ENGINES = ("exact", "faiss", "faiss:ivf", "pgvector", "milvus")
SERVERS = {"pgvector": postgres_server, "milvus": milvus_server}


@dataclass
class Clock:
    """Seconds of the parts of a search, and the requests to a database, of which some are kept."""

    ranking: float = 0.0
    scoring: float = 0.0
    requests: list[tuple[FloatMatrix, int, Sequence[Keys], int]] = field(default_factory=list)


def main() -> None:
    """Measure each engine, print and write rows."""
    parser = new_parser(__doc__, "databases.jsonl")
    parser.add_argument("--items", type=int, default=1_000_000)
    parser.add_argument("--engines", nargs="+", default=list(ENGINES))
    options = parser.parse_args()
    items, queries = hidden_vectors(options.items)
    scorer = Synthetic(items, queries)
    model = fitted_model(scorer)
    rows: list[dict[str, Any]] = []
    for name in options.engines:
        with engine_at(name) as engine:
            rows.append({"seed": 0, "n_items": options.items, "width": model.width, **measure(engine, model, scorer)})
        rows[-1]["engine"] = name
        print(json.dumps(rows[-1]), flush=True)
        write_rows(options.out, rows)


@contextlib.contextmanager
def engine_at(name: str) -> Iterator[VectorEngine]:
    """An engine by name; with a server of its own where it needs one."""
    if name not in SERVERS:
        yield VectorEngine(name)
        return
    with tempfile.TemporaryDirectory() as folder, SERVERS[name](Path(folder) / "data") as server:
        yield VectorEngine(server.location)


def fitted_model(scorer: Synthetic) -> ItemModel:
    """From the scores under the anchor queries."""
    everything = np.arange(len(scorer.items))
    scores = np.empty((len(everything), N_ANCHORS), dtype=np.float32)
    for query in range(N_ANCHORS):
        scores[:, query] = scorer.exact_scores(everything, query)
    return item_model(*centred_items(scores), noise_share=0.05)


def measure(engine: VectorEngine, model: ItemModel, scorer: Synthetic) -> dict[str, Any]:
    """All of one engine."""
    clock = Clock()
    started = time.perf_counter()
    halved = model.halved() if engine.is_approximate else model
    index = engine.index(halved.vectors, halved.offsets, space="benchmark") if engine.is_approximate else None
    made = time.perf_counter() - started
    ranked_by = None if index is None else timed(index, clock)
    search(halved, ranked_by, scorer, [N_ANCHORS], clock)  # to warm up
    single = [search(halved, ranked_by, scorer, [query], fresh(clock)) for query in tests()]
    found = summary(single)
    found["recall"] = float(np.mean([recall(scorer, one) for one in single]))
    batched = search(halved, ranked_by, scorer, tests()[:BLOCK], fresh(clock))
    own = {"make_seconds": made, "batched_ms": 1000 * (batched.seconds - batched.scoring) / BLOCK}
    if index is not None:
        own["engine_recall"] = index.recall
    if isinstance(index, DatabaseVectors):
        way = seconds_on_the_way(index, clock)
        own |= {
            "effort": index.tuning.effort,
            "way_ms": 1000 * way,
            "way_per_search_ms": 1000 * way * found["rankings"],
        }
    return {**found, **own}


@dataclass
class Found:
    """What a search of some queries found, and its times."""

    queries: Sequence[int]
    positions: Positions
    exact_scores: FloatMatrix
    seconds: float
    ranking: float
    scoring: float
    n_rankings: int


def search(
    model: ItemModel, index: VectorIndex | None, scorer: Synthetic, queries: Sequence[int], clock: Clock
) -> Found:
    """All rounds for some queries, with one thread as in the loop that searches indexes."""
    started = time.perf_counter()
    rounds = PosteriorSearch(
        model, QueryPrior(model.offsets), len(queries), Candidates(len(model.offsets)), engine=index
    )
    with one_blas_thread():
        for _ in range(N_ROUNDS):
            positions = np.stack([proposal.positions for proposal in rounds.propose(ROUND_SIZE)])
            began = time.perf_counter()
            scores = [scorer.exact_scores(row, query) for row, query in zip(positions, queries, strict=True)]
            clock.scoring += time.perf_counter() - began
            rounds.observe(positions, np.stack(scores).astype(np.float64))
    seconds = time.perf_counter() - started
    return Found(
        queries, rounds.scored, rounds.exact_scores, seconds, clock.ranking, clock.scoring, len(clock.requests)
    )


class Timed:
    """A vector index whose requests are timed; those of a database to its table."""

    def __init__(self, index: VectorIndex, clock: Clock) -> None:
        self._index, self._clock = index, clock
        if isinstance(index, DatabaseVectors):
            self._inner = index.table.search
            index.table.search = self._search  # type: ignore[method-assign]

    def top(self, query_vectors: FloatMatrix, n_best: int, **others: Any) -> Any:
        """As the index does."""
        if isinstance(self._index, DatabaseVectors):
            return self._index.top(query_vectors, n_best, **others)
        return self._timed(lambda: self._index.top(query_vectors, n_best, **others), (query_vectors, n_best, (), 0))

    def _search(self, queries: FloatMatrix, n_best: int, *, exclude: Sequence[Keys], effort: int) -> Any:
        request = (queries, n_best, exclude, effort)
        return self._timed(lambda: self._inner(queries, n_best, exclude=exclude, effort=effort), request)

    def _timed(self, work: Callable[[], Any], request: Any) -> Any:
        started = time.perf_counter()
        found = work()
        self._clock.ranking += time.perf_counter() - started
        self._clock.requests.append(request)
        return found


def timed(index: VectorIndex, clock: Clock) -> Any:
    """The same, with a clock."""
    return Timed(index, clock)


def fresh(clock: Clock) -> Clock:
    """The same clock, at zero; its requests are let go."""
    clock.ranking = clock.scoring = 0.0
    clock.requests.clear()
    return clock


def tests() -> list[int]:
    """Queries that are no anchors."""
    return list(range(N_ANCHORS + 1, N_ANCHORS + 1 + N_QUERIES))


def summary(searches: Sequence[Found]) -> dict[str, float]:
    """Medians over queries, in milliseconds, and the mean number of rankings; those of the exact one are ours."""
    return {
        "search_ms": 1000 * float(np.median([one.seconds - one.scoring for one in searches])),
        "ranking_ms": 1000 * float(np.median([one.ranking for one in searches])),
        "scorer_ms": 1000 * float(np.median([one.scoring for one in searches])),
        "ours_ms": 1000 * float(np.median([one.seconds - one.scoring - one.ranking for one in searches])),
        "rankings": float(np.mean([one.n_rankings for one in searches])),
    }


def recall(scorer: Synthetic, found: Found) -> float:
    """The share of the true top k of a single query."""
    exact_scores = scorer.exact_scores(np.arange(len(scorer.items)), found.queries[0])
    best = np.argpartition(-exact_scores, K)[:K]
    return float(np.isin(best, found.positions[0]).mean())


def seconds_on_the_way(index: DatabaseVectors, clock: Clock) -> float:
    """Of one request for one query: those of a request for as many keys that ranks nothing."""
    n_best = clock.requests[-1][1]
    table: Any = index.table
    fetch = fetch_from_postgres if isinstance(table, PgvectorTable) else fetch_from_milvus
    return median_seconds(lambda: table._database.run(lambda client: fetch(table, client, n_best)))


def fetch_from_postgres(table: Any, connection: Any, n_keys: int) -> None:
    """The first keys of a table."""
    from psycopg import sql

    statement = sql.SQL("SELECT key FROM {} WHERE key < %s").format(table._table)
    connection.execute(statement, [n_keys]).fetchall()


def fetch_from_milvus(table: Any, client: Any, n_keys: int) -> None:
    """The first keys of a collection."""
    client.query(table._collection, filter=f"key < {n_keys}", output_fields=["key"], limit=n_keys)


def median_seconds(work: Callable[[], object]) -> float:
    """Of some turns."""
    seconds = []
    for _ in range(N_TURNS):
        started = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - started)
    return float(np.median(seconds))


if __name__ == "__main__":
    main()
