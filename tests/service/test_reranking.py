"""Re-ranking in other people's shapes."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
from starlette.testclient import TestClient

from anncur.scorers.base import Pair
from anncur.service.answer_schemas import CohereAnswer, TeiResult
from service_worlds import MakeClient, Overlap, overlap

QUERY = "small red bird"
TEXTS = ["large blue fish", "small red bird", "red horse", "house", "small red bird"]


def best_first() -> list[int]:
    return sorted(range(len(TEXTS)), key=lambda place: -overlap(QUERY, TEXTS[place]))


@pytest.mark.parametrize("path", ["/v1/rerank", "/v2/rerank"])
def test_coheres_shape(client: TestClient, path: str) -> None:
    body = {"model": "rerank-v3.5", "query": QUERY, "documents": TEXTS, "max_tokens_per_doc": 4096}
    answer = CohereAnswer.model_validate(client.post(path, json=body).json())
    assert [result.index for result in answer.results] == best_first()
    assert all(0 <= result.relevance_score <= 1 for result in answer.results)
    assert answer.meta["api_version"]["version"] == path[2]
    top = client.post(path, json={**body, "top_n": 2}).json()["results"]
    assert [result["index"] for result in top] == best_first()[:2]


def test_documents_may_be_objects_and_are_returned_where_that_is_wanted(client: TestClient) -> None:
    documents = [{"text": text, "title": "not read"} for text in TEXTS]
    body = {"query": QUERY, "documents": documents, "return_documents": True, "top_n": 1}
    (result,) = client.post("/v1/rerank", json=body).json()["results"]
    assert result["document"] == {"text": TEXTS[result["index"]]}


def test_fields_of_documents_are_read_in_the_order_in_which_they_are_named(client: TestClient, scorer: Overlap) -> None:
    documents = [
        {"title": "fish", "body": "large blue"},
        {"body": "small red", "title": "bird", "other": 5},
        "red horse",
    ]
    read: list[str] = []
    plain = scorer.score_pairs

    def reads(pairs: Sequence[Pair]) -> list[float]:
        read.extend(item.text for _, item in pairs)
        return plain(pairs)

    scorer.score_pairs = reads  # type: ignore[method-assign]
    body = {"query": QUERY, "documents": documents, "rank_fields": ["body", "title", "missing"]}
    answer = client.post("/v1/rerank", json={**body, "return_documents": True})
    assert read == ["body: large blue\ntitle: fish", "body: small red\ntitle: bird", "red horse"]
    assert answer.json()["results"][0]["document"]["text"] in read


@pytest.mark.parametrize(
    ("document", "rank_fields"),
    [
        ({"title": "a"}, None),
        ({"title": "a"}, ["body"]),
        ({"text": 5}, None),
        ({"body": ["a"]}, ["body"]),
        ({}, None),
        ({"text": "a\0b"}, None),
        ({"text": "a" * 100_001}, None),
        (5, None),
    ],
)
def test_a_document_without_a_text_is_refused(
    client: TestClient, document: object, rank_fields: list[str] | None
) -> None:
    answer = client.post("/v1/rerank", json={"query": QUERY, "documents": [document], "rank_fields": rank_fields})
    assert answer.status_code == 422
    assert "documents" in answer.json()["detail"]


def test_null_stands_for_the_default(client: TestClient) -> None:
    nulls = dict.fromkeys(["raw_scores", "return_text", "truncate", "truncation_direction"])
    plain = client.post("/rerank", json={"query": QUERY, "texts": TEXTS})
    assert client.post("/rerank", json={"query": QUERY, "texts": TEXTS, **nulls}).json() == plain.json()
    others = dict.fromkeys(["model", "top_n", "return_documents", "rank_fields", "max_tokens_per_doc"])
    found = client.post("/v2/rerank", json={"query": QUERY, "documents": TEXTS, **others})
    assert [result["index"] for result in found.json()["results"]] == best_first()


def test_relevance_is_the_logistic_function_or_the_score_itself(make_client: MakeClient) -> None:
    body = {"query": QUERY, "documents": TEXTS}
    squeezed = make_client().post("/v2/rerank", json=body).json()["results"]
    raw = make_client(raw_relevance=True).post("/v2/rerank", json=body).json()["results"]
    for one, other in zip(squeezed, raw, strict=True):
        assert other["relevance_score"] == overlap(QUERY, TEXTS[other["index"]])
        assert one["relevance_score"] == pytest.approx(1 / (1 + math.exp(-other["relevance_score"])))


def test_the_shape_of_text_embeddings_inference(client: TestClient) -> None:
    body = {"query": QUERY, "texts": TEXTS, "truncate": True, "truncation_direction": "right"}
    results = [TeiResult.model_validate(each) for each in client.post("/rerank", json=body).json()]
    assert [result.index for result in results] == best_first()
    assert all(0 < result.score < 1 and result.text is None for result in results)
    raw = client.post("/rerank", json={**body, "raw_scores": True, "return_text": True}).json()
    assert [each["score"] for each in raw] == [overlap(QUERY, TEXTS[place]) for place in best_first()]
    assert [each["text"] for each in raw] == [TEXTS[place] for place in best_first()]


def test_no_model_is_taken_from_a_request(client: TestClient, scorer: Overlap) -> None:
    for model in ("things", "../../etc/passwd", "http://elsewhere/model", "cohere:rerank"):
        answer = client.post("/v2/rerank", json={"model": model, "query": QUERY, "documents": TEXTS})
        assert [result["index"] for result in answer.json()["results"]] == best_first()
    assert sum(scorer.requests) == 4 * len(TEXTS)


@pytest.mark.parametrize(
    ("path", "name"), [("/v1/rerank", "documents"), ("/v2/rerank", "documents"), ("/rerank", "texts")]
)
def test_many_documents_are_refused(make_client: MakeClient, scorer: Overlap, path: str, name: str) -> None:
    """With 413, as text-embeddings-inference does."""
    client, frugal = make_client(), make_client(max_budget=50)
    for asked, n_documents in ((client, 1001), (frugal, 51)):
        answer = asked.post(path, json={"query": QUERY, name: ["a"] * n_documents})
        assert answer.status_code == 413
        assert answer.json()["type"] == "urn:anncur:problem:too-large"
        assert answer.json()["errors"][0]["field"] == name
    assert scorer.requests == []
    assert client.post(path, json={"query": QUERY, name: []}).status_code == 422
    assert frugal.post(path, json={"query": QUERY, name: ["a"] * 50}).status_code == 200


def test_an_empty_document_is_scored_too(client: TestClient) -> None:
    answer = client.post("/v2/rerank", json={"query": QUERY, "documents": ["", "small red bird"]})
    assert [result["index"] for result in answer.json()["results"]] == [1, 0]
