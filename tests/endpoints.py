"""Endpoints on this machine that speak the wire formats of re-rankers and of a judge, as honestly or badly as asked."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, TypeAlias


@dataclass(frozen=True)
class Asked:
    """A request as the endpoint got it."""

    path: str
    headers: Mapping[str, str]
    body: dict[str, Any]


@dataclass(frozen=True)
class Answer:
    """A reply: bytes as they are, anything else as JSON; with `is_cut` the body ends before its length."""

    body: Any
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    is_cut: bool = False


Reply: TypeAlias = Callable[[Asked], Answer]


class FakeEndpoint:
    """Answers each POST with `reply`, each GET with `info`, and keeps what it was asked."""

    def __init__(self, url: str, reply: Reply) -> None:
        self.url = url
        self.reply = reply
        self.info = Answer({"model_id": "org/model", "model_sha": "abc"})
        self.asked: list[Asked] = []


@contextmanager
def serve(reply: Reply) -> Iterator[FakeEndpoint]:
    """An endpoint on a free port, until the end of the block."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            asked = Asked(self.path, dict(self.headers), body)
            endpoint.asked.append(asked)
            self._send(endpoint.reply(asked))

        def do_GET(self) -> None:
            endpoint.asked.append(Asked(self.path, dict(self.headers), {}))
            self._send(endpoint.info)

        def _send(self, answer: Answer) -> None:
            content = answer.body if isinstance(answer.body, bytes) else json.dumps(answer.body).encode()
            self.send_response(answer.status)
            self.send_header("Content-Length", str(len(content) + 10 * answer.is_cut))
            for name, value in answer.headers.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(content)
            self.close_connection = answer.is_cut

        def log_message(self, *args: object) -> None:
            pass

    class Server(ThreadingHTTPServer):
        request_queue_size = 128

        def handle_error(self, *args: object) -> None:
            """A client that went away is what some tests are about."""

    server = Server(("127.0.0.1", 0), Handler)
    endpoint = FakeEndpoint(f"http://127.0.0.1:{server.server_port}", reply)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield endpoint
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def score_of(query: str, text: str) -> float:
    """What the honest ones give."""
    return len(text) + len(query) / 100


@dataclass(frozen=True)
class Spoken:
    """How tests ask for a format, and how an endpoint that speaks it answers with (index, score) results."""

    name: str  # with {url}
    path: str
    key_name: str
    fingerprint: str
    fixed: Mapping[str, Any]  # fields that each request must have
    answer: Callable[[list[tuple[Any, Any]]], Any]
    pairs: Callable[[dict[str, Any]], list[tuple[str, str]]] = lambda body: [
        (body["query"], text) for text in body["documents"]
    ]
    unit: str = "total_tokens"


def _results(place: str, score_field: str = "relevance_score") -> Callable[[list[tuple[Any, Any]]], Any]:
    return lambda results: {
        place: [{"index": index, score_field: score} for index, score in results],
        "usage": {"total_tokens": 7},
    }


SPOKEN = {
    "cohere": Spoken(
        "cohere:rerank-v3.5@{url}",
        "/v2/rerank",
        "COHERE_API_KEY",
        "cohere:rerank-v3.5",
        {"model": "rerank-v3.5"},
        lambda results: {**_results("results")(results), "meta": {"billed_units": {"search_units": 7}}},
        unit="search_units",
    ),
    "jina": Spoken(
        "jina:jina-reranker-v2@{url}",
        "/v1/rerank",
        "JINA_API_KEY",
        "jina:jina-reranker-v2",
        {"model": "jina-reranker-v2", "return_documents": False},
        _results("results"),
    ),
    "voyage": Spoken(
        "voyage:rerank-2.5@{url}",
        "/v1/rerank",
        "VOYAGE_API_KEY",
        "voyage:rerank-2.5",
        {"model": "rerank-2.5", "truncation": False},
        _results("data"),
    ),
    "tei": Spoken(
        "tei:{url}",
        "/rerank",
        "TEI_API_KEY",
        "tei:org/model@abc raw",
        {"raw_scores": True, "truncate": False},
        lambda results: [{"index": index, "score": score} for index, score in results],
        lambda body: [(body["query"], text) for text in body["texts"]],
        unit="",
    ),
    "vllm": Spoken(
        "vllm:org/model@{url}",
        "/rerank",
        "VLLM_API_KEY",
        "vllm:org/model raw",
        {"model": "org/model", "use_activation": False},
        _results("results"),
    ),
    "vllm-score": Spoken(
        "vllm-score:org/model@{url}",
        "/score",
        "VLLM_API_KEY",
        "vllm-score:org/model raw",
        {"model": "org/model", "use_activation": False},
        _results("data", "score"),
        lambda body: list(zip(body["text_1"], body["text_2"], strict=True)),
    ),
    "infinity": Spoken(
        "infinity:org/model@{url}",
        "/rerank",
        "INFINITY_API_KEY",
        "infinity:org/model raw",
        {"model": "org/model", "raw_scores": True},
        _results("results"),
    ),
}


def honest(spoken: Spoken) -> Reply:
    """Right scores, best first, as re-rankers sort them."""

    def reply(asked: Asked) -> Answer:
        scores = [score_of(query, text) for query, text in spoken.pairs(asked.body)]
        return Answer(spoken.answer(sorted(enumerate(scores), key=lambda result: -result[1])))

    return reply


def chat(content: str | None = None, *, tokens: Mapping[str, float] | None = None, **choice: Any) -> Answer:
    """A judge's answer with a content, or with tokens and their logprobs."""
    listed = [{"token": token, "logprob": logprob} for token, logprob in (tokens or {}).items()]
    logprobs = {"content": [{"token": "x", "logprob": -0.1, "top_logprobs": listed}]} if tokens is not None else None
    message = {"role": "assistant", "content": content}
    usage = {"prompt_tokens": 40, "completion_tokens": 2}
    return Answer({"choices": [{"index": 0, "message": message, "logprobs": logprobs, **choice}], "usage": usage})
