"""One suite for every wire format of re-rankers, against endpoints on this machine."""

from __future__ import annotations

import asyncio
import copy
import pickle
import socket
import threading
import time
import warnings
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, timezone
from email.utils import format_datetime
from typing import Any

import httpx
import pytest

from anncur.errors import (
    DeadlineError,
    RequestTooLargeError,
    ScorerAccessError,
    ScorerBusyError,
    ScorerError,
    ScorerOutputError,
    ScorerRefusedError,
    SpendCapError,
    TextTooLongError,
    TruncationWarning,
)
from anncur.items import Item, Query
from anncur.scorers.guard import GuardedScorer
from anncur.scorers.http import open_endpoint
from anncur.scorers.http.formats import COHERE, TEI, PairEndpoint, RerankEndpoint
from anncur.scorers.loading import load_scorer
from anncur.scorers.pace import Deadline
from endpoints import SPOKEN, Answer, Asked, FakeEndpoint, Spoken, honest, score_of, serve

pytestmark = pytest.mark.slow  # the whole of it takes seconds

QUERY = Query("small bat that eats fruit", mention=(6, 9))
ITEMS = [Item("a", "eats fruit", "bat"), Item("b", "a large cat with {braces} and ünïcode"), Item("c", "bat")]
KEY = "sk-very-secret-0123456789"

TOO_LONG = {
    "voyage": Answer(
        {"detail": "The example at index 0 has too many tokens and does not fit into the model's context window."}, 400
    ),
    "tei": Answer({"error": "Input validation error: `inputs` must have less than 512 tokens. Given: 900"}, 413),
    "vllm": Answer(
        {"error": {"message": "This model's maximum context length is 512 tokens. You asked for 900."}}, 400
    ),
    "vllm-score": Answer({"message": "The prompt (length 900) is longer than the maximum model length of 512."}, 400),
}
TOO_MANY = [
    (413, {"error": "batch size 40 > maximum allowed batch size 32", "error_type": "Validation"}),
    (400, {"message": "invalid request: too many documents, at most 1000 documents are allowed"}),
    (422, {"detail": [{"loc": ["body", "documents"], "msg": "List should have at most 2048 items after validation"}]}),
    (400, {"detail": "The max allowed tokens per submitted batch is 600000."}),
]


@pytest.fixture(params=list(SPOKEN))
def spoken(request: pytest.FixtureRequest) -> Spoken:
    return SPOKEN[request.param]


@pytest.fixture
def endpoint(spoken: Spoken) -> Iterator[FakeEndpoint]:
    with serve(honest(spoken)) as endpoint:
        yield endpoint


def opened(spoken: Spoken, endpoint: FakeEndpoint) -> RerankEndpoint:
    scorer = open_endpoint(spoken.name.format(url=endpoint.url))
    assert isinstance(scorer, RerankEndpoint)
    return scorer


def score(scorer: RerankEndpoint, items: list[Item] = ITEMS) -> list[float]:
    return asyncio.run(scorer.score(QUERY, items))


def expected(items: list[Item] = ITEMS) -> list[float]:
    return [score_of(QUERY.marked_text, item.full_text) for item in items]


def test_a_request_has_the_path_the_key_the_texts_and_what_the_format_asks_for(
    spoken: Spoken, endpoint: FakeEndpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(spoken.key_name, f" {KEY}\n")
    score(opened(spoken, endpoint))
    [asked] = endpoint.asked
    assert asked.path == spoken.path
    assert asked.headers["Authorization"] == f"Bearer {KEY}"
    assert asked.body.items() >= spoken.fixed.items()
    assert spoken.pairs(asked.body) == [(QUERY.marked_text, item.full_text) for item in ITEMS]
    assert "top_n" not in asked.body


def test_scores_come_in_the_order_of_items_whatever_the_order_of_the_answer(
    spoken: Spoken, endpoint: FakeEndpoint
) -> None:
    assert score(opened(spoken, endpoint)) == expected()
    assert score(opened(spoken, endpoint), ITEMS[::-1]) == expected(ITEMS[::-1])


def test_no_items_are_no_request(spoken: Spoken, endpoint: FakeEndpoint) -> None:
    assert score(opened(spoken, endpoint), []) == []
    assert not endpoint.asked


def test_without_a_key_none_is_sent(spoken: Spoken, endpoint: FakeEndpoint) -> None:
    score(opened(spoken, endpoint))
    assert "Authorization" not in endpoint.asked[0].headers


def test_the_fingerprint_names_format_and_model(spoken: Spoken, endpoint: FakeEndpoint) -> None:
    assert opened(spoken, endpoint).fingerprint == spoken.fingerprint


def test_the_rules_of_a_paid_scorer_are_its_own(spoken: Spoken, endpoint: FakeEndpoint) -> None:
    scorer = opened(spoken, endpoint)
    assert 1 <= scorer.batch_size <= 100
    assert (scorer.concurrency, scorer.retries) == (8, 5)


BAD_RESULTS: dict[str, list[tuple[Any, Any]]] = {
    "too few": [(0, 0.5), (1, 0.5)],
    "too many": [(0, 0.5), (1, 0.5), (2, 0.5), (3, 0.5)],
    "repeated": [(0, 0.5), (1, 0.5), (1, 0.5)],
    "out of range": [(0, 0.5), (1, 0.5), (3, 0.5)],
    "negative": [(0, 0.5), (1, 0.5), (-1, 0.5)],
    "a truth as index": [(0, 0.5), (True, 0.5), (2, 0.5)],
    "a float as index": [(0, 0.5), (1.0, 0.5), (2, 0.5)],
    "no index": [(0, 0.5), (1, 0.5), (None, 0.5)],
    "nan": [(0, 0.5), (1, 0.5), (2, float("nan"))],
    "infinite": [(0, 0.5), (1, 0.5), (2, float("inf"))],
    "a string": [(0, 0.5), (1, 0.5), (2, "0.5")],
    "null": [(0, 0.5), (1, 0.5), (2, None)],
    "a truth": [(0, 0.5), (1, 0.5), (2, True)],
    "beyond floats": [(0, 0.5), (1, 0.5), (2, 10**400)],
}


@pytest.mark.parametrize("results", BAD_RESULTS.values(), ids=list(BAD_RESULTS))
def test_anything_but_one_finite_number_per_item_is_refused_and_what_it_cost_is_counted(
    spoken: Spoken, endpoint: FakeEndpoint, results: list[tuple[Any, Any]]
) -> None:
    endpoint.reply = lambda _: Answer(spoken.answer(results))
    scorer = opened(spoken, endpoint)
    with pytest.raises(ScorerOutputError, match="one finite number per item"):
        score(scorer)
    assert dict(scorer.spent) == ({spoken.unit: 7} if spoken.unit else {})


@pytest.mark.parametrize(
    "body",
    [b"<html>hello</html>", b"", b'{"results": [{"index": 0', b"\xff\xfe\xff", b"[" * 100_000, b"{}", b"[3]", b"3"],
)
def test_what_is_not_the_formats_json_is_refused(spoken: Spoken, endpoint: FakeEndpoint, body: bytes) -> None:
    endpoint.reply = lambda _: Answer(body)
    with pytest.raises(ScorerOutputError):
        score(opened(spoken, endpoint))


def test_spend_is_counted_in_the_endpoints_own_unit(spoken: Spoken, endpoint: FakeEndpoint) -> None:
    scorer = opened(spoken, endpoint)
    score(scorer)
    score(scorer)
    assert dict(scorer.spent) == ({spoken.unit: 14} if spoken.unit else {})


@pytest.mark.parametrize("units", [None, "7", -3, float("nan"), True, [7]])
def test_a_unit_that_is_no_number_doesnt_spoil_the_scores(units: Any) -> None:
    answer = {"results": [{"index": 0, "relevance_score": 0.25}], "meta": {"billed_units": {"search_units": units}}}
    with serve(lambda _: Answer(answer)) as endpoint:
        scorer = opened(SPOKEN["cohere"], endpoint)
        assert score(scorer, ITEMS[:1]) == [0.25]
    assert not scorer.spent


@pytest.mark.parametrize("status", [408, 409, 424, 425, 429, 500, 502, 503, 529])
def test_an_endpoint_that_is_busy_or_failed_is_worth_another_try(status: int) -> None:
    with (
        serve(lambda _: Answer({"error": "overloaded"}, status)) as endpoint,
        pytest.raises(ScorerBusyError, match=rf"HTTP {status}\): overloaded") as caught,
    ):
        score(opened(SPOKEN["tei"], endpoint))
    assert caught.value.retry_after is None


IN_UTC, IN_A_ZONE = "a moment in UTC", "a moment in a time zone"


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"Retry-After": "17"}, 17),
        ({"Retry-After": "0.5"}, 0.5),
        ({"retry-after-ms": "250", "Retry-After": "1"}, 0.25),
        ({"Retry-After": IN_UTC}, 1000),
        ({"Retry-After": IN_A_ZONE}, 1000),
        ({"Retry-After": "Wed, 21 Oct 2015 07:28:00 GMT"}, 0),
        ({"Retry-After": "-3"}, 0),
        ({"Retry-After": "soon"}, None),
        ({"Retry-After": "nan"}, None),
    ],
)
def test_the_wait_that_the_endpoint_asks_for_is_read(headers: dict[str, str], seconds: float | None) -> None:
    moment = datetime.now(UTC) + timedelta(seconds=1000)  # now, because tests may have been collected minutes ago
    in_a_zone = format_datetime(moment.astimezone(timezone(timedelta(hours=5))))
    moments = {IN_UTC: format_datetime(moment, usegmt=True), IN_A_ZONE: in_a_zone}
    headers = {name: moments.get(value, value) for name, value in headers.items()}
    with serve(lambda _: Answer({}, 429, headers)) as endpoint, pytest.raises(ScorerBusyError) as caught:
        score(opened(SPOKEN["cohere"], endpoint))
    assert caught.value.retry_after == (seconds if seconds is None else pytest.approx(seconds, abs=60))


def test_a_quota_that_is_used_up_is_not_worth_another_try() -> None:
    body = {"error": {"message": "You exceeded your current quota", "code": "insufficient_quota"}}
    with serve(lambda _: Answer(body, 429)) as endpoint, pytest.raises(ScorerAccessError, match="quota"):
        score(opened(SPOKEN["jina"], endpoint))


def test_a_certificate_that_cant_be_verified_closes_the_endpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    async def unverified(*_: object, **__: object) -> None:
        raise httpx.ConnectError("[SSL: CERTIFICATE_VERIFY_FAILED] self-signed certificate")

    monkeypatch.setattr(httpx.AsyncClient, "post", unverified)
    with pytest.raises(ScorerAccessError, match="SSL_CERT_FILE"):
        score(RerankEndpoint(TEI, "", "https://localhost:1"))


def test_an_endpoint_that_isnt_there_is_worth_another_try(spoken: Spoken) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
    scorer = open_endpoint(spoken.name.format(url=url))
    assert scorer is not None
    with pytest.raises(ScorerBusyError, match=f"{url} can't be reached"):
        asyncio.run(scorer.score(QUERY, ITEMS))


def test_a_late_answer_is_worth_another_try() -> None:
    def late(asked: Asked) -> Answer:
        time.sleep(0.3)
        return Answer({})

    with serve(late) as endpoint, pytest.raises(ScorerBusyError, match=r"no answer within 0\.05 s"):
        score(RerankEndpoint(TEI, "", endpoint.url, timeout=0.05))


def test_a_body_that_is_cut_off_is_worth_another_try(spoken: Spoken, endpoint: FakeEndpoint) -> None:
    whole = endpoint.reply
    endpoint.reply = lambda asked: Answer(whole(asked).body, is_cut=True)
    with pytest.raises(ScorerBusyError):
        score(opened(spoken, endpoint))


def test_a_body_in_a_broken_encoding_is_refused() -> None:
    with (
        serve(lambda _: Answer(b"no gzip", headers={"Content-Encoding": "gzip"})) as endpoint,
        pytest.raises(ScorerOutputError, match="can't be decoded"),
    ):
        score(opened(SPOKEN["jina"], endpoint))


def test_a_request_of_too_many_bytes_is_to_be_split(spoken: Spoken, endpoint: FakeEndpoint) -> None:
    endpoint.reply = lambda _: Answer(b"payload too large", 413)
    with pytest.raises(RequestTooLargeError, match="fewer pairs"):
        score(opened(spoken, endpoint))
    assert len(endpoint.asked) == 1


@pytest.mark.parametrize(("status", "body"), TOO_MANY)
def test_a_request_of_too_many_texts_is_to_be_split(
    spoken: Spoken, endpoint: FakeEndpoint, status: int, body: dict[str, Any]
) -> None:
    endpoint.reply = lambda _: Answer(body, status)
    with pytest.raises(RequestTooLargeError):
        score(opened(spoken, endpoint))
    assert len(endpoint.asked) == 1


@pytest.mark.parametrize("status", [301, 400, 402, 404, 422])
def test_a_request_that_the_endpoint_will_never_answer_is_refused_in_its_own_words(
    spoken: Spoken, endpoint: FakeEndpoint, status: int
) -> None:
    endpoint.reply = lambda _: Answer({"message": "no such\nmodel: " + "x" * 1000}, status)
    with pytest.raises(ScorerRefusedError, match=rf"HTTP {status}\): no such model: x") as caught:
        score(opened(spoken, endpoint))
    assert len(str(caught.value)) < 450
    assert isinstance(caught.value, ScorerAccessError) == (status not in {400, 422})


@pytest.mark.parametrize("status", [401, 403, 429, 400])
def test_a_key_is_in_no_message_repr_fingerprint_or_pickle(
    spoken: Spoken,
    endpoint: FakeEndpoint,
    status: int,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("DEBUG")
    monkeypatch.setenv(spoken.key_name, KEY)
    endpoint.reply = lambda asked: Answer({"error": f"{'x' * 190} bad key {asked.headers['Authorization']}"}, status)
    scorer = opened(spoken, endpoint)
    with pytest.raises(ScorerError) as caught:
        score(scorer)
    if status in {401, 403}:
        assert isinstance(caught.value, ScorerAccessError)
        assert f"set the environment variable {spoken.key_name}" in str(caught.value)
    shown = f"{caught.value} {caught.value!r} {scorer!r} {scorer.fingerprint} {vars(scorer)} {caplog.text}"
    assert KEY not in shown
    assert KEY[:6] not in str(caught.value)
    assert KEY.encode() not in pickle.dumps(scorer)


def test_a_key_that_comes_back_as_a_score_is_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JINA_API_KEY", KEY)
    spoken = SPOKEN["jina"]
    with (
        serve(lambda asked: Answer(spoken.answer([(0, asked.headers["Authorization"])]))) as endpoint,
        pytest.raises(ScorerOutputError, match="got str") as caught,
    ):
        score(opened(spoken, endpoint), ITEMS[:1])
    assert KEY not in str(caught.value)


@pytest.fixture
def refusing(spoken: Spoken, endpoint: FakeEndpoint) -> FakeEndpoint:
    """An endpoint that refuses every text as too long, unless it may cut it."""
    whole, refused = endpoint.reply, TOO_LONG[spoken.name.partition(":")[0]]
    endpoint.reply = lambda asked: whole(asked) if cuts(asked) else refused
    return endpoint


def guarded(scorer: RerankEndpoint, **rules: Any) -> GuardedScorer:
    return load_scorer(scorer, **rules)


def posted(endpoint: FakeEndpoint) -> list[Asked]:
    return [asked for asked in endpoint.asked if asked.body]


@pytest.mark.parametrize("spoken", TOO_LONG, indirect=True)
def test_a_text_that_is_too_long_is_sent_again_to_be_cut_and_warned_of_once(
    spoken: Spoken, refusing: FakeEndpoint
) -> None:
    scorer = opened(spoken, refusing)
    with pytest.warns(TruncationWarning, match=r"item 'b', with 37 characters; split"):
        assert guarded(scorer).score(QUERY, ITEMS).tolist() == expected()
    assert [cuts(asked) for asked in posted(refusing)] == [False, True]
    assert scorer.n_truncated == 1


@pytest.mark.parametrize("spoken", TOO_LONG, indirect=True)
@pytest.mark.filterwarnings("ignore::anncur.TruncationWarning")
def test_after_a_text_that_was_too_long_all_are_sent_to_be_cut_at_once(spoken: Spoken, refusing: FakeEndpoint) -> None:
    scorer = opened(spoken, refusing)
    with pytest.raises(TextTooLongError):
        score(scorer)
    assert score(scorer) == expected()
    assert score(scorer, ITEMS[2:]) == expected(ITEMS[2:])
    assert [cuts(asked) for asked in posted(refusing)] == [False, True, True]
    assert scorer.n_truncated == 1, "a shorter text probably wasn't cut"
    with pytest.raises(TextTooLongError):
        score(pickle.loads(pickle.dumps(scorer)))


@pytest.mark.parametrize("spoken", TOO_LONG, indirect=True)
def test_a_text_that_is_sent_again_counts_towards_every_limit(spoken: Spoken, refusing: FakeEndpoint) -> None:
    with pytest.raises(SpendCapError):
        guarded(opened(spoken, refusing), max_calls=5).score(QUERY, ITEMS)
    with pytest.raises(DeadlineError, match="requests_per_minute"):
        guarded(opened(spoken, refusing), requests_per_minute=1).score(QUERY, ITEMS, deadline=Deadline(30.0))
    assert len(posted(refusing)) == 2


def cuts(asked: Asked) -> bool:
    body = asked.body
    return bool(body.get("truncate") or body.get("truncation") or "truncate_prompt_tokens" in body)


@pytest.mark.parametrize("format_name", list(TOO_LONG))
def test_a_text_that_is_refused_even_when_cut_is_an_error_after_one_more_request(format_name: str) -> None:
    with serve(lambda _: TOO_LONG[format_name]) as endpoint:
        scorer = opened(SPOKEN[format_name], endpoint)
        with pytest.raises(ScorerRefusedError):
            guarded(scorer).score(QUERY, ITEMS)
    assert len(posted(endpoint)) == 2
    assert scorer.n_truncated == 0


def test_items_that_cohere_probably_cuts_are_warned_of_once() -> None:
    with serve(honest(SPOKEN["cohere"])) as endpoint:
        scorer = opened(SPOKEN["cohere"], endpoint)
        short, long = Item("short", "x" * 16_000), Item("long", "x" * 17_000)
        score(scorer, [short])
        with pytest.warns(TruncationWarning, match="4096 tokens of an item.*probably.*'long'"):
            score(scorer, [short, long])
        score(scorer, [long])
    assert scorer.n_truncated == 2


def test_the_same_scorer_serves_one_event_loop_after_the_other_and_leaves_nothing_open(
    spoken: Spoken, endpoint: FakeEndpoint
) -> None:
    scorer = opened(spoken, endpoint)
    with warnings.catch_warnings():
        warnings.simplefilter("error", ResourceWarning)
        for _ in range(3):
            assert score(scorer) == expected()
    assert all(client.is_closed for client, _ in scorer._client._opened.values())


def test_a_scorer_that_nobody_holds_closes_its_connections_while_the_loop_runs_on() -> None:
    async def score_and_forget(url: str) -> bool:
        scorer = RerankEndpoint(COHERE, "m", url)
        await scorer.score(QUERY, ITEMS)
        client = next(iter(scorer._client._opened.values()))[0]
        assert not client.is_closed
        del scorer
        await asyncio.sleep(0.05)
        return client.is_closed

    with serve(honest(SPOKEN["cohere"])) as endpoint:
        assert asyncio.run(score_and_forget(endpoint.url))


def test_many_requests_at_once_are_answered_each_with_its_own_scores(spoken: Spoken, endpoint: FakeEndpoint) -> None:
    scorer = opened(spoken, endpoint)
    batches = [[Item(str(number), "x" * number), Item("y", "y" * (2 * number + 1))] for number in range(40)]

    async def score_all() -> list[list[float]]:
        return await asyncio.gather(*(scorer.score(QUERY, batch) for batch in batches))

    assert asyncio.run(score_all()) == [expected(batch) for batch in batches]
    assert len(endpoint.asked) == len(batches)
    assert dict(scorer.spent) == ({spoken.unit: 7 * len(batches)} if spoken.unit else {})


def test_threads_with_loops_of_their_own_share_a_scorer(endpoint: FakeEndpoint, spoken: Spoken) -> None:
    scorer = opened(spoken, endpoint)
    found: list[list[float]] = []
    threads = [threading.Thread(target=lambda: found.append(score(scorer))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [expected()] * 4


def test_a_copy_scores_the_same_and_has_spent_nothing(spoken: Spoken, endpoint: FakeEndpoint) -> None:
    scorer = opened(spoken, endpoint)
    score(scorer)
    for twin in (pickle.loads(pickle.dumps(scorer)), copy.deepcopy(scorer)):
        assert not twin.spent
        assert score(twin) == expected()
        assert twin.fingerprint == scorer.fingerprint


def test_a_copy_made_while_a_loop_runs_leaves_the_connections_behind(spoken: Spoken, endpoint: FakeEndpoint) -> None:
    scorer = opened(spoken, endpoint)

    async def score_and_pickle() -> bytes:
        await scorer.score(QUERY, ITEMS)
        return pickle.dumps(scorer)

    assert score(pickle.loads(asyncio.run(score_and_pickle()))) == expected()


def test_pairs_of_several_queries_go_in_one_request() -> None:
    queries = [Query("a"), Query("bb"), Query("ccc")]
    with serve(honest(SPOKEN["vllm-score"])) as endpoint:
        scorer = opened(SPOKEN["vllm-score"], endpoint)
        assert isinstance(scorer, PairEndpoint)
        scores = asyncio.run(scorer.score_pairs(list(zip(queries, ITEMS, strict=True))))
    assert scores == [score_of(query.text, item.full_text) for query, item in zip(queries, ITEMS, strict=True)]
    assert len(endpoint.asked) == 1


@pytest.mark.parametrize(
    ("info", "model"),
    [
        (Answer({"model_id": "org/model", "model_sha": "abc"}), "org/model@abc"),
        (Answer({"model_id": "org/model", "model_sha": None}), "org/model"),
        (Answer({"error": "no such page"}, 404), "{url}"),
        (Answer(b"hello"), "{url}"),
        (Answer([]), "{url}"),
    ],
)
def test_the_model_of_tei_is_asked_for_once(info: Answer, model: str) -> None:
    with serve(honest(SPOKEN["tei"])) as endpoint:
        endpoint.info = info
        scorer = opened(SPOKEN["tei"], endpoint)
        assert scorer.fingerprint == scorer.fingerprint == f"tei:{model} raw".format(url=endpoint.url)
    assert [asked.path for asked in endpoint.asked] == ["/info"]
    assert scorer.is_known_by_name == (model != "org/model@abc")


@pytest.mark.parametrize(("status", "error"), [(503, ScorerBusyError), (401, ScorerRefusedError)])
def test_tei_has_no_fingerprint_while_it_starts_or_refuses_the_key(status: int, error: type[ScorerError]) -> None:
    with serve(honest(SPOKEN["tei"])) as endpoint:
        scorer = opened(SPOKEN["tei"], endpoint)
        endpoint.info = Answer({"error": "not now"}, status)
        with pytest.raises(error):
            _ = scorer.fingerprint
        endpoint.info = Answer({"model_id": "org/model"})
        assert scorer.fingerprint == "tei:org/model raw"


@pytest.mark.parametrize("suffix", ["", "/", "/v2", "/v2/", "/v2/rerank", "/proxy", "/proxy/v2"])
def test_a_url_may_hold_the_beginning_of_the_path(suffix: str) -> None:
    with serve(honest(SPOKEN["cohere"])) as endpoint:
        score(RerankEndpoint(COHERE, "m", endpoint.url + suffix))
    assert endpoint.asked[0].path == ("/proxy" if "proxy" in suffix else "") + "/v2/rerank"


def test_a_fingerprint_doesnt_tell_where_a_named_model_is_served() -> None:
    here, there = open_endpoint("vllm:m@http://here:1"), open_endpoint("vllm:m@https://there/v1")
    assert here is not None
    assert there is not None
    assert here.fingerprint == there.fingerprint == "vllm:m raw"
