"""What benchmarks share: where their rows go, and how times are compared."""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from anncur.evaluation.rows import provenance

OUT = Path(__file__).parent.parent / "bench"  # which git ignores; `make bench-commit` copies it to benchmarks/results


class Timed(Protocol):
    """A scorer that adds up the seconds that it took to answer."""

    seconds: float


def new_parser(about: str | None, out: str) -> argparse.ArgumentParser:
    """A parser with the option --out, by default a file or folder of this name in bench/."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=OUT / out, help=f"where rows go (default: bench/{out})")
    return parser


def write_rows(file: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Replace a file by these rows, each with the versions and the machine that it was measured with."""
    made_with = provenance()
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(json.dumps({**made_with, **row}) + "\n" for row in rows))


def take_turns(variants: Mapping[str, Callable[[], float]], *, n_turns: int) -> dict[str, float]:
    """The median of each, after one turn to warm up."""
    turns = [{name: measure() for name, measure in variants.items()} for _ in range(n_turns + 1)][1:]
    return {name: statistics.median(turn[name] for turn in turns) for name in variants}


def overhead(search: Callable[[], object], scorer: Timed) -> float:
    """Seconds of a search beyond the scorer's own."""
    scorer.seconds = 0.0
    started = time.perf_counter()
    search()
    return time.perf_counter() - started - scorer.seconds


def bare_search(item_vectors: np.ndarray, query_vectors: np.ndarray, n_best: int) -> np.ndarray:
    """One product and a top-k, as one would write it down."""
    is_single = len(query_vectors) == 1
    guesses = (item_vectors @ query_vectors[0])[None] if is_single else query_vectors @ item_vectors.T
    best = np.argpartition(guesses, -n_best, axis=1)[:, -n_best:]
    return np.take_along_axis(best, np.argsort(-np.take_along_axis(guesses, best, axis=1), axis=1), axis=1)
