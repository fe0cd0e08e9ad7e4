"""Searches many queries by an engine: a unit is a block of queries, and each worker opens the index once.

Blocks are those that this process would search, so that the answers are the same. Reads an index on disk, feeds
`index.py`. A version that changes meanwhile is an error: answers are never of two versions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from anncur.engines.base import Engine, Job, Loader, Report, Spread
from anncur.errors import FingerprintError, InputError, ScorerAccessError, ScorerError, SpendCapError
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

EVERYBODYS = (FingerprintError, ScorerAccessError, SpendCapError)  # errors that no other block would be spared


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
            found = [job.found[unit] for unit in job.units if unit in job.found]
            answers.extend(hits for block in found for hits in block.answers)
        for block in found:
            if block.failure is not None:
                raise block.failure
    return answers


@dataclass(frozen=True)
class Answered:
    """The answers to a block of queries, and why the scorer failed for some of them, if it did."""

    answers: list[Hits]
    failure: ScorerError | None = None


class SearchJob(Job[Sequence[Query], Answered]):
    """Searches blocks of queries."""

    noun = "block of queries"
    keeps_progress = False

    def __init__(self, snapshot: Snapshot, request: SearchRequest, reopening: Reopening) -> None:
        step = _step(snapshot, request)
        starts = range(0, len(request.queries), step)
        self.found: dict[int, Answered] = {}
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

    def finish(self, unit: int, result: Answered) -> None:
        self.found[unit] = result
        n_answered = sum(len(block.answers) for block in self.found.values())
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

    def __call__(self, payload: Sequence[Query], report: Report) -> Answered:
        try:
            block = Answered(self._index.search_many(payload, **self._options, progress=False))
        except ScorerError as error:
            block = self._answered(payload, error)
        self.calls_made += sum(hits.calls - hits.cached_calls for hits in block.answers)
        return block

    def _answered(self, payload: Sequence[Query], error: ScorerError) -> Answered:
        """What a block has where the scorer failed for some of its queries; where it failed for all, the error."""
        kept = error.kept if isinstance(error.kept, list) else []
        if isinstance(error, EVERYBODYS) or len(kept) < len(payload) or all(hits.is_partial for hits in kept):
            raise error
        error.kept = None  # they are sent as the answers
        return Answered(kept, error)


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
