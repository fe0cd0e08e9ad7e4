"""`anncur search`: ask an index, for one query or for a file of them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from anncur.cli.frame import DebugOption, JsonOption, console, print_json, printable, show_progress
from anncur.cli.options import (
    AddressOption,
    CacheOption,
    CpusPerWorkerOption,
    EngineOption,
    IndexArgument,
    MaxCallsOption,
    OwnScorerOption,
    RetriesOption,
    RulesOption,
    SeedOption,
    ThreadsOption,
    WorkersOption,
    WorkersPerGpuOption,
    engine_from,
    open_index,
    results_alone,
)
from anncur.datasets.jsonl import read_queries
from anncur.datasets.trec import TREC_SUFFIXES, run_text
from anncur.errors import InputError
from anncur.items import Query
from anncur.ranking import Hits
from anncur.search.limits import DEFAULT_BUDGET
from anncur.search.methods import DEFAULT_METHOD, METHODS
from anncur.storage.files import write_file

UNLIKE = "This query is unlike the anchor queries: less may be found than estimated (`anncur info` tells more)."


def search(
    index: IndexArgument,
    query: Annotated[str | None, typer.Argument(help="What to look for.", show_default=False)] = None,
    queries: Annotated[
        Path | None,
        typer.Option("--queries", help="Many queries: JSON lines, a text file with one per line, or a BEIR folder."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", help="Write the answers here: JSON lines, or a TREC run if it ends in .trec or .run."),
    ] = None,
    marked: Annotated[bool, typer.Option("--marked", help="One [ ] in the query marks its mention.")] = False,
    k: Annotated[int, typer.Option("-k", help="How many items.")] = 10,
    budget: Annotated[
        int | None, typer.Option("--budget", help=f"The most pairs to score; {DEFAULT_BUDGET} by default.")
    ] = None,
    target_recall: Annotated[
        float | None,
        typer.Option("--target-recall", help="Stop when this share of the true top k is probably found."),
    ] = None,
    max_budget: Annotated[int | None, typer.Option("--max-budget", help="The most pairs to reach it.")] = None,
    method: Annotated[str, typer.Option("--method", help=f"One of {', '.join(METHODS)}.")] = DEFAULT_METHOD,
    max_rounds: Annotated[
        int | None, typer.Option("--max-rounds", help="The most rounds, each of which waits for the scorer.")
    ] = None,
    deadline_ms: Annotated[
        float | None,
        typer.Option("--deadline-ms", help="Start no request, but the first, that wouldn't be answered by then."),
    ] = None,
    min_score: Annotated[
        float | None, typer.Option("--min-score", help="Only items with this score or a better one.")
    ] = None,
    filter: Annotated[
        str | None,
        typer.Option(
            "--filter",
            help="Only items that pass: conditions over metadata as a JSON object, or a JSON list of ids.",
        ),
    ] = None,
    log_queries: Annotated[
        int, typer.Option("--log-queries", help="Log the query and its scores for `anncur learn`: at most this many.")
    ] = 0,
    explore: Annotated[
        float | None,
        typer.Option(
            "--explore", help="The share of pairs with random items; 0.05 by default where queries are logged."
        ),
    ] = None,
    scorer: OwnScorerOption = None,
    engine: EngineOption = "local",
    address: AddressOption = None,
    workers: WorkersOption = None,
    cpus_per_worker: CpusPerWorkerOption = None,
    workers_per_gpu: WorkersPerGpuOption = None,
    retries: RetriesOption = None,
    max_calls: MaxCallsOption = None,
    rule: RulesOption = None,
    cache: CacheOption = None,
    threads: ThreadsOption = None,
    seed: SeedOption = 0,
    as_json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Find the items that the scorer likes best.

    Examples:

    - `anncur search animals.anncur "a bat that eats fruit" -k 5 --budget 100`
    - `anncur search animals.anncur "small [bat] that eats fruit" --marked --target-recall 0.95`
    - `anncur search animals.anncur "small bat" --method rerank --json`
    - `anncur search shoes.anncur "for rain" --filter '{"brand": ["a", "b"], "price": {"<": 80}}'`
    - `anncur search animals.anncur --queries queries.jsonl --out answers.trec`
    - `anncur search animals.anncur --queries queries.jsonl --out answers.trec --engine ray --workers 4`
    """
    runs_on = engine_from(
        engine,
        address=address,
        workers=workers,
        cpus_per_worker=cpus_per_worker,
        workers_per_gpu=workers_per_gpu,
    )
    if runs_on.is_elsewhere and queries is None:
        raise InputError(f"--engine {engine} is for --queries with a file of them; one query is searched here")
    asked, wanted = _asked(query, queries, out, marked=marked), _parse_filter(filter)
    opened = open_index(
        index,
        scorer,
        retries=retries,
        max_calls=max_calls,
        threads=threads,
        rules=rule,
        cache=cache,
        log_queries=log_queries,
        explore=explore,
    )
    with show_progress(as_json=as_json) as progress, results_alone(runs_on):
        answers = opened.search_many(
            asked,
            k,
            budget,
            method,
            filter=wanted,
            target_recall=target_recall,
            max_budget=max_budget,
            max_rounds=max_rounds,
            deadline_ms=deadline_ms,
            min_score=min_score,
            engine=runs_on,
            seed=seed,
            progress=progress if out is not None else False,
        )
    if answers and wanted is not None and not as_json and not any(hits.calls for hits in answers):
        console().print("No item passes the filter.")
    if out is not None:
        _write(out, answers, method)
        _summarise(out, answers, as_json=as_json)
    elif as_json:
        print_json(answers[0].to_dict())
    else:
        _show(console(), answers[0], k)


def _asked(query: str | None, queries: Path | None, out: Path | None, *, marked: bool) -> list[Query]:
    if (query is None) == (queries is None):
        raise InputError("give a query, or --queries with a file of them")
    if (queries is None) != (out is None):
        raise InputError("--queries and --out go together: many queries are answered in a file")
    if queries is not None:
        found = list(read_queries(queries, marked=marked))
        if not found:
            raise InputError(f"{queries} holds no queries; write one per line")
        return found
    return [Query.marked(query or "") if marked else Query(query or "")]


def _parse_filter(filter: str | None) -> dict[str, Any] | list[str] | None:
    """Conditions or ids, as the index takes them; it checks what is in them."""
    if filter is None:
        return None
    try:
        found = json.loads(filter, object_pairs_hook=_distinct)
    except RecursionError:
        raise InputError(f"--filter must be nested less deeply, got {filter!r:.60}; flatten it") from None
    except ValueError as error:
        raise InputError(
            f"""--filter must be JSON, such as '{{"lang": "en"}}', got {filter!r:.60}: {error}"""
        ) from None
    if not isinstance(found, (dict, list)):
        raise InputError(f"--filter must be a JSON object of conditions or a list of ids, got {filter!r:.60}")
    return found


def _distinct(entries: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object, in which no entry may replace another."""
    found: dict[str, Any] = {}
    for name, value in entries:
        if name in found:
            raise ValueError(f"the key {name!r:.60} is there twice; put both conditions into a list of 'and'")
        found[name] = value
    return found


def _write(out: Path, answers: Sequence[Hits], method: str) -> None:
    """Replace a file by the answers, wholly or not at all; what is no file, such as a pipe, is written to."""
    if out.suffix in TREC_SUFFIXES:
        content = run_text(answers, name=f"anncur-{method}")
    else:
        content = "".join(json.dumps(hits.to_dict(), ensure_ascii=False) + "\n" for hits in answers)
    if out.exists() and not out.is_file():
        out.write_text(content, encoding="utf-8")
    else:
        write_file(out, content.encode())


def _summarise(out: Path, answers: Sequence[Hits], *, as_json: bool) -> None:
    n_pairs, n_unlike = sum(hits.calls for hits in answers), sum(hits.is_unlike_anchors for hits in answers)
    if as_json:
        print_json({"out": str(out), "n_queries": len(answers), "calls": n_pairs, "n_unlike_anchors": n_unlike})
    else:
        n_queries = f"{len(answers):,} {'query' if len(answers) == 1 else 'queries'}"
        message = f"{out} has the answers to {n_queries}; {_counted(n_pairs)} scored."
        message += f" {n_unlike:,} of them unlike the anchor queries." if n_unlike else ""
        console().print(message, markup=False, soft_wrap=True)


def _show(out: Console, hits: Hits, k: int) -> None:
    for hit in hits:
        text = " ".join(hit.item.full_text.replace("\n", ": ", 1).split())
        line = printable(f"{hit.score:9.4f}  {hit.id}  {text}")
        out.print(line, markup=False, no_wrap=True, overflow="ellipsis")
    cut = ", cut short" if hits.is_partial else ""
    found = "" if hits.estimated_recall is None else f", about {hits.estimated_recall:.0%} of the true top {k} found"
    out.print(f"{_counted(hits.calls)} in {hits.seconds:.2f} s{cut}{found}", style="dim")
    if hits.is_unlike_anchors:
        out.print(UNLIKE, style="yellow")


def _counted(n_pairs: int) -> str:
    return f"{n_pairs:,} {'pair' if n_pairs == 1 else 'pairs'}"
