"""What a search costs beside the scorer, from ten thousand to millions of items, for each engine that ranks them.

    python benchmarks/scale.py --work FOLDER [--items 10000 100000 1000000] [--engines exact faiss faiss:ivf]
    python benchmarks/scale.py --work FOLDER --draw [--out ROWS]

Rows are written as they come, and an index that is in FOLDER is used again. `--draw` draws a figure of them.

Items and queries are synthetic but have the spectrum of the bundled sample: vectors of its items and queries, mixed at
random, and noise that no anchor query tells. An index of 200 anchor queries is built from scores that are there, saved,
and opened in a new process for each engine, which searches it with 200 pairs a query: one query at a time, 64 at once,
and with a filter that 1% of the items pass. `bare` is one product of the same vectors with a query's and a top 200, in
NumPy, in the same process and turn, and `bare_batched` that of 64 queries at once, for each of them; `engine` is one
ranking by the engine itself. `alone` is an index of just the items that pass. Memory is that of the process alone, and
beside it the pages of files, which processes share: `three_mb` is what three processes that search one index take
together. The scorer's own time is taken off."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import anncur
from anncur.arrays import NO_POSITIONS, FloatMatrix, FloatVector, Positions
from anncur.candidates import Candidates
from anncur.datasets.sample import SAMPLE_INDEX
from anncur.items import digest_items
from anncur.scorers.loading import load_scorer
from anncur.scores import ScoreMatrix, ScoreSpec
from common import bare_search, new_parser, overhead, write_rows

N_ANCHORS, N_TESTS, RANK, BUDGET, K = 200, 40, 64, 200, 10
JITTER = 0.5  # of a vector's own spread, beside the real ones that it is mixed of
NOISE = 0.3  # of the spread of scores
BLOCK = 64
ENGINES = ("exact", "exact:float16", "faiss", "faiss:ivf")
ONE_PERCENT = {"tenant": 7}


class Synthetic:
    """Scores by hidden vectors, and adds up the seconds that it took."""

    fingerprint = "synthetic"

    def __init__(self, items: FloatMatrix, queries: FloatMatrix) -> None:
        self.items, self.queries = items, queries
        self.spread = float((items[:1000, :-1] @ queries[:, :-1].T).std())
        self.seconds = 0.0

    def score(self, query: anncur.Query, items: Sequence[anncur.Item]) -> FloatVector:
        """(n_items,)"""
        started = time.perf_counter()
        found = self.exact_scores(np.array([int(item.id) for item in items]), int(query.text))
        self.seconds += time.perf_counter() - started
        return found

    def exact_scores(self, items: Positions, query: int) -> FloatVector:
        """(n_items,)"""
        found: FloatVector = self.items[items] @ self.queries[query] + NOISE * self.spread * noise(items, query)
        return found


def main() -> None:
    """Build each size, measure each engine in a process of its own, print and write rows."""
    parser = new_parser(__doc__, "scale.jsonl")
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--items", type=int, nargs="+", default=[10_000, 100_000, 1_000_000])
    parser.add_argument("--engines", nargs="+", default=list(ENGINES))
    parser.add_argument("--draw", action="store_true", help="draw a figure of the rows that are there")
    options = parser.parse_args()
    if options.draw:
        draw([json.loads(line) for line in options.out.read_text().splitlines()], options.work / "scale.png")
        return
    rows: list[dict[str, Any]] = []
    for n_items in options.items:
        folder = options.work / f"scale-{n_items}"
        build_seconds = build(folder, n_items)
        for engine in options.engines:
            found = json.loads(subprocess.check_output(command("--measure", folder, engine)).splitlines()[-1])
            row = {"seed": 0, "n_items": n_items, "engine": engine, "build_seconds": build_seconds, **found}
            rows.append({**row, "three_mb": memory_of_several(folder, engine, 3)})
            print(json.dumps({name: rounded(value) for name, value in rows[-1].items()}), flush=True)
            write_rows(options.out, rows)


def command(job: str, folder: Path, engine: str) -> list[str]:
    """One that runs a part of this script in a process of its own."""
    return [sys.executable, __file__, job, str(folder), engine]


def memory_of_several(folder: Path, engine: str, n_processes: int) -> float:
    """Megabytes of processes that search one index at the same time: shared pages count once."""
    started = [
        subprocess.Popen(command("--hold", folder, engine), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(n_processes)
    ]
    for process in started:
        assert process.stdout is not None
        process.stdout.readline()  # it has searched
    for process in started:
        assert process.stdin is not None
        process.stdin.write("now\n")
        process.stdin.flush()
    return sum(float(process.communicate()[0]) for process in started)


def hold(folder: Path, engine: str) -> None:
    """Search an index, wait until all others have, and tell this process's share of the memory."""
    index, tests, _ = opened(folder, engine)
    index.search_many(tests[:2], K, BUDGET, progress=False)
    print("searched", flush=True)
    sys.stdin.readline()
    print(memory("Pss"), flush=True)
    time.sleep(2)  # the others look now


def rounded(value: Any) -> Any:
    """For the eye."""
    return round(value, 4) if isinstance(value, float) else value


def hidden_vectors(n_items: int) -> tuple[FloatMatrix, FloatMatrix]:
    """Of items and of queries, (n_items, RANK + 1) and (all queries, RANK + 1): the last column are the offsets."""
    rng = np.random.default_rng(0)
    scores = anncur.Index.open(SAMPLE_INDEX).anchor_scores().astype(np.float64)  # (2,000 items, 150 queries)
    offsets = scores.mean(axis=1)
    left, values, right = np.linalg.svd(scores - offsets[:, None], full_matrices=False)
    items = mixed(np.column_stack([left[:, :RANK] * values[:RANK], offsets]), n_items, rng)
    queries = mixed(right[:RANK].T, N_ANCHORS + N_TESTS, rng)
    return items, np.column_stack([queries, np.ones(len(queries), dtype=np.float32)])


def mixed(rows: FloatMatrix, n: int, rng: np.random.Generator) -> FloatMatrix:
    """New rows between two real ones, and beside them."""
    spread = (JITTER * rows.std(axis=0)).astype(np.float32)
    made = np.empty((n, rows.shape[1]), dtype=np.float32)
    for start in range(0, n, 100_000):
        size = min(100_000, n - start)
        share = rng.random((size, 1), dtype=np.float32)
        one, other = (rows[rng.integers(len(rows), size=size)].astype(np.float32) for _ in range(2))
        noise = spread * rng.standard_normal((size, rows.shape[1]), dtype=np.float32)
        made[start : start + size] = share * one + (1 - share) * other + noise
    return made


def noise(items: Positions, query: int) -> FloatVector:
    """The same number for the same pair, about normal: the sum of the four parts of a hash."""
    mixed = items.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(query * 0xD1B54A32D192ED03 % 2**64)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(factor)
    parts = (mixed ^ (mixed >> np.uint64(31))).view(np.uint16).reshape(-1, 4) / 65_536.0
    return (np.sqrt(3) * (parts.sum(axis=1) - 2)).astype(np.float32)


def build(folder: Path, n_items: int) -> float:
    """Make an index and the one of the items that a filter passes; the seconds of the first."""
    done = folder / "seconds"
    if done.exists():
        return float(done.read_text())
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    items, queries = hidden_vectors(n_items)
    np.save(folder / "items.npy", items)
    np.save(folder / "queries.npy", queries)
    everything = [
        anncur.Item(str(place), f"item {place}", metadata={"tenant": place % 100}) for place in range(n_items)
    ]
    started = time.perf_counter()
    save(folder / "index", everything, items, queries)
    seconds = time.perf_counter() - started
    passing = everything[ONE_PERCENT["tenant"] :: 100]
    save(folder / "alone", passing, items, queries)
    done.write_text(str(seconds))
    return seconds


def save(path: Path, chosen: Sequence[anncur.Item], items: FloatMatrix, queries: FloatMatrix) -> None:
    """An index of some items on disk, from scores that are there."""
    synthetic = Synthetic(items, queries)
    scorer = load_scorer(synthetic)
    anchors = [anncur.Query(str(place)) for place in range(N_ANCHORS)]
    spec = ScoreSpec.make(scorer, anchors, items_digest=digest_items(chosen), n_items=len(chosen))
    positions = np.array([int(item.id) for item in chosen])
    rows = np.empty((len(chosen), N_ANCHORS), dtype=np.float32)
    for query in range(N_ANCHORS):
        rows[:, query] = synthetic.exact_scores(positions, query)
    matrix = ScoreMatrix.in_memory(spec, rows)
    anncur.Index.build(chosen, scorer, anchors, exact_scores=matrix, retrievers=(), progress=False).save(path)


def measure(folder: Path, engine: str) -> dict[str, Any]:
    """All of one engine, in this process."""
    started = time.perf_counter()
    index, tests, scorer = opened(folder, engine)
    is_open = time.perf_counter()
    index.search(tests[0], K, BUDGET)
    searched, megabytes = time.perf_counter(), memory("Anonymous")
    bare, single, filtered, answers = Bare(index), [], [], []
    for query in tests:
        bare.take_turn()
        single.append(overhead(lambda query=query: answers.append(index.search(query, K, BUDGET)), scorer))  # type: ignore[misc]
        filtered.append(overhead(lambda query=query: index.search(query, K, BUDGET, filter=ONE_PERCENT), scorer))  # type: ignore[misc]
    bare.take_batched_turn()
    many = overhead(lambda: index.search_many((tests * 2)[:BLOCK], K, BUDGET, progress=False), scorer) / BLOCK
    alone = anncur.Index.open(folder / "alone", load_scorer(scorer))
    return {
        "open_seconds": is_open - started,
        "first_search_seconds": searched - is_open,
        "memory_mb": megabytes,
        **bare.milliseconds(),
        "p50_ms": 1000 * float(np.median(single)),
        "p99_ms": 1000 * float(np.quantile(single, 0.99)),
        "batched_ms": 1000 * many,
        "filtered_ms": 1000 * float(np.median(filtered)),
        "recall": mean_recall(answers, scorer, tests, slice(None)),
        "engine_recall": index.engine_recall(),
        "filtered_recall": filtered_recall(index, scorer, tests, filter=ONE_PERCENT),
        "alone_recall": filtered_recall(alone, scorer, tests, filter=None),
    }


def opened(folder: Path, engine: str) -> tuple[anncur.Index, list[anncur.Query], Synthetic]:
    """An index, queries to test it with, and its scorer."""
    scorer = Synthetic(np.load(folder / "items.npy", mmap_mode="r"), np.load(folder / "queries.npy"))
    tests = [anncur.Query(str(place)) for place in range(N_ANCHORS, N_ANCHORS + N_TESTS)]
    return anncur.Index.open(folder / "index", load_scorer(scorer), vectors=engine), tests, scorer


class Bare:
    """Products and rankings of the same vectors, as one would write them down, and by the engine itself."""

    def __init__(self, index: anncur.Index) -> None:
        model = index._current().knowledge.posterior
        self.item_model, self.engine = model.item_model(model.settings()), model.engine_index(model.settings())
        width = self.item_model.vectors.width
        self.query_vectors = np.random.default_rng(0).standard_normal((BLOCK, width)).astype(np.float32)
        self.is_numpy = self.item_model.vectors.parts[0].array.dtype == np.float32
        self.seconds: dict[str, list[float]] = {"bare": [], "bare_batched": [], "engine": []}

    def take_turn(self) -> None:
        """One query."""
        if self.is_numpy:
            self._time("bare", lambda: bare_search(self.item_model.vectors.all(), self.query_vectors[:1], BUDGET))
        if self.engine is not None:
            one = np.hstack([self.query_vectors[:1], np.ones((1, 1), dtype=np.float32)])
            among, engine = Candidates(len(self.engine)), self.engine
            self._time("engine", lambda: engine.top(one, BUDGET, exclude=[NO_POSITIONS], among=among))

    def take_batched_turn(self) -> None:
        """A block of queries, in parts of the items that leave room in memory."""
        if self.is_numpy:
            self._time("bare_batched", self._batched)

    def _batched(self) -> None:
        vectors = self.item_model.vectors.all()
        for start in range(0, len(vectors), 100_000):
            bare_search(vectors[start : start + 100_000], self.query_vectors, min(BUDGET, len(vectors) - start))

    def _time(self, what: str, run: Callable[[], object]) -> None:
        started = time.perf_counter()
        run()
        self.seconds[what].append(time.perf_counter() - started)

    def milliseconds(self) -> dict[str, float | None]:
        """The median of each, for one query."""
        shares = {"bare": 1, "bare_batched": BLOCK, "engine": 1}
        return {
            f"{what}_ms": 1000 * float(np.median(taken)) / shares[what] if taken else None
            for what, taken in self.seconds.items()
        }


def memory(what: str) -> float:
    """Megabytes of this process: `Anonymous` is its own, `Pss` its share of all that it uses."""
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    (line,) = (line for line in lines if line.startswith(f"{what}:"))
    return int(line.split()[1]) / 1024


def draw(rows: Sequence[dict[str, Any]], file: Path) -> None:
    """How the time of a search beside its scorer grows with the items, for each engine."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(7, 4.5), layout="constrained")
    for engine in dict.fromkeys(row["engine"] for row in rows):
        some = sorted((row["n_items"], row["p50_ms"]) for row in rows if row["engine"] == engine)
        axes.plot(*zip(*some, strict=True), marker="o", label=engine)
    bare = sorted((row["n_items"], row["bare_ms"]) for row in rows if row["engine"] == "exact")
    axes.plot(*zip(*bare, strict=True), "k--", label="one product in NumPy")
    axes.set(xscale="log", yscale="log", xlabel="items", ylabel="ms of a search of 200 pairs, beside the scorer")
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(file, dpi=120)


def filtered_recall(index: anncur.Index, scorer: Synthetic, tests: Sequence[anncur.Query], *, filter: Any) -> float:
    """Of the items that pass the filter, with half of the usual pairs."""
    answers = index.search_many(tests, K, BUDGET // 2, filter=filter, progress=False)
    return mean_recall(answers, scorer, tests, slice(ONE_PERCENT["tenant"], None, 100))


def mean_recall(
    answers: Sequence[anncur.Hits], scorer: Synthetic, tests: Sequence[anncur.Query], among: slice
) -> float:
    """The share of the true top k among some items."""
    shares = []
    for hits, query in zip(answers, tests, strict=True):
        exact_scores = scorer.exact_scores(np.arange(len(scorer.items))[among], int(query.text))
        kth = np.partition(exact_scores, -K)[-K]
        shares.append(sum(score >= kth - 1e-4 for score in hits.scores) / K)
    return float(np.mean(shares))


if __name__ == "__main__":
    if "--measure" in sys.argv:
        print(json.dumps(measure(Path(sys.argv[-2]), sys.argv[-1])))
    elif "--hold" in sys.argv:
        hold(Path(sys.argv[-2]), sys.argv[-1])
    else:
        main()
