"""`anncur demo`: the whole thing on the bundled sample."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from anncur.cli.frame import DebugOption, JsonOption, console, print_json, show_progress
from anncur.datasets.sample import SAMPLE, sample_anchor_queries, sample_items, sample_test_queries
from anncur.evaluation.recall import mean_recall, top_k_recall
from anncur.index.index import Index
from anncur.items import Query
from anncur.progress import Progress
from anncur.ranking import Hits
from anncur.scorers.words import WordScorer
from anncur.search.base import Policy
from anncur.search.one_shot import OneShot
from anncur.search.rerank import Rerank

BUDGETS = (50, 100, 200)
K = 10
METHODS: dict[str, Policy] = {
    "BM25 + re-rank": Rerank("bm25"),
    "TF-IDF + re-rank": Rerank("tfidf"),
    "anncur": OneShot(),
}
EXAMPLE = "a [fish] with a long snout that lives in rivers"

OWN_DATA = """\
On your own data, with your own scorer:

    import anncur

    def scorer(pairs):                      # a list of (query text, item text)
        return my_model.predict(pairs)      # one number each

    # one JSON object per line: {"id": …, "text": …}, and {"text": …} for
    # some tens to hundreds of typical queries, which become the anchors
    items = anncur.read_items("corpus.jsonl")
    anchors = anncur.read_queries("queries.jsonl")
    index = anncur.Index.build(None, scorer, items, anchors)
    print(index.search("what I look for", k=10, budget=200).ids)
"""


def demo(
    query: Annotated[str, typer.Argument(help="What to look for among the animals; [ ] marks a mention.")] = EXAMPLE,
    as_json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Find animals with a real scorer, and compare methods at the same number of calls.

    Everything that it needs is in the package: 2,000 animals of WordNet, 250 mentions of animals in running text, and
    a scorer that matches words by their vectors.

    Examples:

    - `anncur demo`
    - `anncur demo "a large [cat] with stripes"`
    - `anncur demo --json`
    """
    parsed = Query.parse(query)
    with show_progress(as_json=as_json) as progress:
        index = _build(progress)
        hits = index.search(parsed, k=K)
        recall = top_k_recall(hits, index.search(parsed, k=K, method="exhaustive"), k=K)
        rows = _compare(index, progress)
    if as_json:
        print_json({"search": {**hits.to_dict(), "recall": recall}, "recall": rows})
    else:
        _show(console(), index, hits, recall, rows)


def _build(progress: Progress) -> Index:
    scorer = WordScorer.load(SAMPLE / "word_vectors.npz")
    retrievers = ("bm25", "tfidf")
    return Index.build(None, scorer, sample_items(), sample_anchor_queries(), retrievers=retrievers, progress=progress)


def _compare(index: Index, progress: Progress) -> list[dict[str, Any]]:
    """The recall of the scorer's true top k on test queries, by method and budget."""
    queries = sample_test_queries()
    truth = index.search_many(queries, K, method="exhaustive", progress=progress)
    rows = []
    for name, method in METHODS.items():
        for budget in BUDGETS:
            found = index.search_many(queries, K, budget, method)
            rows.append({"method": name, "k": K, "budget": budget, "recall": mean_recall(found, truth, k=K)})
    return rows


def _show(out: Console, index: Index, hits: Hits, recall: float, rows: list[dict[str, Any]]) -> None:
    info = index.info
    out.print(f"\nIndexed {info.n_items:,} animals with {info.n_anchor_queries} anchor queries.")
    out.print(f'\nBest for "{hits.query.marked_text}":\n', markup=False)
    for hit in hits[:5]:
        out.print(
            f"  {hit.score:6.3f}  {hit.item.title}: {hit.item.text}", markup=False, no_wrap=True, overflow="ellipsis"
        )
    found = f"{round(K * recall)} of the scorer's true top {K}"
    out.print(f"\n{hits.calls} calls instead of {info.n_items:,} found {found}.")
    out.print(_table(rows, n_queries=len(sample_test_queries())), soft_wrap=True)
    out.print(OWN_DATA, markup=False, soft_wrap=True)


def _table(rows: list[dict[str, Any]], *, n_queries: int) -> Table:
    table = Table(title=f"\nShare of the scorer's true top {K} that is found\n(mean of {n_queries} test queries)")
    table.add_column("method")
    for budget in BUDGETS:
        table.add_column(f"{budget} calls", justify="right")
    for name in METHODS:
        table.add_row(name, *(f"{row['recall']:.0%}" for row in rows if row["method"] == name))
    return table
