"""`anncur demo`: the whole thing on the bundled sample, with the built-in cross-encoder."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console
from rich.table import Table

from anncur.arrays import FloatMatrix
from anncur.caching import Cache
from anncur.cli.frame import DebugOption, JsonOption, console, print_json, show_progress
from anncur.datasets.sample import (
    SAMPLE_INDEX,
    sample_anchor_queries,
    sample_items,
    sample_test_queries,
    sample_test_scores,
)
from anncur.evaluation.recall import mean_recall
from anncur.index.index import Index, IndexInfo
from anncur.items import Item, Query
from anncur.progress import Progress
from anncur.ranking import Hits
from anncur.retrievers.dual_encoder import MINILM, DualEncoderRetriever
from anncur.retrievers.loading import RRF, RetrieverLike, has_minilm
from anncur.scorers.guard import GuardedScorer
from anncur.scorers.loading import load_scorer
from anncur.scorers.stored import StoredScorer
from anncur.search.anncur import Anncur
from anncur.search.base import Method
from anncur.search.methods import Rerank
from anncur.search.posterior import Posterior

BUDGETS = (50, 100, 200)
K = 10
FEW_ANCHORS, MANY_ANCHORS = 20, 150
# test queries that are shown, because their true top 3 are easy to judge; the table is of all test queries
EXAMPLES = ("semcor.brown1.br-j12.789", "semcor.brown2.br-n16.1612", "semcor.brown1.br-d04.669")
N_CHECKED = 200  # stored scores that are computed again

OWN_DATA = """\
On your own data, from the first query on:

    import anncur

    def scorer(pairs):                      # a list of (query text, item text)
        return my_model.predict(pairs)      # one number each

    items = anncur.read_items("corpus.jsonl")
    index = anncur.Index.build(items, scorer)
    print(index.search("what I look for", k=10, budget=200).ids)

corpus.jsonl has one JSON object per line, {"id": …, "text": …}. With some tens to hundreds of typical queries,
{"text": …} in queries.jsonl, it finds more; here with the built-in cross-encoder:

    anncur build corpus.jsonl --queries queries.jsonl --out my.anncur
    anncur search my.anncur "what I look for"
"""


@dataclass(frozen=True)
class Contender:
    """A row of the table: a method, and what the index that it searches has beside the default retrievers."""

    name: str
    method: Method
    n_anchor_queries: int = 0
    others: tuple[str, ...] = ()


def demo(
    query: Annotated[
        str | None, typer.Argument(help="What to look for among the animals; [ ] marks a mention.", show_default=False)
    ] = None,
    as_json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Find animals with a cross-encoder, first without anchor queries, and compare methods at the same number of pairs.

    Everything that it needs is in the package: 2,000 animals of WordNet, 200 mentions of animals in running text, a
    small cross-encoder, and an index made with it. Three test queries that are easy to judge are shown, and recall is
    measured on all 50.

    Examples:

    - `anncur demo`
    - `anncur demo "a large [cat] with stripes"`
    - `anncur demo --json`
    """
    queries = _examples() if query is None else [_parsed(query)]
    scorer, retrievers = load_scorer("builtin"), _retrievers()
    with show_progress(as_json=as_json) as progress:
        start = time.perf_counter()
        index = Index.build(sample_items(), scorer, retrievers=retrievers, progress=progress)
        seconds = time.perf_counter() - start
        answers = index.search_many(queries, K, progress=progress)
        later = Index.open(SAMPLE_INDEX, scorer).search_many(queries, K, progress=progress)
        difference = _check_stored(scorer)
        rows = _compare(scorer, retrievers, progress)
    if as_json:
        print_json(
            {
                "build_calls": index.info.build_calls,
                "build_seconds": seconds,
                "searches": [answer.to_dict() for answer in answers],
                "searches_with_anchor_queries": [answer.to_dict() for answer in later],
                "largest_difference": difference,
                "recall": rows,
            }
        )
    else:
        _show(console(), index.info, seconds, answers, later)
        _show_recall(console(), rows, difference)


def _examples() -> list[Query]:
    by_id = {query.id: query for query in sample_test_queries()}
    return [by_id[query_id] for query_id in EXAMPLES]


def _parsed(query: str) -> Query:
    """The sample's queries have mentions, so brackets mark one here."""
    return Query.marked(query) if "[" in query else Query(query)


class EmbeddedOnce:
    """MiniLM, whose embeddings of items are computed once for all indexes of the demo."""

    name = MINILM

    def __init__(self) -> None:
        self._model = DualEncoderRetriever(MINILM)
        self._known: dict[str, FloatMatrix] = {}

    def fingerprint(self) -> str:
        return self._model.fingerprint()

    def embed_items(self, items: Sequence[Item]) -> FloatMatrix:
        missing = [item for item in items if item.id not in self._known]
        if missing:
            vectors = self._model.embed_items(missing)
            self._known |= {item.id: row for item, row in zip(missing, vectors, strict=True)}
        return np.stack([self._known[item.id] for item in items])

    def embed_queries(self, queries: Sequence[Query]) -> FloatMatrix:
        return self._model.embed_queries(queries)


def _retrievers() -> list[RetrieverLike]:
    """Those that an index has by default."""
    return ["bm25", EmbeddedOnce()] if has_minilm() else ["bm25"]


def _check_stored(scorer: GuardedScorer) -> float:
    """How far some of the stored exact scores are from what the scorer gives now."""
    queries, items, stored = sample_test_queries(), sample_items(), sample_test_scores()
    rng = np.random.default_rng(0)
    chosen = rng.integers(len(items), size=(len(queries), N_CHECKED // len(queries)))
    now = [scorer.score(query, [items[place] for place in row]) for query, row in zip(queries, chosen, strict=True)]
    return float(np.abs(np.take_along_axis(stored, chosen, axis=1) - np.stack(now)).max())


def _compare(scorer: GuardedScorer, retrievers: Sequence[RetrieverLike], progress: Progress) -> list[dict[str, Any]]:
    """The recall of the scorer's true top k on test queries, by method and budget."""
    queries, rows = sample_test_queries(), []
    stored = _stored_scorer(scorer)
    truth = Index.open(SAMPLE_INDEX, stored).search_many(queries, K, method="exhaustive")
    contenders = list(_contenders())
    indexes: Cache[Index] = Cache()
    for done, contender in enumerate(contenders):
        progress("comparing methods", done, len(contenders))
        built_with = contender.n_anchor_queries, contender.others
        index = indexes.get(built_with, partial(_build, stored, [*retrievers, *contender.others], built_with[0]))
        for budget in BUDGETS:
            found = index.search_many(queries, K, budget, contender.method, progress=False)
            rows.append(
                {
                    "method": contender.name,
                    "n_anchor_queries": contender.n_anchor_queries,
                    "k": K,
                    "budget": budget,
                    "recall": mean_recall(found, truth, k=K),
                }
            )
    progress("comparing methods", len(contenders), len(contenders))
    return rows


def _stored_scorer(scorer: GuardedScorer) -> StoredScorer:
    """Exact scores of all test and anchor queries."""
    ready = Index.open(SAMPLE_INDEX)
    exact_scores = np.vstack([sample_test_scores(), ready.anchor_scores().T])
    queries = [*sample_test_queries(), *ready.anchor_queries]
    return StoredScorer(exact_scores, queries, [item.id for item in ready], fingerprint=scorer.fingerprint)


def _contenders() -> Iterator[Contender]:
    yield Contender("re-rank BM25", Rerank("bm25"))
    if has_minilm():
        yield Contender("re-rank MiniLM", Rerank(MINILM))
        yield Contender("re-rank both (RRF)", Rerank(RRF), others=(RRF,))
    for n_anchor_queries in (0, FEW_ANCHORS, MANY_ANCHORS):
        yield Contender("posterior", Posterior(), n_anchor_queries)
    yield Contender("the paper's ANNCUR", Anncur(), MANY_ANCHORS)


def _build(stored: StoredScorer, retrievers: Sequence[RetrieverLike], n_anchor_queries: int) -> Index:
    """With some of the sample's anchor queries, whose exact scores are stored."""
    anchor_queries = sample_anchor_queries()[:n_anchor_queries]
    return Index.build(sample_items(), stored, anchor_queries, retrievers=retrievers, progress=False)


def _show(out: Console, info: IndexInfo, seconds: float, answers: Sequence[Hits], later: Sequence[Hits]) -> None:
    """What the index without anchor queries found, and how far the ready one agrees."""
    out.print(
        f"\nMade an index of {info.n_items:,} animals without anchor queries: {info.build_calls} pairs scored, "
        f"{seconds:.1f} seconds. Its retrievers: {', '.join(info.retrievers)}.",
        soft_wrap=True,
    )
    for hits, others in zip(answers, later, strict=True):
        out.print(f'\nBest for "{hits.query.marked_text}", {hits.calls} pairs:\n', markup=False, soft_wrap=True)
        for hit in hits[:3]:
            shown = f"  {hit.score:6.2f}  {hit.item.title}: {hit.item.text}"
            out.print(shown, markup=False, no_wrap=True, overflow="ellipsis")
        n_same = len(set(hits.ids) & set(others.ids))
        agreement = (
            f"\n  With {MANY_ANCHORS} anchor queries and as many pairs: {n_same} of the same {K} hits, and about "
            f"{others.estimated_recall:.0%} of the true top {K} found."
        )
        out.print(agreement, soft_wrap=True)


def _show_recall(out: Console, rows: Sequence[dict[str, Any]], difference: float) -> None:
    out.print(_table(rows, n_queries=len(sample_test_queries())), soft_wrap=True)
    out.print(
        "An anchor query is scored on all items, once: 2,000 pairs. All scores are the built-in cross-encoder's; those "
        f"of the table are stored, and {N_CHECKED} of the test queries' were computed again just now (largest "
        f"difference {difference:.0e}). Retrievers look for the mention alone; with its context they would find "
        "less.\n",
        soft_wrap=True,
    )
    out.print(OWN_DATA, markup=False, soft_wrap=True)


def _table(rows: Sequence[dict[str, Any]], *, n_queries: int) -> Table:
    table = Table(title=f"\nShare of the scorer's true top {K} that is found\n(mean of {n_queries} test queries)")
    table.add_column("method")
    for name in ("anchor queries", *(f"{budget} pairs" for budget in BUDGETS)):
        table.add_column(name, justify="right")
    for start in range(0, len(rows), len(BUDGETS)):
        of_one = rows[start : start + len(BUDGETS)]
        recalls = [f"{row['recall']:.0%}" for row in of_one]
        table.add_row(of_one[0]["method"], str(of_one[0]["n_anchor_queries"]), *recalls)
    return table
