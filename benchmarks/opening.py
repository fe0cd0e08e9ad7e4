"""Seconds and memory of a new process: to open an index with BM25 and MiniLM, its first search and a steady one.

    python benchmarks/opening.py DATA --work FOLDER [--items 10000 100000] [--label now]

DATA is in ZESHEL's layout; the items are entities of all worlds. The index has no anchor queries, and a scorer that
costs nothing. Each retriever is asked in turn by re-ranking, so that commits before retrievers were stored can be
measured with the same script: run it with their source on PYTHONPATH and another --label."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import anncur
from anncur.datasets.zeshel import Zeshel
from common import new_parser, write_rows

RETRIEVERS = ("bm25", "minilm")
QUERIES = ("a small bird of prey", "a tool that cuts wood", "a large body of salt water", "to walk slowly")
N_PAIRS = 50


class Instant:
    """A scorer that costs nothing."""

    fingerprint = "instant"

    def score(self, query: anncur.Query, items: list[anncur.Item]) -> list[float]:
        """Numbers from the ids."""
        return [float(hash(item.id) % 1000) for item in items]


def main() -> None:
    """Build an index of each size, open it in a new process, print and write rows."""
    parser = new_parser(__doc__, "opening.jsonl")
    parser.add_argument("data", type=Path)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--items", type=int, nargs="+", default=[10_000, 100_000])
    parser.add_argument("--label", default="now")
    options = parser.parse_args()
    rows = []
    for n_items in options.items:
        folder = options.work / f"{options.label}-{n_items}.anncur"
        build_seconds = build(folder, read_entities(options.data, n_items))
        found = json.loads(subprocess.check_output([sys.executable, __file__, "--open", str(folder)]))
        rows.append({"seed": 0, "what": options.label, "n_items": n_items, "build_seconds": build_seconds, **found})
        print(json.dumps(rows[-1], indent=1))
    write_rows(options.out, rows)


def read_entities(data: Path, n_items: int) -> list[anncur.Item]:
    """Entities of all worlds; an id is one of a world, so that none comes twice."""
    source = Zeshel(data)
    worlds = [world for split in source.splits for world in source.worlds(split)]
    return [
        anncur.Item(f"{world} {item.id}", item.text, item.title) for world in worlds for item in source.entities(world)
    ][:n_items]


def build(folder: Path, items: list[anncur.Item]) -> float:
    """The seconds that it takes, or 0 where the index is there already."""
    if folder.exists():
        return 0.0
    started = time.perf_counter()
    anncur.Index.build(items, Instant(), [], path=folder, retrievers=RETRIEVERS)
    return time.perf_counter() - started


def open_index(folder: str) -> dict[str, Any]:
    """Seconds and memory of this process, step by step."""
    found: dict[str, Any] = {}
    started = time.perf_counter()
    index = anncur.Index.open(folder, Instant())
    index.info  # noqa: B018
    len(index)
    found["open_seconds"], found["open_mb"] = time.perf_counter() - started, peak_megabytes()
    for retriever in RETRIEVERS:
        method = anncur.Rerank(retriever)
        seconds = [timed_search(index, query, method) for query in QUERIES]
        found[f"first_{retriever}_seconds"], found[f"steady_{retriever}_seconds"] = seconds[0], min(seconds[1:])
    seconds = [timed_search(index, query, "posterior") for query in QUERIES]
    found["first_posterior_seconds"], found["steady_posterior_seconds"] = seconds[0], min(seconds[1:])
    return {**found, "peak_mb": peak_megabytes()}


def timed_search(index: anncur.Index, query: str, method: anncur.Method | str) -> float:
    """The seconds of one search."""
    started = time.perf_counter()
    index.search(query, k=10, budget=N_PAIRS, method=method)
    return time.perf_counter() - started


def peak_megabytes() -> float:
    """The most memory that this process has had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


if __name__ == "__main__":
    if sys.argv[1:2] == ["--open"]:
        print(json.dumps(open_index(sys.argv[2])))
    else:
        main()
