"""Scored worlds from a user's own scorer, items and queries, or from the bundled sample.

Exact scores are paid for once and kept in a folder: scoring can be stopped at any moment, and resumes there. Reads
scorers, feeds studies."""

from __future__ import annotations

import hashlib
import json
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TypeVar

import numpy as np

from anncur.arrays import FloatMatrix
from anncur.datasets.beir import Qrels, read_beir
from anncur.datasets.jsonl import read_documents, read_items, read_queries
from anncur.datasets.sample import (
    SAMPLE_INDEX,
    sample_anchor_queries,
    sample_items,
    sample_test_queries,
    sample_test_scores,
)
from anncur.engines.base import Engine
from anncur.engines.local import LOCAL
from anncur.errors import InputError
from anncur.evaluation.study import Sizes
from anncur.evaluation.worlds import ScoredWorld, split_by_group
from anncur.index.index import Index
from anncur.items import Corpus, Item, Query, digest_items
from anncur.planning.pilot import WARM_UP_PAIRS, RequestTime, time_requests
from anncur.progress import Progress, duration, silent
from anncur.scorers.base import with_prepared
from anncur.scorers.guard import GuardedScorer
from anncur.scores import ScoreMatrix, ScoreSpec
from anncur.storage.files import publish_file

LEAST_QUERIES = 12  # so that there are both anchors to fit and tests to measure on
FEW_ITEMS, FEW_QUERIES = 2000, 60  # that a benchmark should have, where time allows
LEAST_ITEMS = 200  # with fewer, there is nothing to search
LEAST_PACED = 1000  # pairs whose pace is taken for the scorer's
AnySizes = TypeVar("AnySizes", bound=Sizes)


@dataclass(frozen=True, eq=False)
class OwnData:
    """What a user brings: `groups` are the documents of the queries, `qrels` judgements of items by query ids."""

    name: str
    items: Sequence[Item]
    queries: Sequence[Query]
    groups: Sequence[str]
    qrels: Qrels | None = None
    n_corpus_items: int | None = None  # where items were drawn from more


@dataclass(frozen=True)
class Cost:
    """What exact scores cost: all pairs, those that are still to be scored, and the seconds of one."""

    n_queries: int
    n_items: int
    n_missing: int
    seconds_per_pair: float | None  # None where nothing is missing

    @property
    def seconds(self) -> float:
        """About how long it takes."""
        return self.n_missing * (self.seconds_per_pair or 0.0)

    def __str__(self) -> str:
        n_pairs = self.n_queries * self.n_items
        pairs = f"{self.n_queries:,} queries x {self.n_items:,} items = {n_pairs:,} pairs"
        if self.seconds_per_pair is None:
            return f"{pairs}, all of them scored before"
        pace = f"{1000 * self.seconds_per_pair:.3g} ms per pair"
        return f"{pairs}, of which {self.n_missing:,} are to be scored: about {duration(self.seconds)} at {pace}"


OnCost = Callable[[Cost], None]


def read_own(corpus: Path, queries: Path | None = None, qrels: str | None = None) -> OwnData:
    """The data of files as `anncur bench run` takes them; a query without a document is a document of its own."""
    if qrels is not None:
        split = read_beir(corpus, qrels)
        names = [query.id for query in split.queries]
        return OwnData(corpus.name, list(split.items), split.queries, names, split.qrels)
    if queries is None and not corpus.is_dir():
        raise InputError(f"--queries must name a file of queries, because {corpus} is no folder that holds some too")
    documents = read_documents(queries or corpus)
    groups = [document or f"query {place}" for place, document in enumerate(documents)]
    items = list(Corpus(read_items(corpus)))  # which refuses ids that are there twice
    return OwnData(corpus.name.partition(".")[0], items, list(read_queries(queries or corpus)), groups)


def draw_queries(data: OwnData, n_queries: int, *, seed: int) -> OwnData:
    """At most `n_queries` of the queries at random, and only one of those with the same text."""
    distinct = list({query.key: place for place, query in enumerate(data.queries)}.values())
    if len(distinct) < LEAST_QUERIES:
        raise InputError(
            f"a benchmark needs at least {LEAST_QUERIES} different queries, got {len(distinct)}; take a file with more"
        )
    drawn = sorted(np.random.default_rng(seed).permutation(distinct)[:n_queries].tolist())
    queries, groups = ([values[place] for place in drawn] for values in (data.queries, data.groups))
    return replace(data, queries=queries, groups=groups)


def draw_items(data: OwnData, n_items: int, *, seed: int) -> OwnData:
    """At most `n_items` of the items at random, in their order, with those that answer one of the queries."""
    grades = [(data.qrels or {}).get(query.id, {}) for query in data.queries]
    answers = {item_id for of_query in grades for item_id, grade in of_query.items() if grade > 0}
    shuffled = np.random.default_rng(seed).permutation(len(data.items)).tolist()
    answers_first = sorted(shuffled, key=lambda place: data.items[place].id not in answers)
    items = [data.items[place] for place in sorted(answers_first[:n_items])]
    return replace(data, items=items, n_corpus_items=data.n_corpus_items or len(data.items))


def draw_affordable(data: OwnData, n_pairs: float, *, seed: int) -> OwnData:
    """As many queries and items as have about `n_pairs`: fewer items first, because queries tell methods apart."""
    n_queries, n_items = len(data.queries), len(data.items)
    few_items, few_queries = min(n_items, FEW_ITEMS), min(n_queries, FEW_QUERIES)
    n_items = min(n_items, max(few_items, int(n_pairs / n_queries)))
    n_queries = min(n_queries, max(few_queries, int(n_pairs / n_items)))
    n_items = min(n_items, max(min(n_items, LEAST_ITEMS), int(n_pairs / n_queries)))
    if (n_queries, n_items) == (len(data.queries), len(data.items)):
        return data
    return draw_items(draw_queries(data, n_queries, seed=seed), n_items, seed=seed)


def timed_once(scorer: GuardedScorer, data: OwnData, folder: Path) -> RequestTime:
    """How long requests to a scorer take, measured once and kept, so that the same is drawn when a run resumes."""
    file = _pace_file(scorer, folder, "pace")
    if not file.exists():
        few = data.items[:WARM_UP_PAIRS]
        found = time_requests(scorer, with_prepared(few, scorer.prepare(few)), data.queries[0])
        folder.mkdir(parents=True, exist_ok=True)
        publish_file(file, json.dumps(asdict(found)).encode())
    return RequestTime(**json.loads(file.read_text()))


def _within_pace(timed: RequestTime, pace: float | None, file: Path) -> RequestTime:
    """Bounded by the pace of all pairs, which is kept for runs that have none left to score."""
    if pace is not None:
        publish_file(file, json.dumps(pace).encode())
    return timed.within(json.loads(file.read_text())) if file.exists() else timed


def _pace_file(scorer: GuardedScorer, folder: Path, name: str) -> Path:
    return folder / f"{name}-{hashlib.sha256(scorer.fingerprint.encode()).hexdigest()[:12]}.json"


def fit_sizes(sizes: AnySizes, groups: Sequence[str], n_items: int, *, by_document: bool) -> AnySizes:
    """The part of `sizes` that there are enough queries and items for, so that errors come before anything is paid for.

    Tests `by_document` are whole documents, which seldom add up to exactly what the anchors leave: where they don't,
    there are fewer anchors, by the size of the largest document less one."""
    fitting = sizes.within(len(groups), n_items)
    if not by_document:
        return fitting
    try:
        _try_splits(fitting, groups)
    except InputError:
        most_anchors = len(groups) - fitting.n_tests - max(Counter(groups).values()) + 1
        fitting = fitting.with_anchors(max(1, most_anchors))
        _try_splits(fitting, groups)
    return fitting


def _try_splits(sizes: Sizes, groups: Sequence[str]) -> None:
    for seed in range(sizes.n_seeds):
        split_by_group(groups, n_anchors=sizes.n_anchor_queries, n_tests=sizes.n_tests, seed=seed)


def own_world(
    data: OwnData,
    scorer: GuardedScorer,
    folder: Path,
    *,
    scorer_name: str,
    on_cost: OnCost,
    request_time: RequestTime | None = None,
    engine: Engine = LOCAL,
    progress: Progress = silent,
) -> ScoredWorld:
    """The user's data after all its pairs have been scored; `on_cost` gets the cost before."""
    n_before = scorer.calls_made
    exact_scores, pace = score_pairs(
        data.items,
        data.queries,
        scorer,
        folder,
        on_cost=on_cost,
        request_time=request_time,
        engine=engine,
        progress=progress,
    )
    if request_time is not None:
        is_paced = scorer.calls_made - n_before >= LEAST_PACED and not engine.is_elsewhere
        of_request = pace * scorer.rules.at_once if pace is not None and is_paced else None
        request_time = _within_pace(request_time, of_request, _pace_file(scorer, folder, "pace-of-all"))
    return ScoredWorld(
        name=data.name,
        queries=data.queries,
        groups=data.groups,
        items=data.items,
        exact_scores=exact_scores,
        scorer_name=scorer_name,
        qrels=data.qrels,
        seconds_per_pair=pace,
        request_time=request_time,
        n_corpus_items=data.n_corpus_items,
    )


def sample_world(scorer: GuardedScorer | None = None) -> ScoredWorld:
    """The bundled sample, whose exact scores are stored; the scorer is only timed."""
    queries, items = sample_anchor_queries() + sample_test_queries(), sample_items()
    timed = None if scorer is None else time_requests(scorer, with_prepared(items, scorer.prepare(items)), queries[0])
    anchor_scores = Index.open(SAMPLE_INDEX).anchor_scores().T
    return ScoredWorld(
        name="animals",
        queries=queries,
        groups=[query.id.rpartition(".")[0] for query in queries],  # a mention's id begins with its document's
        items=items,
        exact_scores=np.concatenate([anchor_scores, sample_test_scores()]).astype(np.float32),
        scorer_name="builtin",
        seconds_per_pair=None if timed is None else timed.of_a_pair_among_many,
        request_time=timed,
    )


def score_pairs(
    items: Sequence[Item],
    queries: Sequence[Query],
    scorer: GuardedScorer,
    folder: Path,
    *,
    on_cost: OnCost,
    request_time: RequestTime | None = None,
    engine: Engine = LOCAL,
    progress: Progress = silent,
) -> tuple[FloatMatrix, float | None]:
    """The exact scores, (n_queries, n_items), and the seconds of a pair; other pairs are kept in another folder."""
    prepared = with_prepared(items, scorer.prepare(items))
    spec = ScoreSpec.make(scorer, queries, items_digest=digest_items(items), n_items=len(items))
    name = hashlib.sha256(spec.to_json().encode()).hexdigest()[:12]
    matrix = ScoreMatrix.stored(str((folder / f"scores-{name}").absolute()), spec)
    n_missing = matrix.n_missing
    pace = None
    if n_missing:
        timed = request_time or time_requests(scorer, prepared, queries[0])
        pace = timed.of_a_pair_among_many
    on_cost(Cost(len(queries), len(items), n_missing, pace))
    n_before, started = scorer.calls_made, time.perf_counter()
    matrix.fill(scorer, queries, lambda start, stop: prepared[start:stop], engine=engine, progress=progress)
    n_paid = scorer.calls_made - n_before  # without those that a cache had
    seconds = (time.perf_counter() - started) / n_paid if n_paid else None
    return np.ascontiguousarray(matrix.all().T), seconds
