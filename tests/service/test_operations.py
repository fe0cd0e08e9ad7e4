"""What operators see: logs without texts, metrics, spans, the description of the interface, the page."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from starlette.testclient import TestClient

import anncur
from anncur.scorers.base import Pair
from anncur.service import routes
from anncur.service.access_log import JsonLines
from anncur.service.state import Service
from anncur.service.static import PAGE, POLICY, START, add_page
from service_worlds import MakeClient, Overlap, client_of

SECRET = "a very secret bird"


@pytest.fixture(scope="module")
def spans() -> InMemorySpanExporter:
    """Spans that are exported; a process has one provider of them for good."""
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    trace.set_tracer_provider(provider)
    return exporter


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> Callable[[], list[Any]]:
    caplog.set_level(logging.INFO, logger="anncur")
    formatter = JsonLines()
    return lambda: [json.loads(formatter.format(record)) for record in caplog.records]


def test_every_request_is_a_line_of_json_without_its_text(client: TestClient, lines: Any) -> None:
    client.post("/v1/search", json={"query": SECRET, "budget": 20, "k": 3}, headers={"X-Request-Id": "me-1"})
    client.post("/v1/search", json={"query": SECRET, "k": 0})
    client.get("/livez")
    good, bad = lines()
    assert (good["request_id"], good["route"], good["status"], good["calls"]) == ("me-1", "/v1/search", 200, 20)
    assert good["ms"] > 0
    assert bad["status"] == 422
    assert SECRET not in json.dumps([good, bad])


ASKED: dict[str, dict[str, Any]] = {
    "/v1/search": {"query": SECRET, "budget": 20},
    "/v1/search:batch": {"queries": [SECRET, f"{SECRET} too"], "budget": 20},
    "/v1/search:exhaustive": {"query": SECRET},
    "/v2/rerank": {"query": SECRET, "documents": [SECRET, "a"]},
    "/rerank": {"query": SECRET, "texts": [SECRET, "a"]},
}


@pytest.mark.slow
@pytest.mark.parametrize("fail_open", [True, False])
def test_a_failing_scorer_brings_no_text_into_the_log(
    folder: Path, scorer: Overlap, lines: Any, fail_open: bool
) -> None:
    """Errors of scorers quote queries, and so do those lines that say that a request is tried again."""

    def fail(pairs: Sequence[Pair]) -> list[float]:
        raise ConnectionError(f"no answer from http://scorer.example for {pairs[0][0].text}")

    scorer.score_pairs = fail  # type: ignore[method-assign]
    guarded = anncur.load_scorer(scorer, retries=1, shares_requests=True)
    with client_of(folder, guarded, fail_open=fail_open) as client:
        for path, body in ASKED.items():
            client.post(path, json=body, headers={"X-Request-Id": path.replace("/", "-").replace(":", "-")})
    found = lines()
    assert any("trying again" in line.get("message", "") for line in found)
    assert any("first guesses" in line.get("message", "") for line in found) == fail_open
    assert SECRET not in json.dumps(found)
    assert "scorer.example" not in json.dumps(found)
    assert all("request_id" in line for line in found if line["logger"] == "anncur.service")


def test_texts_are_logged_only_where_an_operator_asks_for_them(make_client: MakeClient, lines: Any) -> None:
    client = make_client(log_texts=True)
    for path, body in ASKED.items():
        client.post(path, json=body)
    assert {line["route"]: line["texts"][0] for line in lines()} == dict.fromkeys(ASKED, SECRET)
    many = {"queries": ["long " * 1000] * 64, "budget": 1}
    client.post("/v1/search:batch", json=many)
    assert len(json.dumps(lines()[-1])) < 30_000


def test_the_log_tells_why_a_scorer_failed(make_client: MakeClient, scorer: Overlap, lines: Any) -> None:
    scorer.is_down = True
    make_client().post("/v1/search", json={"query": "bird"})
    make_client(log_texts=True).post("/v1/search", json={"query": "bird"})
    short, whole = lines()
    assert (short["status"], short["level"]) == (503, "error")
    assert short["error"] == "ScorerError from ConnectionError"
    assert "is down" in whole["error"]


@pytest.mark.parametrize("log_texts", [True, False])
def test_an_error_of_the_service_leaves_a_traceback_with_the_request_id(
    client: TestClient, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, log_texts: bool
) -> None:
    def fails(query: object) -> None:
        raise RuntimeError(SECRET)

    monkeypatch.setattr(routes, "query_of", fails)
    answer = client.post("/v1/search", json={"query": SECRET}, headers={"X-Request-Id": "me-2"})
    assert answer.status_code == 500
    assert SECRET not in answer.text
    formatter = JsonLines(log_texts=log_texts)
    found = [json.loads(formatter.format(record)) for record in caplog.records if record.name == "anncur.service"]
    (traced,) = [line for line in found if "traceback" in line]
    assert traced["request_id"] == "me-2"
    assert "in fails" in traced["traceback"]
    assert "RuntimeError" in traced["traceback"]
    assert (f"RuntimeError: {SECRET}" in traced["traceback"]) == log_texts


def test_an_exhaustive_search_that_fails_is_marked_in_the_log_and_counted(
    client: TestClient, scorer: Overlap, lines: Any
) -> None:
    client.post("/v1/search:exhaustive", json={"query": "bird"})
    scorer.is_down = True
    client.post("/v1/search:exhaustive", json={"query": "bird"}, headers={"X-Request-Id": "me-3"})
    good, event, failed = lines()
    assert (good["calls"], good.get("problem")) == (120, None)
    assert event["request_id"] == failed["request_id"] == "me-3"
    assert (failed["status"], failed["problem"], failed["calls"]) == (200, "scorer-failed", 0)
    text = client.get("/metrics").text
    assert 'anncur_search_pairs_count{index="things",method="exhaustive"} 2.0' in text
    assert 'anncur_search_pairs_sum{index="things",method="exhaustive"} 120.0' in text


def test_times_in_the_log_are_in_utc(client: TestClient, lines: Any) -> None:
    client.get("/version")
    when = datetime.fromisoformat(lines()[0]["time"])
    assert lines()[0]["time"].endswith("Z")
    assert abs((datetime.now(UTC) - when).total_seconds()) < 60


def test_metrics_count_requests_searches_and_pairs(client: TestClient) -> None:
    client.post("/v1/search", json={"query": "bird", "budget": 25})
    client.post("/v1/search", json={"query": "bird", "k": 0})
    client.get("/some/path/nobody/knows")
    found = client.get("/metrics")
    assert found.headers["content-type"].startswith("text/plain")
    text = found.text
    assert 'anncur_requests_total{method="POST",route="/v1/search",status="200"} 1.0' in text
    assert 'anncur_requests_total{method="POST",route="/v1/search",status="422"} 1.0' in text
    assert 'route="other",status="404"' in text
    assert "nobody" not in text
    assert 'anncur_search_pairs_sum{index="things",method="posterior"} 25.0' in text
    assert 'anncur_index_items{index="things"} 120.0' in text
    assert re.search(r'anncur_scorer_pairs_total\{index="things"\} \d+', text)
    assert "anncur_running_searches 0.0" in text


def test_there_are_spans_for_requests_rounds_and_what_the_scorer_is_asked_for(
    client: TestClient, spans: InMemorySpanExporter
) -> None:
    client.post("/v1/search", json={"query": SECRET, "budget": 30})
    found = {span.name: span for span in spans.get_finished_spans()}
    assert found.keys() >= {"anncur.request", "anncur.round", "anncur.scorer_request"}
    assert len({span.context.trace_id for span in found.values() if span.context}) == 1
    assert SECRET not in str([dict(span.attributes or {}) for span in spans.get_finished_spans()])
    rounds = [dict(span.attributes or {}) for span in spans.get_finished_spans() if span.name == "anncur.round"]
    assert sum(int(str(attributes["anncur.pairs"])) for attributes in rounds) == 30


def test_spans_of_a_failing_scorer_have_the_type_of_the_error_and_no_text(
    client: TestClient, scorer: Overlap, spans: InMemorySpanExporter
) -> None:
    scorer.is_down = True
    spans.clear()
    client.post("/v1/search", json={"query": SECRET, "budget": 30})
    found = spans.get_finished_spans()
    assert "ScorerError" in {span.status.description for span in found}
    assert SECRET not in "".join(span.to_json() for span in found)


def test_it_is_not_ready_while_it_shuts_down(client: TestClient) -> None:
    assert client.get("/readyz").json() == {"status": "ready"}
    app = client.app
    assert isinstance(app, FastAPI)
    service: Service = app.state.service
    service.is_draining = True
    answer = client.get("/readyz")
    assert answer.status_code == 503
    assert answer.json()["type"] == "urn:anncur:problem:shutting-down"
    assert client.head("/readyz").status_code == 503
    assert client.get("/livez").status_code == 200


def test_probes_may_be_asked_without_a_body(make_client: MakeClient) -> None:
    client = make_client(token=None)
    for path in ("/livez", "/readyz"):
        answer = client.head(path)
        assert (answer.status_code, answer.content) == (200, b"")


def test_the_version_is_that_of_the_package(client: TestClient) -> None:
    assert client.get("/version").json() == {"name": "anncur", "version": anncur.__version__, "api": "v1"}


def test_every_route_documents_its_problems_and_who_needs_a_token(client: TestClient) -> None:
    described = client.get("/openapi.json").json()
    for path, methods in described["paths"].items():
        for operation in methods.values():
            needs_token = path not in {"/livez", "/readyz", "/version"}
            assert ("security" in operation) == needs_token == ("401" in operation["responses"]), path
            for status, response in operation["responses"].items():
                assert status.startswith("2") or "application/problem+json" in response["content"], (path, status)


def test_every_path_is_in_the_documentation(client: TestClient) -> None:
    page = (Path(__file__).parents[2] / "docs" / "http.md").read_text()
    for path in client.get("/openapi.json").json()["paths"]:
        assert path.rpartition("}")[0] in page, path


def test_files_of_a_page_are_served_under_a_strict_policy(tmp_path: Path) -> None:
    (tmp_path / "index.html").write_text("<p>hello")
    (tmp_path / "code.js").write_text("1")
    app = FastAPI()
    assert add_page(app, tmp_path) == {"/", "/page/index.html", "/page/code.js"}
    client = TestClient(app)
    start, code = client.get("/"), client.get("/page/code.js")
    assert (start.text, start.headers["content-type"]) == ("<p>hello", "text/html; charset=utf-8")
    assert code.headers["content-type"].startswith("text/javascript")
    assert start.headers["content-security-policy"] == POLICY
    for path in ("/page/../index.html", "/page/..%2f..%2fapp.py", "/page/", "/page/other.js"):
        assert client.get(path).status_code == 404


def test_every_file_that_the_page_names_is_served_and_every_one_that_is_served_is_named(client: TestClient) -> None:
    files = {file.name: file.read_text(encoding="utf-8") for file in PAGE.iterdir()}
    named = {name for text in files.values() for name in re.findall(r'"(?:page/|\./)([a-z]+\.[a-z]+)"', text)}
    assert named | {START} == set(files)
    assert all(client.get(f"/page/{name}", headers={"Authorization": ""}).status_code == 200 for name in files)


def test_no_module_of_the_page_makes_html_or_code_of_text() -> None:
    forbidden = r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|DOMParser|\beval\b|new Function|setHTML|srcdoc"
    for file in PAGE.iterdir():
        assert re.findall(forbidden, file.read_text(encoding="utf-8")) == [], file.name
    assert re.findall(r"\s(?:on\w+|style)=|<style|<script>", (PAGE / START).read_text(encoding="utf-8")) == []


def test_a_service_without_a_page_has_none(tmp_path: Path) -> None:
    assert add_page(FastAPI(), tmp_path / "nothing") == frozenset()


def test_metrics_show_the_places_and_how_much_searches_slow_each_other_down(make_client: MakeClient) -> None:
    client = make_client(max_running=3)
    client.post("/v1/search", json={"query": "bird", "budget": 20})
    client.post("/v1/search", json={"query": "bird", "budget": 20})
    lines = dict(line.rsplit(" ", 1) for line in client.get("/metrics").text.splitlines() if line[:1] != "#")
    assert float(lines["anncur_search_places"]) == 2.0  # a few, until it shows that more are no load
    assert float(lines["anncur_search_slowdown"]) > 0
    assert float(lines["anncur_pressed"]) == 0
