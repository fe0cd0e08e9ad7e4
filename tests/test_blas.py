"""Linear algebra runs on one thread where threads don't pay, and gets them back."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import threadpoolctl

import anncur
from anncur.threads import one_blas_thread
from worlds import World, low_rank_scores


def n_blas_threads() -> int:
    libraries = threadpoolctl.threadpool_info()
    return max(int(library["num_threads"]) for library in libraries if library["user_api"] == "blas")


@pytest.fixture
def two_threads() -> Iterator[None]:
    with threadpoolctl.threadpool_limits(2, user_api="blas"):
        yield


def test_threads_are_given_back_whoever_else_is_inside(two_threads: None) -> None:
    entered, leave = threading.Event(), threading.Event()

    def other() -> None:
        with one_blas_thread():
            entered.set()
            leave.wait()

    thread = threading.Thread(target=other, daemon=True)  # which no failing assertion may leave waiting
    with one_blas_thread():
        thread.start()
        entered.wait()
        with one_blas_thread():
            assert n_blas_threads() == 1
        assert n_blas_threads() == 1
    assert n_blas_threads() == 2
    leave.set()
    thread.join()
    assert n_blas_threads() == 2
    with one_blas_thread():
        assert n_blas_threads() == 1


def test_the_scorer_has_all_threads_while_the_search_has_one(two_threads: None) -> None:
    world = World(low_rank_scores(14, 60, rank=3))
    seen: dict[str, set[int]] = {"scorer": set(), "retriever": set()}

    class Scorer:
        fingerprint = "seen"

        def score(self, query: anncur.Query, items: Sequence[anncur.Item]) -> Any:
            seen["scorer"].add(n_blas_threads())
            return world.scorer.score(query, items)

    def retriever(query: anncur.Query, items: Sequence[anncur.Item]) -> list[float]:
        seen["retriever"].add(n_blas_threads())
        return [float(len(item.text)) for item in items]

    index = anncur.Index.build(world.items, Scorer(), world.queries[:12], retrievers=[retriever])
    seen["retriever"].clear()
    index.search(world.queries[13], k=3, budget=20)
    assert seen == {"scorer": {2}, "retriever": {1}}
