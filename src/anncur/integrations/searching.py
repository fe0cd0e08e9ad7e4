"""What the integrations share: an index with the options of its searches, and what a hit tells beside its item.

Reads `index/`, feeds one module for each library. Knows none of these libraries."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypedDict, Unpack

from anncur.errors import InputError
from anncur.index.filtering import Filter
from anncur.index.index import Index
from anncur.items import QueryLike
from anncur.numbers import whole_number
from anncur.ranking import Hit, Hits
from anncur.search.base import Method
from anncur.search.limits import Limits
from anncur.search.methods import DEFAULT_METHOD, as_method

FACTS = "anncur"  # key under which metadata holds what the search found out


class SearchOptions(TypedDict, total=False):
    """The options of `Index.search`."""

    k: int
    budget: int | None
    method: str | Method
    filter: Filter | None
    target_recall: float | None
    max_budget: int | None
    max_rounds: int | None
    deadline_ms: float | None
    min_score: float | None
    seed: int


class Search:
    """An index, opened if it is a path, with the options that its searches have unless others are given."""

    def __init__(self, index: Index | str | Path, **options: Unpack[SearchOptions]) -> None:
        check_options(**options)
        self.index = index if isinstance(index, Index) else Index.open(index)
        self.options = options
        self._higher_is_better = self.index.info.higher_is_better

    def __call__(self, query: QueryLike, **others: Unpack[SearchOptions]) -> Hits:
        """The hits for a query."""
        return self.index.search(query, **self._with(others))

    async def awaited(self, query: QueryLike, **others: Unpack[SearchOptions]) -> Hits:
        """The same, for callers that await."""
        return await self.index.asearch(query, **self._with(others))

    def many(self, queries: Iterable[QueryLike], **others: Unpack[SearchOptions]) -> list[Hits]:
        """The hits for each of some queries."""
        return self.index.search_many(queries, **self._with(others))

    def among(self, query: QueryLike, ids: Iterable[str], **others: Unpack[SearchOptions]) -> Hits:
        """The hits among candidates that something else found: all of them, unless `k` or a budget is given."""
        if self.options.get("filter") is not None:
            raise InputError("a search among given candidates takes no filter; leave out filter=…, or the candidates")
        candidates, asked = list(ids), self._with(others)
        asked["filter"] = candidates
        asked.setdefault("k", max(1, len(candidates)))
        if asked.get("budget") is None and asked.get("target_recall") is None:
            asked["budget"] = max(1, len(candidates))
        return self.index.search(query, **asked)

    def rising_scores(self, hits: Hits) -> list[float]:
        """The scores of hits for libraries that sort by them, the highest first."""
        return hits.scores if self._higher_is_better else [-score for score in hits.scores]

    def _with(self, others: SearchOptions) -> SearchOptions:
        if others:
            check_options(**others)
        return {**self.options, **others}


def check_options(**options: Unpack[SearchOptions]) -> None:
    """Refuse now what every search would refuse later."""
    unknown = options.keys() - SearchOptions.__annotations__.keys()
    if unknown:
        raise InputError(
            f"no search has the option {min(unknown)!r}; the options are {', '.join(SearchOptions.__annotations__)}"
        )
    whole_number("k", options.get("k", 1), least=1)
    whole_number("seed", options.get("seed", 0), least=0)
    as_method(options.get("method", DEFAULT_METHOD))
    limits = Limits(
        options.get("budget"),
        options.get("target_recall"),
        options.get("max_budget"),
        options.get("max_rounds"),
        options.get("deadline_ms"),
        options.get("min_score"),
    )
    limits.deadline()


def metadata_of(hit: Hit, hits: Hits) -> dict[str, Any]:
    """The item's metadata and title, and under "anncur" what the search found out."""
    title = {"title": hit.item.title} if hit.item.title else {}
    facts = {
        "score": hit.score,
        "round": hit.round,
        "method": hits.method,
        "calls": hits.calls,
        "estimated_recall": hits.estimated_recall,
        "is_partial": hits.is_partial,
    }
    return {**title, **hit.item.metadata, FACTS: facts}


@contextmanager
def needed(package: str) -> Iterator[None]:
    """Around the import of a library: name the package to install where it is missing."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"this integration needs {package} ({error}): pip install {package}", name=error.name
        ) from error
