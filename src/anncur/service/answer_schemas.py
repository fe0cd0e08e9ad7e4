"""What answers look like, as it is published as OpenAPI. Requests are in `schemas.py`.

Read by the routes for the description alone: answers are made of plain values."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel


class HitAnswer(BaseModel):
    """One item of an answer; its score is null in an answer that is unscored."""

    id: str
    score: float | None
    title: str
    text: str
    metadata: dict[str, Any]


class ScoredItemAnswer(BaseModel):
    """An item of a round: prior mean, posterior mean and its spread just before it was scored, and the exact score."""

    id: str
    label: str
    prior_mean: float | None
    posterior_mean: float | None
    spread: float | None
    score: float
    x: float | None
    y: float | None


class RoundAnswer(BaseModel):
    """A round, and the recall that was estimated after it."""

    items: list[ScoredItemAnswer]
    estimated_recall: float | None
    is_exploring: bool


class StoryAnswer(BaseModel):
    """The rounds of a search."""

    rounds: list[RoundAnswer]


class TimingsAnswer(BaseModel):
    """Where the time went, in milliseconds."""

    waiting_ms: float
    searching_ms: float


class SearchAnswer(BaseModel):
    """What `anncur search --json` prints, and what a service adds."""

    query: str
    method: str
    hits: list[HitAnswer]
    calls: int
    cached_calls: int
    n_requests: int
    n_rounds: int
    seconds: float
    is_partial: bool
    estimated_recall: float | None
    drift: float | None
    is_unlike_anchors: bool
    index_version: int | None
    index: str
    is_scored: bool
    timings: TimingsAnswer
    story: StoryAnswer | None = None


class BatchAnswer(BaseModel):
    """Answers in the order of the queries."""

    answers: list[SearchAnswer]


class RecallPoint(BaseModel):
    """What a budget found on held-out queries."""

    budget: int
    recall: float


class RecallCurveAnswer(BaseModel):
    """The recall to expect of the top k."""

    k: int
    points: list[RecallPoint]


class CapsAnswer(BaseModel):
    """The most that requests may ask for."""

    k: int
    budget: int
    batch: int
    query_length: int
    exhaustive_items: int


class IndexAnswer(BaseModel):
    """An index."""

    name: str
    version: int
    n_items: int
    n_anchor_queries: int
    scorer: str
    higher_is_better: bool
    retrievers: list[str]
    vectors: str
    methods: list[str]
    expected_recall: list[RecallCurveAnswer]
    can_check_exhaustively: bool


class IndexesAnswer(BaseModel):
    """All indexes, the first of which is the default."""

    indexes: list[IndexAnswer]
    caps: CapsAnswer
    may_write: bool


class MappedItemAnswer(BaseModel):
    """An item on the map."""

    id: str
    label: str
    x: float
    y: float


class MapAnswer(BaseModel):
    """Items at random on a map of two principal components, and the share of variance that each axis shows."""

    index: str
    index_version: int
    shares: list[float]
    items: list[MappedItemAnswer]


class UpsertAnswer(BaseModel):
    """The version that holds the items; it is on disk."""

    index: str
    index_version: int
    upserted: int


class RemoveAnswer(BaseModel):
    """The version without the item; `removed` is 0 where it wasn't there."""

    index: str
    index_version: int
    removed: int


class CohereResult(BaseModel):
    """A document by its place in the request; scores are between 0 and 1."""

    index: int
    relevance_score: float
    document: dict[str, str] | None = None


class CohereAnswer(BaseModel):
    """Documents, best first."""

    id: str
    results: list[CohereResult]
    meta: dict[str, Any]


class TeiResult(BaseModel):
    """A text by its place in the request."""

    index: int
    score: float
    text: str | None = None


class VersionAnswer(BaseModel):
    """What runs here."""

    name: str
    version: str
    api: str


class StatusAnswer(BaseModel):
    """Whether it is well."""

    status: str


class FieldError(BaseModel):
    """What is wrong with one field."""

    field: str
    message: str


class ProblemAnswer(BaseModel):
    """Problem details (RFC 9457); `type` is one of a fixed list."""

    type: str
    title: str
    status: int
    detail: str | None = None
    errors: list[FieldError] | None = None
    request_id: str
