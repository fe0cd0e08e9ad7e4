"""`anncur link`: entity linking, a scorer and baselines over the same candidates."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from anncur.cli.frame import DebugOption, JsonOption, console, print_json, show_progress
from anncur.cli.options import (
    BatchOption,
    CacheOption,
    RetriesOption,
    RulesOption,
    SeedOption,
    ThreadsOption,
    scorer_from,
)
from anncur.datasets.zeshel import Zeshel, read_worlds


def link(
    data: Annotated[Path, typer.Argument(help="A folder in ZESHEL's layout: documents/ and mentions/.")],
    scorer: Annotated[
        list[str] | None, typer.Option("--scorer", help="As for build; may be repeated.", show_default="builtin")
    ] = None,
    split: Annotated[str, typer.Option("--split", help="The split whose worlds are linked.")] = "test",
    world: Annotated[list[str] | None, typer.Option("--world", help="Link only this world; may be repeated.")] = None,
    retriever: Annotated[
        str, typer.Option("--retriever", help="Finds the candidates: minilm, a dual encoder's folder, tfidf or bm25.")
    ] = "minilm",
    baseline: Annotated[
        list[str] | None, typer.Option("--baseline", help="Another retriever to rank the same candidates with.")
    ] = None,
    candidates: Annotated[int, typer.Option("--candidates", help="Candidates for each mention.")] = 64,
    mentions: Annotated[
        int | None, typer.Option("--mentions", help="Draw this many mentions of each world; all by default.")
    ] = None,
    statistics: Annotated[
        bool, typer.Option("--statistics", help="Count entities and mentions, and link nothing.")
    ] = False,
    batch_size: BatchOption = None,
    retries: RetriesOption = None,
    rule: RulesOption = None,
    cache: CacheOption = None,
    threads: ThreadsOption = None,
    seed: SeedOption = 0,
    as_json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Link mentions to entities: find candidates, rank them by a scorer, and count how often the right one is first.

    Examples:

    - `anncur link my-data --split val --mentions 100 --retriever tfidf`
    - `anncur link my-data --scorer my-model --retriever minilm --baseline tfidf`
    - `anncur link my-data --statistics`
    """
    from anncur.evaluation import linking
    from anncur.retrievers.loading import load_retriever

    found = Zeshel(data)
    if statistics:
        _show_statistics(found, as_json=as_json)
        return
    first = load_retriever(retriever)
    with show_progress(as_json=as_json) as progress:
        rankers = {
            name: linking.by_scorer(
                scorer_from(name, batch_size=batch_size, retries=retries, threads=threads, rules=rule, cache=cache),
                progress,
            )
            for name in scorer or ["builtin"]
        }
        rankers[retriever] = linking.by_retriever(first, is_fitted=True)
        rankers |= {name: linking.by_retriever(load_retriever(name)) for name in baseline or []}
        worlds = (linking.sample_mentions(each, mentions, seed=seed) for each in read_worlds(found, split, world))
        rows = list(linking.link(worlds, first, rankers, n_candidates=candidates))
    if as_json:
        print_json({"rows": [asdict(row) for row in rows]})
        return
    table = Table("world", "ranker", "mentions", "recall", "accuracy", "normalised", box=None)
    for row in rows:
        shares = (f"{share:.1%}" for share in (row.recall, row.accuracy, row.normalised_accuracy))
        table.add_row(row.world, row.ranker, f"{row.n_mentions:,}", *shares)
    console().print(table)


def _show_statistics(data: Zeshel, *, as_json: bool) -> None:
    rows = data.statistics()
    if as_json:
        print_json({"worlds": [asdict(row) for row in rows]})
        return
    table = Table("split", "world", "entities", "mentions", box=None)
    for row in rows:
        table.add_row(row.split, row.world, f"{row.n_entities:,}", f"{row.n_mentions:,}")
    console().print(table)
