"""`anncur demo`: the whole thing on the bundled sample, with the built-in cross-encoder."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console
from rich.table import Table

from anncur.cli.frame import DebugOption, JsonOption, console, print_json, show_progress
from anncur.datasets.sample import (
    SAMPLE_INDEX,
    sample_anchor_queries,
    sample_items,
    sample_test_queries,
    sample_test_scores,
)
from anncur.evaluation.recall import mean_recall
from anncur.index.index import Index
from anncur.items import Query
from anncur.progress import Progress
from anncur.ranking import Hits
from anncur.scorers.guard import GuardedScorer
from anncur.scorers.loading import load_scorer
from anncur.scorers.stored import StoredScorer
from anncur.search.anncur import Anncur
from anncur.search.base import Method
from anncur.search.methods import Rerank
from anncur.search.posterior import Posterior

BUDGETS = (50, 100, 200)
K = 10
METHODS: dict[str, Method] = {
    "BM25 + re-rank": Rerank("bm25"),
    "TF-IDF + re-rank": Rerank("tfidf"),
    "ANNCUR, fixed anchors": Anncur(),
    "anncur (posterior)": Posterior(),
}
EXAMPLES = (
    "a [fish] with a long snout that lives in rivers",
    "the farmer locked the [hens] in before the fox came",
    "the [horse] shied at the noise and threw its rider into the ditch",
)
LIVE_ITEMS, LIVE_ANCHORS = 150, 15
N_CHECKED = 200  # stored scores that are computed again

OWN_DATA = """\
On your own data, with the built-in cross-encoder:

    anncur build corpus.jsonl --queries queries.jsonl --out my.anncur
    anncur search my.anncur "what I look for"

corpus.jsonl has one JSON object per line, {"id": …, "text": …}; queries.jsonl some tens to hundreds of typical
queries, {"text": …}. With a scorer of your own:

    import anncur

    def scorer(pairs):                      # a list of (query text, item text)
        return my_model.predict(pairs)      # one number each

    items = anncur.read_items("corpus.jsonl")
    anchors = anncur.read_queries("queries.jsonl")
    index = anncur.Index.build(items, scorer, anchors, path="my.anncur")
    print(index.search("what I look for", k=10, budget=200).ids)
"""


def demo(
    query: Annotated[
        str | None, typer.Argument(help="What to look for among the animals; [ ] marks a mention.", show_default=False)
    ] = None,
    as_json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Find animals with a cross-encoder, and compare methods at the same number of pairs.

    Everything that it needs is in the package: 2,000 animals of WordNet, 200 mentions of animals in running text, a
    small cross-encoder, and an index made with it.

    Examples:

    - `anncur demo`
    - `anncur demo "a large [cat] with stripes"`
    - `anncur demo --json`
    """
    queries = [Query.marked(text) for text in EXAMPLES] if query is None else [_parsed(query)]
    scorer = load_scorer("builtin")
    with show_progress(as_json=as_json) as progress:
        calls = _build_a_part(scorer, progress)
        answers = Index.open(SAMPLE_INDEX, scorer).search_many(queries, K, progress=progress)
        difference = _check_stored(scorer)
        rows = _compare(scorer)
    if as_json:
        found = [answer.to_dict() for answer in answers]
        print_json({"searches": found, "build_calls": calls, "largest_difference": difference, "recall": rows})
    else:
        _show(console(), calls, answers, difference, rows)


def _parsed(query: str) -> Query:
    """The sample's queries have mentions, so brackets mark one here."""
    return Query.marked(query) if "[" in query else Query(query)


def _build_a_part(scorer: GuardedScorer, progress: Progress) -> int:
    """Build an index of a part of the sample, as users will build theirs; returns the number of pairs that it took."""
    with tempfile.TemporaryDirectory() as folder:
        items, anchors = sample_items()[:LIVE_ITEMS], sample_anchor_queries()[:LIVE_ANCHORS]
        index = Index.build(items, scorer, anchors, path=Path(folder) / "part.anncur", progress=progress)
        return index.info.build_calls


def _check_stored(scorer: GuardedScorer) -> float:
    """How far some of the stored exact scores are from what the scorer gives now."""
    queries, items, stored = sample_test_queries(), sample_items(), sample_test_scores()
    rng = np.random.default_rng(0)
    chosen = rng.integers(len(items), size=(len(queries), N_CHECKED // len(queries)))
    now = [scorer.score(query, [items[place] for place in row]) for query, row in zip(queries, chosen, strict=True)]
    return float(np.abs(np.take_along_axis(stored, chosen, axis=1) - np.stack(now)).max())


def _compare(scorer: GuardedScorer) -> list[dict[str, Any]]:
    """The recall of the scorer's true top k on test queries, by method and budget."""
    queries = sample_test_queries()
    ids = [item.id for item in sample_items()]
    stored = StoredScorer(sample_test_scores(), queries, ids, fingerprint=scorer.fingerprint)
    index = Index.open(SAMPLE_INDEX, stored)
    truth = index.search_many(queries, K, method="exhaustive")
    rows = []
    for name, method in METHODS.items():
        for budget in BUDGETS:
            found = index.search_many(queries, K, budget, method)
            rows.append({"method": name, "k": K, "budget": budget, "recall": mean_recall(found, truth, k=K)})
    return rows


def _show(out: Console, calls: int, answers: list[Hits], difference: float, rows: list[dict[str, Any]]) -> None:
    out.print(f"\nBuilt an index of {LIVE_ITEMS} animals with {LIVE_ANCHORS} anchor queries: {calls:,} pairs.")
    out.print("Opened the ready one, of 2,000 animals with 150 anchor queries.")
    for hits in answers:
        out.print(
            f'\nBest for "{hits.query.marked_text}", {hits.calls} pairs, {_found(hits)}:\n',
            markup=False,
            soft_wrap=True,
        )
        for hit in hits[:3]:
            shown = f"  {hit.score:6.2f}  {hit.item.title}: {hit.item.text}"
            out.print(shown, markup=False, no_wrap=True, overflow="ellipsis")
    out.print(_table(rows, n_queries=len(sample_test_queries())), soft_wrap=True)
    out.print(
        "All scores are the built-in cross-encoder's. Those of the test queries are stored; "
        f"{N_CHECKED} of them were computed again just now (largest difference {difference:.0e}). BM25 and TF-IDF look "
        "for the mention alone: with its context they would find less.\n"
    )
    out.print(OWN_DATA, markup=False, soft_wrap=True)


def _found(hits: Hits) -> str:
    assert hits.estimated_recall is not None, "the ready index is tuned"
    return f"probably {hits.estimated_recall:.0%} of the true top {K}"


def _table(rows: list[dict[str, Any]], *, n_queries: int) -> Table:
    table = Table(title=f"\nShare of the scorer's true top {K} that is found\n(mean of {n_queries} test queries)")
    table.add_column("method")
    for budget in BUDGETS:
        table.add_column(f"{budget} pairs", justify="right")
    for name in METHODS:
        table.add_row(name, *(f"{row['recall']:.0%}" for row in rows if row["method"] == name))
    return table
