"""Searches one version of an index, block by block: pays through meters, turns what was found into hits, and logs what
was paid for where that is wanted.

Reads snapshots and methods, feeds `index.py`, which knows which version is the newest."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

from anncur.arrays import FloatMatrix
from anncur.caching import Cache
from anncur.candidates import Candidates
from anncur.errors import AnncurWarning, ScorerError, StorageError
from anncur.index.backend import Backend
from anncur.index.build import keeping
from anncur.index.filtering import Filter
from anncur.index.item_map import ItemMap
from anncur.index.snapshot import Snapshot
from anncur.items import Item, Items, Query
from anncur.numbers import number, whole_number
from anncur.progress import Progress
from anncur.ranking import Hit, Hits, Round, rounds_by_position
from anncur.scorers.guard import GuardedScorer
from anncur.scorers.meter import Meter
from anncur.scorers.payment import Payments
from anncur.scorers.stability import StabilityWatch
from anncur.search.base import Knowledge, Method, QueryBlock
from anncur.search.drift import DriftReference, DriftWatch
from anncur.search.limits import Limits
from anncur.search.loop import Run, expect_noise, explore, n_explored, n_repeated, repeat_best, run_rounds
from anncur.search.methods import as_method
from anncur.search.posterior import Posterior
from anncur.search.schedule import Schedule
from anncur.storage.query_log import LoggedSearch
from anncur.story import ScoredItem, Story, StoryRound
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


class Searched(Protocol):
    """What is searched: one version of an index, or somebody else's collection."""

    @property
    def version(self) -> int: ...

    @property
    def items(self) -> Items: ...

    @property
    def knowledge(self) -> Knowledge: ...

    def candidates(self, filter: Filter | None, /, *, takes_masks: bool = True) -> Candidates:
        """The items that a search may score."""
        ...

    def items_for(self, scorer: str, /) -> Items:
        """The items as the scorer of this fingerprint gets them."""
        ...


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
    explain: bool = False


class Searcher:
    """What searching needs beside a version of an index. Thread-safe, if the scorer is.

    Without `takes_masks`, filters that are masks are refused."""

    def __init__(
        self,
        backend: Backend | None,
        watch: StabilityWatch,
        log_settings: QueryLogSettings,
        *,
        takes_masks: bool = True,
    ) -> None:
        self._backend = backend
        self._watch = watch
        self._log_settings = log_settings
        self._takes_masks = takes_masks
        self._maps: Cache[ItemMap] = Cache()
        self.drift_watch = DriftWatch()

    def item_map(self, snapshot: Snapshot) -> ItemMap:
        """The map of a version, made once."""
        return self._maps.get(snapshot.version, partial(ItemMap.of, snapshot))

    def first_guesses(self, snapshot: Snapshot, query: Query, k: int, filter: Filter | None) -> list[Item]:
        """What the method posterior would score first, best first."""
        among = snapshot.candidates(filter, takes_masks=self._takes_masks)
        k = min(whole_number("k", k, least=1), len(among))
        if not k:
            return []
        block = QueryBlock([query], k=k, budget=k, passing=among.passing)
        rounds = Posterior(n_initial=k).rounds(block, snapshot.knowledge)
        proposal = next(rounds)[0]
        rounds.close()
        return snapshot.items.take(proposal.positions)

    async def search(
        self, snapshot: Searched, scorer: GuardedScorer, request: SearchRequest, waiting: Waiting
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
        step = queries_at_once(budget, len(snapshot.items))
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
                    explains=request.explain,
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
        snapshot: Searched,
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
            reference = snapshot.knowledge.posterior.drift_reference()
            answers.extend(await payments.waiting.finish(self._answers, runs, found, snapshot, block.explains))
            if self._backend is not None and self._log_settings.log_queries:
                await self._log(runs, snapshot, reference, payments.waiting)
            self._watch_drift(runs, reference)
        return [run.meter.failure for run in runs if run.meter.failure is not None]

    def _answers(
        self, runs: Sequence[Run], found: Callable[[Run], Hits], snapshot: Searched, explains: bool
    ) -> list[Hits]:
        answers = [found(run) for run in runs]
        if not explains or not isinstance(snapshot, Snapshot):
            return answers
        return [_with_story(hits, snapshot=snapshot, item_map=self.item_map(snapshot)) for hits in answers]

    def _watch_drift(self, runs: Sequence[Run], reference: DriftReference) -> None:
        drifts = {run.meter.query.marked_text: run.drift for run in runs if run.drift is not None}
        if drifts:
            self.drift_watch.observe(drifts, reference)

    async def _log(self, runs: Sequence[Run], snapshot: Searched, reference: DriftReference, waiting: Waiting) -> None:
        """Log what was paid for; an answer isn't lost because that fails."""
        try:
            await waiting.finish(self._write_log, runs, snapshot, reference.identity)
        except StorageError as error:
            warnings.warn(f"the query log can't be written: {error}", AnncurWarning, stacklevel=5)

    def _write_log(self, runs: Sequence[Run], snapshot: Searched, reference: str) -> None:
        assert self._backend is not None, "only an index logs"
        searches = []
        for meter, drift in ((run.meter, run.drift) for run in runs if run.meter.calls):
            item_ids = (item.id for item in snapshot.items.take(meter.positions))
            scores = dict(zip(item_ids, meter.exact_scores.tolist(), strict=True))
            compared_with = "" if drift is None else reference
            searches.append(LoggedSearch(meter.query, scores, snapshot.version, drift, compared_with))
        self._backend.log(searches, most=self._log_settings.log_queries)


def queries_at_once(budget: int, n_items: int) -> int:
    """How many queries make a block, each with this many pairs."""
    return max(1, min(QUERIES_AT_ONCE, PAIRS_AT_ONCE // budget, MEANS_AT_ONCE // n_items))


def _hits(run: Run, *, snapshot: Searched, block: QueryBlock, method: Method, sign: float, seconds: float) -> Hits:
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
        drift=run.drift,
        trace=() if method.is_exact else tuple(_in_scorers_terms(step, sign) for step in run.trace),
        index_version=snapshot.version,
    )


def _with_story(hits: Hits, *, snapshot: Snapshot, item_map: ItemMap) -> Hits:
    """The same with what happened in each round; the recall after a round is what the next one began with."""
    known = [step.explanation for step in hits.trace if not step.is_exploring][1:]
    recalls = [None if each is None else each.estimated_recall for each in known]
    after = iter([*recalls, hits.estimated_recall])
    rounds = (
        StoryRound(
            _scored_items(step, snapshot.items.take(step.positions), item_map.at(step.positions)),
            hits.estimated_recall if step.is_exploring else next(after),
            step.is_exploring,
        )
        for step in hits.trace
    )
    return replace(hits, story=Story(tuple(rounds)))


def _scored_items(step: Round, items: Sequence[Item], places: FloatMatrix) -> tuple[ScoredItem, ...]:
    known, unknown = step.explanation, [None] * len(items)
    priors = unknown if known is None or known.prior_means is None else known.prior_means.tolist()
    spreads = unknown if known is None or known.spreads is None else known.spreads.tolist()
    is_off_scale = known is not None and known.spreads is None  # estimates before any score, in no unit of scores
    means = unknown if step.guesses is None or is_off_scale else step.guesses.tolist()
    each = zip(items, priors, means, spreads, step.exact_scores.tolist(), map(tuple, places.tolist()), strict=True)
    return tuple(ScoredItem(*values) for values in each)


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
    known = step.explanation
    if known is not None and known.prior_means is not None:
        known = replace(known, prior_means=sign * known.prior_means)
    return replace(step, guesses=guesses, exact_scores=sign * step.exact_scores, explanation=known)
