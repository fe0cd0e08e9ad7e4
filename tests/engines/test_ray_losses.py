"""The engine ray where a node or the driver is lost: each test has a cluster of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import anncur
from misbehaving import ITEMS, N_PAIRS, PER_CHUNK, QUERIES, build

pytestmark = [
    pytest.mark.processes,
    # of Ray's own
    pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::ResourceWarning", "ignore::DeprecationWarning"),
]

os.environ.setdefault("RAY_AUTH_MODE", "disabled")  # nobody else reaches these clusters
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
ray = pytest.importorskip("ray", reason="needs the extra ray")


def test_a_node_that_is_removed_costs_no_score(tmp_path: Path) -> None:
    from ray.cluster_utils import Cluster

    cluster = Cluster()
    cluster.add_node(num_cpus=1)
    lost = cluster.add_node(num_cpus=1)
    n_seen: list[int] = []

    def remove_node(stage: str, done: int, total: int) -> None:
        if stage.startswith("scoring"):
            if done > total / 3 and not n_seen:
                cluster.remove_node(lost, allow_graceful=False)
            if done > total / 3:
                n_seen.append(done)

    try:
        index = build(
            tmp_path / "x",
            scorer="misbehaving:slow",
            engine=anncur.RayEngine(workers=2, address=cluster.address),
            progress=remove_node,
        )
        assert n_seen, "the node was removed while scores were still missing"
        assert index.digest() == build(None).digest()
        assert not ray.is_initialized(), "who connected also disconnects"
    finally:
        ray.shutdown()
        cluster.shutdown()


def test_an_engine_stays_connected_from_job_to_job_by_whatever_name_its_cluster_has(tmp_path: Path) -> None:
    from ray.cluster_utils import Cluster

    cluster = Cluster()
    cluster.add_node(num_cpus=1)
    try:
        port = cluster.address.rpartition(":")[2]
        with anncur.RayEngine(workers=1, address=f"localhost:{port}") as engine:
            digests = {build(tmp_path / name, engine=engine).digest() for name in ("a", "b")}
        assert digests == {build(None).digest()}
    finally:
        ray.shutdown()
        cluster.shutdown()


@pytest.mark.parametrize("blow", [signal.SIGINT, signal.SIGKILL])
def test_a_driver_that_is_stopped_is_resumed_with_what_was_paid_for(tmp_path: Path, blow: signal.Signals) -> None:
    corpus, queries = tmp_path / "corpus.jsonl", tmp_path / "queries.txt"
    corpus.write_text("".join(json.dumps({"id": item.id, "text": item.text}) + "\n" for item in ITEMS))
    queries.write_text("\n".join(QUERIES))
    command = [sys.executable, "-c", "from anncur.cli.main import main; main()", "build", str(corpus)]
    command += ["--queries", str(queries), "--out", str(tmp_path / "x"), "--scorer", "misbehaving:slower"]
    command += ["--items-per-chunk", str(PER_CHUNK), "--retriever", "bm25"]
    command += ["--engine", "ray", "--workers", "2", "--json"]
    tests = Path(__file__).parent.parent
    environment = {**os.environ, "PYTHONPATH": f"{os.environ.get('PYTHONPATH', '')}{os.pathsep}{tests}"}
    with subprocess.Popen(command, cwd=tests, env=environment, stderr=subprocess.PIPE, text=True) as driver:
        assert driver.stderr is not None
        for line in driver.stderr:
            if '"scoring anchor queries"' in line:
                time.sleep(1.0)
                driver.send_signal(blow)
                break
        rest = driver.stderr.read()
        code = driver.wait(timeout=60)
    if blow == signal.SIGINT:
        assert code == 130, rest
        assert "run the same again" in rest
    index = build(tmp_path / "x")
    assert index.digest() == build(None).digest()
    assert 8 < index.info.build_calls < N_PAIRS
