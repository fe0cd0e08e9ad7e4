"""Searches over HTTP: the same answers as the library's, in the same shape, and the rest of what a request may ask."""

from __future__ import annotations

import json
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

import anncur
from anncur.service.answer_schemas import BatchAnswer, IndexesAnswer, MapAnswer, SearchAnswer
from service_worlds import MakeClient, Overlap, corpus, queries, true_best

QUERY = "small red bird"


def test_an_answer_is_what_the_library_gives(client: TestClient, folder: Path, scorer: Overlap) -> None:
    body = {"query": QUERY, "k": 5, "budget": 40, "max_rounds": 5}
    answer = client.post("/v1/search", json=body)
    assert answer.status_code == 200
    found = SearchAnswer.model_validate(answer.json())
    hits = anncur.Index.open(folder, scorer).search(QUERY, k=5, budget=40, max_rounds=5)
    assert [hit.id for hit in found.hits] == hits.ids
    assert [hit.score for hit in found.hits] == hits.scores
    assert (found.calls, found.n_rounds, found.is_partial) == (hits.calls, hits.n_rounds, hits.is_partial)
    assert found.estimated_recall == pytest.approx(hits.estimated_recall)
    assert found.index == "things"
    assert found.index_version == hits.index_version
    assert found.is_scored
    assert answer.json().keys() >= hits.to_dict().keys()


@pytest.mark.parametrize("method", ["posterior", "anncur", "adacur", "axn", "rerank", "exhaustive"])
def test_every_method_can_be_asked_for(client: TestClient, method: str) -> None:
    answer = client.post("/v1/search", json={"query": QUERY, "k": 3, "method": method, "budget": 30}).json()
    assert answer["method"] == method
    assert answer["calls"] <= 30


def test_a_filter_holds(client: TestClient) -> None:
    passing = {"colour": "red", "number": {"<": 60}}
    hits = client.post("/v1/search", json={"query": QUERY, "filter": passing}).json()["hits"]
    assert hits
    assert all(hit["metadata"]["colour"] == "red" and hit["metadata"]["number"] < 60 for hit in hits)
    by_ids = client.post("/v1/search", json={"query": QUERY, "filter": ["item-3", "item-4", "nobody"]}).json()["hits"]
    assert {hit["id"] for hit in by_ids} == {"item-3", "item-4"}


def test_a_mention_is_marked(client: TestClient) -> None:
    answer = client.post("/v1/search", json={"query": QUERY, "mention": [6, 9], "budget": 10}).json()
    assert answer["query"] == "small [red] bird"


def test_a_minimal_score_and_a_target_of_recall_are_kept(client: TestClient) -> None:
    best = client.post("/v1/search", json={"query": QUERY, "min_score": 1.2, "budget": 100}).json()
    assert all(hit["score"] >= 1.2 for hit in best["hits"])
    answer = client.post("/v1/search", json={"query": QUERY, "target_recall": 0.5, "k": 3}).json()
    assert answer["calls"] < 120


def test_a_deadline_gives_the_best_so_far_marked_as_partial(make_client: MakeClient, scorer: Overlap) -> None:
    client = make_client()
    client.post("/v1/search", json={"query": QUERY, "budget": 20})  # so that all is loaded
    scorer._latency = 0.05
    answer = client.post("/v1/search", json={"query": QUERY, "budget": 100, "deadline_ms": 120})
    assert answer.status_code == 200
    assert answer.json()["is_partial"]
    assert 0 < answer.json()["calls"] < 100


@pytest.mark.parametrize("fail_open", [True, False])
def test_a_deadline_holds_in_the_queue(make_client: MakeClient, scorer: Overlap, fail_open: bool) -> None:
    """One place, taken for more than a second: who can't have it in time gets first guesses, or hears so."""
    client = make_client(max_running=1, max_slowdown=0.0, fail_open=fail_open)
    client.post("/v1/search", json={"query": QUERY, "budget": 20})  # so that all is loaded
    scorer.slow_down(1.5)
    hurried = {"query": QUERY, "k": 3, "deadline_ms": 200}
    with ThreadPoolExecutor(1) as pool:
        other = pool.submit(client.post, "/v1/search", json={"query": QUERY, "budget": 20, "max_rounds": 1})
        while "\nanncur_running_searches 1.0" not in client.get("/metrics").text:
            time.sleep(0.01)
        began = time.monotonic()
        answer = client.post("/v1/search", json=hurried)
        took = time.monotonic() - began
        batch = client.post("/v1/search:batch", json={"queries": queries(3), "k": 2, "deadline_ms": 200})
        assert other.result().status_code == 200
    assert 0.2 <= took < 1.0
    assert answer.status_code == batch.status_code == (200 if fail_open else 429)
    if fail_open:
        found = SearchAnswer.model_validate(answer.json())
        assert (found.is_scored, found.is_partial, found.calls, len(found.hits)) == (False, True, 0, 3)
        assert found.timings.waiting_ms >= 150
        assert [len(each["hits"]) for each in batch.json()["answers"]] == [2, 2, 2]
    else:
        assert answer.json()["type"] == "urn:anncur:problem:too-busy"
        assert "deadline" in answer.json()["detail"]
        assert "retry-after" in answer.headers


@pytest.mark.parametrize("fail_open", [True, False])
def test_a_deadline_before_anything_is_scored_gives_first_guesses_where_they_are_wanted(
    client: TestClient, fail_open: bool
) -> None:
    client.post("/v1/search", json={"query": QUERY, "budget": 20})
    body = {"k": 3, "deadline_ms": 1e-6, "fail_open": fail_open}
    answer = client.post("/v1/search", json={"query": QUERY, **body}).json()
    (in_batch,) = client.post("/v1/search:batch", json={"queries": [QUERY], **body}).json()["answers"]
    for found in (answer, in_batch):
        assert (found["is_partial"], found["calls"]) == (True, 0)
        assert found["is_scored"] == (not fail_open)
        assert len(found["hits"]) == (3 if fail_open else 0)


def test_a_batch_answers_each_query_as_if_it_were_alone(client: TestClient, scorer: Overlap) -> None:
    asked = queries(8)
    body = {"k": 4, "budget": 30, "max_rounds": 4}
    answers = BatchAnswer.model_validate(
        client.post("/v1/search:batch", json={"queries": asked, **body}).json()
    ).answers
    assert [answer.query for answer in answers] == asked
    n_shared = len(scorer.requests)
    for query, answer in zip(asked, answers, strict=True):
        alone = client.post("/v1/search", json={"query": query, **body}).json()
        assert [hit.id for hit in answer.hits] == [hit["id"] for hit in alone["hits"]]
    assert n_shared < len(scorer.requests) - n_shared


def test_a_story_is_told_where_it_is_asked_for(client: TestClient) -> None:
    body = {"query": QUERY, "k": 3, "budget": 30}
    assert "story" not in client.post("/v1/search", json=body).json()
    answer = SearchAnswer.model_validate(client.post("/v1/search", json={**body, "explain": True}).json())
    assert answer.story is not None
    assert sum(len(step.items) for step in answer.story.rounds) == answer.calls == 30


def test_an_exhaustive_search_tells_how_far_it_is_and_finds_the_true_best(client: TestClient) -> None:
    with client.stream("POST", "/v1/search:exhaustive", json={"query": QUERY, "k": 5}) as answer:
        lines: list[dict[str, Any]] = [json.loads(line) for line in answer.iter_lines()]
    assert answer.headers["content-type"] == "application/x-ndjson"
    *progress, last = lines
    assert {line["event"] for line in progress} == {"progress"}
    assert {line["total"] for line in progress} == {120}
    assert last["event"] == "answer"
    assert [hit["id"] for hit in last["hits"]] == true_best(corpus(), QUERY, 5)
    assert last["calls"] == 120


def test_an_exhaustive_search_takes_a_mention(client: TestClient) -> None:
    body = {"query": QUERY, "k": 1, "mention": [10, 14]}
    answer = client.post("/v1/search:exhaustive", json=body)
    assert json.loads(answer.text.splitlines()[-1])["query"] == "small red [bird]"
    beyond = client.post("/v1/search:exhaustive", json={**body, "mention": [10, 99]})
    assert beyond.status_code == 422


def test_an_exhaustive_search_that_fails_says_so_at_its_end(client: TestClient, scorer: Overlap) -> None:
    scorer.is_down = True
    with client.stream("POST", "/v1/search:exhaustive", json={"query": QUERY}) as answer:
        lines = [json.loads(line) for line in answer.iter_lines()]
    assert lines[-1]["event"] == "problem"
    assert lines[-1]["type"] == "urn:anncur:problem:scorer-failed"
    scorer.is_down = False
    again = client.post("/v1/search:exhaustive", json={"query": QUERY})  # its place is free again
    assert again.status_code == 200


def test_no_more_items_are_scored_exhaustively_than_the_cap_allows(make_client: MakeClient) -> None:
    client = make_client(max_exhaustive=100)
    for path, body in (("/v1/search:exhaustive", {}), ("/v1/search", {"method": "exhaustive"})):
        answer = client.post(path, json={"query": QUERY, **body})
        assert answer.status_code == 422
        assert "100" in answer.json()["detail"]
    assert not client.get("/v1/indexes").json()["indexes"][0]["can_check_exhaustively"]


def test_indexes_are_described_without_paths(client: TestClient, folder: Path) -> None:
    answer = client.get("/v1/indexes")
    found = IndexesAnswer.model_validate(answer.json())
    (index,) = found.indexes
    assert (index.name, index.n_items, index.n_anchor_queries) == ("things", 120, 12)
    curves = {curve.k: curve.points for curve in index.expected_recall}
    assert curves[10]
    assert all(0 <= point.recall <= 1 for point in curves[10])
    assert str(folder.parent) not in answer.text


def test_a_map_has_the_places_of_stories(client: TestClient) -> None:
    places = MapAnswer.model_validate(client.get("/v1/indexes/things/map", params={"n": 120}).json())
    assert len(places.items) == 120
    story = client.post("/v1/search", json={"query": QUERY, "budget": 20, "explain": True}).json()["story"]
    by_id = {item.id: (item.x, item.y) for item in places.items}
    for item in (item for step in story["rounds"] for item in step["items"]):
        assert (item["x"], item["y"]) == pytest.approx(by_id[item["id"]])


def test_if_the_scorer_is_down_a_search_fails_without_telling_secrets(client: TestClient, scorer: Overlap) -> None:
    scorer.is_down = True
    answer = client.post("/v1/search", json={"query": QUERY})
    assert answer.status_code == 503
    assert answer.json()["type"] == "urn:anncur:problem:scorer-failed"
    assert "retry-after" in answer.headers
    assert "secret" not in answer.text


@pytest.mark.parametrize("is_asked_for", [True, False])
def test_if_the_scorer_is_down_first_guesses_are_answered_where_that_is_wanted(
    make_client: MakeClient, scorer: Overlap, is_asked_for: bool
) -> None:
    client = make_client(fail_open=not is_asked_for)
    scorer.is_down = True
    body = {"query": QUERY, "k": 7, **({"fail_open": True} if is_asked_for else {})}
    answer = SearchAnswer.model_validate(client.post("/v1/search", json=body).json())
    assert not answer.is_scored
    assert answer.is_partial
    assert len(answer.hits) == 7
    assert {hit.score for hit in answer.hits} == {None}
    assert answer.calls == 0
    batch = client.post("/v1/search:batch", json={"queries": queries(3), "fail_open": True, "k": 2}).json()
    assert [len(each["hits"]) for each in batch["answers"]] == [2, 2, 2]
    assert client.post("/v1/search", json={**body, "fail_open": False}).status_code == 503


def test_what_was_scored_before_the_scorer_failed_is_the_answer(make_client: MakeClient, scorer: Overlap) -> None:
    client = make_client(fail_open=True)
    client.post("/v1/search", json={"query": QUERY, "budget": 20})
    plain, n_before = scorer.score_pairs, len(scorer.requests)

    def fails_later(pairs: Any) -> list[float]:
        scorer.is_down = len(scorer.requests) >= n_before + 2
        return plain(pairs)

    scorer.score_pairs = fails_later  # type: ignore[method-assign]
    body = {"query": QUERY, "k": 3, "budget": 60, "max_rounds": 6}
    answer = SearchAnswer.model_validate(client.post("/v1/search", json=body).json())
    assert answer.is_scored
    assert answer.is_partial
    assert 0 < answer.calls < 60


def test_an_answer_that_would_be_too_large_is_a_problem_that_says_what_to_do(make_client: MakeClient) -> None:
    client = make_client(max_answer_bytes=600)
    assert client.post("/v1/search", json={"query": "bird", "k": 2}).status_code == 200
    for path, body in (("/v1/search", {"query": "bird", "k": 50}), ("/v1/search:batch", {"queries": ["bird"] * 20})):
        answer = client.post(path, json=body)
        assert answer.status_code == 422
        assert answer.headers["content-type"] == "application/problem+json"
        assert answer.json()["type"] == "urn:anncur:problem:answer-too-large"
        assert "smaller k" in answer.json()["detail"]
    lines = client.post("/v1/search:exhaustive", json={"query": "bird", "k": 50}).text.splitlines()
    assert '"event":"problem"' in lines[-1]
    assert "answer-too-large" in lines[-1]
