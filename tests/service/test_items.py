"""Changes of items over HTTP: found at once, on disk before they are acknowledged, and the same when sent again."""

from __future__ import annotations

import json
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import pytest
from starlette.applications import Starlette
from starlette.routing import Mount
from starlette.testclient import TestClient

import anncur
from anncur.errors import DamagedError
from anncur.index.folder import FolderBackend
from anncur.service.access_log import JsonLines
from anncur.service.served import ServedIndex
from anncur.service.settings import AccessTokens
from anncur.storage.files import writer_lock
from service_worlds import READ, WRITE, MakeClient, Overlap, serving_in_thread

NEW = {"id": "new", "text": "small red bird of paper", "title": "kite", "metadata": {"colour": "red", "number": 7}}


def first(client: TestClient, query: str, **options: Any) -> dict[str, Any]:
    found: dict[str, Any] = client.post("/v1/search", json={"query": query, "k": 1, **options}).json()["hits"][0]
    return found


def test_an_item_that_was_upserted_is_found_at_once(client: TestClient) -> None:
    answer = client.post("/v1/items", json={"items": [NEW]})
    assert answer.status_code == 200
    assert answer.json()["upserted"] == 1
    assert first(client, "kite of paper", budget=120)["id"] == "new"


def test_an_item_is_on_disk_when_it_is_acknowledged(client: TestClient, folder: Path, scorer: Overlap) -> None:
    version = client.post("/v1/items", json={"items": [NEW]}).json()["index_version"]
    opened = anncur.Index.open(folder, scorer)
    assert opened["new"].text == NEW["text"]
    assert opened.info.version == version
    client.delete("/v1/items/new")
    assert "new" not in anncur.Index.open(folder, scorer)


def test_the_same_change_again_changes_nothing(client: TestClient) -> None:
    first_time = client.post("/v1/items", json={"items": [NEW]}).json()
    assert client.post("/v1/items", json={"items": [NEW]}).json() == first_time
    assert client.delete("/v1/items/new").json()["removed"] == 1
    removed = client.delete("/v1/items/new")
    assert removed.status_code == 200
    assert removed.json()["removed"] == 0


def test_an_item_is_replaced(client: TestClient) -> None:
    client.post("/v1/items", json={"items": [{"id": "item-3", "text": "an umbrella"}]})
    assert first(client, "umbrella", filter=["item-3"])["text"] == "an umbrella"


@pytest.mark.parametrize("item_id", ["a/b", "..", "ä ö", "50% off", "?x=1", "a:b"])
def test_any_id_can_be_removed(client: TestClient, item_id: str) -> None:
    client.post("/v1/items", json={"items": [{"id": item_id, "text": "odd"}]})
    path = "/v1/items/" + quote(item_id, safe="").replace(".", "%2E")
    assert client.delete(path).json()["removed"] == 1


def test_changes_need_the_write_token(make_client: MakeClient) -> None:
    for token, status in ((None, 401), (READ, 403), ("something else entirely", 401)):
        client = make_client(token=token)
        assert client.post("/v1/items", json={"items": [NEW]}).status_code == status
        assert client.delete("/v1/items/item-1").status_code == status


def test_without_a_write_token_nobody_changes_anything(make_client: MakeClient) -> None:
    client = make_client(tokens=AccessTokens(), token=None)
    assert client.post("/v1/search", json={"query": "bird"}).status_code == 200
    answer = client.post("/v1/items", json={"items": [NEW]})
    assert answer.status_code == 403
    assert "write token" in answer.json()["detail"]
    assert not client.get("/v1/indexes").json()["may_write"]


def test_while_another_process_changes_the_index_changes_are_refused(client: TestClient, folder: Path) -> None:
    with writer_lock(folder):
        answer = client.post("/v1/items", json={"items": [NEW]})
    assert answer.status_code == 409
    assert answer.json()["type"] == "urn:anncur:problem:locked"
    assert "retry-after" in answer.headers
    assert client.post("/v1/items", json={"items": [NEW]}).status_code == 200


def test_a_version_that_another_process_made_is_picked_up(client: TestClient, folder: Path, scorer: Overlap) -> None:
    before = client.post("/v1/search", json={"query": "kite"}).json()["index_version"]
    anncur.Index.open(folder, scorer).upsert([NEW])
    assert version_after(client, before) > before
    assert first(client, "kite of paper", budget=121)["id"] == "new"


def version_after(client: TestClient, before: int) -> int:
    """The version that searches use as soon as it is another one, or after some seconds."""
    deadline = time.monotonic() + 10
    while True:
        version: int = client.post("/v1/search", json={"query": "kite", "budget": 1}).json()["index_version"]
        if version != before or time.monotonic() > deadline:
            return version
        time.sleep(0.02)


def test_a_version_is_picked_up_by_a_part_of_another_application(
    client: TestClient, folder: Path, scorer: Overlap
) -> None:
    """Which begins and ends as that one does."""
    with TestClient(Starlette(routes=[Mount("/api", client.app)]), base_url="http://localhost/api") as mounted:
        mounted.headers.update(client.headers)
        before = mounted.post("v1/search", json={"query": "kite"}).json()["index_version"]
        anncur.Index.open(folder, scorer).upsert([NEW])
        deadline = time.monotonic() + 10
        while mounted.post("v1/search", json={"query": "kite"}).json()["index_version"] == before:
            assert time.monotonic() < deadline
            time.sleep(0.02)


def test_no_search_waits_until_a_newer_version_is_loaded(
    client: TestClient, folder: Path, scorer: Overlap, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = client.post("/v1/search", json={"query": "kite"}).json()["index_version"]
    is_loading, load = threading.Event(), FolderBackend.load

    def slow_load(backend: FolderBackend) -> Any:
        is_loading.set()
        time.sleep(1.0)
        return load(backend)

    anncur.Index.open(folder, scorer).upsert([NEW])
    monkeypatch.setattr(FolderBackend, "load", slow_load)
    assert is_loading.wait(10)
    began = time.monotonic()
    client.post("/v1/search", json={"query": "kite", "budget": 1})
    assert time.monotonic() - began < 0.7
    assert version_after(client, before) > before


def test_a_newer_version_that_cant_be_read_is_one_line_in_the_log(
    client: TestClient, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def damaged(backend: FolderBackend) -> Any:
        n_tries.append(1)
        raise DamagedError("segments/1/items.sqlite is damaged")

    n_tries: list[int] = []
    monkeypatch.setattr(FolderBackend, "load", damaged)
    deadline = time.monotonic() + 10
    while len(n_tries) < 3:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert client.post("/v1/search", json={"query": "a"}).status_code == 200
    (line,) = [JsonLines().format(record) for record in caplog.records if record.name == "anncur.service"][:1]
    assert "items.sqlite is damaged" in line
    assert len([record for record in caplog.records if "can't be read" in record.getMessage()]) == 1


def test_if_the_scorer_is_down_nothing_is_changed(client: TestClient, scorer: Overlap) -> None:
    scorer.is_down = True
    assert client.post("/v1/items", json={"items": [NEW]}).status_code == 503
    scorer.is_down = False
    assert client.post("/v1/search", json={"query": "bird", "filter": ["new"]}).json()["hits"] == []
    assert client.post("/v1/items", json={"items": [NEW]}).status_code == 200


def test_items_that_share_an_id_are_refused(client: TestClient) -> None:
    answer = client.post("/v1/items", json={"items": [NEW, NEW]})
    assert answer.status_code == 422


def test_a_change_that_takes_too_long_is_given_up_and_resumes_when_it_is_sent_again(
    make_client: MakeClient, folder: Path, scorer: Overlap
) -> None:
    """4,800 pairs are several requests to the scorer."""
    items = [{"id": f"new-{number}", "text": f"paper kite {number}"} for number in range(400)]
    scorer.slow_down(0.3)
    answer = make_client(max_write_seconds=0.5).post("/v1/items", json={"items": items})
    assert answer.status_code == 503
    assert answer.json()["type"] == "urn:anncur:problem:took-too-long"
    assert "resume" in answer.json()["detail"]
    assert "new-1" not in anncur.Index.open(folder, scorer)
    scorer.slow_down(0.0)
    paid = sum(scorer.requests)
    assert make_client().post("/v1/items", json={"items": items}).status_code == 200
    assert 0 < sum(scorer.requests) - paid < 400 * 12, "what was scored before isn't paid for again"
    assert "new-1" in anncur.Index.open(folder, scorer)


@pytest.mark.slow
def test_a_removal_waits_for_its_turn_no_longer_than_a_change_may_take(
    make_client: MakeClient, scorer: Overlap
) -> None:
    client = make_client(max_write_seconds=1.0)
    client.post("/v1/items", json={"items": [NEW]})
    scorer.slow_down(3.0)
    with ThreadPoolExecutor(1) as pool:
        n_before = len(scorer.requests)
        other = pool.submit(client.post, "/v1/items", json={"items": [{"id": "other", "text": "another"}]})
        while len(scorer.requests) == n_before:
            time.sleep(0.01)
        answer = client.delete("/v1/items/new")
        assert answer.status_code == 429
        assert "retry-after" in answer.headers
        other.result()
    assert client.delete("/v1/items/new").json()["removed"] == 1


@pytest.mark.slow
def test_a_client_that_goes_away_ends_its_change(folder: Path, scorer: Overlap) -> None:
    """12,000 pairs would be many requests to the scorer."""
    items = [{"id": f"new-{number}", "text": f"paper kite {number}"} for number in range(1000)]
    tokens = AccessTokens(READ.encode(), WRITE.encode())
    with serving_in_thread(ServedIndex.open("things", folder, scorer), tokens=tokens) as url:
        scorer.slow_down(0.4)
        n_before = len(scorer.requests)
        body = json.dumps({"items": items}).encode()
        head = f"POST /v1/items HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {WRITE}\r\n"
        head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        with socket.create_connection(("127.0.0.1", urlsplit(url).port), timeout=20) as connection:
            connection.sendall(head.encode() + body)
            deadline = time.monotonic() + 20
            while len(scorer.requests) == n_before:
                assert time.monotonic() < deadline
                time.sleep(0.01)
        time.sleep(2.0)
    assert 0 < sum(scorer.requests[n_before:]) < 12_000
    assert "new-1" not in anncur.Index.open(folder, scorer)
