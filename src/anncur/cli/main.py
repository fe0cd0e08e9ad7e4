"""The entry point `anncur`, and its commands."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

import anncur
from anncur.cli.bench import bench
from anncur.cli.build import add, build, remove, upsert
from anncur.cli.demo import demo
from anncur.cli.export import export
from anncur.cli.frame import at_the_edge
from anncur.cli.link import link
from anncur.cli.maintain import calibrate, compact, gc, info, learn, tune, verify
from anncur.cli.plan import plan
from anncur.cli.search import search
from anncur.cli.serve import serve
from anncur.cli.train import distill, train

app = typer.Typer(
    name="anncur",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
)

for command in (
    demo,
    plan,
    build,
    search,
    serve,
    add,
    upsert,
    remove,
    verify,
    info,
    tune,
    calibrate,
    learn,
    compact,
    gc,
    distill,
    export,
    link,
):
    app.command()(at_the_edge(command))
app.add_typer(train)
app.add_typer(bench)


def _print_version(value: bool) -> None:
    if value:
        sys.stdout.write(f"anncur {anncur.__version__}\n")
        raise typer.Exit


@app.callback()
def about(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """Find the k items that an expensive scorer likes best, without scoring them all."""


def main() -> None:
    """The console script."""
    app(prog_name="anncur")
