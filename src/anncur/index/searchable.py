"""The four ways to search: one query or many, for callers that block or await.

An index has them, and so has a collection that is attached. Makes a `SearchRequest` of what the user passes, for the
class that answers it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable

from anncur.engines.base import Engine
from anncur.engines.names import EngineLike, as_engine
from anncur.index.build import one_kept
from anncur.index.filtering import Filter
from anncur.index.searching import SearchRequest
from anncur.items import QueryLike, as_queries, as_query
from anncur.progress import ProgressLike, showing, silent
from anncur.ranking import Hits
from anncur.search.base import Method
from anncur.search.limits import Limits
from anncur.search.methods import DEFAULT_METHOD
from anncur.waiting import AWAITING, BLOCKING, Waiting, run


class Searchable(ABC):
    """What finds the items that a scorer likes best, with few pairs scored."""

    def search(
        self,
        query: QueryLike,
        k: int = 10,
        budget: int | None = None,
        method: str | Method = DEFAULT_METHOD,
        *,
        filter: Filter | None = None,
        target_recall: float | None = None,
        max_budget: int | None = None,
        max_rounds: int | None = None,
        deadline_ms: float | None = None,
        min_score: float | None = None,
        seed: int = 0,
        explain: bool = False,
    ) -> Hits:
        """The k items that the scorer likes best for a query, found with at most `budget` pairs.

        `budget` is 200 unless given; for "exhaustive", all items. `method` is "posterior", "anncur", "adacur", "axn",
        "rerank", "exhaustive", or a method object with settings of its own. Only items that pass `filter` are scored
        and returned: conditions over metadata such as `{"lang": "en", "year": {">=": 2020}, "tenant": ["a", "b"]}` with
        `and`, `or` and `not`, a list of ids, or a mask over the items in their order, of the version whose items it was
        made of. With `target_recall` the search ends when it has probably found that share of the true top k, after at
        most `max_budget` pairs; an answer that didn't get there is marked as partial. More rounds find more, and each
        waits for the scorer: one with latency gets as many as take three times as long as all pairs at once, unless
        `max_rounds` allows more, or fewer. No request, but the first, is started that wouldn't be answered within
        `deadline_ms`: the best so far is returned, marked as partial. With `min_score`, only items with that score or a
        better one are returned, and the search ends when no other is likely to be left. With `explain`, the answer's
        `story` tells what was scored in each round, and what was known of it before. If the search fails, the
        exception's `kept` holds the hits so far."""
        limits = Limits(budget, target_recall, max_budget, max_rounds, deadline_ms, min_score)
        with one_kept():
            request = SearchRequest([as_query(query)], k, method, limits, seed, silent, filter, explain)
            return run(self._search(request, BLOCKING))[0]

    def search_many(
        self,
        queries: Iterable[QueryLike],
        k: int = 10,
        budget: int | None = None,
        method: str | Method = DEFAULT_METHOD,
        *,
        filter: Filter | None = None,
        target_recall: float | None = None,
        max_budget: int | None = None,
        max_rounds: int | None = None,
        deadline_ms: float | None = None,
        min_score: float | None = None,
        engine: EngineLike = "local",
        seed: int = 0,
        progress: ProgressLike = None,
    ) -> list[Hits]:
        """Search for many queries, in blocks, at less cost than one by one.

        The answers are the same, unless a scorer with latency leaves other numbers of rounds; `max_rounds` fixes them.
        `budget` is for each query, `deadline_ms` for all of them together. A request holds pairs of several queries
        where the scorer takes them. If the scorer fails for a query, the others are answered before the error goes up;
        the exception's `kept` is the list of hits so far. With the engine "ray" (extra `ray`), or `RayEngine(…)`, the
        blocks of an index on disk are searched by workers, each of which opens it once."""
        limits = Limits(budget, target_recall, max_budget, max_rounds, deadline_ms, min_score)
        runs_on = as_engine(engine)
        with showing(progress) as shown:
            request = SearchRequest(as_queries(queries), k, method, limits, seed, shown, filter)
            return self._search_by(runs_on, request) if runs_on.is_elsewhere else run(self._search(request, BLOCKING))

    async def asearch(
        self,
        query: QueryLike,
        k: int = 10,
        budget: int | None = None,
        method: str | Method = DEFAULT_METHOD,
        *,
        filter: Filter | None = None,
        target_recall: float | None = None,
        max_budget: int | None = None,
        max_rounds: int | None = None,
        deadline_ms: float | None = None,
        min_score: float | None = None,
        seed: int = 0,
        explain: bool = False,
    ) -> Hits:
        """The same as `search`, for callers that await.

        An async scorer runs on the caller's event loop; one that blocks, and all computation, in threads. When the task
        is cancelled, no other request is started."""
        limits = Limits(budget, target_recall, max_budget, max_rounds, deadline_ms, min_score)
        with one_kept():
            request = SearchRequest([as_query(query)], k, method, limits, seed, silent, filter, explain)
            return (await self._search(request, AWAITING))[0]

    async def asearch_many(
        self,
        queries: Iterable[QueryLike],
        k: int = 10,
        budget: int | None = None,
        method: str | Method = DEFAULT_METHOD,
        *,
        filter: Filter | None = None,
        target_recall: float | None = None,
        max_budget: int | None = None,
        max_rounds: int | None = None,
        deadline_ms: float | None = None,
        min_score: float | None = None,
        seed: int = 0,
        progress: ProgressLike = None,
    ) -> list[Hits]:
        """The same as `search_many`, for callers that await."""
        limits = Limits(budget, target_recall, max_budget, max_rounds, deadline_ms, min_score)
        with showing(progress) as shown:
            request = SearchRequest(as_queries(queries), k, method, limits, seed, shown, filter)
            return await self._search(request, AWAITING)

    @abstractmethod
    async def _search(self, request: SearchRequest, waiting: Waiting) -> list[Hits]:
        """The answers, in the order of the queries."""

    @abstractmethod
    def _search_by(self, engine: Engine, request: SearchRequest) -> list[Hits]:
        """The same by the workers of an engine."""
