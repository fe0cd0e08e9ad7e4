"""The application: routes, problems, and the edge around them."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.openapi.utils import get_openapi
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware

import anncur
from anncur.scorers.base import ScorerLike
from anncur.service import reranking, routes
from anncur.service.answer_schemas import ProblemAnswer as ProblemSchema
from anncur.service.answers import ProblemAnswer
from anncur.service.caps import too_many_documents
from anncur.service.edge import Edge
from anncur.service.problems import INVALID, NOT_ALLOWED, NOT_FOUND, ProblemError
from anncur.service.served import ServedIndex, ServedIndexes
from anncur.service.settings import ServiceSettings
from anncur.service.state import Service, exchange_of
from anncur.service.static import add_page

with contextlib.suppress(ModuleNotFoundError):
    import opentelemetry.trace  # noqa: F401  # so that `tracing.py` finds it

RERANKED = {("documents",), ("texts",)}  # fields that hold what is re-ranked
SUMMARY = "Find the items that a scorer likes best, without scoring them all."


def make_service(
    indexes: Mapping[str, str | Path], scorer: ScorerLike | None = None, *, settings: ServiceSettings | None = None
) -> FastAPI:
    """An ASGI application over folders of indexes, by the names that requests call them; the first is the default.

    `scorer` is that of all of them; by default each has the one that it remembers. Without `settings` there are no
    tokens: whoever reaches it may search, and nobody may change items. Needs the extra `serve`."""
    opened = (ServedIndex.open(name, path, scorer) for name, path in indexes.items())
    return make_app(ServedIndexes(opened), settings)


def make_app(indexes: ServedIndexes, settings: ServiceSettings | None = None) -> FastAPI:
    """The application that answers from these indexes. They are closed when it shuts down."""
    service = Service(indexes, settings or ServiceSettings())

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        for index in indexes.values():
            index.keep_fresh()  # where nobody runs this, as in a part of another application, searches begin it
        yield
        for index in indexes.values():
            index.close()

    app = FastAPI(
        title="anncur",
        summary=SUMMARY,
        version=anncur.__version__,
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )
    app.state.service = service
    app.include_router(routes.router)
    app.include_router(reranking.router)
    files = add_page(app)
    app.add_exception_handler(HTTPException, _plain_problem)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.openapi = lambda: _openapi(app)  # type: ignore[method-assign]
    app.add_middleware(
        Edge,
        settings=service.settings,
        metrics=service.metrics,
        open_paths=files,
        is_draining=lambda: service.is_draining,
    )
    if service.settings.cors_origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=list(service.settings.cors_origins),
            allow_methods=["GET", "POST", "DELETE"],
            allow_headers=["Authorization", "Content-Type", "X-Request-Id"],
            expose_headers=["Retry-After", "X-Request-Id"],
        )
    return app


async def _plain_problem(request: Request, error: Exception) -> Response:
    """What the framework refuses: paths and methods that there aren't."""
    assert isinstance(error, HTTPException)
    kind = {404: NOT_FOUND, 405: NOT_ALLOWED}.get(error.status_code, INVALID)
    problem = ProblemError(kind, headers=dict(error.headers or {}))
    return ProblemAnswer(problem, exchange_of(request).id)


async def _invalid(request: Request, error: Exception) -> Response:
    """What breaks a schema, field by field; what was sent isn't repeated."""
    assert isinstance(error, RequestValidationError)
    too_many = [each for each in error.errors() if each["type"] == "too_long" and each["loc"][1:] in RERANKED]
    if too_many:  # other re-ranking services say so in this way
        raised = too_many_documents(_field(too_many[0]["loc"]), str(too_many[0]["msg"]))
        return ProblemAnswer(raised, exchange_of(request).id)
    errors = [{"field": _field(each["loc"]), "message": str(each["msg"])[:200]} for each in error.errors()]
    detail = "; ".join(f"{each['field']}: {each['message']}" for each in errors[:3])
    return ProblemAnswer(ProblemError(INVALID, detail, errors), exchange_of(request).id)


def _field(location: tuple[Any, ...]) -> str:
    names = [str(part)[:60] for part in location if part not in {"body", "query", "path"}]
    return ".".join(names) or "body"


def _openapi(app: FastAPI) -> dict[str, Any]:
    """The description of the interface, with problems and the token, which the framework doesn't know of."""
    if app.openapi_schema is None:
        found = get_openapi(title=app.title, version=app.version, summary=app.summary, routes=app.routes)
        schemas = found["components"]["schemas"]
        schemas["ProblemAnswer"] = ProblemSchema.model_json_schema(ref_template="#/components/schemas/{model}")
        schemas |= schemas["ProblemAnswer"].pop("$defs", {})
        found["components"]["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
        for operation in (operation for methods in found["paths"].values() for operation in methods.values()):
            if "401" in operation["responses"]:
                operation["security"] = [{"token": []}]
        app.openapi_schema = found
    return app.openapi_schema
