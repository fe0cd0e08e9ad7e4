"""The edge: tokens, hosts, bodies, caps, and problems that tell what is wrong and nothing else."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.applications import Starlette
from starlette.routing import Mount
from starlette.testclient import TestClient

from anncur.errors import InputError
from anncur.service import caps
from anncur.service.answer_schemas import ProblemAnswer
from anncur.service.edge import check_token
from anncur.service.problems import KINDS, ProblemError
from anncur.service.server import allowed_hosts, check_address, is_loopback
from anncur.service.settings import MEGABYTE, AccessTokens, ServiceSettings
from service_worlds import READ, WRITE, MakeClient

pytestmark = pytest.mark.slow

SEARCH = {"query": "small red bird", "budget": 10}
JSON = {"Content-Type": "application/json"}


def problem(answer: Any) -> ProblemAnswer:
    assert answer.headers["content-type"] == "application/problem+json"
    found = ProblemAnswer.model_validate(answer.json())
    assert found.status == answer.status_code
    assert found.type.removeprefix("urn:anncur:problem:") in KINDS
    assert found.request_id == answer.headers["x-request-id"]
    return found


@pytest.mark.parametrize("token", [None, "", "wrong-token-of-tests", READ + "x", READ[:-1], "Bearer"])
def test_searches_need_a_token_where_there_is_one(make_client: MakeClient, token: str | None) -> None:
    client = make_client(token=token)
    for method, path in (("POST", "/v1/search"), ("GET", "/v1/indexes"), ("GET", "/metrics"), ("POST", "/rerank")):
        answer = client.request(method, path, json=SEARCH)
        assert problem(answer).type.endswith("unauthorized")
        assert answer.headers["www-authenticate"].startswith("Bearer")


@pytest.mark.parametrize("token", [READ, WRITE])
def test_either_token_allows_searches(make_client: MakeClient, token: str) -> None:
    assert make_client(token=token).post("/v1/search", json=SEARCH).status_code == 200


def test_probes_need_no_token(make_client: MakeClient) -> None:
    client = make_client(token=None)
    for path in ("/livez", "/readyz", "/version", "/openapi.json"):
        assert client.get(path).status_code == 200


def under(prefix: str, client: TestClient, *, is_mounted: bool) -> TestClient:
    """A client of the same application below a path: mounted in another one, or by a server that says so."""
    if is_mounted:
        app = Starlette(routes=[Mount(prefix, client.app)])
        return TestClient(app, headers=dict(client.headers), raise_server_exceptions=False)
    return TestClient(client.app, headers=dict(client.headers), root_path=prefix, raise_server_exceptions=False)


@pytest.mark.parametrize("is_mounted", [True, False])
def test_below_another_path_the_same_tokens_are_needed(make_client: MakeClient, is_mounted: bool) -> None:
    items = {"items": [{"id": "new", "text": "a"}]}
    for options, status in (
        ({"token": READ}, 403),
        ({"token": None}, 401),
        ({"token": None, "tokens": AccessTokens()}, 403),
        ({"token": WRITE}, 200),
    ):
        client = under("/api", make_client(**options), is_mounted=is_mounted)
        assert client.post("/api/v1/items", json=items).status_code == status
        assert client.delete("/api/v1/items/new").status_code == status
    without = under("/api", make_client(token=None), is_mounted=is_mounted)
    for path in ("/livez", "/readyz", "/version", "/openapi.json", "/", "/page/index.html"):
        assert without.get(f"/api{path}").status_code == 200
    assert without.get("/api/v1/indexes").status_code == 401


@given(st.binary(max_size=40))
def test_no_other_bytes_are_taken_for_a_token(shown: bytes) -> None:
    tokens = AccessTokens(READ.encode(), WRITE.encode())
    if shown.strip() not in {READ.encode(), WRITE.encode()}:
        for is_write in (True, False):
            with pytest.raises(ProblemError):
                check_token(tokens, b"Bearer " + shown, is_write=is_write)


def test_tokens_come_from_files_or_the_environment(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("a token in a file, with ü\n")
    environment = {"ANNCUR_READ_TOKEN": "not this one, though", "ANNCUR_WRITE_TOKEN": "one of the environment"}
    found = AccessTokens.find(environment, read_file=file, write_file=None)
    assert found == AccessTokens("a token in a file, with ü".encode(), b"one of the environment")
    assert "token in a file" not in repr(found)
    with pytest.raises(InputError, match="can't be read"):
        AccessTokens.find({}, read_file=tmp_path / "missing", write_file=None)
    assert AccessTokens.find({}, read_file=None, write_file=None) == AccessTokens()


@pytest.mark.parametrize("name", ["ANNCUR_READ_TOKEN", "ANNCUR_WRITE_TOKEN"])
@pytest.mark.parametrize("value", ["", " ", "\n"])
def test_a_token_that_is_empty_is_no_way_to_have_none(name: str, value: str) -> None:
    with pytest.raises(InputError, match=f"{name} is set, and empty"):
        AccessTokens.find({name: value}, read_file=None, write_file=None)


@pytest.mark.parametrize(
    "tokens", [(b"short", None), (b"the same for both ways",) * 2, (b" white space around it ", None)]
)
def test_tokens_that_guard_nothing_are_refused(tokens: tuple[bytes, bytes | None]) -> None:
    with pytest.raises(InputError):
        AccessTokens(*tokens)


def test_it_listens_for_others_only_behind_a_token() -> None:
    for host in ("0.0.0.0", "::", "192.168.1.7"):
        with pytest.raises(InputError, match="token"):
            check_address(host, AccessTokens(write=WRITE.encode()))
        check_address(host, AccessTokens(read=READ.encode()))
    for host in ("127.0.0.1", "::1", "localhost"):
        check_address(host, AccessTokens())
        assert is_loopback(host)
    with pytest.raises(InputError, match="can't be listened on"):
        check_address("no such host", AccessTokens())


def test_without_a_token_requests_to_another_name_are_refused(make_client: MakeClient) -> None:
    hosts = allowed_hosts("127.0.0.1", AccessTokens(), ())
    client = make_client(tokens=AccessTokens(), token=None, hosts=hosts)
    for host in ("evil.example", "localhost.evil.example", "evil.example:8000", "", "ä"):
        answer = client.get("/v1/indexes", headers=[(b"Host", host.encode())])
        assert problem(answer).type.endswith("wrong-host")
    for host in ("localhost", "LOCALHOST:8000", "127.0.0.1:8000", "[::1]:8000"):
        assert client.get("/v1/indexes", headers={"Host": host}).status_code == 200
    assert allowed_hosts("0.0.0.0", AccessTokens(READ.encode()), ()) == ()
    assert "my.name" in allowed_hosts("0.0.0.0", AccessTokens(READ.encode()), ("My.Name",))


def test_other_origins_may_read_nothing_unless_they_are_named(make_client: MakeClient) -> None:
    origin = {"Origin": "https://other.example"}
    assert "access-control-allow-origin" not in make_client().get("/version", headers=origin).headers
    named = make_client(cors_origins=("https://other.example",))
    assert named.get("/version", headers=origin).headers["access-control-allow-origin"] == "https://other.example"
    exposed = named.get("/version", headers=origin).headers["access-control-expose-headers"]
    assert set(exposed.split(", ")) == {"Retry-After", "X-Request-Id"}
    another = named.get("/version", headers={"Origin": "https://another.example"})
    assert "access-control-allow-origin" not in another.headers


BODIES = [
    (b"", 400, "malformed-json"),
    (b"{", 400, "malformed-json"),
    (b'{"query": "a", "min_score": NaN}', 400, "malformed-json"),
    (b'{"query": "a", "min_score": Infinity}', 400, "malformed-json"),
    (b'{"query": "a", "min_score": 1e999}', 422, "invalid-request"),
    (b'{"query": "\\ud800"}', 400, "malformed-json"),
    (b'{"query": "\xff\xfe"}', 400, "malformed-json"),
    (b"[" * 100_000, 400, "malformed-json"),
    (b'{"filter":' * 500 + b"1" + b"}" * 500, 400, "malformed-json"),
    (b'{"query": "a", "k": ' + b"9" * 5000 + b"}", None, None),
    (b"null", 422, "invalid-request"),
    (b"[]", 422, "invalid-request"),
    (b'"text"', 422, "invalid-request"),
    (b'{"query": ""}', 422, "invalid-request"),
    (b'{"query": "   "}', 422, "invalid-request"),
    (b'{"query": "a\\u0000b"}', 422, "invalid-request"),
    (b'{"query": 5}', 422, "invalid-request"),
    (b'{"query": "a", "k": "5"}', 422, "invalid-request"),
    (b'{"query": "a", "k": 5.5}', 422, "invalid-request"),
    (b'{"query": "a", "k": true}', 422, "invalid-request"),
    (b'{"query": "a", "k": 1001}', 422, "invalid-request"),
    (b'{"query": "a", "budget": 0}', 422, "invalid-request"),
    (b'{"query": "a", "budget": 10001}', 422, "invalid-request"),
    (b'{"query": "a", "deadline_ms": -1}', 422, "invalid-request"),
    (b'{"query": "a", "method": "../posterior"}', 422, "invalid-request"),
    (b'{"query": "a", "index": "../things"}', 422, "invalid-request"),
    (b'{"query": "a", "index": "others"}', 404, "unknown-index"),
    (b'{"query": "a", "scorer": "http://elsewhere"}', 422, "invalid-request"),
    (b'{"query": "a", "mention": [0, 9]}', 422, "invalid-request"),
    (b'{"query": "a", "target_recall": 0.5, "budget": 5}', 422, "invalid-request"),
    (b'{"query": "a", "filter": {"nothing of the kind": 1}}', 422, "invalid-request"),
    (b'{"query": "a", "filter": "text"}', 422, "invalid-request"),
    (b'{"query": "a", "filter": [1, 2]}', 422, "invalid-request"),
]


@pytest.mark.parametrize(("body", "status", "name"), BODIES)
def test_bodies_that_break_a_rule_are_told_which(
    shared_client: TestClient, body: bytes, status: int | None, name: str | None
) -> None:
    answer = shared_client.post("/v1/search", content=body, headers=JSON)
    assert answer.status_code in ({400, 422} if status is None else {status})
    found = problem(answer)
    assert name is None or found.type == f"urn:anncur:problem:{name}"


def test_a_body_must_say_that_it_is_json(client: TestClient) -> None:
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data", "application/jsonp", "ä"):
        answer = client.post("/v1/search", content=json.dumps(SEARCH), headers=[(b"Content-Type", kind.encode())])
        assert problem(answer).type.endswith("unsupported-media-type")
    good = client.post(
        "/v1/search", content=json.dumps(SEARCH), headers={"Content-Type": "application/json; charset=x"}
    )
    assert good.status_code == 200


def test_a_body_over_the_cap_is_cut_off_while_it_comes_in(make_client: MakeClient) -> None:
    client = make_client(max_body_bytes=MEGABYTE)

    def without_length() -> Iterator[bytes]:
        yield from [b" " * 65536] * 20

    assert problem(client.post("/v1/search", content=without_length(), headers=JSON)).type.endswith("too-large")
    told = client.post("/v1/search", content=b" " * (MEGABYTE + 1), headers=JSON)
    assert problem(told).type.endswith("too-large")


def test_a_text_over_the_cap_is_refused(client: TestClient) -> None:
    assert problem(client.post("/v1/search", json={"query": "a" * 10_001})).type.endswith("invalid-request")
    long = {"items": [{"id": "a", "text": "a" * 100_001}]}
    assert problem(client.post("/v1/items", json=long)).type.endswith("invalid-request")
    assert client.post("/v1/search:batch", json={"queries": ["a"] * 65}).status_code == 422


def test_filters_are_neither_deep_nor_large(client: TestClient) -> None:
    deep: dict[str, Any] = {"number": 1}
    for _ in range(40):
        deep = {"not": deep}
    large = {"or": [{"number": number} for number in range(3000)]}
    for conditions in (deep, large):
        answer = client.post("/v1/search", json={"query": "a", "filter": conditions})
        assert problem(answer).type.endswith("invalid-request")


def test_an_operator_may_lower_the_caps(make_client: MakeClient) -> None:
    client = make_client(max_budget=50, max_k=5)
    assert client.post("/v1/search", json={"query": "a", "k": 5, "budget": 50}).status_code == 200
    for body in ({"k": 6}, {"budget": 51}, {"target_recall": 0.5, "max_budget": 51}):
        assert client.post("/v1/search", json={"query": "a", **body}).status_code == 422
    target = client.post("/v1/search", json={"query": "a", "k": 5, "target_recall": 1.0}).json()
    assert target["calls"] <= 50
    by_default = client.post("/v1/search", json={"query": "a", "k": 5}).json()
    assert by_default["calls"] <= 50
    assert client.post("/v1/search:exhaustive", json={"query": "a", "k": 6}).status_code == 422
    assert client.post("/v1/search:exhaustive", json={"query": "a", "k": 5}).status_code == 200
    assert client.post("/v1/search", json={"query": "a", "k": 6, "method": "exhaustive"}).status_code == 422
    with pytest.raises(InputError):
        ServiceSettings(max_budget=10_000_000)


@pytest.mark.parametrize(
    ("options", "n_pairs"),
    [
        ({"method": "exhaustive"}, 120),
        ({"target_recall": 0.9}, 120),
        ({"target_recall": 0.9, "max_budget": 30}, 30),
        ({"budget": 40}, 40),
        ({"budget": 500}, 120),
        ({"budget": 20, "method": "exhaustive"}, 20),
        ({}, 120),
    ],
)
def test_a_batch_takes_no_more_pairs_than_the_cap(
    client: TestClient, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], n_pairs: int
) -> None:
    """Whatever determines how many of them a query takes, of an index of 120 items."""
    body = {"queries": ["a", "b"], "k": 1, **options}
    monkeypatch.setattr(caps, "MOST_BATCH_PAIRS", 2 * n_pairs - 1)
    assert client.post("/v1/search:batch", json=body).status_code == 422
    monkeypatch.setattr(caps, "MOST_BATCH_PAIRS", 2 * n_pairs)
    answer = client.post("/v1/search:batch", json=body)
    assert answer.status_code == 200
    assert sum(each["calls"] for each in answer.json()["answers"]) <= 2 * n_pairs


def test_paths_and_methods_that_there_arent_are_problems(client: TestClient) -> None:
    assert problem(client.get("/v1/nothing")).type.endswith("not-found")
    assert problem(client.get("/v1/search")).type.endswith("method-not-allowed")
    assert problem(client.get("/v1/indexes/..%2f..%2fetc/map")).status in {404, 422}
    assert problem(client.get("/v1/indexes/others/map")).type.endswith("unknown-index")


def test_parameters_that_nobody_knows_are_refused(client: TestClient) -> None:
    for method, path in (
        ("DELETE", "/v1/items/a?other=1"),
        ("GET", "/v1/indexes/things/map?m=1"),
        ("POST", "/v1/search?k=1"),
    ):
        assert problem(client.request(method, path, json=SEARCH)).type.endswith("invalid-request")
    assert client.get("/livez?probe=1").status_code == 200


def test_a_plain_request_id_is_kept_and_others_are_replaced(client: TestClient) -> None:
    assert client.get("/version", headers={"X-Request-Id": "abc-1"}).headers["x-request-id"] == "abc-1"
    for odd in ("a b", "a\tb", "ä", "x" * 65, '"}'):
        given = client.get("/version", headers=[(b"X-Request-Id", odd.encode())]).headers["x-request-id"]
        assert given != odd
        assert given.isalnum()


def test_answers_are_neither_sniffed_nor_kept(client: TestClient) -> None:
    headers = client.post("/v1/search", json=SEARCH).headers
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["cache-control"] == "no-store"
    assert "server" not in headers
