"""Searches many queries by an engine: a unit is a block of queries, and each worker opens the index once.

Blocks are those that this process would search, so that the answers are the same. Reads an index on disk, feeds
`index.py`. A version that changes meanwhile is an error: answers are never of two versions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from anncur.engines.base import Engine, Job, Loader, Report, Spread
from anncur.errors import InputError
from anncur.filling import shared_scorer
from anncur.index.build import keeping
from anncur.index.searching import SearchRequest, queries_at_once
from anncur.index.snapshot import Snapshot
from anncur.items import Query
from anncur.numbers import whole_number
from anncur.ranking import Hits
from anncur.scorers.guard import GuardedScorer
from anncur.search.methods import as_method

if TYPE_CHECKING:
    from anncur.index.index import Index


@dataclass(frozen=True)
class Reopening:
    """How another process opens the index: its scorer as it was given, and a function of a scorer."""

    scorer: object
    of: Callable[[Any], partial[Index]]


def search_blocks(snapshot: Snapshot, request: SearchRequest, reopening: Reopening, *, engine: Engine) -> list[Hits]:
    """The answers to some queries, in their order; whatever stops it, the exception's `kept` has those so far."""
    if request.limits.deadline_ms is not None:
        raise InputError(
            "deadline_ms is for all queries together, which workers can't keep; leave it out, or search with "
            "engine='local'"
        )
    job = SearchJob(snapshot, request, reopening)
    answers: list[Hits] = []
    with keeping(answers), engine:
        try:
            engine.run(job)
        finally:
            answers.extend(hits for unit in job.units for hits in job.found.get(unit, ()))
    return answers


class SearchJob(Job[Sequence[Query], list[Hits]]):
    """Searches blocks of queries."""

    noun = "block of queries"
    keeps_progress = False

    def __init__(self, snapshot: Snapshot, request: SearchRequest, reopening: Reopening) -> None:
        step = _step(snapshot, request)
        starts = range(0, len(request.queries), step)
        self.found: dict[int, list[Hits]] = {}
        self.units = range(len(starts))
        self._blocks = [request.queries[start : start + step] for start in starts]
        self._reopening = reopening
        self._version = snapshot.version
        self._request = request

    def loader(self, spread: Spread | None) -> Loader:
        assert spread is not None, "in this process an index searches by itself"
        scorer = self._reopening.scorer
        if isinstance(scorer, GuardedScorer):
            scorer = shared_scorer(scorer, spread)
        options = {
            "k": self._request.k,
            "method": self._request.method,
            "filter": self._request.filter,
            "seed": self._request.seed,
            **asdict(self._request.limits),
        }
        return partial(_open_worker, self._reopening.of(scorer), self._version, options)

    def payload(self, unit: int) -> Sequence[Query] | None:
        return None if unit in self.found else self._blocks[unit]

    def left(self, unit: int) -> int:
        return 0 if unit in self.found else len(self._blocks[unit])

    def finish(self, unit: int, result: list[Hits]) -> None:
        self.found[unit] = result
        n_answered = sum(map(len, self.found.values()))
        self._request.progress("searching", n_answered, len(self._request.queries))

    def describe(self, unit: int) -> str:
        first, last = self._blocks[unit][0], self._blocks[unit][-1]
        return f"{first.marked_text[:60]!r} to {last.marked_text[:60]!r}"


class BlockWorker:
    """Searches blocks in the process that opened the index."""

    def __init__(self, index: Index, options: dict[str, Any]) -> None:
        self._index = index
        self._options = options
        self.calls_made = 0

    def __call__(self, payload: Sequence[Query], report: Report) -> list[Hits]:
        answers = self._index.search_many(payload, **self._options, progress=False)
        self.calls_made += sum(hits.calls - hits.cached_calls for hits in answers)
        return answers


def _open_worker(reopening: partial[Index], version: int, options: dict[str, Any]) -> BlockWorker:
    index = reopening()
    if index.info.version != version:
        raise InputError(
            f"{index.info.path} has another version since the search began, {index.info.version} instead of {version}; "
            "run the same again"
        )
    return BlockWorker(index, options)


def _step(snapshot: Snapshot, request: SearchRequest) -> int:
    """How many queries this process would search at once."""
    method = as_method(request.method)
    request.limits.check_method(method)
    n_candidates = len(snapshot.candidates(request.filter))
    if not n_candidates:
        return max(1, len(request.queries))
    k = whole_number("k", request.k, least=1)
    budget = request.limits.budget_for(method, snapshot.knowledge, k, n_candidates)
    return queries_at_once(budget, len(snapshot.items))
