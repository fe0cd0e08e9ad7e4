"""`anncur info`, `verify`, `tune`, `calibrate`, `learn`, `compact` and `gc`: look after an index on disk."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from anncur.anchors import ANCHOR_METHODS
from anncur.cli.frame import DebugOption, JsonOption, console, print_json, show_progress
from anncur.cli.options import (
    CacheOption,
    IndexArgument,
    MarkedOption,
    MaxCallsOption,
    OwnScorerOption,
    RetriesOption,
    RulesOption,
    SeedOption,
    ThreadsOption,
    drawn_queries,
    needs_extra,
    open_index,
)
from anncur.cli.tables import show_suitability, show_tuning
from anncur.index.index import Index


def info(
    index: IndexArgument,
    plot: Annotated[
        Path | None,
        typer.Option("--plot", help="Draw the expected recall against the budget here: .png, .svg or .pdf."),
    ] = None,
    as_json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Show what an index is made of, and how well it suits its scorer.

    On anchor queries that were held out in tuning: how much adaptive search finds with how many pairs, how much plain
    re-ranking and the method anncur, and what to use. From the query log (--log-queries): how many of the latest
    queries are unlike the anchor queries. --plot needs the extra plots.

    Examples:

    - `anncur info my.anncur`
    - `anncur info my.anncur --plot recall.png`
    """
    opened = Index.open(index, check=False)
    found, suitability = opened.info, opened.suitability()
    described = found.to_dict()
    for of_this_process in ("build_calls", "stability"):
        del described[of_this_process]
    if plot is not None:
        with needs_extra("plots"):
            described["plot"] = str(opened.plot_recall(plot))
    if as_json:
        print_json({**described, "suitability": suitability.to_dict()})
        return
    out = console()
    for name, value in _in_words(described).items():
        out.print(f"{name:>18}  {value}", markup=False, soft_wrap=True)
    show_suitability(out, suitability)
    for line in suitability.advice:
        out.print(f"- {line}", markup=False)
    if found.drift is not None:
        out.print(f"- {found.drift.text}", markup=False)


def _in_words(described: Mapping[str, Any]) -> dict[str, str]:
    """What an index is made of, as people read it."""
    hidden = {"drift", "n_bytes", *(["scorer_name"] if described["scorer_name"] in {"", described["scorer"]} else [])}
    shown = {name: value for name, value in described.items() if name not in hidden}
    words = {name.removeprefix("n_").replace("_", " "): _word(value) for name, value in shown.items()}
    return {**words, "size": _size(described["n_bytes"])}


def _size(n_bytes: int) -> str:
    return f"{n_bytes / 2**30:.1f} GiB" if n_bytes >= 2**30 else f"{n_bytes / 2**20:.1f} MiB"


def _word(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    return ", ".join(value) if isinstance(value, tuple) else str(value)


def verify(
    index: IndexArgument,
    repair: Annotated[bool, typer.Option("--repair", help="Score damaged chunks again.")] = False,
    scorer: OwnScorerOption = None,
    retries: RetriesOption = None,
    max_calls: MaxCallsOption = None,
    rule: RulesOption = None,
    cache: CacheOption = None,
    threads: ThreadsOption = None,
    as_json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Check every byte of an index; name each damaged file, and exit with code 1 if there is any.

    Examples:

    - `anncur verify my.anncur`
    - `anncur verify my.anncur --repair`
    """
    opened = open_index(
        index, scorer, retries=retries, max_calls=max_calls, threads=threads, rules=rule, cache=cache, check=False
    )
    with show_progress(as_json=as_json) as progress:
        problems = opened.verify(repair=repair, progress=progress)
    if as_json:
        print_json({"path": str(index), "problems": problems})
    else:
        for problem in problems or [f"{index} is in order."]:
            console().print(problem, markup=False, soft_wrap=True)
    if problems:
        raise typer.Exit(1)


def tune(
    index: IndexArgument,
    anchor_method: Annotated[
        str,
        typer.Option("--anchor-method", help=f"How the method anncur gets anchor items: {', '.join(ANCHOR_METHODS)}."),
    ] = "pivoted_qr",
    seed: SeedOption = 0,
    as_json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Tune the methods again on the stored scores, which costs no pairs: worth it after many items were added.

    Chooses retrievers, embeddings, noise and the rounds by what held-out anchor queries find, and for the method anncur
    anchor items and how to split a budget; tells what it chose, and the expected recall before and after.

    Examples:

    - `anncur tune my.anncur`
    - `anncur tune my.anncur --seed 1 --json`
    """
    opened = open_index(index, check=False)
    with show_progress(as_json=as_json) as progress:
        report = opened.tune(anchor_method=anchor_method, seed=seed, progress=progress)
    version = opened.info.version
    if as_json:
        print_json({"path": str(index), "version": version, **report.to_dict()})
    else:
        console().print(f"{index} is at version {version}.", markup=False, soft_wrap=True)
        show_tuning(console(), report)


def calibrate(
    index: IndexArgument,
    queries: Annotated[
        Path,
        typer.Option(
            "--queries", help="Queries like those to come: JSON lines, a text file with one per line, or BEIR."
        ),
    ],
    n_queries: Annotated[
        int | None, typer.Option("--n-queries", help="Draw this many of the queries at random; all by default.")
    ] = None,
    marked: MarkedOption = False,
    scorer: OwnScorerOption = None,
    retries: RetriesOption = None,
    max_calls: MaxCallsOption = None,
    rule: RulesOption = None,
    cache: CacheOption = None,
    threads: ThreadsOption = None,
    seed: SeedOption = 0,
    as_json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Calibrate estimates of recall, and --target-recall, on queries that are scored on every item.

    For an index without anchor queries, which has no others to try itself on. Interrupted, it resumes.

    Examples:

    - `anncur calibrate my.anncur --queries queries.jsonl --n-queries 10`
    - `anncur calibrate my.anncur --queries queries.jsonl --n-queries 10 --max-calls 50000`
    """
    opened = open_index(
        index, scorer, retries=retries, max_calls=max_calls, threads=threads, rules=rule, cache=cache, check=False
    )
    chosen = drawn_queries(queries, n_queries, seed, marked=marked, option="--n-queries")
    if not as_json:
        n_pairs = len(chosen) * len(opened)
        console().print(f"{len(chosen):,} queries x {len(opened):,} items = {n_pairs:,} pairs to score")
    with show_progress(as_json=as_json) as progress:
        n_scored = opened.calibrate(chosen, progress=progress)
    version = opened.info.version
    if as_json:
        print_json({"path": str(index), "version": version, "n_queries": len(chosen), "calls": n_scored})
    else:
        console().print(f"Scored {n_scored:,} pairs; {index} is at version {version}.", markup=False)


def learn(index: IndexArgument, as_json: JsonOption = False, debug: DebugOption = False) -> None:
    """Fit a feedback model to the query log (--log-queries), which costs no pairs.

    Examples:

    - `anncur search my.anncur "small bat" --log-queries 1000`
    - `anncur learn my.anncur`
    """
    opened = open_index(index, check=False)
    with show_progress(as_json=as_json) as progress:
        n_queries = opened.learn(progress=progress)
    version = opened.info.version
    if as_json:
        print_json({"path": str(index), "version": version, "n_queries": n_queries})
    else:
        console().print(f"Fitted to {n_queries:,} queries; {index} is at version {version}.", markup=False)


def compact(index: IndexArgument, as_json: JsonOption = False, debug: DebugOption = False) -> None:
    """Merge all segments into one without removed items, and delete files that only older versions need.

    Costs no pairs and changes no answer. Small segments are merged by themselves when there are several.

    Examples:

    - `anncur compact my.anncur`
    """
    opened = open_index(index, check=False)
    opened.compact()
    info = opened.info
    if as_json:
        print_json({"path": str(index), "version": info.version, "n_items": info.n_items, "n_bytes": info.n_bytes})
    else:
        console().print(f"{index} has {info.n_items:,} items at version {info.version}.", markup=False, soft_wrap=True)


def gc(
    index: IndexArgument,
    unpublished: Annotated[
        bool, typer.Option("--unpublished", help="Also drop unfinished builds, paid for in part.")
    ] = False,
    as_json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Delete files that only older versions need.

    Examples:

    - `anncur gc my.anncur`
    - `anncur gc my.anncur --unpublished`
    """
    deleted = Index.open(index, check=False).gc(unpublished=unpublished)
    if as_json:
        print_json({"path": str(index), "deleted": deleted})
    else:
        console().print(f"Deleted {len(deleted)} file(s) and folder(s).")
