"""Re-ranking endpoints as scorers: one value for each wire format, two classes for the two ways of sending pairs.

Scores are what the endpoint gives, raw where its format has a word for that: those of Cohere, Jina and Voyage lie
between 0 and 1, as their documentation describes them. An answer is put into order by its indices, and anything but one
finite number for each text is an error."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import repeat
from typing import Any

from anncur.errors import ScorerOutputError, TextTooLongError
from anncur.items import Item, Query
from anncur.scorers.http.answers import Reply, Tally, field_of, finite, kind_of, parsed
from anncur.scorers.http.client import TIMEOUT, Client, is_too_long

CHARACTERS_PER_TOKEN = 4  # of English text, about
INFO_TIMEOUT = 5.0  # seconds


@dataclass(frozen=True)
class WireFormat:
    """What goes over the wire, and comes back.

    `options` are sent with each request. `uncut` asks the endpoint to refuse texts that are too long, `cut` to truncate
    them; they are empty where it has no word for that. `results` and `unit` are places in the answer. `max_tokens` is
    where an endpoint truncates an item without a word."""

    name: str
    path: str
    key_names: tuple[str, ...]
    public_url: str = ""  # where it is served for all, and a key is needed
    has_model: bool = True
    queries_field: str = "query"
    items_field: str = "documents"
    options: Mapping[str, Any] = field(default_factory=dict)
    uncut: Mapping[str, Any] = field(default_factory=dict)
    cut: Mapping[str, Any] = field(default_factory=dict)
    results: tuple[str, ...] = ("results",)
    score_field: str = "relevance_score"
    unit: tuple[str, ...] = ("usage", "total_tokens")
    batch_size: int = 100
    max_tokens: int | None = None
    is_raw: bool = False


COHERE = WireFormat(
    "cohere",
    "/v2/rerank",
    ("COHERE_API_KEY", "CO_API_KEY"),
    "https://api.cohere.com",
    unit=("meta", "billed_units", "search_units"),  # one holds up to 100 documents
    max_tokens=4096,
)
JINA = WireFormat("jina", "/v1/rerank", ("JINA_API_KEY",), "https://api.jina.ai", options={"return_documents": False})
VOYAGE = WireFormat(
    "voyage",
    "/v1/rerank",
    ("VOYAGE_API_KEY",),
    "https://api.voyageai.com",
    uncut={"truncation": False},
    cut={"truncation": True},
    results=("data",),
)
TEI = WireFormat(
    "tei",
    "/rerank",
    ("TEI_API_KEY",),
    has_model=False,
    items_field="texts",
    options={"raw_scores": True, "return_text": False},
    uncut={"truncate": False},
    cut={"truncate": True},
    results=(),
    score_field="score",
    batch_size=32,
    is_raw=True,
)
VLLM = WireFormat(
    "vllm",
    "/rerank",
    ("VLLM_API_KEY",),
    options={"use_activation": False},
    cut={"truncate_prompt_tokens": -1},  # to what the model reads
    is_raw=True,
)
VLLM_SCORE = WireFormat(
    "vllm-score",
    "/score",
    ("VLLM_API_KEY",),
    queries_field="text_1",
    items_field="text_2",
    options={"use_activation": False},
    cut={"truncate_prompt_tokens": -1},
    results=("data",),
    score_field="score",
    is_raw=True,
)
INFINITY = WireFormat(
    "infinity",
    "/rerank",
    ("INFINITY_API_KEY",),
    options={"raw_scores": True, "return_documents": False},
    is_raw=True,
)
RERANK_FORMATS = (COHERE, JINA, VOYAGE, TEI, VLLM, INFINITY)


class RerankEndpoint:
    """Scores the items of one query with one request.

    `spent` counts the endpoint's own unit, as it reports it. `n_truncated` counts requests with a text that was cut, or
    probably was: the endpoint is asked to refuse such a text, and to truncate from the first one on."""

    concurrency = 8
    retries = 5

    def __init__(self, wire: WireFormat, model: str, url: str = "", *, timeout: float = TIMEOUT) -> None:
        self._wire = wire
        self._model = model
        self._client = Client(
            url or wire.public_url,
            key_names=wire.key_names,
            needs_key=bool(wire.public_url) and not url,
            timeout=timeout,
        )
        self._tally = Tally()
        self._served_model = ""
        self.batch_size = wire.batch_size

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._wire.name!r}, {self._model!r}, {self._client.url!r})"

    @property
    def fingerprint(self) -> str:
        """Names the format and the model; the URL only where the server doesn't tell its model."""
        raw = " raw" if self._wire.is_raw else ""
        return f"{self._wire.name}:{self._model or self._model_at_url()}{raw}"

    @property
    def is_known_by_name(self) -> bool:
        """Whether another model may be served under the same name."""
        return "@" not in self._served_model

    @property
    def spent(self) -> Counter[str]:
        """What answers have cost so far, in the endpoint's own unit."""
        return self._tally.spent

    @property
    def n_truncated(self) -> int:
        """Requests with a text that was cut, or probably was."""
        return self._tally.n_truncated

    async def score(self, query: Query, items: Sequence[Item]) -> list[float]:
        """One score per item, in their order."""
        return await self._send(query.marked_text, items)

    async def _send(self, query_texts: str | list[str], items: Sequence[Item]) -> list[float]:
        if not items:
            return []
        wire, cuts = self._wire, self._tally.too_long < math.inf
        body: dict[str, Any] = {"model": self._model} if wire.has_model else {}
        body |= {wire.queries_field: query_texts, wire.items_field: [item.full_text for item in items], **wire.options}
        reply = await self._client.post(wire.path, {**body, **(wire.cut if cuts else wire.uncut)})
        if wire.cut and not cuts and is_too_long(reply):
            self._tally.add_too_long(_longest(query_texts, items))
            raise TextTooLongError(f"the endpoint {self._client.url} refused a text as too long for its model")
        if not reply.is_answer:
            raise self._client.refusal(reply)
        scores = self._scores(reply, len(items))
        self._count_truncated(query_texts, items)
        return scores

    def _count_truncated(self, query_texts: str | list[str], items: Sequence[Item]) -> None:
        most = self._wire.max_tokens
        if _longest(query_texts, items) >= self._tally.too_long:
            self._notice(items, "the endpoint refused a text as too long for its model")
        elif most and max(len(item.full_text) for item in items) > CHARACTERS_PER_TOKEN * most:
            self._notice(items, f"the endpoint reads {most} tokens of an item, and some have probably more")

    def _scores(self, reply: Reply, n_items: int) -> list[float]:
        answer = parsed(reply, self._client.url)
        self._tally.add(self._wire.unit[-1], field_of(answer, *self._wire.unit))
        results = field_of(answer, *self._wire.results)
        return scores_in_order(results, n_items, score_field=self._wire.score_field, url=self._client.url)

    def _notice(self, items: Sequence[Item], reason: str) -> None:
        longest = max(items, key=lambda item: len(item.full_text))
        self._tally.add_truncated(
            f"{reason}: what comes after doesn't count. The longest text of the request is that of item "
            f"{longest.id!a:.60}, with {len(longest.full_text)} characters; split such items into shorter ones, or "
            "take a model that reads more. The scorer's n_truncated counts further requests"
        )

    def _model_at_url(self) -> str:
        """The model that text-embeddings-inference serves, asked once; the URL where the server doesn't tell."""
        if not self._served_model:
            self._served_model = self._ask_for_model()
        return self._served_model

    def _ask_for_model(self) -> str:
        reply = self._client.get("/info", timeout=min(INFO_TIMEOUT, self._client.timeout))
        if reply.status in {401, 403}:
            raise self._client.refusal(reply)
        try:
            info = parsed(reply, self._client.url) if reply.is_answer else None
        except ScorerOutputError:
            info = None
        model, revision = field_of(info, "model_id"), field_of(info, "model_sha")
        if not isinstance(model, str) or not model:
            return self._client.url
        return f"{model}@{revision}" if isinstance(revision, str) and revision else model


class PairEndpoint(RerankEndpoint):
    """Scores pairs of any queries and items with one request."""

    async def score(self, query: Query, items: Sequence[Item]) -> list[float]:
        return await self.score_pairs([(query, item) for item in items])

    async def score_pairs(self, pairs: Sequence[tuple[Query, Item]]) -> list[float]:
        """One score per pair, in their order."""
        return await self._send([query.marked_text for query, _ in pairs], [item for _, item in pairs])


def _longest(query_texts: str | list[str], items: Sequence[Item]) -> int:
    """Characters of the longest pair."""
    queries = repeat(query_texts, len(items)) if isinstance(query_texts, str) else query_texts
    return max(len(query) + len(item.full_text) for query, item in zip(queries, items, strict=True))


def scores_in_order(results: Any, n_items: int, *, score_field: str, url: str) -> list[float]:
    """The scores by their indices: each index exactly once, each score a finite number."""
    problem = f"the endpoint {url} must answer with one finite number per item"
    if not isinstance(results, list):
        raise ScorerOutputError(f"{problem}, got an answer without a list of results")
    if len(results) != n_items:
        raise ScorerOutputError(f"{problem}, got {len(results)} results for {n_items} items")
    scores: dict[int, float] = {}
    for result in results:
        index, score = field_of(result, "index"), finite(field_of(result, score_field))
        if not isinstance(index, int) or isinstance(index, bool) or not 0 <= index < n_items:
            raise ScorerOutputError(f"{problem}, got the index {kind_of(index)} among {n_items} items")
        if index in scores:
            raise ScorerOutputError(f"{problem}, got the index {index} twice")
        if score is None:
            shown = kind_of(field_of(result, score_field))
            raise ScorerOutputError(f"{problem}, got {shown} as {score_field!r} of index {index}")
        scores[index] = score
    return [scores[index] for index in range(n_items)]
