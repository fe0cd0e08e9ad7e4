"""What requests may hold and answers look like: checked here, once, and published as OpenAPI.

Feeds the routes. Values are taken as they are: no text becomes a number, and unknown fields are refused, but for
those of other people's clients in the re-ranking shapes."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from anncur.search.methods import METHODS
from anncur.service.settings import (
    LONGEST_DEADLINE_MS,
    LONGEST_ID,
    LONGEST_QUERY,
    LONGEST_TEXT,
    MOST_BUDGET,
    MOST_DOCUMENTS,
    MOST_FIELDS,
    MOST_ITEMS,
    MOST_K,
    MOST_QUERIES,
    MOST_ROUNDS,
)

INDEX_NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"
WITHOUT_NUL = r"^[^\x00]*$"
MOST_RANK_FIELDS = 100
MOST_UNKNOWN = 10  # fields of one object that are named in a problem

IndexName = Annotated[str, Field(pattern=INDEX_NAME, description="Name of an index; by default the first one.")]
Text = Annotated[str, Field(max_length=LONGEST_TEXT, pattern=WITHOUT_NUL)]
QueryText = Annotated[str, Field(min_length=1, max_length=LONGEST_QUERY, pattern=r"^[^\x00]*[^\s\x00][^\x00]*$")]
Mention = Annotated[
    list[Annotated[int, Field(ge=0)]],
    Field(min_length=2, max_length=2, description="A span of the query's characters, end exclusive."),
]
ItemId = Annotated[str, Field(min_length=1, max_length=LONGEST_ID, pattern=WITHOUT_NUL)]
FilterBody = dict[str, Any] | Annotated[list[ItemId], Field(max_length=10_000)]
MethodName = Literal["posterior", "anncur", "adacur", "axn", "rerank", "exhaustive"]
assert set(MethodName.__args__) == set(METHODS), "all methods are offered"  # type: ignore[attr-defined]


class Body(BaseModel):
    """A request."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _refuse_many_unknown(cls, value: Any) -> Any:
        """One error for very many unknown fields: one for each of a million takes seconds and gigabytes."""
        n_unknown = len(value.keys() - cls.model_fields.keys()) if isinstance(value, dict) else 0
        if n_unknown > MOST_UNKNOWN:
            raise PydanticCustomError("unknown_fields", "has {n_unknown} unknown fields", {"n_unknown": n_unknown})
        return value


class ForeignBody(BaseModel):
    """A request in the shape of another service: what it has beyond our fields is of no matter here."""

    model_config = ConfigDict(extra="ignore", strict=True, allow_inf_nan=False)


class Options(Body):
    """What searches for one and for many queries share."""

    index: IndexName | None = None
    k: int = Field(10, ge=1, le=MOST_K, description="How many items.")
    budget: int | None = Field(None, ge=1, le=MOST_BUDGET, description="The most pairs to score; 200 by default.")
    max_rounds: int | None = Field(None, ge=1, le=MOST_ROUNDS)
    deadline_ms: float | None = Field(
        None, gt=0, le=LONGEST_DEADLINE_MS, description="From when the request came; then the best so far is answered."
    )
    target_recall: float | None = Field(None, ge=0, le=1, description="Stop when this share is probably found.")
    max_budget: int | None = Field(None, ge=1, le=MOST_BUDGET, description="The most pairs to reach target_recall.")
    min_score: float | None = Field(None, description="Only items with this score or a better one.")
    filter: FilterBody | None = Field(None, description="Conditions over metadata, or a list of ids.")
    method: MethodName = Field("posterior", description="Who decides what is scored.")
    seed: int = Field(0, ge=0, le=2**32 - 1)
    fail_open: bool | None = Field(
        None, description="Answer first guesses, marked as unscored, where the scorer fails."
    )


class SearchBody(Options):
    """A search for one query."""

    query: QueryText
    mention: Mention | None = None
    explain: bool = Field(False, description="Tell what was scored in each round, and what was known of it before.")


class BatchBody(Options):
    """Searches for several queries at once; the deadline is for all together."""

    queries: Annotated[list[QueryText], Field(min_length=1, max_length=MOST_QUERIES)]


class ExhaustiveBody(Body):
    """A search that scores every item that passes the filter."""

    index: IndexName | None = None
    query: QueryText
    mention: Mention | None = None
    k: int = Field(10, ge=1, le=MOST_K)
    filter: FilterBody | None = None


class ItemBody(Body):
    """One item."""

    id: ItemId
    text: Text
    title: Text = ""
    metadata: dict[str, Any] = Field(default_factory=dict, max_length=MOST_FIELDS)


class UpsertBody(Body):
    """Items to add, or to replace those of the same ids."""

    index: IndexName | None = None
    items: Annotated[list[ItemBody], Field(min_length=1, max_length=MOST_ITEMS)]


Document = Text | Annotated[dict[str, Any], Field(description="An object with `text`, or with `rank_fields`.")]
Documents = Annotated[list[Document], Field(min_length=1, max_length=MOST_DOCUMENTS)]
RankField = Annotated[str, Field(min_length=1, max_length=LONGEST_ID)]


class CohereBody(ForeignBody):
    """A request in Cohere's shape. `model` may name an index, whose scorer is then used; other names mean the first."""

    model: str | None = Field(None, max_length=LONGEST_ID)
    query: QueryText
    documents: Documents
    rank_fields: Annotated[list[RankField], Field(max_length=MOST_RANK_FIELDS)] | None = Field(
        None, description="The fields of documents that are read, in this order; by default `text`."
    )
    top_n: int | None = Field(None, ge=1)
    return_documents: bool | None = None


class TeiBody(ForeignBody):
    """A request in the shape of text-embeddings-inference."""

    query: QueryText
    texts: Annotated[list[Text], Field(min_length=1, max_length=MOST_DOCUMENTS)]
    raw_scores: bool | None = False
    return_text: bool | None = False


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
