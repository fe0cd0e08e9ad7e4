"""How bodies are read: up to a number of bytes, within some seconds, and as strict JSON.

The cap holds while a body comes in, whatever its headers promise: what is over it is never kept."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import Request, Response
from fastapi.routing import APIRoute
from pydantic_core import from_json
from starlette.types import Message, Receive

from anncur.service.problems import INVALID, MALFORMED, MEDIA, TOO_LARGE, TOO_SLOW, ProblemError


class CappedReceive:
    """Receives a request's body, unless it is too large or too slow."""

    def __init__(self, receive: Receive, *, most_bytes: int, seconds: float) -> None:
        self._receive = receive
        self._most_bytes = most_bytes
        self._end = asyncio.get_running_loop().time() + seconds
        self._n_bytes = 0
        self.is_complete = False

    async def __call__(self) -> Message:
        if self.is_complete:
            return await self._receive()  # that the client went away
        try:
            async with asyncio.timeout_at(self._end):
                message = await self._receive()
        except TimeoutError:
            raise ProblemError(TOO_SLOW, "send the whole body at once", headers={"Connection": "close"}) from None
        self._n_bytes += len(message.get("body", b""))
        if self._n_bytes > self._most_bytes:
            raise too_large(self._most_bytes)
        self.is_complete = not message.get("more_body", False)
        return message


def too_large(most_bytes: int) -> ProblemError:
    """The problem of a body over the cap; the rest of it isn't read."""
    return ProblemError(TOO_LARGE, f"a body may have {most_bytes} bytes", headers={"Connection": "close"})


class StrictRequest(Request):
    """A request whose JSON is what the standard says: no NaN, no lone surrogates, no deep nesting."""

    async def json(self) -> Any:
        if not hasattr(self, "_strict_json"):
            try:
                self._strict_json = from_json(await self.body(), allow_inf_nan=False)
            except ValueError as error:
                raise ProblemError(MALFORMED, str(error)) from None
        return self._strict_json


class StrictRoute(APIRoute):
    """A route that takes JSON, says so, and knows all parameters that it is given."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handler = super().get_route_handler()

        async def strict(request: Request) -> Response:
            own = StrictRequest(request.scope, request.receive)
            if INVALID.status in self.responses:
                _check_parameters(request, {field.alias for field in self.dependant.query_params})
            if self.body_field is not None:
                _check_media_type(request.headers.get("content-type", ""))
                await own.json()  # here, so that the message is ours
            return await handler(own)

        return strict


def _check_parameters(request: Request, known: set[str]) -> None:
    unknown = request.query_params.keys() - known
    if unknown:
        names = ", ".join(sorted(known)) or "none"
        raise ProblemError(INVALID, f"{len(unknown)} unknown parameters in the query string; known here: {names}")


def _check_media_type(media_type: str) -> None:
    kind = media_type.partition(";")[0].strip().lower()
    if kind != "application/json":
        raise ProblemError(MEDIA, f"send Content-Type: application/json, got {kind[:60] or 'none'}")
