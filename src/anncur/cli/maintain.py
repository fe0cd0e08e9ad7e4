"""`anncur info`, `verify`, `tune`, `learn` and `gc`: look after an index on disk."""

from __future__ import annotations

from typing import Annotated

import typer

from anncur.anchors import ANCHOR_METHODS
from anncur.cli.frame import DebugOption, JsonOption, console, print_json, show_progress
from anncur.cli.options import IndexArgument, OwnScorerOption, SeedOption, ThreadsOption, scorer_of
from anncur.index.folder import FolderStorage


def info(index: IndexArgument, as_json: JsonOption = False, debug: DebugOption = False) -> None:
    """Tell what an index is made of.

    Examples:

    - `anncur info my.anncur`
    """
    described = FolderStorage(index).newest().describe()
    if as_json:
        print_json(described)
    else:
        for name, value in described.items():
            console().print(f"{name.replace('_', ' '):>18}  {value}", markup=False)


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
        str, typer.Option("--anchor-method", help=f"How anchor items are chosen: {', '.join(ANCHOR_METHODS)}.")
    ] = "pivoted_qr",
    seed: SeedOption = 0,
    as_json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Choose anchor items and splits anew from the stored scores, which costs no calls.

    Examples:

    - `anncur tune my.anncur`
    """
    storage = FolderStorage(index)
    with show_progress(as_json=as_json) as progress:
        storage.tune(anchor_method, seed, progress=progress)
    version = storage.newest().manifest.version
    if as_json:
        print_json({"path": str(index), "version": version})
    else:
        console().print(f"{index} is at version {version}.", markup=False)


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
