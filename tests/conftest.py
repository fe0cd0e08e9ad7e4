"""Fixtures that tests share."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from worlds import World, low_rank_scores


@pytest.fixture
def make_world() -> Callable[..., World]:
    def make(n_queries: int = 24, n_items: int = 60, *, rank: int = 5, noise: float = 0.1, seed: int = 0) -> World:
        return World(low_rank_scores(n_queries, n_items, rank=rank, noise=noise, seed=seed))

    return make
