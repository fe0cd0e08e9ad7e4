"""How far methods get on a pilot: re-ranking, and adaptive search with no, with few and with many anchor queries.

Some of the pilot's queries test all methods, and the others are there to be anchor queries, so that all numbers are of
the same queries, which no method knows. Reads exact scores, feeds `plan.py`; costs no pairs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from anncur.anchors import order_anchors
from anncur.arrays import NO_POSITIONS, FloatMatrix, FloatVector, Positions
from anncur.factors.cur import CurFactors
from anncur.item_scores import HeldScores
from anncur.items import Query
from anncur.planning.advice import LEAST_TUNED, rerank_name
from anncur.progress import Progress
from anncur.retrievers.base import Retriever
from anncur.search.anncur import Anncur
from anncur.search.base import Knowledge, QueryBlock
from anncur.search.model import PosteriorModel
from anncur.search.posterior import Posterior
from anncur.search.settings import RecallCurve, Tuned
from anncur.search.splits import SplitTable
from anncur.threads import one_blas_thread
from anncur.tuning.derive import Derived, derive
from anncur.tuning.held_out import make_folds
from anncur.tuning.measure import measure

SHARES = (0.02, 0.05, 0.1, 0.2)  # of the items that are scored
K = 10
TRIED = (10, 40)  # anchor queries, beside none and all that there are
LEAST_TEST = 4  # queries
TEST_SHARE = 3  # one query in three
ANCHOR_METHOD = "pivoted_qr"
NOTHING_DERIVED = Derived(NO_POSITIONS, SplitTable([], np.empty((0, 0, 0), dtype=np.int16)))


@dataclass(frozen=True, eq=False)
class Measured:
    """What a method found for the test queries, (n_test, n_budgets), and the anchor queries that it needs."""

    method: str
    n_anchor_queries: int
    recalls: FloatMatrix

    @property
    def mean(self) -> float:
        """Over test queries and budgets."""
        return float(self.recalls.mean())

    def lead(self, other: Measured) -> FloatVector:
        """How much more it finds than another for each test query, (n_test,)."""
        lead: FloatVector = (self.recalls - other.recalls).mean(axis=1)
        return lead


@dataclass(frozen=True, eq=False)
class Comparison:
    """Re-ranking with each retriever; adaptive search, the fewest anchor queries first; and the method anncur, where
    there were anchor queries. `derived` is what a build would derive from all of these, `shares` are those of the items
    that are scored, by the budgets that were tried."""

    reranked: Mapping[str, Measured]  # by retriever
    posterior: Sequence[Measured]
    anncur: Measured | None
    derived: Derived
    n_test: int
    shares: Mapping[int, float]

    @property
    def methods(self) -> list[Measured]:
        """All of them, in the order of a report."""
        return [*self.reranked.values(), *self.posterior, *([] if self.anncur is None else [self.anncur])]


def compare_methods(
    exact_scores: FloatMatrix,
    queries: Sequence[Query],
    retrievers: Mapping[str, Retriever],
    *,
    names: Sequence[str],
    seed: int,
    progress: Progress,
) -> Comparison:
    """Measure all methods; `exact_scores` is (n_items, n_queries), and of the retrievers adaptive search has those with
    these names."""
    bench = _Bench.make(exact_scores, queries, seed)
    own = {name: retrievers[name] for name in names}
    stages = [_Stage.make(bench, n_anchors, own, progress) for n_anchors in anchor_counts(len(bench.anchors))]
    tuned = [bench.measure(stage.knowledge.posterior, retrievers) for stage in stages]
    curves = tuned[-1].rerank_curves  # the same in all stages
    last = stages[-1]
    return Comparison(
        {name: Measured(rerank_name(name), 0, bench.recalls(curve)) for name, curve in curves.items()},
        [
            Measured(posterior_name(stage.n_anchors), stage.n_anchors, bench.recalls(of_stage.curve))
            for stage, of_stage in zip(stages, tuned, strict=True)
        ],
        Measured(Anncur.name, last.n_anchors, bench.anncur_recalls(last.knowledge)) if last.n_anchors else None,
        replace(last.derived, tuned=tuned[-1]),
        len(bench.test),
        shares_by_budget(bench.n_items),
    )


def shares_by_budget(n_items: int) -> dict[int, float]:
    """The budgets that are tried, each once, and the share of the items that they are: a search scores k at least."""
    least = min(K, n_items)
    tried = [(round(share * n_items), share) for share in SHARES]
    return dict((budget, share) if budget >= least else (least, least / n_items) for budget, share in tried)


def posterior_name(n_anchors: int) -> str:
    """What adaptive search is called in a report."""
    return f"{Posterior.name}, {n_anchors or 'no'} anchor queries"


def split_queries(queries: Sequence[Query]) -> tuple[Positions, Positions]:
    """About a third to test with, at least `LEAST_TEST`, and the others; those of one text are on the same side."""
    everything = np.arange(len(queries))
    folds = make_folds(queries, everything, n_folds=max(1, min(TEST_SHARE, len(queries) // LEAST_TEST)))
    test = np.sort(max(folds, key=len))
    return test, np.setdiff1d(everything, test)


def anchor_counts(n_anchors: int) -> list[int]:
    """The numbers of anchor queries that are tried: none, few, and all."""
    return [0, *(count for count in TRIED if count < n_anchors), *([n_anchors] if n_anchors >= LEAST_TUNED else [])]


@dataclass(frozen=True, eq=False)
class _Bench:
    """Where methods are measured: the test queries with their exact scores, and the anchor queries with theirs."""

    test: list[Query]
    truth: HeldScores  # (n_items, n_test)
    anchors: list[Query]
    anchor_scores: FloatMatrix  # (n_items, n_anchors)
    seed: int

    @classmethod
    def make(cls, exact_scores: FloatMatrix, queries: Sequence[Query], seed: int) -> _Bench:
        test, others = split_queries(queries)
        return cls(
            [queries[place] for place in test],
            HeldScores(exact_scores[:, test]),
            [queries[place] for place in others],
            np.ascontiguousarray(exact_scores[:, others]),
            seed,
        )

    @property
    def n_items(self) -> int:
        return len(self.anchor_scores)

    @property
    def k(self) -> int:
        return min(K, self.n_items)

    @property
    def budgets(self) -> list[int]:
        return list(shares_by_budget(self.n_items))

    def measure(self, model: PosteriorModel, retrievers: Mapping[str, Retriever]) -> Tuned:
        """What a model finds for the test queries, and what re-ranking does."""
        with one_blas_thread():  # products are small
            return measure(model, self.truth, self.test, retrievers, rng=np.random.default_rng(self.seed))

    def recalls(self, curve: RecallCurve) -> FloatMatrix:
        """With each budget, (n_test, n_budgets)."""
        found = [curve.recall_by_query(self.k, budget) for budget in self.budgets]
        return np.stack([by_query for by_query in found if by_query is not None], axis=1)

    def anncur_recalls(self, knowledge: Knowledge) -> FloatMatrix:
        """The same of the method anncur."""
        with one_blas_thread():
            return np.stack([self._anncur_recall(knowledge, budget) for budget in self.budgets], axis=1)

    def _anncur_recall(self, knowledge: Knowledge, budget: int) -> FloatVector:
        truth = self.truth.rows(np.arange(self.n_items)).T  # (n_test, n_items)
        rounds = Anncur().rounds(QueryBlock(self.test, self.k, budget), knowledge)
        anchors = next(rounds)
        guesses = rounds.send([row[proposal.positions] for row, proposal in zip(truth, anchors, strict=True)])
        scored = [
            np.concatenate([first.positions, rest.positions]) for first, rest in zip(anchors, guesses, strict=True)
        ]
        return np.array([self._share_found(row, positions) for row, positions in zip(truth, scored, strict=True)])

    def _share_found(self, row: FloatVector, scored: Positions) -> float:
        """The share of the top k among what was scored; whatever ties with the k-th best counts."""
        kth_best = np.partition(row, -self.k)[-self.k]
        n_above = np.count_nonzero(row[scored] > kth_best)
        n_ties = min(np.count_nonzero(row[scored] == kth_best), self.k - np.count_nonzero(row > kth_best))
        return float((n_above + n_ties) / self.k)


@dataclass(frozen=True, eq=False)
class _Stage:
    """An index of the pilot's items with the first anchor queries, as a build would make it."""

    n_anchors: int
    derived: Derived
    knowledge: Knowledge

    @classmethod
    def make(cls, bench: _Bench, n_anchors: int, retrievers: Mapping[str, Retriever], progress: Progress) -> _Stage:
        held, queries = HeldScores(bench.anchor_scores[:, :n_anchors]), bench.anchors[:n_anchors]
        derived = NOTHING_DERIVED
        if n_anchors:
            derived = derive(
                held,
                queries=queries,
                retrievers=retrievers,
                anchor_method=ANCHOR_METHOD,
                seed=bench.seed,
                progress=progress,
            )
        order = order_anchors(derived.anchor_items, bench.n_items, np.random.default_rng(bench.seed))
        knowledge = Knowledge(
            n_items=bench.n_items,
            factors=CurFactors(held, order),
            splits=derived.splits,
            retrievers=retrievers,
            posterior=PosteriorModel(held, queries, retrievers, derived.tuned),
            anchor_queries=queries,
        )
        return cls(n_anchors, derived, knowledge)
