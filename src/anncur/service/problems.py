"""Errors as answers: problem details (RFC 9457) with types that stay the same.

Reads our own exceptions and the framework's, feeds clients. Tells nothing of paths, models or other people's texts."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from anncur.errors import (
    AnncurError,
    DeadlineError,
    InputError,
    LockedError,
    ScorerBusyError,
    ScorerError,
    StorageError,
    UnknownIdError,
)

MEDIA_TYPE = "application/problem+json"
PREFIX = "urn:anncur:problem:"
SHOWN_ERRORS = 20  # of fields in one problem
LONGEST_DETAIL = 500  # characters


@dataclass(frozen=True)
class Kind:
    """One type of problem: its name is the end of its type, which clients may rely on."""

    name: str
    status: int
    title: str

    @property
    def type(self) -> str:
        """The URI of this type."""
        return PREFIX + self.name


NO_HTTP = Kind("malformed-http", 400, "The request is not valid HTTP")
MALFORMED = Kind("malformed-json", 400, "The body is not valid JSON")
UNAUTHORIZED = Kind("unauthorized", 401, "A token is needed")
FORBIDDEN = Kind("forbidden", 403, "This token may not do that")
NOT_FOUND = Kind("not-found", 404, "There is nothing at this path")
UNKNOWN_INDEX = Kind("unknown-index", 404, "There is no index of this name")
NOT_ALLOWED = Kind("method-not-allowed", 405, "This path has other methods")
TOO_SLOW = Kind("too-slow", 408, "The body took too long to come")
LOCKED = Kind("locked", 409, "Somebody else is changing this index")
TOO_LARGE = Kind("too-large", 413, "The request is too large")
MEDIA = Kind("unsupported-media-type", 415, "The body must be JSON")
WRONG_HOST = Kind("wrong-host", 421, "This service doesn't go by that name")
INVALID = Kind("invalid-request", 422, "The request breaks a rule")
ANSWER_TOO_LARGE = Kind("answer-too-large", 422, "The answer would be too large")
LARGE_HEADERS = Kind("headers-too-large", 431, "The headers are too large")
TOO_BUSY = Kind("too-busy", 429, "All places are taken")
INTERNAL = Kind("internal", 500, "Something went wrong here")
SCORER_FAILED = Kind("scorer-failed", 503, "The scorer can't be had")
TOOK_TOO_LONG = Kind("took-too-long", 503, "The change took too long")
STORAGE_FAILED = Kind("storage-failed", 503, "The index can't be read or written")
DRAINING = Kind("shutting-down", 503, "The service is shutting down")

KINDS = {kind.name: kind for kind in list(globals().values()) if isinstance(kind, Kind)}


@dataclass
class ProblemError(Exception):
    """A problem on its way to a client."""

    kind: Kind
    detail: str = ""
    errors: list[dict[str, str]] = field(default_factory=list)
    retry_after: float | None = None
    headers: dict[str, str] = field(default_factory=dict)

    def body(self, request_id: str) -> dict[str, Any]:
        """The members of the answer."""
        found: dict[str, Any] = {"type": self.kind.type, "title": self.kind.title, "status": self.kind.status}
        if self.detail:
            found["detail"] = self.detail[:LONGEST_DETAIL]
        if self.errors:
            found["errors"] = self.errors[:SHOWN_ERRORS]
        return {**found, "request_id": request_id}

    def all_headers(self) -> dict[str, str]:
        """With when to come again, in whole seconds."""
        if self.retry_after is None:
            return self.headers
        return {**self.headers, "Retry-After": str(max(1, math.ceil(self.retry_after)))}


def problem_of(error: AnncurError) -> ProblemError:
    """What a client sees of an error of ours. Only errors of input are told in their own words: others may name
    paths, endpoints and texts."""
    if isinstance(error, LockedError):
        return ProblemError(LOCKED, "try again when it is done", retry_after=5)
    if isinstance(error, (InputError, UnknownIdError)):
        return ProblemError(INVALID, str(error))
    if isinstance(error, ScorerError):
        wait = error.retry_after if isinstance(error, ScorerBusyError) else None
        return ProblemError(SCORER_FAILED, "the log of the service tells more", retry_after=wait or 5)
    if isinstance(error, DeadlineError):
        detail = (
            "nothing was changed, and what was scored is kept: send the same again to resume, or fewer items at once"
        )
        return ProblemError(TOOK_TOO_LONG, detail, retry_after=1)
    if isinstance(error, StorageError):
        return ProblemError(STORAGE_FAILED, "the log of the service tells more")
    return ProblemError(INTERNAL, "the log of the service tells more")
