"""Re-ranking in the shapes of Cohere and of text-embeddings-inference, so that their clients work against an index's
scorer.

Relevance is between 0 and 1, as those services have it: the logistic function of a score. Order is by the score
itself, which doesn't saturate."""

from __future__ import annotations

import math
import uuid
from collections.abc import Sequence
from typing import Any

from fastapi import APIRouter, Request, Response

from anncur.items import Query
from anncur.service import answer_schemas, schemas
from anncur.service.answers import JsonAnswer
from anncur.service.bodies import StrictRoute
from anncur.service.caps import check_documents, invalid
from anncur.service.documented import problems
from anncur.service.limiting import Work
from anncur.service.searches import while_connected
from anncur.service.served import ServedIndex
from anncur.service.settings import LONGEST_TEXT
from anncur.service.state import exchange_of, service_of

STATUSES = (400, 401, 408, 413, 415, 422, 429, 503)

router = APIRouter(route_class=StrictRoute, tags=["re-ranking"])


@router.post("/v1/rerank", responses={200: {"model": answer_schemas.CohereAnswer}, **problems(*STATUSES)})
async def rerank_v1(body: schemas.CohereBody, request: Request) -> Response:
    """Re-rank documents, in the shape of Cohere's first version."""
    return await _rerank(body, request, version="1")


@router.post("/v2/rerank", responses={200: {"model": answer_schemas.CohereAnswer}, **problems(*STATUSES)})
async def rerank_v2(body: schemas.CohereBody, request: Request) -> Response:
    """Re-rank documents, in the shape of Cohere's second version."""
    return await _rerank(body, request, version="2")


@router.post("/rerank", responses={200: {"model": list[answer_schemas.TeiResult]}, **problems(*STATUSES)})
async def rerank_tei(body: schemas.TeiBody, request: Request) -> Response:
    """Re-rank texts, in the shape of text-embeddings-inference."""
    check_documents("texts", len(body.texts), service_of(request).settings)
    index = service_of(request).indexes.named(None)
    ranked = await _ranked(request, index, body.query, body.texts)
    results = [
        {
            "index": place,
            "score": score if body.raw_scores else relevance(score),
            **({"text": body.texts[place]} if body.return_text else {}),
        }
        for place, score in ranked
    ]
    return JsonAnswer(results)


async def _rerank(body: schemas.CohereBody, request: Request, *, version: str) -> Response:
    check_documents("documents", len(body.documents), service_of(request).settings)
    texts = [text_of(document, body.rank_fields, place) for place, document in enumerate(body.documents)]
    index = service_of(request).indexes.for_model(body.model)
    is_raw = service_of(request).settings.raw_relevance
    ranked = await _ranked(request, index, body.query, texts)
    results = [
        {
            "index": place,
            "relevance_score": score if is_raw else relevance(score),
            **({"document": {"text": texts[place]}} if body.return_documents else {}),
        }
        for place, score in ranked[: body.top_n]
    ]
    meta = {"api_version": {"version": version}, "billed_units": {"search_units": 1}}
    return JsonAnswer({"id": str(uuid.uuid4()), "results": results, "meta": meta})


def text_of(document: str | dict[str, Any], rank_fields: Sequence[str] | None, place: int) -> str:
    """What the scorer reads of a document: its text, or a line for each of the fields that are named."""
    if isinstance(document, str):
        return document
    found = {name: document[name] for name in rank_fields or ("text",) if name in document}
    if not found or not all(isinstance(value, str) for value in found.values()):
        fields = ", ".join(rank_fields or ("text",))
        raise invalid(f"documents.{place}", f"must be a text, or an object with texts in the fields {fields}"[:500])
    text = "\n".join(f"{name}: {value}" for name, value in found.items()) if rank_fields else found["text"]
    if len(text) > LONGEST_TEXT or "\0" in text:
        raise invalid(f"documents.{place}", f"must have at most {LONGEST_TEXT} characters, none of them NUL")
    return text


async def _ranked(request: Request, index: ServedIndex, query: str, texts: Sequence[str]) -> list[tuple[int, float]]:
    """Places and scores of texts, best first; of equal ones, the first."""
    service, asked = service_of(request), Query(query)
    exchange_of(request).facts |= {"index": index.name, "calls": len(texts), **service.texts([asked])}
    async with service.searches.place(Work((index.name, "rerank"), len(texts))):
        scores = await while_connected(request, index.score(asked, texts))
    return sorted(enumerate(scores), key=lambda each: -each[1])


def relevance(score: float) -> float:
    """The logistic function."""
    return 1 / (1 + math.exp(-score)) if score >= 0 else math.exp(score) / (1 + math.exp(score))
