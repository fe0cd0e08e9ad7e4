"""A pilot: some items of a corpus and some queries, drawn at random, and their exact scores.

Reads a stream of items, feeds `plan.py`. Pays for no more pairs than a limit of time allows, after a few that measure
the scorer's pace."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np

from anncur.arrays import FloatMatrix, Positions
from anncur.errors import InputError, UnknownIdError
from anncur.items import Corpus, Item, ItemLike, Query, TextDigest, as_item, check_items
from anncur.progress import Progress
from anncur.retrievers.base import Retriever, fitted_on_use
from anncur.retrievers.loading import LEAST_FUSED, RRF
from anncur.retrievers.rrf import Rrf
from anncur.retrievers.user_embeddings import UserRetriever
from anncur.scorers.guard import GuardedScorer
from anncur.scorers.payment import score_again
from anncur.scores import ScoreMatrix, ScoreSpec

MOST_PILOT_ITEMS, LEAST_PILOT_ITEMS = 1000, 50
MOST_PILOT_QUERIES, LEAST_PILOT_QUERIES = 120, 12
WARM_UP_PAIRS = 32
N_TIMED = 3  # requests of each size, of which the median counts: one may be slow by chance
LEAST_SHARE = 0.1  # of a large request's time, which its pairs take: less can't be distinguished from noise


@dataclass(frozen=True, eq=False)
class SampledCorpus:
    """What a plan knows of a corpus: its size, and some items at random with their positions."""

    n_items: int
    n_text_bytes: int
    items: list[Item]
    positions: Positions


@dataclass(frozen=True, eq=False)
class Pilot:
    """Items and queries to score, the positions of the items in their corpus, and about how long a pair takes."""

    items: list[Item]
    positions: Positions
    queries: list[Query]
    seconds_per_pair: float = 0.0


def sample_corpus(items: Iterable[ItemLike], rng: np.random.Generator) -> SampledCorpus:
    """The size of a corpus and some of its items at random; streamed."""
    check_items(items)
    chosen: list[tuple[int, Item]] = []
    n_items, n_bytes = 0, 0
    for position, raw in enumerate(items):
        item = as_item(raw, position=position)
        n_items, n_bytes = n_items + 1, n_bytes + len(item.full_text.encode())
        if len(chosen) < MOST_PILOT_ITEMS:
            chosen.append((position, item))
        elif (place := int(rng.integers(n_items))) < MOST_PILOT_ITEMS:
            chosen[place] = position, item
    if not n_items:
        raise InputError("a plan needs at least one item, got none")
    shuffled = [chosen[place] for place in rng.permutation(len(chosen))]
    positions = np.array([position for position, _ in shuffled], dtype=np.int64)
    return SampledCorpus(n_items, n_bytes, [item for _, item in shuffled], positions)


def choose_pilot(
    scorer: GuardedScorer,
    corpus: SampledCorpus,
    queries: Sequence[Query],
    *,
    seconds: float,
    most_pairs: float = math.inf,
    rng: np.random.Generator,
) -> Pilot:
    """As many items and queries as `seconds` allow, at the pace of a few pairs that are scored now, and as the cap on
    spend does."""
    drawn = [queries[position] for position in rng.permutation(len(queries))[:MOST_PILOT_QUERIES]]
    pace = seconds_per_pair(scorer, corpus.items, drawn[0])
    n_pairs = min(seconds / max(pace, 1e-9), scorer.calls_left, most_pairs)
    n_items, n_queries = _pilot_size(n_pairs, len(corpus.items), len(drawn))
    return Pilot(corpus.items[:n_items], corpus.positions[:n_items], drawn[:n_queries], pace)


def fit_retrievers(retrievers: Mapping[str, Retriever], pilot: Pilot, *, n_items: int) -> dict[str, Retriever]:
    """Retrievers fitted to the items of a pilot, of a corpus of `n_items`; two or more are also fused.

    Each is asked once, so that one that fails does so before the pilot is paid for."""
    own = {name: _of_pilot(retriever, pilot, n_items) for name, retriever in retrievers.items()}
    if len(own) >= LEAST_FUSED and RRF not in own:
        own[RRF] = Rrf()
    fitted = fitted_on_use(own, Corpus(pilot.items))
    for name, retriever in fitted.items():
        try:
            retriever.scores(pilot.queries[:1])
        except UnknownIdError as error:
            raise InputError(
                f"the retriever {name} names items that aren't among the {len(pilot.items):,} of the pilot; a plan "
                "needs retrievers that score the items that they are given: pass retrievers=… without it"
            ) from error
    return fitted


class Paces:
    """Progress that is passed on, and how long pairs took from one call to the next."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._last: tuple[float, int] | None = None
        self.of_pairs: list[float] = []

    def __call__(self, stage: str, done: int, total: int) -> None:
        now = time.perf_counter()
        if self._last is not None and done > self._last[1]:
            self.of_pairs.append((now - self._last[0]) / (done - self._last[1]))
        self._last = now, done
        self._progress(stage, done, total)


def score_pilot(scorer: GuardedScorer, pilot: Pilot, *, progress: Progress) -> tuple[FloatMatrix, float]:
    """All exact scores, (n_items, n_queries), and the seconds of a pair."""
    items, queries = pilot.items, pilot.queries
    spec = ScoreSpec.make(scorer, queries, items_digest=str(TextDigest()), n_items=len(items))
    matrix = ScoreMatrix.in_memory(spec)
    started = time.perf_counter()
    matrix.fill(scorer, queries, lambda start, stop: items[start:stop], progress=progress)
    return matrix.all(), (time.perf_counter() - started) / (len(items) * len(queries))


def seconds_per_pair(scorer: GuardedScorer, items: Sequence[Item], query: Query) -> float:
    """The seconds of a pair, measured with some after one that doesn't count."""
    few = Corpus(items[:WARM_UP_PAIRS])
    score_again(scorer, query, few, np.arange(1))
    return _request_seconds(scorer, query, few, len(few)) / len(few)


@dataclass(frozen=True)
class RequestTime:
    """How long a request to a scorer takes: `latency` seconds, and `seconds_per_pair` for each pair in it."""

    latency: float
    seconds_per_pair: float

    @property
    def of_a_pair_among_many(self) -> float:
        """Seconds of a pair in requests as large as the one that was timed."""
        return self.latency / WARM_UP_PAIRS + self.seconds_per_pair

    def within(self, pace: float) -> RequestTime:
        """The same, bounded by the seconds of a pair among very many: a pair takes no more than these, and no less than
        half of them, where the other half is the latency of their requests."""
        of_pair = min(max(self.seconds_per_pair, pace / 2), pace)
        return RequestTime(max(0.0, self.latency + self.seconds_per_pair - of_pair), of_pair)


def time_requests(scorer: GuardedScorer, items: Sequence[Item], query: Query) -> RequestTime:
    """Measured with some requests of one pair and some of several pairs, after one that doesn't count."""
    few = Corpus(items[:WARM_UP_PAIRS])
    score_again(scorer, query, few, np.arange(1))
    one, several = (
        median(_request_seconds(scorer, query, few, n_pairs) for _ in range(N_TIMED)) for n_pairs in (1, len(few))
    )
    of_pair = max((several - one) / (len(few) - 1), LEAST_SHARE * several / len(few)) if len(few) > 1 else one
    return RequestTime(max(0.0, one - of_pair), of_pair)


def _request_seconds(scorer: GuardedScorer, query: Query, items: Corpus, n_pairs: int) -> float:
    started = time.perf_counter()
    score_again(scorer, query, items, np.arange(n_pairs))
    return time.perf_counter() - started


def _pilot_size(n_pairs: float, n_items: int, n_queries: int) -> tuple[int, int]:
    """As many items and queries as the time allows, in the proportion of the most of them."""
    shrink = min(1.0, (n_pairs / (n_items * n_queries)) ** 0.5)
    least_items, least_queries = min(n_items, LEAST_PILOT_ITEMS), min(n_queries, LEAST_PILOT_QUERIES)
    chosen = max(least_queries, int(shrink * n_queries))
    n_items = max(least_items, int(min(n_items, n_pairs / chosen)))  # fewer, where there are no fewer queries
    return n_items, max(least_queries, int(min(chosen, n_pairs / n_items)))


def _of_pilot(retriever: Retriever, pilot: Pilot, n_items: int) -> Retriever:
    """The same retriever; an array of embeddings has a row for each item of the corpus, of which it keeps some."""
    if not isinstance(retriever, UserRetriever):
        return retriever
    retriever.embedder.check_count(n_items)
    rows = retriever.embedder.rows(0, n_items)
    return retriever if rows is None else retriever.with_items(rows[pilot.positions])
