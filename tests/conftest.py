"""Fixtures that tests share."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

# Before NumPy is loaded: matrices are small here and as many tests run as there are cores, so that more threads of
# linear algebra would only wait for each other. Programs that tests start inherit it.
for library in ("OMP", "OPENBLAS", "MKL", "RAYON"):
    os.environ.setdefault(f"{library}_NUM_THREADS", "1")

from anncur.retrievers import loading  # noqa: E402
from servers import LiteFolder, MilvusServer, PostgresServer, milvus_lite_in, milvus_server, postgres_server  # noqa: E402
from worlds import World, low_rank_scores  # noqa: E402


@pytest.fixture(autouse=True)
def words_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    """Indexes that name no retrievers have BM25 alone, as where no model is installed: embedding items takes time."""
    monkeypatch.setattr(loading, "has_minilm", lambda: False)


@pytest.fixture
def make_world() -> Callable[..., World]:
    def make(n_queries: int = 24, n_items: int = 60, *, rank: int = 5, noise: float = 0.1, seed: int = 0) -> World:
        return World(low_rank_scores(n_queries, n_items, rank=rank, noise=noise, seed=seed))

    return make


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    folder = tempfile.TemporaryDirectory(prefix="anncur-postgres-")  # pytest's own is for one user alone
    with folder as name, postgres_server(Path(name) / "data") as server:
        yield server


@pytest.fixture(scope="session")
def milvus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MilvusServer]:
    with milvus_server(tmp_path_factory.mktemp("milvus")) as server:
        yield server


@pytest.fixture(scope="session")
def milvus_lite(tmp_path_factory: pytest.TempPathFactory) -> LiteFolder:
    return milvus_lite_in(tmp_path_factory.mktemp("lite"))
