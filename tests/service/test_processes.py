"""A service in a process of its own: real clients, versions that change under load, an end that loses nothing."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import cohere
import httpx
import numpy as np
import pytest

import anncur
from service_worlds import (
    READ,
    TESTS,
    WORDS,
    RunningService,
    corpus,
    free_port,
    overlap,
    queries,
    quick,
    running,
    start,
    true_best,
)

pytestmark = pytest.mark.processes

GPU = "service_worlds:gpu"
LOAD_SECONDS = float(os.environ.get("ANNCUR_LOAD_SECONDS", "10"))  # the full run has two minutes and more
LATE = 0.99 if LOAD_SECONDS >= 60 else 0.9  # in ten seconds, the last percent is a single search
WRITERS_AT_ONCE = 2


@pytest.fixture
def folder(built: Path, tmp_path: Path) -> Path:
    shutil.copytree(built, tmp_path / "things.anncur")
    return tmp_path / "things.anncur"


def search(client: httpx.Client, query: str, **options: Any) -> httpx.Response:
    return client.post("/v1/search", json={"query": query, "k": 5, "budget": 120, **options})


def in_background(function: Callable[[threading.Event], None], n_threads: int) -> tuple[threading.Event, Any]:
    """Threads that run a function until an event is set, and raise what they met when they are awaited."""
    stop, pool = threading.Event(), ThreadPoolExecutor(n_threads)
    futures = [pool.submit(function, stop) for _ in range(n_threads)]

    def finish() -> None:
        stop.set()
        pool.shutdown()
        for future in futures:
            future.result()

    return stop, finish


def test_the_real_client_of_cohere_works_against_it(folder: Path, tmp_path: Path) -> None:
    texts = ["large blue fish", "small red bird", "red horse"]
    best = sorted(range(3), key=lambda place: -overlap("small red bird", texts[place]))
    with running(folder, tmp_path / "log") as service, httpx.Client() as connections:

        def client(kind: Any, key: str = READ) -> Any:
            return kind(api_key=key, base_url=service.url, httpx_client=connections)

        answer = client(cohere.ClientV2).rerank(model="rerank-v3.5", query="small red bird", documents=texts, top_n=2)
        assert [result.index for result in answer.results] == best[:2]
        assert answer.results[0].relevance_score > answer.results[1].relevance_score
        older = client(cohere.Client)
        first = older.rerank(query="small red bird", documents=texts, return_documents=True, model="any").results[0]
        assert first.index == best[0]
        assert first.document.text == texts[best[0]]
        with pytest.raises(cohere.errors.UnauthorizedError):
            client(cohere.ClientV2, "wrong").rerank(model="m", query="a", documents=["b"])


def test_our_own_scorers_over_endpoints_work_against_it(folder: Path, tmp_path: Path) -> None:
    """A service of one index is the scorer of another: in the shape of text-embeddings-inference, and in Cohere's."""
    items = corpus(30)
    with running(folder, tmp_path / "log", "--raw-relevance") as service:
        os.environ["TEI_API_KEY"] = READ
        try:
            scorer = anncur.load_scorer(f"tei:{service.url}")
            scores = scorer.score(anncur.Query("small red bird"), items)
        finally:
            del os.environ["TEI_API_KEY"]
    assert np.allclose(scores, [overlap("small red bird", item.full_text) for item in items])


def test_running_requests_finish_when_it_is_asked_to_stop(folder: Path, tmp_path: Path) -> None:
    with running(folder, tmp_path / "log", scorer="service_worlds:sleeper") as service, service.client() as client:
        with ThreadPoolExecutor(8) as pool:
            asked = [pool.submit(_ask_once, service, query) for query in queries(8)]
            while "\nanncur_running_searches 8.0" not in client.get("/metrics").text:
                time.sleep(0.02)
            service.process.send_signal(signal.SIGTERM)
            assert [future.result() for future in asked] == [200] * 8
        assert service.process.wait(timeout=15) == 0
        assert _ask_once(service, "bird") is None, "nobody listens any more"


def test_a_scorer_that_hangs_keeps_no_service_from_ending(folder: Path, tmp_path: Path) -> None:
    """Its client hears why it gets no answer, and the log says the same."""
    hanging = running(folder, tmp_path / "log", "--drain-seconds", "1", scorer="service_worlds:hanging")
    with hanging as service, service.client() as client:
        with ThreadPoolExecutor(1) as pool:
            asked = pool.submit(client.post, "/v1/search", json={"query": "small red bird"})
            while (
                "\nanncur_running_searches 1.0"
                not in httpx.get(f"{service.url}/metrics", headers=service.headers, timeout=60).text
            ):
                time.sleep(0.02)
            time.sleep(0.5)  # until the scorer was asked
            began = time.monotonic()
            service.process.send_signal(signal.SIGTERM)
            answer = asked.result()
        assert service.process.wait(timeout=15) == 0
        assert time.monotonic() - began < 10
    assert (answer.status_code, answer.json()["type"]) == (503, "urn:anncur:problem:shutting-down")
    assert answer.headers["content-type"] == "application/problem+json"
    lines = [line for line in service.log_lines() if line.get("route") == "/v1/search"]
    assert [line["status"] for line in lines] == [503]
    assert not [line for line in service.log_lines() if "traceback" in line]


def _ask_once(service: RunningService, query: str) -> int | None:
    try:
        with service.client() as client:
            return search(client, query).status_code
    except httpx.TransportError:
        return None


def test_versions_change_under_load_without_a_dropped_request(folder: Path, tmp_path: Path) -> None:
    versions: set[int] = set()

    with running(folder, tmp_path / "log", "--refresh-seconds", "0.05") as service:

        def ask(stop: threading.Event) -> None:
            with service.client() as client:
                while not stop.is_set():
                    answer = search(client, "small red bird", budget=40)
                    answer.raise_for_status()
                    versions.add(answer.json()["index_version"])

        _, finish = in_background(ask, 4)
        writer = anncur.Index.open(folder, quick)
        for number in range(6):
            writer.upsert([anncur.Item(f"new-{number}", f"small red bird {number}")], progress=False)
            time.sleep(0.3)
        finish()
        with service.client() as client:
            assert search(client, "small red bird 3", budget=200).json()["hits"][0]["id"] == "new-3"
    assert len(versions) >= 4


def test_after_kill_9_under_load_acknowledged_writes_are_there_and_answers_are_right(
    folder: Path, tmp_path: Path
) -> None:
    acknowledged: dict[str, str] = {}
    lock = threading.Lock()
    service = start(folder, tmp_path / "log")

    def ask(stop: threading.Event) -> None:
        with service.client() as client:
            while not stop.is_set():
                try:
                    assert search(client, "small red bird", budget=40).status_code in {200, 429}
                except httpx.TransportError:
                    return

    def write(stop: threading.Event) -> None:
        name = threading.get_ident()
        with service.client() as client:
            for number in range(10_000):
                item = {"id": f"{name}-{number}", "text": f"written {WORDS[number % len(WORDS)]} {name} {number}"}
                try:
                    answer = client.post("/v1/items", json={"items": [item]})
                except httpx.TransportError:
                    return
                if answer.status_code == 200:
                    with lock:
                        acknowledged[item["id"]] = item["text"]

    _, finish_asking = in_background(ask, 3)
    _, finish_writing = in_background(write, WRITERS_AT_ONCE)
    time.sleep(3)
    service.process.kill()
    service.process.wait()
    finish_asking()
    finish_writing()
    assert len(acknowledged) >= 4, "some were written"

    with running(folder, tmp_path / "log", port=free_port()) as again, again.client() as client:
        found = client.post(
            "/v1/search", json={"query": "written", "k": 1000, "budget": 10_000, "method": "exhaustive"}
        )
        items = {hit["id"]: hit["text"] for hit in found.json()["hits"]}
        assert items.items() >= acknowledged.items()
        everything = list(anncur.Index.open(folder, quick))
        assert anncur.Index.open(folder, quick).verify() == []
        for query in queries(5):
            answer = search(client, query, budget=10_000, method="exhaustive").json()
            assert [hit["id"] for hit in answer["hits"]] == true_best(everything, query, 5)
        assert client.post("/v1/items", json={"items": [{"id": "later", "text": "later"}]}).status_code == 200


def test_a_blocking_scorer_never_blocks_the_service(folder: Path, tmp_path: Path) -> None:
    """Probes are answered at once while a scorer sleeps for a second."""
    times: list[float] = []
    with (
        running(folder, tmp_path / "log", scorer="service_worlds:sleeper") as service,
        service.client() as client,
        ThreadPoolExecutor(4) as pool,
    ):
        asked = [pool.submit(_ask_once, service, query) for query in queries(4)]
        time.sleep(0.3)
        while not all(future.done() for future in asked) and len(times) < 20:
            began = time.perf_counter()
            assert client.get("/livez").status_code == 200
            times.append(time.perf_counter() - began)
            time.sleep(0.02)
        assert {future.result() for future in asked} == {200}
    assert len(times) >= 10
    assert np.median(times) < 0.1


@pytest.mark.slow
def test_at_three_times_its_capacity_it_refuses_and_stays_quick(folder: Path, tmp_path: Path) -> None:
    """With a scorer of 10 ms and 0.05 ms a pair, and the default settings."""
    with running(folder, tmp_path / "log", scorer=GPU) as service:
        _one_after_the_other(service, seconds=1)  # warm
        alone = _one_after_the_other(service, seconds=max(5.0, LOAD_SECONDS / 4))
        capacity = _saturated(service, 16, seconds=max(3.0, LOAD_SECONDS / 8))
        before = service.resident_mb()
        statuses, times = _load(service, per_second=3 * capacity, seconds=LOAD_SECONDS)
        assert set(statuses) == {200, 429}
        assert statuses.count(429) > len(statuses) / 2
        assert np.quantile(times, LATE) <= 2 * np.quantile(alone, LATE)
        assert service.resident_mb() < before + 50
        assert not [line for line in service.log_lines() if line.get("status", 0) >= 500]


def _one_after_the_other(service: RunningService, seconds: float) -> list[float]:
    times = []
    end = time.perf_counter() + seconds
    with service.client() as client:
        while time.perf_counter() < end:
            began = time.perf_counter()
            search(client, "small red bird", budget=100).raise_for_status()
            times.append(time.perf_counter() - began)
    return times


def _saturated(service: RunningService, n_clients: int, seconds: float) -> float:
    """Searches a second, by as many clients as there are places."""
    with ThreadPoolExecutor(n_clients) as pool:
        found = list(pool.map(lambda _: len(_one_after_the_other(service, seconds)), range(n_clients)))
    return sum(found) / seconds


def _load(service: RunningService, *, per_second: float, seconds: float) -> tuple[list[int], list[float]]:
    """Requests at a fixed rate, whether or not others were answered; statuses, and times of those that were."""
    statuses: list[int] = []
    times: list[float] = []
    lock = threading.Lock()
    n_requests, n_threads = int(per_second * seconds), 64
    started = 0.0

    def begin() -> None:
        nonlocal started
        started = time.perf_counter()

    connected = threading.Barrier(n_threads, begin)

    def ask(numbers: range) -> None:
        with service.client() as client:
            client.get("/livez")
            connected.wait()
            for number in numbers:
                time.sleep(max(0.0, started + number / per_second - time.perf_counter()))
                began = time.perf_counter()
                answer = search(client, queries()[number % 12], budget=100)
                with lock:
                    statuses.append(answer.status_code)
                    if answer.status_code == 200:
                        times.append(time.perf_counter() - began)

    with ThreadPoolExecutor(n_threads) as pool:
        for future in [pool.submit(ask, range(place, n_requests, n_threads)) for place in range(n_threads)]:
            future.result()
    return statuses, times


def serve(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """`anncur serve` where it is refused."""
    command = [sys.executable, "-c", "from anncur.cli.main import main; main()", "serve", *arguments]
    known = {**os.environ, "PYTHONPATH": os.pathsep.join([str(TESTS), *filter(None, sys.path)]), **environment}
    return subprocess.run(command, env=known, capture_output=True, text=True, timeout=60, check=False)


def test_what_cant_be_served_is_refused_in_one_line(folder: Path, tmp_path: Path) -> None:
    refused = {
        "a token is needed": serve(str(folder), "--host", "0.0.0.0"),
        "is not the folder of an index": serve(str(tmp_path / "nothing")),
        "two indexes are called": serve(str(folder), str(folder), "--scorer", "service_worlds:quick"),
        "must have a name": serve(f"a name={folder}", "--scorer", "service_worlds:quick"),
        "must have 16 to": serve(str(folder), ANNCUR_READ_TOKEN="short"),
    }
    for message, ended in refused.items():
        assert ended.returncode == 1, ended.stderr
        assert message in " ".join(ended.stderr.split()), ended.stderr
        assert "Traceback" not in ended.stderr
