"""Searches one version of an index, block by block: pays through meters, turns what was found into hits, and keeps what
was paid for where that is wanted.

Reads snapshots and policies, feeds `index.py`, which knows which version is the newest."""

from __future__ import annotations

import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace

from anncur.errors import AnncurWarning, StorageError
from anncur.index.build import keeping
from anncur.index.snapshot import Snapshot
from anncur.index.storage import Storage
from anncur.index.traffic import KeptSearch
from anncur.items import Query
from anncur.numbers import number, whole_number
from anncur.progress import Progress, silent
from anncur.ranking import Hit, Hits, Round
from anncur.scorers.guard import Deadline, GuardedScorer
from anncur.scorers.metered import Meter
from anncur.scorers.stability import StabilityWatch
from anncur.search.base import Block, Policy
from anncur.search.explore import explore as explore_after
from anncur.search.explore import n_explored
from anncur.search.limits import Limits
from anncur.search.loop import Run, run_rounds
from anncur.search.methods import as_policy

QUERIES_AT_ONCE = 64  # enough for a matrix product to be worth it; memory grows with it, not with the queries in all
CALLS_AT_ONCE = 100_000  # fewer queries at once where each of them scores very many items
MEANS_AT_ONCE = 2**25  # prior means, a number for each query and item: 128 MB
DEFAULT_EXPLORE, MOST_EXPLORE = 0.05, 0.9  # shares of the calls


@dataclass(frozen=True)
class Habits:
    """What becomes of searches: `keep_traffic` of them are kept, and `explore` of their calls are for random items."""

    keep_traffic: int = 0
    explore: float = 0.0

    @classmethod
    def of(cls, keep_traffic: int, explore: float | None) -> Habits:
        """As the user gave them; what is kept is worth some exploring."""
        most = whole_number("keep_traffic", keep_traffic, least=0)
        default = DEFAULT_EXPLORE if most else 0.0
        return cls(most, default if explore is None else number("explore", explore, least=0, most=MOST_EXPLORE))


NO_HABITS = Habits()


class Searcher:
    """What searching needs beside a version of an index. Thread-safe, if the scorer is."""

    def __init__(self, scorer: GuardedScorer, storage: Storage, watch: StabilityWatch, habits: Habits) -> None:
        self._scorer = scorer
        self._storage = storage
        self._watch = watch
        self._habits = habits

    def search(
        self,
        snapshot: Snapshot,
        queries: Sequence[Query],
        k: int,
        method: str | Policy,
        limits: Limits,
        *,
        seed: int,
        progress: Progress = silent,
    ) -> list[Hits]:
        """The answers to some queries; whatever stops it, the exception's `kept` is the list of them so far."""
        policy = as_policy(method)
        k, seed = whole_number("k", k, least=1), whole_number("seed", seed, least=0)
        budget, target = limits.budget_for(policy, snapshot.knowledge, k), limits.target_for(policy)
        deadline = limits.deadline()
        step = max(1, min(QUERIES_AT_ONCE, CALLS_AT_ONCE // budget, MEANS_AT_ONCE // len(snapshot.items)))
        answers: list[Hits] = []
        with keeping(answers):
            for start in range(0, len(queries), step):
                block = Block(queries[start : start + step], k, budget, seed, target)
                self._search_block(snapshot, block, policy, deadline, answers)
                progress("searching", len(answers), len(queries))
        return answers

    def _search_block(
        self, snapshot: Snapshot, block: Block, policy: Policy, deadline: Deadline | None, answers: list[Hits]
    ) -> None:
        """Add the answers of a block, also when it fails half-way."""
        started = time.perf_counter()
        items = snapshot.items_for(self._scorer.fingerprint)
        meters = (Meter(self._scorer, query, items, budget=block.budget, deadline=deadline) for query in block.queries)
        runs = [Run(meter) for meter in meters]
        share = 0.0 if policy.is_exact else self._habits.explore
        own = replace(block, budget=block.budget - n_explored(block.budget, share))
        try:
            run_rounds(policy, own, snapshot.knowledge, runs)
            explore_after(runs, n_items=len(items), share=share, seed=block.seed)
        finally:
            seconds = (time.perf_counter() - started) / len(runs)
            for run in runs:
                meter = run.meter
                self._watch.observe(meter.query, meter.positions, meter.exact_scores, version=snapshot.version)
            answers.extend(self._hits(run, snapshot, block.k, policy, seconds) for run in runs)
            if self._habits.keep_traffic:
                self._keep(runs, snapshot)

    def _keep(self, runs: Sequence[Run], snapshot: Snapshot) -> None:
        """Keep what was paid for; an answer isn't lost because that fails."""
        searches = []
        for meter in (run.meter for run in runs if run.meter.calls):
            item_ids = (item.id for item in snapshot.items.take(meter.positions))
            scores = dict(zip(item_ids, meter.exact_scores.tolist(), strict=True))
            searches.append(KeptSearch(meter.query, scores, snapshot.version))
        try:
            self._storage.keep(searches, most=self._habits.keep_traffic)
        except StorageError as error:
            warnings.warn(f"what was searched is not kept: {error}", AnncurWarning, stacklevel=5)

    def _hits(self, run: Run, snapshot: Snapshot, k: int, policy: Policy, seconds: float) -> Hits:
        positions, exact_scores = run.best(k)
        sign = self._scorer.sign
        found = zip(snapshot.items.take(positions), (sign * exact_scores).tolist(), strict=True)
        n_items = len(snapshot.items)
        return Hits(
            hits=tuple(Hit(item.id, score, item) for item, score in found),
            query=run.meter.query,
            method=policy.name,
            calls=run.meter.calls,
            seconds=seconds,
            is_partial=run.is_cut
            or len(positions) < min(k, n_items)
            or (policy.is_exact and run.meter.calls < n_items),
            estimated_recall=1.0 if run.meter.calls == n_items else run.estimated_recall,
            trace=() if policy.is_exact else tuple(_in_scorers_terms(step, sign) for step in run.trace),
        )


def _in_scorers_terms(step: Round, sign: float) -> Round:
    guesses = None if step.guesses is None else sign * step.guesses
    return replace(step, guesses=guesses, exact_scores=sign * step.exact_scores)
