"""Options that several commands take, and how their values are read."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from anncur.datasets.jsonl import read_queries
from anncur.errors import InputError
from anncur.index.folder import FolderStorage
from anncur.index.index import Index
from anncur.items import Query
from anncur.scorers.guard import GuardedScorer
from anncur.scorers.loading import load_scorer

CorpusArgument = Annotated[Path, typer.Argument(help="JSON lines with id and text, or a BEIR folder.")]
IndexArgument = Annotated[Path, typer.Argument(help="The folder of an index.")]
QueriesOption = Annotated[
    Path, typer.Option("--queries", help="Anchor queries: JSON lines, a text file with one per line, or a BEIR folder.")
]
OwnQueriesOption = Annotated[
    Path | None,
    typer.Option(
        "--queries",
        help="Anchor queries: JSON lines, a text file with one per line, or a BEIR folder; none by default.",
    ),
]
AnchorsOption = Annotated[int | None, typer.Option("--anchors", help="Draw so many of the queries; all by default.")]
ScorerOption = Annotated[
    str,
    typer.Option(
        "--scorer",
        help="builtin, a model's folder or .onnx file, package.module:name, or a sentence-transformers name.",
    ),
]
OwnScorerOption = Annotated[
    str | None, typer.Option("--scorer", help="As for build; by default the one that it was built with.")
]
BatchOption = Annotated[int | None, typer.Option("--batch-size", help="The most pairs in one call of the scorer.")]
RetriesOption = Annotated[int | None, typer.Option("--retries", help="How often a failing call is tried again.")]
MaxCallsOption = Annotated[int | None, typer.Option("--max-calls", help="A cap on the pairs scored in this run.")]
ThreadsOption = Annotated[
    int | None,
    typer.Option("--threads", help="Of a model in ONNX Runtime; by default all cores that may be used."),
]


def _seed(value: int) -> int:
    if value < 0:
        raise typer.BadParameter(f"a seed must be at least 0, got {value}")
    return value


SeedOption = Annotated[int, typer.Option("--seed", callback=_seed, help="Of everything that is drawn at random.")]


@contextmanager
def needs_extra(extra: str) -> Iterator[None]:
    """Around imports that an extra brings: say which one, where it is missing."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise InputError(f"this needs {error.name}; run pip install 'anncur[{extra}]'") from error


def scorer_from(
    name: str,
    *,
    batch_size: int | None = None,
    retries: int | None = None,
    max_calls: int | None = None,
    threads: int | None = None,
) -> GuardedScorer:
    """Load a scorer by its name; modules in the current folder count."""
    import_from_here()
    return load_scorer(name, batch_size=batch_size, retries=retries, max_calls=max_calls, threads=threads)


def scorer_of(index: Path, name: str | None, *, threads: int | None = None) -> GuardedScorer:
    """The scorer of an index, by its name or as the index remembers it; modules in the current folder count."""
    import_from_here()
    return Index.scorer_of(FolderStorage(index), name, threads=threads)


def import_from_here() -> None:
    """Let `package.module:name` find modules in the current folder, as `python -m` does."""
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())


def anchor_queries_from(path: Path, n_anchors: int | None, seed: int) -> list[Query]:
    """All queries of a file, or so many of them, drawn at random."""
    queries = list(read_queries(path))
    if not queries:
        raise InputError(f"{path} holds no queries; anchor queries are what an index learns from")
    if n_anchors is None or n_anchors >= len(queries):
        return queries
    return [queries[position] for position in np.random.default_rng(seed).permutation(len(queries))[:n_anchors]]
