"""How a request becomes searches: a place in the queue, the time that is left, first guesses where the scorer fails.

Reads checked bodies, feeds the routes with plain values."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from starlette.requests import Request

from anncur.errors import ScorerError
from anncur.items import Item, Query
from anncur.ranking import Hits
from anncur.service.access_log import described, write_event
from anncur.service.admission import ExpiredError
from anncur.service.caps import budget_of, check_answers, max_budget_of, pairs_of
from anncur.service.edge import ClientGoneError
from anncur.service.limiting import Work
from anncur.service.schemas import ExhaustiveBody, Options, SearchBody
from anncur.service.served import ServedIndex
from anncur.service.state import Service, exchange_of
from anncur.waiting import AWAITING

UNSCORED = "first_guesses"  # in the place of a method's name

T = TypeVar("T")


async def while_connected(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """What some work gives; when the client goes away, it is cancelled, and asks the scorer for nothing more."""
    task, gone = asyncio.create_task(work), asyncio.create_task(_gone(request))
    task.add_done_callback(lambda ended: ended.cancelled() or ended.exception())  # seen, also if nobody waits for it
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientGoneError
        return task.result()
    finally:
        for each in (task, gone):
            each.cancel()


async def _gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def query_of(body: SearchBody | ExhaustiveBody) -> Query:
    """The query of a body, with its mention."""
    return Query(body.query, mention=None if body.mention is None else (body.mention[0], body.mention[1]))


@dataclass(frozen=True)
class Searching:
    """Searches of one request in one index."""

    service: Service
    index: ServedIndex
    body: Options
    request: Request

    async def one(self, query: Query, *, explain: bool) -> dict[str, Any]:
        """The answer to one query."""

        async def search(deadline_ms: float | None) -> list[Hits]:
            options = self._options(deadline_ms)
            return [await self.index.reader.asearch(query, **options, explain=explain)]

        return (await self._answers([query], search))[0]

    async def many(self, queries: Sequence[Query]) -> list[dict[str, Any]]:
        """The answers to several."""

        async def search(deadline_ms: float | None) -> list[Hits]:
            return await self.index.reader.asearch_many(queries, **self._options(deadline_ms), progress=False)

        return await self._answers(queries, search)

    async def _answers(
        self, queries: Sequence[Query], search: Callable[[float | None], Awaitable[list[Hits]]]
    ) -> list[dict[str, Any]]:
        self.index.keep_fresh()
        self._describe(queries)
        began, waited = time.perf_counter(), None
        try:
            async with self.service.searches.place(self._work(len(queries)), seconds=self._seconds_left()) as waited:
                self.service.metrics.waited(waited)
                answers = await self._searched(queries, search)
        except ExpiredError:
            if not self._opens:
                raise
            waited = time.perf_counter() - began
            answers = [await AWAITING.compute(self._unscored, query) for query in queries]
        check_answers(answers, self.service.settings)
        exchange_of(self.request).facts |= {
            "calls": sum(answer["calls"] for answer in answers),
            "waiting_ms": round(1000 * waited, 1),
            "index_version": answers[0]["index_version"],
        }
        timings = {"waiting_ms": 1000 * waited, "searching_ms": 1000 * (time.perf_counter() - began - waited)}
        return [{**answer, "index": self.index.name, "timings": timings} for answer in answers]

    async def _searched(
        self, queries: Sequence[Query], search: Callable[[float | None], Awaitable[list[Hits]]]
    ) -> list[dict[str, Any]]:
        seconds = self._seconds_left()
        try:
            found = await search(None if seconds is None else 1000 * max(0.0, seconds))
        except ScorerError as error:
            return await self._without_scorer(queries, error)
        return [await self._scored_in_time(query, hits) for query, hits in zip(queries, found, strict=True)]

    def _seconds_left(self) -> float | None:
        """Until the deadline, which counts from when the request came."""
        if self.body.deadline_ms is None:
            return None
        return self.body.deadline_ms / 1000 - (time.perf_counter() - exchange_of(self.request).started)

    @property
    def _opens(self) -> bool:
        """Whether first guesses are wanted where nothing can be scored."""
        return self.service.settings.fail_open if self.body.fail_open is None else self.body.fail_open

    def _work(self, n_queries: int) -> Work:
        """What it will take: pairs, less where a target or a deadline ends it."""
        body = self.body
        kind = (self.index.name, body.method, body.target_recall is not None, body.deadline_ms is not None)
        n_items = self.index.reader.loaded[1]
        return Work(kind, n_queries * pairs_of(body, self.service.settings, n_items=n_items))

    def _options(self, deadline_ms: float | None) -> dict[str, Any]:
        body, settings = self.body, self.service.settings
        return {
            "k": body.k,
            "budget": budget_of(body, settings),
            "method": body.method,
            "filter": body.filter,
            "target_recall": body.target_recall,
            "max_budget": max_budget_of(body, settings),
            "max_rounds": body.max_rounds,
            "deadline_ms": deadline_ms,
            "min_score": body.min_score,
            "seed": body.seed,
        }

    async def _scored_in_time(self, query: Query, hits: Hits) -> dict[str, Any]:
        """What was scored; first guesses where the deadline came before that, if they are wanted."""
        if self._opens and hits.is_partial and not hits.calls and not len(hits):
            return await AWAITING.compute(self._unscored, query)
        return self._scored(hits)

    def _scored(self, hits: Hits) -> dict[str, Any]:
        self.service.metrics.searched(self.index.name, hits)
        return {**hits.to_dict(), "is_scored": True}

    async def _without_scorer(self, queries: Sequence[Query], error: ScorerError) -> list[dict[str, Any]]:
        """What was scored before the scorer failed, or first guesses, if that is wanted."""
        if not self._opens:
            raise error
        shown = described(error, log_texts=self.service.settings.log_texts)
        write_event(
            "the scorer failed, and first guesses are answered",
            exchange_of(self.request),
            index=self.index.name,
            error=shown,
        )
        kept = error.kept if isinstance(error.kept, list) else [error.kept]
        found = [hits if isinstance(hits, Hits) and len(hits) else None for hits in kept]
        found += [None] * (len(queries) - len(found))
        return [
            await AWAITING.compute(self._unscored, query)
            if hits is None
            else {**self._scored(hits), "is_partial": True}
            for query, hits in zip(queries, found, strict=True)
        ]

    def _unscored(self, query: Query) -> dict[str, Any]:
        self.service.metrics.unscored(self.index.name)
        version, _ = self.index.reader.loaded
        items = self.index.reader.first_guesses(query, self.body.k, filter=self.body.filter)
        empty = Hits((), query, UNSCORED, calls=0, seconds=0.0, is_partial=True, index_version=version).to_dict()
        return {**empty, "hits": [_unscored_hit(item) for item in items], "is_scored": False}

    def _describe(self, queries: Sequence[Query]) -> None:
        facts: dict[str, Any] = {"index": self.index.name, "search_method": self.body.method, "k": self.body.k}
        facts |= {"budget": self.body.budget, "queries": len(queries)}
        exchange_of(self.request).facts |= facts | self.service.texts(queries)


def _unscored_hit(item: Item) -> dict[str, Any]:
    metadata = dict(item.metadata)
    return {"id": item.id, "score": None, "title": item.title, "text": item.text, "metadata": metadata}
