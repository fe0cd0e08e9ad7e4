"""The paths of the service: searches, indexes, items, and what operators ask for.

Each checks what a schema can't, calls one function, and answers. `reranking.py` has those of other people's shapes."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Path, Query, Request, Response

import anncur
from anncur.items import Item
from anncur.items import Query as SearchQuery
from anncur.service import answer_schemas, schemas
from anncur.service.answers import NDJSON, JsonAnswer
from anncur.service.bodies import StrictRoute
from anncur.service.caps import check_exhaustive, check_filter, check_most, check_options
from anncur.service.documented import problems
from anncur.service.exhaustive import Check, LinesAnswer
from anncur.service.metrics import MEDIA_TYPE
from anncur.service.problems import DRAINING, ProblemError
from anncur.service.searches import Searching, query_of, while_connected
from anncur.service.served import Change
from anncur.service.settings import LONGEST_ID, LONGEST_QUERY, MOST_MAPPED, MOST_QUERIES
from anncur.service.state import exchange_of, service_of
from anncur.story import label
from anncur.waiting import AWAITING

API = "v1"

router = APIRouter(route_class=StrictRoute)

IndexParameter = Annotated[str | None, Query(pattern=schemas.INDEX_NAME, description="Name of an index.")]
IndexPath = Annotated[str, Path(pattern=schemas.INDEX_NAME, description="Name of an index.")]
ItemIdPath = Annotated[str, Path(min_length=1, max_length=LONGEST_ID, description="Id of an item.")]


@router.post(
    "/v1/search",
    tags=["search"],
    responses={200: {"model": answer_schemas.SearchAnswer}, **problems(400, 401, 404, 408, 413, 415, 422, 429, 503)},
)
async def search(body: schemas.SearchBody, request: Request) -> Response:
    """Find the items that the scorer likes best for a query."""
    service = service_of(request)
    index = service.indexes.named(body.index)
    check_options(body, service.settings, n_items=index.reader.loaded[1])
    searching = Searching(service, index, body, request)
    return JsonAnswer(await while_connected(request, searching.one(query_of(body), explain=body.explain)))


@router.post(
    "/v1/search:batch",
    tags=["search"],
    responses={200: {"model": answer_schemas.BatchAnswer}, **problems(400, 401, 404, 408, 413, 415, 422, 429, 503)},
)
async def search_batch(body: schemas.BatchBody, request: Request) -> Response:
    """Search for several queries at once, which share requests to the scorer."""
    service = service_of(request)
    index = service.indexes.named(body.index)
    check_options(body, service.settings, n_items=index.reader.loaded[1])
    searching = Searching(service, index, body, request)
    answers = await while_connected(request, searching.many([SearchQuery(text) for text in body.queries]))
    return JsonAnswer({"answers": answers})


@router.post(
    "/v1/search:exhaustive",
    tags=["search"],
    responses={
        200: {"content": {NDJSON: {"schema": {"type": "string"}}}, "description": "Lines of JSON."},
        **problems(400, 401, 404, 408, 413, 415, 422, 429, 503),
    },
)
async def search_exhaustive(body: schemas.ExhaustiveBody, request: Request) -> Response:
    """Score every item: lines of progress, then the answer. Closing the connection ends it."""
    service = service_of(request)
    index = service.indexes.named(body.index)
    check_most("k", body.k, service.settings.max_k)
    check_filter(body.filter)
    check_exhaustive(index.reader.loaded[1], service.settings)
    query, exchange = query_of(body), exchange_of(request)
    exchange.facts |= {"index": index.name, "search_method": "exhaustive", "k": body.k}
    exchange.facts |= service.texts([query])
    return LinesAnswer(Check(service, index, body, query, exchange))


@router.get(
    "/v1/indexes",
    tags=["indexes"],
    responses={200: {"model": answer_schemas.IndexesAnswer}, **problems(401, 503)},
)
async def list_indexes(request: Request) -> Response:
    """The indexes, what they are made of, and the recall to expect."""
    service = service_of(request)
    settings = service.settings
    facts = [await AWAITING.compute(index.facts) for index in service.indexes.values()]
    indexes = [{**each, "can_check_exhaustively": each["n_items"] <= settings.max_exhaustive} for each in facts]
    caps = {
        "k": settings.max_k,
        "budget": settings.max_budget,
        "batch": MOST_QUERIES,
        "query_length": LONGEST_QUERY,
        "exhaustive_items": settings.max_exhaustive,
    }
    return JsonAnswer({"indexes": indexes, "caps": caps, "may_write": settings.tokens.write is not None})


@router.get(
    "/v1/indexes/{name}/map",
    tags=["indexes"],
    responses={200: {"model": answer_schemas.MapAnswer}, **problems(401, 404, 422, 503)},
)
async def map_items(
    name: IndexPath, request: Request, n: Annotated[int, Query(ge=1, le=MOST_MAPPED)] = 1000
) -> Response:
    """Items at random on a map of two principal components: those that the scorer treats alike stand together."""
    index = service_of(request).indexes.named(name)
    found = await AWAITING.compute(index.reader.map_items, n)
    items = [{"id": each.item.id, "label": label(each.item), "x": each.x, "y": each.y} for each in found.items]
    answer = {"index": name, "index_version": found.version, "shares": list(found.shares), "items": items}
    return JsonAnswer(answer)


@router.post(
    "/v1/items",
    tags=["items"],
    responses={
        200: {"model": answer_schemas.UpsertAnswer},
        **problems(400, 401, 403, 404, 408, 409, 413, 415, 422, 429, 503),
    },
)
async def upsert_items(body: schemas.UpsertBody, request: Request) -> Response:
    """Add items, or replace those of the same ids. When it is answered, they are on disk and found by searches.

    Closing the connection ends it, unless it is done by then; the same request again resumes."""
    service = service_of(request)
    index = service.indexes.named(body.index)
    items = [Item(each.id, each.text, each.title, each.metadata) for each in body.items]
    change = Change(service.settings.max_write_seconds)

    async def changed() -> int:
        async with service.writes.place():
            return await index.upsert(items, change)

    try:
        version = await while_connected(request, changed())
    finally:
        change.give_up()  # where the client has gone away
    exchange_of(request).facts |= {"index": index.name, "items": len(items), "index_version": version}
    return JsonAnswer({"index": index.name, "index_version": version, "upserted": len(items)})


@router.delete(
    "/v1/items/{id:path}",
    tags=["items"],
    responses={200: {"model": answer_schemas.RemoveAnswer}, **problems(401, 403, 404, 409, 422, 429, 503)},
)
async def remove_item(id: ItemIdPath, request: Request, index: IndexParameter = None) -> Response:
    """Remove an item; it is the same if it isn't there. Closing the connection before its turn ends it."""
    service = service_of(request)
    wanted = service.indexes.named(index)
    change = Change(service.settings.max_write_seconds)

    async def changed() -> tuple[int, bool]:
        async with service.writes.place(seconds=service.settings.max_write_seconds):
            return await wanted.remove(id, change)

    try:
        version, was_there = await while_connected(request, changed())
    finally:
        change.give_up()  # where the client has gone away
    exchange_of(request).facts |= {"index": wanted.name, "items": int(was_there), "index_version": version}
    return JsonAnswer({"index": wanted.name, "index_version": version, "removed": int(was_there)})


@router.head("/livez", include_in_schema=False)
@router.get("/livez", tags=["operations"], responses={200: {"model": answer_schemas.StatusAnswer}})
async def livez() -> Response:
    """Whether the process answers."""
    return JsonAnswer({"status": "alive"})


@router.head("/readyz", include_in_schema=False)
@router.get("/readyz", tags=["operations"], responses={200: {"model": answer_schemas.StatusAnswer}, **problems(503)})
async def readyz(request: Request) -> Response:
    """Whether it takes requests; not so while it is shutting down."""
    if service_of(request).is_draining:
        raise ProblemError(DRAINING)
    return JsonAnswer({"status": "ready"})


@router.get(
    "/metrics",
    tags=["operations"],
    responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}}}, **problems(401)},
)
async def metrics(request: Request) -> Response:
    """For Prometheus."""
    exposition = await AWAITING.compute(service_of(request).metrics.exposition)
    return Response(exposition, media_type=MEDIA_TYPE)


@router.get("/version", tags=["operations"], responses={200: {"model": answer_schemas.VersionAnswer}})
async def version() -> Response:
    """What runs here."""
    found: dict[str, Any] = {"name": "anncur", "version": anncur.__version__, "api": API}
    return JsonAnswer(found)
