"""The index: built from a scorer, items and anchor queries; searched for the scorer's top k.

Brings the stages together and validates what the user passes; the work is done in `scores`, `search/` and below."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from anncur.anchors import check_method
from anncur.candidates.base import Retriever
from anncur.candidates.loading import load_retrievers
from anncur.errors import AnncurError, InputError
from anncur.index.build import check_stability, learn
from anncur.items import Corpus, ItemLike, Query, QueryLike, as_queries, as_query
from anncur.numbers import number, whole_number
from anncur.progress import Progress, silent
from anncur.ranking import Hit, Hits, Round
from anncur.scorers.guard import Deadline, GuardedScorer
from anncur.scorers.loading import load_scorer
from anncur.scorers.metered import Meter
from anncur.scorers.stability import Stability, StabilityWatch
from anncur.scores import ScoreMatrix
from anncur.search.base import Block, Knowledge, Policy
from anncur.search.loop import Run, run_rounds
from anncur.search.methods import DEFAULT_METHOD, as_policy

DEFAULT_BUDGET = 200
QUERIES_AT_ONCE = 64  # enough for a matrix product to be worth it; memory grows with it, not with the queries in all
CALLS_AT_ONCE = 500_000  # fewer queries at once where each of them scores very many items


@dataclass(frozen=True)
class IndexInfo:
    """What an index is made of. `build_calls` counts the pairs that this build asked the scorer for."""

    n_items: int
    n_anchor_queries: int
    retrievers: tuple[str, ...]
    scorer: str
    build_calls: int
    stability: Stability


class Index:
    """Finds the items that a scorer likes best, with few calls. Made by `Index.build`; `search` is thread-safe.

    `items` are in the order of their positions; `exact_scores` are those of the anchor queries on all of them."""

    def __init__(
        self,
        scorer: GuardedScorer,
        items: Corpus,
        exact_scores: ScoreMatrix,
        knowledge: Knowledge,
        *,
        watch: StabilityWatch,
        build_calls: int,
    ) -> None:
        self.items = items
        self.exact_scores = exact_scores
        self._scorer = scorer
        self._knowledge = knowledge
        self._watch = watch
        self._build_calls = build_calls

    @classmethod
    def build(
        cls,
        path: None,
        scorer: object,
        items: Iterable[ItemLike],
        anchor_queries: Iterable[QueryLike],
        *,
        retrievers: Iterable[str | Retriever] = ("bm25",),
        anchors: str = "pivoted_qr",
        exact_scores: ScoreMatrix | None = None,
        seed: int = 0,
        progress: Progress = silent,
    ) -> Index:
        """Score all items for the anchor queries, and learn from that where the scorer's best items are.

        `path` must be None: the index is kept in memory. `scorer` is anything that `load_scorer` takes. An anchor query
        that is given twice counts once. `retrievers` are names ("bm25", "tfidf") or objects. `anchors` says how anchor
        items are chosen (see `anncur.anchors`). `exact_scores` goes on from an earlier build's scores, complete or not.
        Eight pairs are scored twice, to notice a scorer that answers differently to the same pair. Whatever stops a
        build, Ctrl-C included, the exception's `kept` holds the scores that were paid for."""
        if path is not None:
            raise InputError(f"path must be None, got {path!r}: this version keeps indexes in memory only")
        check_method(anchors)
        rng = np.random.default_rng(whole_number("seed", seed, least=0))
        guarded, found = load_scorer(scorer), load_retrievers(retrievers)
        calls_before = guarded.calls_made
        corpus, queries = (
            Corpus(items),
            list({query.marked_text: query for query in as_queries(anchor_queries)}.values()),
        )
        if not len(corpus):
            raise InputError("an index needs at least one item, got none; an iterator gives its items only once")
        for retriever in found.values():
            retriever.fit(corpus)
        matrix = ScoreMatrix.empty(guarded, queries, corpus) if exact_scores is None else exact_scores
        matrix.check_fits(guarded, queries, corpus)
        watch = StabilityWatch()
        with keeping(matrix):
            matrix.fill(guarded, queries, corpus, progress=progress)
            check_stability(watch, matrix, guarded, queries, corpus)
            knowledge = learn(matrix, found, anchors=anchors, rng=rng, progress=progress)
        build_calls = guarded.calls_made - calls_before
        return cls(guarded, corpus, matrix, knowledge, watch=watch, build_calls=build_calls)

    def search(
        self,
        query: QueryLike,
        k: int = 10,
        budget: int | None = None,
        method: str | Policy = DEFAULT_METHOD,
        *,
        deadline_ms: float | None = None,
        seed: int = 0,
    ) -> Hits:
        """The k items that the scorer likes best for a query, found with at most `budget` calls.

        `budget` is 200 unless given; for "exhaustive", all items. `method` is "anncur", "rerank", "exhaustive", or a
        policy with settings of its own. After `deadline_ms` no further call is started, and the best so far is
        returned, marked as partial. If the search fails, the exception's `kept` holds the hits so far."""
        try:
            return self.search_many([as_query(query)], k, budget, method, deadline_ms=deadline_ms, seed=seed)[0]
        except AnncurError as error:
            error.kept = error.kept[0] if isinstance(error.kept, list) and error.kept else None
            raise

    def search_many(
        self,
        queries: Iterable[QueryLike],
        k: int = 10,
        budget: int | None = None,
        method: str | Policy = DEFAULT_METHOD,
        *,
        deadline_ms: float | None = None,
        seed: int = 0,
        progress: Progress = silent,
    ) -> list[Hits]:
        """Search for many queries, in blocks: the same answers as one by one, at less cost.

        `budget` is for each query, `deadline_ms` for all of them together. If the search fails, the exception's `kept`
        is the list of hits so far."""
        parsed = as_queries(queries)
        policy = as_policy(method)
        k, seed = whole_number("k", k, least=1), whole_number("seed", seed, least=0)
        if budget is None:
            budget = len(self) if policy.is_exact else DEFAULT_BUDGET
        budget = min(whole_number("budget", budget, least=1), len(self))
        deadline = None if deadline_ms is None else Deadline(number("deadline_ms", deadline_ms, least=0) / 1000)
        step = max(1, min(QUERIES_AT_ONCE, CALLS_AT_ONCE // budget))
        answers: list[Hits] = []
        with keeping(answers):
            for start in range(0, len(parsed), step):
                self._search_block(Block(parsed[start : start + step], k, budget, seed), policy, deadline, answers)
                progress("searching", len(answers), len(parsed))
        return answers

    def _search_block(self, block: Block, policy: Policy, deadline: Deadline | None, answers: list[Hits]) -> None:
        """Add the answers of a block, also when it fails half-way."""
        started = time.perf_counter()
        runs = [Run(self._meter(query, block.budget, deadline)) for query in block.queries]
        try:
            run_rounds(policy, block, self._knowledge, runs)
        finally:
            seconds = (time.perf_counter() - started) / len(runs)
            for run in runs:
                self._watch.observe(run.meter.query, run.meter.positions, run.meter.exact_scores)
            answers.extend(self._hits(run, block.k, policy, seconds) for run in runs)

    def _meter(self, query: Query, budget: int, deadline: Deadline | None) -> Meter:
        return Meter(self._scorer, query, self.items, budget=budget, deadline=deadline)

    def _hits(self, run: Run, k: int, policy: Policy, seconds: float) -> Hits:
        positions, exact_scores = run.best(k)
        sign = self._scorer.sign
        found = zip(self.items.take(positions), (sign * exact_scores).tolist(), strict=True)
        is_short = len(positions) < min(k, len(self))
        return Hits(
            hits=tuple(Hit(item.id, score, item) for item, score in found),
            query=run.meter.query,
            method=policy.name,
            calls=run.meter.calls,
            seconds=seconds,
            is_partial=run.is_cut or is_short or (policy.is_exact and run.meter.calls < len(self)),
            trace=() if policy.is_exact else tuple(_in_scorers_terms(step, sign) for step in run.trace),
        )

    def expected_recall(self, k: int = 10, budget: int = DEFAULT_BUDGET) -> float | None:
        """The mean recall that "anncur" had on held-out anchor queries when it was tuned.

        None with fewer than four anchor queries, for k above 100 and for budgets above 2,000."""
        return self._knowledge.splits.highest_recall(
            k=whole_number("k", k, least=1), budget=min(whole_number("budget", budget, least=1), len(self))
        )

    def __len__(self) -> int:
        return len(self.items)

    def __repr__(self) -> str:
        info = self.info
        return f"<anncur.Index of {info.n_items} items, {info.n_anchor_queries} anchor queries, scorer {info.scorer}>"

    @property
    def info(self) -> IndexInfo:
        """What this index is made of, and how stable its scorer has been."""
        return IndexInfo(
            n_items=len(self),
            n_anchor_queries=self._knowledge.factors.n_anchor_queries,
            retrievers=tuple(self._knowledge.retrievers),
            scorer=self._scorer.fingerprint,
            build_calls=self._build_calls,
            stability=self._watch.report,
        )


def _in_scorers_terms(step: Round, sign: float) -> Round:
    return Round(step.positions, None if step.guesses is None else sign * step.guesses, sign * step.exact_scores)


@contextmanager
def keeping(paid: object) -> Iterator[None]:
    """Attach what was paid for to whatever stops the work, Ctrl-C included, as `kept`."""
    try:
        yield
    except BaseException as error:
        error.kept = paid  # type: ignore[attr-defined]
        raise
