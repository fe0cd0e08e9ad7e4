"""What a build will cost and what it will bring, found out by a small pilot before anybody pays for it.

Scores some of the anchor queries on some of the items, within a limit of time; measures the scorer's pace on them, and
how much of its top k each method finds there. Writes nothing but, where a path is given, the pilot's scores."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from anncur.errors import InputError
from anncur.items import Corpus, Item, ItemLike, Query, QueryLike, TextDigest, as_item, as_queries, check_items
from anncur.numbers import whole_number
from anncur.planning.advice import CLEARLY, FEW_ITEMS, score_them_all
from anncur.planning.suitability import Suitability, assess
from anncur.progress import Progress, ProgressLike, showing
from anncur.retrievers.loading import load_retrievers
from anncur.scorers.base import ScorerLike, with_prepared
from anncur.scorers.guard import GuardedScorer
from anncur.scorers.loading import load_scorer
from anncur.scorers.meter import Meter
from anncur.scores import ScoreMatrix, ScoreSpec
from anncur.storage.pilot import PilotScores, write_pilot
from anncur.tuning.derive import derive
from anncur.tuning.held_out import HeldScores

MOST_PILOT_ITEMS, LEAST_PILOT_ITEMS = 1000, 50
MOST_PILOT_QUERIES, LEAST_PILOT_QUERIES = 60, 12
WARM_UP_PAIRS = 32
SHARES = (0.02, 0.05, 0.1, 0.2)  # of the items that are scored
AVERAGED = f"means over {SHARES[0]:.0%} to {SHARES[-1]:.0%} of the items scored"
K = 10
ANCHOR_METHOD = "pivoted_qr"
SQLITE_OVERHEAD = 2  # times the texts
DERIVED_BYTES = 2**21  # what tuning leaves behind, however large the index
HALF = "posterior, half the anchors"


@dataclass(frozen=True)
class RecallAt:
    """How much of the scorer's top 10 a method finds when it may score this share of the items."""

    method: str
    share: float
    recall: float


@dataclass(frozen=True)
class BuildPlan:
    """What a build will cost and bring. Recalls are the pilot's: more items are harder."""

    n_items: int
    n_anchor_queries: int
    n_pairs: int
    seconds_per_pair: float
    seconds: float
    disk_bytes: int
    memory_bytes: int
    pilot_items: int
    pilot_queries: int
    pilot_calls: int
    recalls: tuple[RecallAt, ...]
    advice: tuple[str, ...]
    suitability: Suitability  # of the pilot

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return asdict(self)


def plan(
    items: Iterable[ItemLike],
    scorer: ScorerLike,
    anchor_queries: Iterable[QueryLike],
    *,
    path: str | Path | None = None,
    seconds: float = 60.0,
    seed: int = 0,
    progress: ProgressLike = None,
) -> BuildPlan:
    """Find out what a build would cost and bring, with a pilot of about `seconds`.

    `path` is the folder of the index to come: there the pilot's scores are kept, and not paid for again."""
    queries, guarded = _distinct(anchor_queries), load_scorer(scorer)
    rng = np.random.default_rng(whole_number("seed", seed, least=0))
    corpus = _sample(items, rng)
    if len(queries) < LEAST_PILOT_QUERIES:
        raise InputError(f"a plan needs at least {LEAST_PILOT_QUERIES} queries to hold some out, got {len(queries)}")
    corpus = replace(corpus, sample=with_prepared(corpus.sample, guarded.prepare(corpus.sample)))  # as in the build
    pilot_queries = [queries[position] for position in rng.permutation(len(queries))[:MOST_PILOT_QUERIES]]
    with showing(progress) as shown:
        pilot = _run_pilot(guarded, corpus.sample, pilot_queries, seconds=seconds, progress=shown)
        if path is not None:
            write_pilot(Path(path), PilotScores.of(guarded, pilot.items, pilot.queries, pilot.matrix.all()))
        recalls, suitability = _try_out(pilot.matrix, pilot.items, pilot.queries, seed=seed)
    return _build_plan(corpus, pilot, recalls, suitability, n_queries=len(queries))


@dataclass(frozen=True)
class _SampledCorpus:
    """What a plan knows of a corpus: its size, and some items at random."""

    n_items: int
    n_text_bytes: int
    sample: list[Item]


@dataclass(frozen=True, eq=False)
class _Pilot:
    """The items and queries that were scored, their exact scores, the seconds of a pair and the pairs in all."""

    items: list[Item]
    queries: list[Query]
    matrix: ScoreMatrix
    seconds_per_pair: float
    calls: int


def _distinct(queries: Iterable[QueryLike]) -> list[Query]:
    """Queries without repeated ones, as in a build."""
    return list({query.marked_text: query for query in as_queries(queries)}.values())


def _sample(items: Iterable[ItemLike], rng: np.random.Generator) -> _SampledCorpus:
    """The size of a corpus and some of its items at random; streamed."""
    check_items(items)
    chosen: list[Item] = []
    n_items, n_bytes = 0, 0
    for position, raw in enumerate(items):
        item = as_item(raw, position=position)
        n_items, n_bytes = n_items + 1, n_bytes + len(item.full_text.encode())
        if len(chosen) < MOST_PILOT_ITEMS:
            chosen.append(item)
        elif (place := int(rng.integers(n_items))) < MOST_PILOT_ITEMS:
            chosen[place] = item
    if not n_items:
        raise InputError("a plan needs at least one item, got none")
    return _SampledCorpus(n_items, n_bytes, [chosen[place] for place in rng.permutation(len(chosen))])


def _run_pilot(
    scorer: GuardedScorer, items: list[Item], queries: list[Query], *, seconds: float, progress: Progress
) -> _Pilot:
    """Score as many of these as `seconds` allow."""
    calls_before = scorer.calls_made
    pace = seconds_per_pair(scorer, items, queries[0])
    n_items, n_queries = _pilot_size(seconds / max(pace, 1e-9), len(items), len(queries))
    items, queries = items[:n_items], queries[:n_queries]
    started = time.perf_counter()
    matrix = _score(scorer, items, queries, progress=progress)
    pace = (time.perf_counter() - started) / (n_items * n_queries)
    return _Pilot(items, queries, matrix, pace, scorer.calls_made - calls_before)


def seconds_per_pair(scorer: GuardedScorer, items: Sequence[Item], query: Query) -> float:
    """The seconds of a pair, measured with some after one that doesn't count."""
    few = Corpus(items[:WARM_UP_PAIRS])
    Meter(scorer, query, few, budget=1).score(np.arange(1))
    started = time.perf_counter()
    Meter(scorer, query, few, budget=len(few)).score(np.arange(len(few)))
    return (time.perf_counter() - started) / len(few)


def _pilot_size(n_pairs: float, n_items: int, n_queries: int) -> tuple[int, int]:
    """As many items and queries as the time allows, in the proportion of the most of them."""
    shrink = min(1.0, (n_pairs / (n_items * n_queries)) ** 0.5)
    least_items, least_queries = min(n_items, LEAST_PILOT_ITEMS), min(n_queries, LEAST_PILOT_QUERIES)
    return max(least_items, int(shrink * n_items)), max(least_queries, int(shrink * n_queries))


def _score(scorer: GuardedScorer, items: list[Item], queries: list[Query], *, progress: Progress) -> ScoreMatrix:
    spec = ScoreSpec.make(scorer, queries, items_digest=str(TextDigest()), n_items=len(items))
    matrix = ScoreMatrix.in_memory(spec)
    matrix.fill(scorer, queries, lambda start, stop: items[start:stop], progress=progress)
    return matrix


def _try_out(
    matrix: ScoreMatrix, items: list[Item], queries: list[Query], *, seed: int
) -> tuple[list[RecallAt], Suitability]:
    """The recalls on held-out queries of re-ranking BM25, of adaptive search, with all and with half of the anchor
    queries, and of ANNCUR; and what else tuning knows of the pilot."""
    budgets = {share: max(K, round(share * len(items))) for share in SHARES}
    retrievers = load_retrievers(["bm25"])
    (retriever,) = retrievers.values()
    retriever.fit(items)
    n_half = matrix.n_anchor_queries // 2
    whole = derive(matrix, queries=queries, retrievers=retrievers, anchor_method=ANCHOR_METHOD, seed=seed)
    half = derive(
        HeldScores(matrix.all()[:, :n_half]),
        queries=queries[:n_half],
        retrievers=retrievers,
        anchor_method=ANCHOR_METHOD,
        seed=seed,
    )
    found: list[RecallAt] = []
    for share, budget in budgets.items():
        expected = {
            "rerank": whole.tuned.rerank_curves[retriever.name].recall(K, budget),
            "posterior": whole.tuned.curve.recall(K, budget),
            HALF: half.tuned.curve.recall(K, budget),
            "anncur": whole.splits.highest_recall(k=K, budget=budget),
        }
        found.extend(RecallAt(name, share, recall) for name, recall in expected.items() if recall is not None)
    return found, assess(whole, n_items=len(items))


def _build_plan(
    corpus: _SampledCorpus, pilot: _Pilot, recalls: list[RecallAt], suitability: Suitability, *, n_queries: int
) -> BuildPlan:
    """Scale what a pilot took up to the whole corpus."""
    n_items, sample = corpus.n_items, corpus.sample
    n_pairs = n_items * n_queries
    n_prepared_bytes = n_items * sum(len(item.prepared) for item in sample) // len(sample)
    seconds = pilot.seconds_per_pair * n_pairs
    return BuildPlan(
        n_items=n_items,
        n_anchor_queries=n_queries,
        n_pairs=n_pairs,
        seconds_per_pair=pilot.seconds_per_pair,
        seconds=seconds,
        disk_bytes=4 * n_pairs + SQLITE_OVERHEAD * corpus.n_text_bytes + n_prepared_bytes + DERIVED_BYTES,
        memory_bytes=4 * n_pairs + 200 * n_items,  # when it is opened: the scores, and the positions of the items
        pilot_items=len(pilot.items),
        pilot_queries=len(pilot.queries),
        pilot_calls=pilot.calls,
        recalls=tuple(recalls),
        advice=tuple(_advice(recalls, n_items, n_queries, seconds)),
        suitability=suitability,
    )


def _advice(recalls: list[RecallAt], n_items: int, n_queries: int, seconds: float) -> list[str]:
    by_method = {method: np.mean([r.recall for r in recalls if r.method == method]) for method in _methods(recalls)}
    advice = []
    if n_items <= FEW_ITEMS:
        advice.append(score_them_all(n_items))
    rerank, ours = by_method["rerank"], by_method.get("posterior", 0.0)
    if rerank >= ours - CLEARLY:
        advice.append(
            f"plain re-ranking serves you better: on the pilot, BM25 finds {rerank:.0%} of the scorer's top {K} and "
            f"posterior {ours:.0%} ({AVERAGED}), and it needs no anchor queries; more of these may turn this around"
        )
    else:
        advice.append(
            f"on the pilot, posterior finds {ours:.0%} of the scorer's top {K} and re-ranking BM25 {rerank:.0%} "
            f"({AVERAGED})"
        )
    if by_method.get(HALF, 0.0) >= ours - CLEARLY:
        advice.append(f"half the anchor queries did as well on the pilot: take {max(1, n_queries // 2)} of them")
    if seconds > 24 * 3600:
        advice.append(
            "the build takes more than a day: build in shards on several machines (shard=(i, n), --shard i/n)"
        )
    return advice


def _methods(recalls: list[RecallAt]) -> list[str]:
    return list(dict.fromkeys(recall.method for recall in recalls))
