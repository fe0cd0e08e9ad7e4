"""What benchmarks of overhead share: taking turns, the time of a search beyond its scorer's, and the bare way."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from typing import Protocol

import numpy as np


class Timed(Protocol):
    """A scorer that adds up the seconds that it took to answer."""

    seconds: float


def take_turns(ways: Mapping[str, Callable[[], float]], *, n_turns: int) -> dict[str, float]:
    """The median of each, after one turn to warm up."""
    turns = [{way: measure() for way, measure in ways.items()} for _ in range(n_turns + 1)][1:]
    return {way: statistics.median(turn[way] for turn in turns) for way in ways}


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
