"""The index: built from a scorer, items and anchor queries; searched for the scorer's top k.

Brings the stages together and validates what the user passes; the work is done in `scores`, `search/` and below."""

from __future__ import annotations

import operator
import time
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from anncur.candidates.base import Retriever
from anncur.candidates.loading import load_retrievers
from anncur.errors import InputError, ScorerError
from anncur.index.build import check_stability, learn
from anncur.items import Corpus, ItemLike, Query, QueryLike, as_queries, as_query
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
    """Finds the items that a scorer likes best, with few calls. Made by `Index.build`; `search` is thread-safe."""

    def __init__(
        self, scorer: GuardedScorer, corpus: Corpus, knowledge: Knowledge, *, watch: StabilityWatch, build_calls: int
    ) -> None:
        self._scorer = scorer
        self._corpus = corpus
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

        `path` must be None: the index is kept in memory. `scorer` is anything that `load_scorer` takes. `retrievers`
        are names ("bm25", "tfidf") or objects. `anchors` says how anchor items are chosen (see `anncur.anchors`).
        `exact_scores` goes on from an earlier build's scores, complete or not. Eight pairs are scored twice, to
        notice a scorer that answers differently to the same pair."""
        if path is not None:
            raise InputError(f"path must be None, got {path!r}: this version keeps indexes in memory only")
        guarded = load_scorer(scorer)
        calls_before = guarded.calls_made
        corpus, queries = Corpus(items), as_queries(anchor_queries)
        if not len(corpus):
            raise InputError("an index needs at least one item, got none")
        fitted = load_retrievers(retrievers)
        rng = np.random.default_rng(seed)
        matrix = exact_scores or ScoreMatrix.empty(guarded, queries, corpus)
        matrix.fill(guarded, queries, corpus, progress=progress)
        watch = StabilityWatch()
        check_stability(watch, matrix, guarded, queries, corpus)
        for retriever in fitted.values():
            retriever.fit(corpus)
        knowledge = learn(matrix, fitted, anchors=anchors, rng=rng, progress=progress)
        return cls(guarded, corpus, knowledge, watch=watch, build_calls=guarded.calls_made - calls_before)

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
        returned, marked as partial. If the scorer fails, the error's `kept` holds the hits so far."""
        try:
            return self.search_many([as_query(query)], k, budget, method, deadline_ms=deadline_ms, seed=seed)[0]
        except ScorerError as error:
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

        `budget` is for each query, `deadline_ms` for all of them together. If the scorer fails, the error's `kept` is
        the list of hits so far."""
        parsed = as_queries(queries)
        policy = as_policy(method)
        k = _at_least_one("k", k)
        if budget is None:
            budget = len(self) if policy.is_exact else DEFAULT_BUDGET
        budget = min(_at_least_one("budget", budget), len(self))
        deadline = None if deadline_ms is None else Deadline(deadline_ms / 1000)
        answers: list[Hits] = []
        for start in range(0, len(parsed), QUERIES_AT_ONCE):
            block = Block(parsed[start : start + QUERIES_AT_ONCE], k, budget, seed)
            try:
                self._search_block(block, policy, deadline, answers)
            except ScorerError as error:
                error.kept = answers
                raise
            progress("searching", len(answers), len(parsed))
        return answers

    def _search_block(self, block: Block, policy: Policy, deadline: Deadline | None, answers: list[Hits]) -> None:
        """Add the answers of a block, also when the scorer fails half-way."""
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
        return Meter(self._scorer, query, self._corpus, budget=budget, deadline=deadline)

    def _hits(self, run: Run, k: int, policy: Policy, seconds: float) -> Hits:
        positions, exact_scores = run.best(k)
        sign = self._scorer.sign
        found = zip(self._corpus.take(positions), (sign * exact_scores).tolist(), strict=True)
        is_short = len(positions) < min(k, len(self))
        return Hits(
            hits=tuple(Hit(item.id, score, item) for item, score in found),
            query=run.meter.query,
            method=policy.name,
            calls=run.meter.calls,
            seconds=seconds,
            is_partial=run.is_cut or is_short or (policy.is_exact and run.meter.calls < len(self)),
            trace=tuple(_in_scorers_terms(step, sign) for step in run.trace),
        )

    def __len__(self) -> int:
        return len(self._corpus)

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


def _at_least_one(name: str, value: object) -> int:
    try:
        number = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        raise InputError(f"{name} must be a whole number, got {value!r}") from None
    if number < 1:
        raise InputError(f"{name} must be at least 1, got {number}; pass {name}=…")
    return number
