"""`anncur serve`: indexes over HTTP."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from anncur.cli.frame import DebugOption, JsonOption, console, print_json
from anncur.cli.options import (
    CacheOption,
    MaxCallsOption,
    RetriesOption,
    RulesOption,
    ThreadsOption,
    needs_extra,
    scorer_of,
)
from anncur.errors import InputError

if TYPE_CHECKING:
    from anncur.scorers.guard import GuardedScorer
    from anncur.service.served import ServedIndexes
    from anncur.service.settings import ServiceSettings


def serve(
    indexes: Annotated[
        list[str],
        typer.Argument(metavar="INDEX…", help="Folders of indexes, or NAME=FOLDER; the first is the default."),
    ],
    host: Annotated[str, typer.Option("--host", help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", help="The port to listen on.", min=0, max=65535)] = 8000,
    read_token_file: Annotated[
        Path | None,
        typer.Option("--read-token-file", help="A file with the token for searches; else ANNCUR_READ_TOKEN."),
    ] = None,
    write_token_file: Annotated[
        Path | None,
        typer.Option("--write-token-file", help="A file with the token for changes; else ANNCUR_WRITE_TOKEN."),
    ] = None,
    max_running: Annotated[int, typer.Option("--max-running", help="Searches at once.")] = 16,
    max_waiting: Annotated[
        int, typer.Option("--max-waiting", help="Searches that may wait for a place; more are refused with 429.")
    ] = 16,
    max_slowdown: Annotated[
        float,
        typer.Option(
            "--max-slowdown",
            help="How many times longer than alone a search may take where more come than can be answered; 0 for any.",
        ),
    ] = 2.0,
    max_budget: Annotated[int, typer.Option("--max-budget", help="The most pairs that a search may ask for.")] = 10_000,
    max_k: Annotated[int, typer.Option("--max-k", help="The most items that a search may ask for.")] = 1_000,
    max_body_mb: Annotated[float, typer.Option("--max-body-mb", help="The largest body of a request.")] = 8.0,
    max_answer_mb: Annotated[
        float, typer.Option("--max-answer-mb", help="The largest answer: items' texts and metadata.")
    ] = 32.0,
    max_write_seconds: Annotated[
        float, typer.Option("--max-write-seconds", help="How long a change of items may take.")
    ] = 600.0,
    max_exhaustive: Annotated[
        int, typer.Option("--max-exhaustive", help="The most items that an exhaustive search may score; 0 for none.")
    ] = 20_000,
    fail_open: Annotated[
        bool, typer.Option("--fail-open", help="Answer first guesses, marked as unscored, where the scorer fails.")
    ] = False,
    raw_relevance: Annotated[
        bool, typer.Option("--raw-relevance", help="Re-ranking in Cohere's shape gives raw scores, not 0 to 1.")
    ] = False,
    log_texts: Annotated[bool, typer.Option("--log-texts", help="Write the texts of queries into the log.")] = False,
    cors: Annotated[
        list[str] | None, typer.Option("--cors", help="An origin whose pages may read answers. May be repeated.")
    ] = None,
    allow_host: Annotated[
        list[str] | None, typer.Option("--allow-host", help="A name that this service goes by. May be repeated.")
    ] = None,
    refresh_seconds: Annotated[
        float, typer.Option("--refresh-seconds", help="How often to look for a newer version of an index.")
    ] = 2.0,
    drain_seconds: Annotated[
        float, typer.Option("--drain-seconds", help="How long running requests may take after SIGTERM.")
    ] = 30.0,
    scorer: Annotated[
        str | None, typer.Option("--scorer", help="As for build; by default the one that each was built with.")
    ] = None,
    retries: RetriesOption = None,
    max_calls: MaxCallsOption = None,
    rule: RulesOption = None,
    cache: CacheOption = None,
    threads: ThreadsOption = None,
    as_json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Serve indexes over HTTP, with a page for people.

    Examples:

    - `anncur serve animals.anncur`
    - `anncur serve animals=data/animals.anncur plants=data/plants.anncur --port 9000`
    - `ANNCUR_READ_TOKEN=… ANNCUR_WRITE_TOKEN=… anncur serve animals.anncur --host 0.0.0.0`
    """
    with needs_extra("serve"):
        from anncur.service.access_log import log_to_stderr
        from anncur.service.app import make_app
        from anncur.service.server import run_app
        from anncur.service.settings import MEGABYTE
    settings = _settings(
        host,
        tuple(allow_host or ()),
        (read_token_file, write_token_file),
        max_running=max_running,
        max_waiting=max_waiting,
        max_slowdown=max_slowdown,
        max_body_bytes=round(max_body_mb * MEGABYTE),
        max_answer_bytes=round(max_answer_mb * MEGABYTE),
        max_write_seconds=max_write_seconds,
        max_budget=max_budget,
        max_k=max_k,
        max_exhaustive=max_exhaustive,
        fail_open=fail_open,
        raw_relevance=raw_relevance,
        log_texts=log_texts,
        cors_origins=tuple(cors or ()),
    )
    load = partial(scorer_of, retries=retries, max_calls=max_calls, threads=threads, rules=rule, cache=cache)
    opened = _opened(indexes, lambda folder: load(folder, scorer, shares_requests=True), refresh_seconds)
    _announce(list(opened), f"http://{host}:{port}", as_json=as_json)
    log_to_stderr(log_texts=log_texts)
    run_app(make_app(opened, settings), host=host, port=port, drain_seconds=drain_seconds)


def _settings(
    host: str, hosts: tuple[str, ...], token_files: tuple[Path | None, Path | None], **options: Any
) -> ServiceSettings:
    """Settings with the tokens of files or of the environment; refused where others could come in without one."""
    from anncur.service.server import allowed_hosts, check_address
    from anncur.service.settings import AccessTokens, ServiceSettings

    read_file, write_file = token_files
    tokens = AccessTokens.find(os.environ, read_file=read_file, write_file=write_file)
    settings = ServiceSettings(tokens=tokens, hosts=allowed_hosts(host, tokens, hosts), **options)
    check_address(host, tokens)
    return settings


def _opened(indexes: list[str], load: Callable[[Path], GuardedScorer], refresh_seconds: float) -> ServedIndexes:
    """The indexes, each with its scorer."""
    from anncur.service.served import ServedIndex, ServedIndexes

    folders = [_named(index) for index in indexes]
    return ServedIndexes(
        ServedIndex.open(name, folder, load(folder), refresh_seconds=refresh_seconds) for name, folder in folders
    )


def _announce(names: list[str], url: str, *, as_json: bool) -> None:
    """Say where it will listen; what happens then is in the log."""
    if as_json:
        print_json({"url": url, "indexes": names})
    else:
        console().print(f"{', '.join(names)} at {url}", markup=False, soft_wrap=True)
    sys.stdout.flush()


def _named(index: str) -> tuple[str, Path]:
    """The name of an index and its folder; without a name, that of the folder."""
    name, separator, folder = index.partition("=")
    path = Path(folder if separator and "/" not in name else index)
    if not path.is_dir():
        raise InputError(f"{path} is not the folder of an index; build one with anncur build … --out {path}")
    return (name, path) if path == Path(folder) and separator else (path.resolve().name.removesuffix(".anncur"), path)
