"""What requests may hold: checked here, once, and published as OpenAPI. Answers are in `answer_schemas.py`.

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
