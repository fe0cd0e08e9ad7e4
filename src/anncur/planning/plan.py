"""What a build will cost and what it will bring, found out by a small pilot before anybody pays for it.

Scores some of the queries on some of the items, within a limit of time; measures the scorer's pace on them, and how
much of its top k each method finds there, with how many anchor queries. Writes nothing but, where a path is given, the
pilot's scores."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from anncur.errors import InputError
from anncur.items import ItemLike, Query, QueryLike, as_queries
from anncur.numbers import number, whole_number
from anncur.planning.cluster import Cluster, ClusterPlan, chunk_times, plan_cluster
from anncur.planning.comparison import LEAST_TEST, Comparison, compare_methods
from anncur.planning.pilot import Paces, Pilot, SampledCorpus, choose_pilot, fit_retrievers, sample_corpus, score_pilot
from anncur.planning.suitability import Suitability, assess
from anncur.planning.worth import AnchorCost, advise_plan
from anncur.progress import ProgressLike, showing
from anncur.retrievers.base import EncodingRetriever, Retriever, item_vectors
from anncur.retrievers.loading import RetrieverLike, chosen_retrievers, load_models
from anncur.retrievers.user_embeddings import EmbeddingsLike, EmbedQueries, UserRetriever, own_embeddings
from anncur.scorers.base import ScorerLike, with_prepared
from anncur.scorers.guard import GuardedScorer
from anncur.scorers.loading import load_scorer, sent_copy
from anncur.scores import default_items_per_chunk
from anncur.storage.pilot import PilotScores, write_pilot

SQLITE_OVERHEAD = 2  # times the texts
DERIVED_BYTES = 2**21  # what tuning leaves behind, however large the index
PRICED_SHARE, PRICED_PAIRS = 0.1, 30_000  # of a build that a pilot may cost, or what lets it try 40 anchor queries


@dataclass(frozen=True)
class RecallAt:
    """How much of the scorer's top 10 a method finds when it may score this share of the pilot's items, which is a
    budget of this many pairs, and the anchor queries that it needs for that."""

    method: str
    share: float
    recall: float
    n_anchor_queries: int
    budget: int


@dataclass(frozen=True)
class BuildPlan:
    """What a build will cost and bring. Recalls are the pilot's: more items are harder.

    `n_pairs`, `seconds` and `price` are those of all anchor queries; `costs` has them for fewer, too."""

    n_items: int
    n_anchor_queries: int
    n_pairs: int
    seconds_per_pair: float
    seconds: float
    price: float | None
    disk_bytes: int
    memory_bytes: int
    pilot_items: int
    pilot_queries: int
    pilot_test_queries: int
    pilot_calls: int
    recalls: tuple[RecallAt, ...]
    costs: tuple[AnchorCost, ...]
    advice: tuple[str, ...]
    suitability: Suitability  # of the pilot
    cluster: ClusterPlan | None = None

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return asdict(self)


def plan(
    items: Iterable[ItemLike],
    scorer: ScorerLike,
    anchor_queries: Iterable[QueryLike],
    *,
    retrievers: Iterable[RetrieverLike] | None = None,
    embeddings: EmbeddingsLike | None = None,
    embed_queries: EmbedQueries | str | None = None,
    price_per_1000: float | None = None,
    path: str | Path | None = None,
    cluster: Cluster | None = None,
    seconds: float = 60.0,
    seed: int = 0,
    on_pilot: Callable[[AnchorCost], None] | None = None,
    progress: ProgressLike = None,
) -> BuildPlan:
    """Find out what a build would cost and bring, with a pilot of about `seconds`: how far searches get without anchor
    queries and with more and more of them, and which are worth paying for.

    `retrievers`, `embeddings` and `embed_queries` are as for `Index.build`. `price_per_1000` is what 1,000 pairs cost,
    in dollars; with it, the pilot has no more than a tenth of the build's pairs, or 30,000 if that is more. `on_pilot`
    gets what the pilot will cost, before it is paid for. `path` is the folder of the index to come: there the pilot's
    scores are kept, and not paid for again. With a `cluster`, the plan also tells how long a build would take there,
    with how many workers: each as fast as this process, so load the scorer with as many threads as a worker will
    have."""
    queries, guarded = _distinct(anchor_queries), load_scorer(scorer)
    rng = np.random.default_rng(whole_number("seed", seed, least=0))
    price = None if price_per_1000 is None else number("price_per_1000", price_per_1000, least=0) / 1000
    chosen = _chosen_retrievers(retrievers, embeddings, embed_queries, queries)
    corpus = sample_corpus(items, rng)
    corpus = replace(corpus, items=with_prepared(corpus.items, guarded.prepare(corpus.items)))  # as in the build
    calls_before = guarded.calls_made
    with showing(progress) as shown:
        most = math.inf if price is None else max(PRICED_PAIRS, PRICED_SHARE * corpus.n_items * len(queries))
        pilot = choose_pilot(guarded, corpus, queries, seconds=seconds, most_pairs=most, rng=rng)
        fitted = fit_retrievers(chosen, pilot, n_items=corpus.n_items)
        if on_pilot is not None:
            on_pilot(_Pace(len(pilot.items), pilot.seconds_per_pair, price).cost(len(pilot.queries)))
        paces = Paces(shown)
        exact_scores, pace = score_pilot(guarded, pilot, progress=paces)
        n_calls = guarded.calls_made - calls_before
        if path is not None:
            write_pilot(Path(path), PilotScores.of(guarded, pilot.items, pilot.queries, exact_scores))
        found = compare_methods(exact_scores, pilot.queries, fitted, names=list(chosen), seed=seed, progress=shown)
    costs = _Pace(corpus.n_items, pace, price)
    n_bytes = _vector_bytes(chosen, fitted)
    made = _build_plan(corpus, pilot, found, costs, n_queries=len(queries), n_calls=n_calls, vector_bytes=n_bytes)
    if cluster is None:
        return made
    return replace(made, cluster=_on_cluster(made, cluster, guarded, paces.of_pairs or [pace], seed=seed))


def _on_cluster(
    made: BuildPlan, cluster: Cluster, scorer: GuardedScorer, pair_seconds: Sequence[float], *, seed: int
) -> ClusterPlan:
    """The same build on a cluster, whose workers load the scorer as they would here."""
    load_seconds = cluster.load_seconds
    if load_seconds is None:
        started = time.perf_counter()
        sent_copy(scorer)
        load_seconds = time.perf_counter() - started
    n_queries, items_per_chunk = made.n_anchor_queries, default_items_per_chunk(made.n_anchor_queries)
    chunks = chunk_times(
        made.n_items,
        items_per_chunk,
        [n_queries * seconds for seconds in pair_seconds],
        requests_per_chunk=math.ceil(n_queries * items_per_chunk / (scorer.rules.batch_size * scorer.rules.at_once)),
        seed=seed,
    )
    return plan_cluster(chunks, cluster, load_seconds=load_seconds, seed=seed)


@dataclass(frozen=True)
class _Pace:
    """What turns numbers of anchor queries into costs."""

    n_items: int
    seconds_per_pair: float
    price_per_pair: float | None

    def cost(self, n_anchors: int) -> AnchorCost:
        n_pairs = n_anchors * self.n_items
        price = None if self.price_per_pair is None else self.price_per_pair * n_pairs
        return AnchorCost(n_anchors, n_pairs, self.seconds_per_pair * n_pairs, price)


def _distinct(queries: Iterable[QueryLike]) -> list[Query]:
    """Queries without repeated ones, as in a build."""
    found = list({query.key: query for query in as_queries(queries)}.values())
    if len(found) < LEAST_TEST:
        raise InputError(
            f"a plan needs at least {LEAST_TEST} different queries to measure with, got {len(found)}; pass some that "
            "are like those to come, or build an index without any and search it at once"
        )
    return found


def _chosen_retrievers(
    wanted: Iterable[RetrieverLike] | None,
    embeddings: EmbeddingsLike | None,
    embed_queries: EmbedQueries | str | None,
    queries: Sequence[Query],
) -> dict[str, Retriever]:
    """Those of the index to come, still to be fitted, with their models; refuses what can't embed the queries."""
    chosen = chosen_retrievers(wanted, own_embeddings(embeddings, embed_queries))
    for retriever in chosen.values():
        load_models(retriever)
        if isinstance(retriever, UserRetriever):
            retriever.check_queries(queries)
    return chosen


def _vector_bytes(chosen: Mapping[str, Retriever], fitted: Mapping[str, Retriever]) -> int:
    """What an index stores of retrievers' vectors, for each item."""
    stored = {
        one.stored_as: item_vectors(fitted[name]) for name, one in chosen.items() if isinstance(one, EncodingRetriever)
    }
    return sum(vectors.itemsize * vectors.shape[1] for vectors in stored.values() if vectors is not None)


def _build_plan(
    corpus: SampledCorpus,
    pilot: Pilot,
    found: Comparison,
    pace: _Pace,
    *,
    n_queries: int,
    n_calls: int,
    vector_bytes: int,
) -> BuildPlan:
    """Scale what a pilot took up to the whole corpus."""
    n_items, whole = corpus.n_items, pace.cost(n_queries)
    n_prepared_bytes = n_items * sum(len(item.prepared) for item in corpus.items) // len(corpus.items)
    n_tried = {measured.n_anchor_queries for measured in found.methods}
    costs = {n_anchors: pace.cost(n_anchors) for n_anchors in sorted({*n_tried, n_queries})}
    kept_bytes = 4 * whole.n_pairs + n_items * vector_bytes
    return BuildPlan(
        n_items=n_items,
        n_anchor_queries=n_queries,
        n_pairs=whole.n_pairs,
        seconds_per_pair=pace.seconds_per_pair,
        seconds=whole.seconds,
        price=whole.price,
        disk_bytes=kept_bytes + SQLITE_OVERHEAD * corpus.n_text_bytes + n_prepared_bytes + DERIVED_BYTES,
        memory_bytes=kept_bytes + 200 * n_items,  # when it is opened: scores, vectors, and the positions of the items
        pilot_items=len(pilot.items),
        pilot_queries=len(pilot.queries),
        pilot_test_queries=found.n_test,
        pilot_calls=n_calls,
        recalls=tuple(_recalls(found)),
        costs=tuple(costs.values()),
        advice=tuple(advise_plan(found, costs, n_items=n_items, n_queries=n_queries)),
        suitability=assess(found.derived, n_items=len(pilot.items)),
    )


def _recalls(found: Comparison) -> Iterable[RecallAt]:
    for measured in found.methods:
        means = measured.recalls.mean(axis=0).tolist()
        for (budget, share), recall in zip(found.shares.items(), means, strict=True):
            yield RecallAt(measured.method, share, recall, measured.n_anchor_queries, budget)
