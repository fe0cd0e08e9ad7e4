"""Rules of requests that a schema can't say: caps of this service, and filters that are too deep or too large."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from anncur.search.limits import DEFAULT_BUDGET
from anncur.service.answers import as_json
from anncur.service.problems import ANSWER_TOO_LARGE, INVALID, ProblemError
from anncur.service.schemas import BatchBody, Options
from anncur.service.settings import DEEPEST_FILTER, LARGEST_FILTER, MEGABYTE, ServiceSettings

MOST_BATCH_PAIRS = 100_000


def check_options(body: Options, settings: ServiceSettings) -> None:
    """Refuse more than this service gives."""
    for name, most in (("k", settings.max_k), ("budget", settings.max_budget), ("max_budget", settings.max_budget)):
        value = getattr(body, name)
        if value is not None and value > most:
            raise invalid(name, f"must be at most {most} here, got {value}")
    if isinstance(body, BatchBody):
        n_pairs = len(body.queries) * (body.budget or body.max_budget or DEFAULT_BUDGET)
        if n_pairs > MOST_BATCH_PAIRS:
            message = f"queries times budget must be at most {MOST_BATCH_PAIRS}, got {n_pairs}; send fewer at once"
            raise invalid("queries", message)
    check_filter(body.filter)


def check_filter(filter: object) -> None:
    """Refuse filters that are nested too deeply or hold too much."""
    if not isinstance(filter, dict):
        return
    for n_values, depth in enumerate(_depths(filter), start=1):
        if depth > DEEPEST_FILTER:
            raise invalid("filter", f"must be nested at most {DEEPEST_FILTER} deep; flatten it")
        if n_values > LARGEST_FILTER:
            raise invalid("filter", f"must hold at most {LARGEST_FILTER} values; pass a list of ids instead")


def check_exhaustive(n_items: int, settings: ServiceSettings) -> None:
    """Refuse to score all of very many items."""
    if n_items > settings.max_exhaustive:
        message = f"scores {n_items} items, and at most {settings.max_exhaustive} are scored here; narrow the filter"
        raise invalid("method", message)


def check_answers(answers: Sequence[dict[str, Any]], settings: ServiceSettings) -> None:
    """Refuse to send texts and metadata of more characters than an answer may have bytes."""
    most = settings.max_answer_bytes
    n_bytes = sum(_size(hit) for answer in answers for hit in answer["hits"])
    if n_bytes > most:
        raise ProblemError(
            ANSWER_TOO_LARGE,
            f"its items have {n_bytes / MEGABYTE:.1f} MB, and at most {most / MEGABYTE:.1f} are sent; ask for "
            "a smaller k, or for fewer queries at once",
        )


def invalid(field: str, message: str) -> ProblemError:
    """The problem of one field."""
    return ProblemError(INVALID, f"{field} {message}", errors=[{"field": field, "message": message}])


def _size(hit: dict[str, Any]) -> int:
    metadata = len(as_json(hit["metadata"])) if hit["metadata"] else 0
    return len(hit["id"]) + len(hit["title"]) + len(hit["text"]) + metadata


def _depths(value: Any) -> Iterator[int]:
    """The depth of every value inside, without recursion."""
    stack = [(value, 1)]
    while stack:
        current, depth = stack.pop()
        yield depth
        children = current.values() if isinstance(current, dict) else current if isinstance(current, list) else ()
        stack.extend((child, depth + 1) for child in children)
