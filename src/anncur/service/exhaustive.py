"""Exhaustive searches, which report how far they are, line by line.

Reads checked bodies, feeds one route. The place of such a search is free when the search has ended, however slowly its
client reads."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar

from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from anncur.errors import AnncurError
from anncur.items import Query
from anncur.ranking import Hits
from anncur.search.base import Knowledge, Proposal, QueryBlock, Rounds
from anncur.service.access_log import described, write_event
from anncur.service.answers import NDJSON, as_json
from anncur.service.caps import check_answers
from anncur.service.edge import Exchange
from anncur.service.problems import ProblemError, problem_of
from anncur.service.schemas import ExhaustiveBody
from anncur.service.served import ServedIndex
from anncur.service.state import Service

PAIRS_A_STEP = 256  # between two reports of how far it is


@dataclass(frozen=True)
class StepByStep:
    """The method "exhaustive" in steps, which reports how far it is."""

    report: Callable[[int, int], None]
    name: ClassVar[str] = "exhaustive"
    is_exact: ClassVar[bool] = True

    def rounds(self, block: QueryBlock, knowledge: Knowledge) -> Rounds:
        everything = block.candidates(knowledge).first(block.budget)
        for start in range(0, len(everything), PAIRS_A_STEP):
            self.report(start, len(everything))
            yield [Proposal(everything[start : start + PAIRS_A_STEP])] * len(block.queries)
        return None


@dataclass(frozen=True, eq=False)
class Check:
    """An exhaustive search that reports how far it is."""

    service: Service
    index: ServedIndex
    body: ExhaustiveBody
    query: Query
    exchange: Exchange
    _reports: asyncio.Queue[dict[str, Any] | None] = field(default_factory=asyncio.Queue, init=False)

    async def begin(self) -> asyncio.Task[Hits]:
        """Start it, or be refused where no place is free."""
        task = asyncio.create_task(self._search())
        task.add_done_callback(self._end)
        try:
            if await self._reports.get() is None:
                task.result()
        except asyncio.CancelledError:
            task.cancel()
            raise
        return task

    async def lines(self, task: asyncio.Task[Hits]) -> AsyncIterator[dict[str, Any]]:
        """Progress, and then the answer, or what went wrong."""
        try:
            while (report := await self._reports.get()) is not None:
                yield {"event": "progress", **report}
            answer = task.result().to_dict()
            check_answers([answer], self.service.settings)
            yield {"event": "answer", **answer, "index": self.index.name}
        except (AnncurError, ProblemError) as error:
            yield {"event": "problem", **self._problem(error).body(self.exchange.id)}

    async def _search(self) -> Hits:
        loop, body = asyncio.get_running_loop(), self.body

        def report(n_scored: int, n_items: int) -> None:
            loop.call_soon_threadsafe(self._reports.put_nowait, {"scored": n_scored, "total": n_items})

        async with self.service.checks.place():
            self._reports.put_nowait({})  # it has begun
            most, method = self.service.settings.max_exhaustive, StepByStep(report)
            try:
                hits = await self.index.reader.asearch(self.query, body.k, most, method, filter=body.filter)
            except AnncurError as error:
                self._count(error.kept)
                raise
            self._count(hits)
            return hits

    def _end(self, task: asyncio.Task[Hits]) -> None:
        if not task.cancelled():
            task.exception()  # seen, also if nobody reads the lines
        self._reports.put_nowait(None)

    def _count(self, hits: object) -> None:
        if isinstance(hits, Hits):
            self.service.metrics.searched(self.index.name, hits)
            self.exchange.facts |= {"calls": hits.calls, "index_version": hits.index_version}

    def _problem(self, error: AnncurError | ProblemError) -> ProblemError:
        """What a client sees of an error that came after the answer had begun; it is in the log."""
        problem = error if isinstance(error, ProblemError) else problem_of(error)
        shown = described(error, log_texts=self.service.settings.log_texts)
        self.exchange.facts |= {"problem": problem.kind.name, "error": shown}
        write_event("an exhaustive search failed", self.exchange, index=self.index.name, error=shown)
        return problem


class LinesAnswer(StreamingResponse):
    """The lines of a search as JSON. When nobody listens any more, the search ends."""

    def __init__(self, check: Check) -> None:
        super().__init__((), media_type=NDJSON)
        self._check = check

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        task = await self._check.begin()  # refused before the answer begins
        self.body_iterator = (as_json(line) + b"\n" async for line in self._check.lines(task))
        try:
            await super().__call__(scope, receive, send)
        finally:
            task.cancel()
