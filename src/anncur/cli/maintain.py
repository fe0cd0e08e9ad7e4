"""`anncur info`, `verify`, `tune`, `learn` and `gc`: look after an index on disk."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from anncur.anchors import ANCHOR_METHODS
from anncur.cli.frame import DebugOption, JsonOption, console, print_json, show_progress
from anncur.cli.options import (
    IndexArgument,
    OwnScorerOption,
    SeedOption,
    ThreadsOption,
    needs_extra,
    scorer_of,
)
from anncur.cli.tables import show_suitability, show_tuning
from anncur.errors import DamagedError
from anncur.index.advice import advise
from anncur.index.folder import FolderStorage
from anncur.index.plot import draw_recall
from anncur.index.report import assess, chosen, compare
from anncur.search.beliefs import Tuned


def info(
    index: IndexArgument,
    plot: Annotated[
        Path | None,
        typer.Option("--plot", help="Draw the expected recall against the budget here: .png, .svg or .pdf."),
    ] = None,
    as_json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Tell what an index is made of, and how well it suits its scorer.

    On anchor queries that were held out in tuning: how much adaptive search finds with how many calls, how much plain
    re-ranking and the method anncur, and what to use. --plot needs the extra plots.

    Examples:

    - `anncur info my.anncur`
    - `anncur info my.anncur --plot recall.png`
    """
    version = FolderStorage(index).newest()
    described, learned = version.describe(), version.learned()
    suitability = assess(learned, n_items=described["n_items"])
    advice = advise(learned, n_items=described["n_items"])
    if plot is not None:
        with needs_extra("plots"):
            described["plot"] = str(draw_recall(learned.tuned, plot))
    if as_json:
        print_json({**described, "suitability": {**suitability.to_dict(), "advice": advice}})
        return
    out = console()
    for name, value in described.items():
        out.print(f"{name.replace('_', ' '):>18}  {value}", markup=False, soft_wrap=True)
    show_suitability(out, suitability)
    for line in advice:
        out.print(f"- {line}", markup=False)


def verify(
    index: IndexArgument,
    repair: Annotated[bool, typer.Option("--repair", help="Score damaged chunks again.")] = False,
    scorer: OwnScorerOption = None,
    threads: ThreadsOption = None,
    as_json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Check every byte of an index; name each damaged file, and exit with code 1 if there is any.

    Examples:

    - `anncur verify my.anncur`
    - `anncur verify my.anncur --repair`
    """
    storage = FolderStorage(index)
    if repair:
        with show_progress(as_json=as_json) as progress:
            problems = storage.repair(scorer_of(index, scorer, threads=threads), progress=progress)
    else:
        problems = storage.verify()
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
    """Tune adaptive search anew on the stored scores, which costs no calls: worth it after many items were added.

    Chooses retrievers, side vectors, noise and the first round by what held-out anchor queries find, and for the method
    anncur anchor items and how to split a budget; tells what it chose, and the expected recall before and after.

    Examples:

    - `anncur tune my.anncur`
    - `anncur tune my.anncur --seed 1 --json`
    """
    storage = FolderStorage(index)
    before = _tuned_so_far(storage)
    with show_progress(as_json=as_json) as progress:
        storage.tune(anchor_method, seed, progress=progress)
    version = storage.newest()
    after = version.learned().tuned
    changes = compare(before, after, n_items=version.describe()["n_items"])
    if as_json:
        told = {"chosen": chosen(after.settings), "expected_recall": [asdict(change) for change in changes]}
        print_json({"path": str(index), "version": version.manifest.version, **told})
    else:
        console().print(f"{index} is at version {version.manifest.version}.", markup=False, soft_wrap=True)
        show_tuning(console(), after.settings, changes)


def _tuned_so_far(storage: FolderStorage) -> Tuned:
    """What tuning anew is compared with; it also mends what is damaged."""
    try:
        return storage.newest().learned().tuned
    except DamagedError:
        return Tuned()


def learn(index: IndexArgument, as_json: JsonOption = False, debug: DebugOption = False) -> None:
    """Learn from the searches that were kept (--keep-traffic), which costs no calls.

    Examples:

    - `anncur search my.anncur "small bat" --keep-traffic 1000`
    - `anncur learn my.anncur`
    """
    storage = FolderStorage(index)
    with show_progress(as_json=as_json) as progress:
        n_queries = storage.learn(progress=progress)
    version = storage.newest().manifest.version
    if as_json:
        print_json({"path": str(index), "version": version, "n_queries": n_queries})
    else:
        console().print(f"Learnt from {n_queries:,} queries; {index} is at version {version}.", markup=False)


def gc(
    index: IndexArgument,
    drafts: Annotated[bool, typer.Option("--drafts", help="Also drop unfinished builds, paid for in part.")] = False,
    as_json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Delete files that only older versions need.

    Examples:

    - `anncur gc my.anncur`
    - `anncur gc my.anncur --drafts`
    """
    deleted = FolderStorage(index).gc(drafts=drafts)
    if as_json:
        print_json({"path": str(index), "deleted": deleted})
    else:
        console().print(f"Deleted {len(deleted)} file(s) and folder(s).")
