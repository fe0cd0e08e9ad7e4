"""Fixtures of the service: an index, and an application over a copy of it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from service_worlds import MakeClient, Overlap, build_index, client_of


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_index(tmp_path_factory.mktemp("service") / "things.anncur")


@pytest.fixture
def folder(built: Path, tmp_path: Path) -> Path:
    """A copy that a test may change."""
    shutil.copytree(built, tmp_path / "things.anncur")
    return tmp_path / "things.anncur"


@pytest.fixture
def scorer() -> Overlap:
    return Overlap()


@pytest.fixture
def make_client(folder: Path, scorer: Overlap) -> Iterator[MakeClient]:
    """A client of an application with these settings; with a token, unless `token` says otherwise."""
    with ExitStack() as stack:
        yield lambda **settings: stack.enter_context(client_of(folder, scorer, **settings))


@pytest.fixture
def client(make_client: MakeClient) -> TestClient:
    return make_client()


@pytest.fixture(scope="session")
def shared_client(built: Path) -> Iterator[TestClient]:
    """A client for tests that change nothing."""
    with client_of(built, Overlap()) as found:
        yield found
