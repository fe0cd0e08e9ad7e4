"""`anncur search`: ask an index."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console

from anncur.cli.frame import DebugOption, JsonOption, console, print_json
from anncur.cli.options import IndexArgument, OwnScorerOption, ThreadsOption, scorer_of
from anncur.index.index import Index
from anncur.ranking import Hits
from anncur.search.limits import DEFAULT_BUDGET
from anncur.search.methods import DEFAULT_METHOD, METHODS


def search(
    index: IndexArgument,
    query: Annotated[str, typer.Argument(help="What to look for; exactly one [ ] marks a mention.")],
    k: Annotated[int, typer.Option("-k", help="How many items.")] = 10,
    budget: Annotated[
        int | None, typer.Option("--budget", help=f"The most calls of the scorer; {DEFAULT_BUDGET} by default.")
    ] = None,
    target_recall: Annotated[
        float | None, typer.Option("--target-recall", help="Stop when so much of the true top k is probably found.")
    ] = None,
    max_budget: Annotated[int | None, typer.Option("--max-budget", help="The most calls to reach it.")] = None,
    method: Annotated[str, typer.Option("--method", help=f"One of {', '.join(METHODS)}.")] = DEFAULT_METHOD,
    deadline_ms: Annotated[float | None, typer.Option("--deadline-ms", help="Start no call after that.")] = None,
    keep_traffic: Annotated[
        int, typer.Option("--keep-traffic", help="Keep the query and its scores for `anncur learn`: the last so many.")
    ] = 0,
    explore: Annotated[
        float | None,
        typer.Option("--explore", help="The share of calls for random items; 0.05 by default where searches are kept."),
    ] = None,
    scorer: OwnScorerOption = None,
    threads: ThreadsOption = None,
    as_json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Find the items that the scorer likes best.

    Examples:

    - `anncur search animals.anncur "small [bat] that eats fruit" -k 5 --budget 100`
    - `anncur search animals.anncur "small [bat] that eats fruit" --target-recall 0.95`
    - `anncur search animals.anncur "small bat" --method rerank --json`
    """
    opened = Index.open(index, scorer_of(index, scorer, threads=threads), keep_traffic=keep_traffic, explore=explore)
    hits = opened.search(
        query, k, budget, method, target_recall=target_recall, max_budget=max_budget, deadline_ms=deadline_ms
    )
    if as_json:
        print_json(hits.to_dict())
    else:
        _show(console(), hits, k)


def _show(out: Console, hits: Hits, k: int) -> None:
    for hit in hits:
        text = " ".join(hit.item.full_text.replace("\n", ": ", 1).split())
        out.print(f"{hit.score:9.4f}  {hit.id}  {text}", markup=False, no_wrap=True, overflow="ellipsis")
    cut = ", cut short" if hits.is_partial else ""
    found = "" if hits.estimated_recall is None else f", about {hits.estimated_recall:.0%} of the true top {k} found"
    out.print(f"{hits.calls} calls in {hits.seconds:.2f} s{cut}{found}", style="dim")
