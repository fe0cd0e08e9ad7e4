"""Rules of requests that a schema can't say: caps of this service, and filters that are too deep or too large."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from anncur.search.limits import DEFAULT_BUDGET
from anncur.service.answers import as_json
from anncur.service.problems import ANSWER_TOO_LARGE, INVALID, TOO_LARGE, ProblemError
from anncur.service.schemas import BatchBody, Options
from anncur.service.settings import DEEPEST_FILTER, LARGEST_FILTER, MEGABYTE, ServiceSettings

MOST_BATCH_PAIRS = 100_000


def check_options(body: Options, settings: ServiceSettings, *, n_items: int) -> None:
    """Refuse more than this service gives."""
    check_most("k", body.k, settings.max_k)
    check_most("budget", body.budget, settings.max_budget)
    check_most("max_budget", body.max_budget, settings.max_budget)
    if body.method == "exhaustive" and body.budget is None:
        check_exhaustive(n_items, settings)
    if isinstance(body, BatchBody):
        n_pairs = len(body.queries) * pairs_of(body, settings, n_items=n_items)
        if n_pairs > MOST_BATCH_PAIRS:
            message = f"times the budget of each must be at most {MOST_BATCH_PAIRS}, got {n_pairs}; send fewer at once"
            raise invalid("queries", message)
    check_filter(body.filter)


def check_most(name: str, value: int | None, most: int) -> None:
    """Refuse a number above a cap of this service."""
    if value is not None and value > most:
        raise invalid(name, f"must be at most {most} here, got {value}")


def check_documents(name: str, n_documents: int, settings: ServiceSettings) -> None:
    """Refuse to re-rank more than a search may score."""
    if n_documents > settings.max_budget:
        raise too_many_documents(name, f"must be at most {settings.max_budget} here, got {n_documents}")


def too_many_documents(name: str, message: str) -> ProblemError:
    """The problem that clients of re-ranking services know for it."""
    return ProblemError(TOO_LARGE, f"{name} {message}", errors=[{"field": name, "message": message}])


def pairs_of(body: Options, settings: ServiceSettings, *, n_items: int) -> int:
    """The most pairs that each query may take."""
    return min(budget_of(body, settings) or max_budget_of(body, settings) or n_items, n_items)


def budget_of(body: Options, settings: ServiceSettings) -> int | None:
    """As it was asked for, or by default no more than this service gives."""
    if body.budget is not None or body.target_recall is not None:
        return body.budget
    return None if body.method == "exhaustive" else min(DEFAULT_BUDGET, settings.max_budget)


def max_budget_of(body: Options, settings: ServiceSettings) -> int | None:
    """A target of recall never costs more than this service gives."""
    return body.max_budget if body.target_recall is None else body.max_budget or settings.max_budget


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
