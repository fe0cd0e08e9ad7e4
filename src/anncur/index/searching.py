"""Searches one version of an index, block by block: pays through meters, turns what was found into hits, and logs what
was paid for where that is wanted.

Reads snapshots and methods, feeds `index.py`, which knows which version is the newest."""

from __future__ import annotations

import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

from anncur.errors import AnncurWarning, ScorerError, StorageError
from anncur.index.backend import Backend
from anncur.index.build import keeping
from anncur.index.filtering import Filter
from anncur.index.snapshot import Snapshot
from anncur.items import Query
from anncur.numbers import number, whole_number
from anncur.progress import Progress
from anncur.ranking import Hit, Hits, Round, rounds_by_position
from anncur.scorers.guard import GuardedScorer
from anncur.scorers.meter import Meter
from anncur.scorers.payment import Payments
from anncur.scorers.stability import StabilityWatch
from anncur.search.base import Method, QueryBlock
from anncur.search.limits import Limits
from anncur.search.loop import Run, expect_noise, explore, n_explored, n_repeated, repeat_best, run_rounds
from anncur.search.methods import as_method
from anncur.search.schedule import Schedule
from anncur.storage.query_log import LoggedSearch
from anncur.waiting import Waiting

QUERIES_AT_ONCE = 64  # enough for a matrix product to be worth it; memory grows with it, not with the queries in all
PAIRS_AT_ONCE = 100_000  # fewer queries at once where each of them scores very many items
MEANS_AT_ONCE = 2**25  # queries x items, each with a score of every retriever and a mean: a few hundred MB
DEFAULT_EXPLORE, MOST_EXPLORE = 0.05, 0.9  # shares of the pairs


@dataclass(frozen=True)
class QueryLogSettings:
    """The query log holds the last `log_queries` searches, and `explore` of their pairs are of random items."""

    log_queries: int = 0
    explore: float = 0.0

    @classmethod
    def of(cls, log_queries: int, explore: float | None) -> QueryLogSettings:
        """As the user gave them; what is logged is worth some exploring."""
        most = whole_number("log_queries", log_queries, least=0)
        default = DEFAULT_EXPLORE if most else 0.0
        return cls(most, default if explore is None else number("explore", explore, least=0, most=MOST_EXPLORE))


@dataclass(frozen=True, eq=False)
class SearchRequest:
    """What the user asks for, in the order of checks."""

    queries: Sequence[Query]
    k: int
    method: str | Method
    limits: Limits
    seed: int
    progress: Progress
    filter: Filter | None = None


class Searcher:
    """What searching needs beside a version of an index. Thread-safe, if the scorer is.

    Without `takes_masks`, filters that are masks are refused."""

    def __init__(
        self, backend: Backend, watch: StabilityWatch, log_settings: QueryLogSettings, *, takes_masks: bool = True
    ) -> None:
        self._backend = backend
        self._watch = watch
        self._log_settings = log_settings
        self._takes_masks = takes_masks

    async def search(
        self, snapshot: Snapshot, scorer: GuardedScorer, request: SearchRequest, waiting: Waiting
    ) -> list[Hits]:
        """The answers to some queries; whatever stops it, the exception's `kept` is the list of them so far."""
        method, limits, queries = as_method(request.method), request.limits, request.queries
        limits.check_method(method)
        k, seed = whole_number("k", request.k, least=1), whole_number("seed", request.seed, least=0)
        among = await waiting.compute(partial(snapshot.candidates, takes_masks=self._takes_masks), request.filter)
        if not len(among):
            return [Hits((), query, method.name, calls=0, seconds=0.0, is_partial=False) for query in queries]
        budget = limits.budget_for(method, snapshot.knowledge, k, len(among))
        payments = Payments(scorer, deadline=limits.deadline(), waiting=waiting)
        step = max(1, min(QUERIES_AT_ONCE, PAIRS_AT_ONCE // budget, MEANS_AT_ONCE // len(snapshot.items)))
        answers: list[Hits] = []
        failures: list[ScorerError] = []  # of single queries
        with keeping(answers):
            for start in range(0, len(queries), step):
                some = queries[start : start + step]
                round_seconds = partial(payments.round_seconds, len(some))
                schedule = Schedule(len(some), limits.max_rounds, round_seconds, payments.seconds_left)
                block = QueryBlock(
                    some,
                    k=k,
                    budget=budget,
                    seed=seed,
                    target_recall=limits.target_recall,
                    min_score=limits.least(scorer.sign),
                    schedule=schedule,
                    noise=scorer.noise.variance,
                    noise_share=scorer.noise.share,
                    passing=among.passing,
                )
                failures += await self._search_block(
                    snapshot, scorer, block, method, payments=payments, answers=answers
                )
                request.progress("searching", len(answers), len(queries))
            if failures:
                raise failures[0]
        return answers

    async def _search_block(
        self,
        snapshot: Snapshot,
        scorer: GuardedScorer,
        block: QueryBlock,
        method: Method,
        *,
        payments: Payments,
        answers: list[Hits],
    ) -> list[ScorerError]:
        """Add the answers of a block, also when it fails half-way; the failures of single queries."""
        started = time.perf_counter()
        items, among = snapshot.items_for(scorer.fingerprint), block.candidates(snapshot.knowledge)
        runs = [Run(Meter(query, items, budget=block.budget)) for query in block.queries]
        share = 0.0 if method.is_exact else self._log_settings.explore
        repeats = 1 if method.is_exact else scorer.rules.repeats
        n_best = n_repeated(block.k, block.budget, repeats)
        n_others = n_explored(block.budget, share) + n_best * (repeats - 1)
        own = replace(block, budget=max(1, block.budget - n_others))
        try:
            await run_rounds(method, own, snapshot.knowledge, runs, payments)
            whole = await repeat_best(runs, payments, n_best=n_best, n_times=repeats - 1)
            await explore(whole, payments, among=among, share=share, seed=block.seed)
        finally:
            expect_noise(runs, block.k, n_items=len(among), noise=scorer.noise.variance)
            seconds = (time.perf_counter() - started) / len(runs)
            for run in runs:
                meter = run.meter
                again = self._watch.observe(meter.query, meter.positions, meter.exact_scores, version=snapshot.version)
                if again is not None and not meter.n_cached:
                    scorer.noise.observe_again(*again)
            found = partial(_hits, snapshot=snapshot, block=block, method=method, sign=scorer.sign, seconds=seconds)
            answers.extend(await payments.waiting.finish(lambda: [found(run) for run in runs]))
            if self._log_settings.log_queries:
                await self._log(runs, snapshot, payments.waiting)
        return [run.meter.failure for run in runs if run.meter.failure is not None]

    async def _log(self, runs: Sequence[Run], snapshot: Snapshot, waiting: Waiting) -> None:
        """Log what was paid for; an answer isn't lost because that fails."""
        try:
            await waiting.finish(self._write_log, runs, snapshot)
        except StorageError as error:
            warnings.warn(f"the query log can't be written: {error}", AnncurWarning, stacklevel=5)

    def _write_log(self, runs: Sequence[Run], snapshot: Snapshot) -> None:
        searches = []
        for meter in (run.meter for run in runs if run.meter.calls):
            item_ids = (item.id for item in snapshot.items.take(meter.positions))
            scores = dict(zip(item_ids, meter.exact_scores.tolist(), strict=True))
            searches.append(LoggedSearch(meter.query, scores, snapshot.version))
        self._backend.log(searches, most=self._log_settings.log_queries)


def _hits(run: Run, *, snapshot: Snapshot, block: QueryBlock, method: Method, sign: float, seconds: float) -> Hits:
    positions, exact_scores = run.best(block.k, least=block.min_score)
    rounds = rounds_by_position(run.trace)
    found = zip(snapshot.items.take(positions), (sign * exact_scores).tolist(), positions.tolist(), strict=True)
    n_items = len(block.candidates(snapshot.knowledge))
    return Hits(
        hits=tuple(Hit(item.id, score, item, rounds[position]) for item, score, position in found),
        query=run.meter.query,
        method=method.name,
        calls=run.meter.calls + run.meter.n_repeated,
        cached_calls=run.meter.n_cached,
        n_requests=run.meter.n_requests,
        seconds=seconds,
        is_partial=_is_partial(run, block, method, n_items),
        estimated_recall=run.estimated_recall,
        trace=() if method.is_exact else tuple(_in_scorers_terms(step, sign) for step in run.trace),
    )


def _is_partial(run: Run, block: QueryBlock, method: Method, n_items: int) -> bool:
    """Whether budget or deadline cut the answer short of k items, of all items where they are meant, or of a target."""
    calls = run.meter.calls
    is_short = calls < min(block.k, n_items) and block.min_score is None
    if run.is_cut or is_short or (method.is_exact and calls < n_items):
        return True
    is_spent = calls + run.meter.n_repeated == block.budget < n_items
    return is_spent and block.target_recall is not None and (run.estimated_recall or 0.0) < block.target_recall


def _in_scorers_terms(step: Round, sign: float) -> Round:
    guesses = None if step.guesses is None else sign * step.guesses
    return replace(step, guesses=guesses, exact_scores=sign * step.exact_scores)
