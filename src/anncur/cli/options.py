"""Options that several commands take, and how their values are read."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, redirect_stdout
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from numpy.typing import NDArray

from anncur.datasets.jsonl import check_ids, read_queries
from anncur.engines.base import Engine
from anncur.engines.names import NAMES as ENGINES
from anncur.engines.names import as_engine
from anncur.engines.ray import RayEngine
from anncur.errors import AnncurWarning, DuplicateIdError, InputError
from anncur.index.index import Index
from anncur.items import Query
from anncur.numbers import whole_number
from anncur.scorers.guard import GuardedScorer
from anncur.scorers.loading import load_scorer

CorpusArgument = Annotated[Path, typer.Argument(help="JSON lines with id and text, or a BEIR folder.")]
RULES = ("concurrency", "requests-per-minute", "pairs-per-minute", "retry-wait")

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
NAnchorQueriesOption = Annotated[
    int | None, typer.Option("--n-anchor-queries", help="Draw this many of the queries at random; all by default.")
]
ScorerOption = Annotated[
    str,
    typer.Option(
        "--scorer",
        help="builtin, a model's folder or .onnx file, package.module:name, a sentence-transformers name, or an "
        "endpoint such as cohere:MODEL, tei:URL or judge:MODEL@URL.",
    ),
]
OwnScorerOption = Annotated[
    str | None, typer.Option("--scorer", help="As for build; by default the one that it was built with.")
]
BatchOption = Annotated[int | None, typer.Option("--batch-size", help="The most pairs in one request to the scorer.")]
RetriesOption = Annotated[int | None, typer.Option("--retries", help="How often a failing request is tried again.")]
MaxCallsOption = Annotated[int | None, typer.Option("--max-calls", help="A cap on the pairs scored in this run.")]
RulesOption = Annotated[
    list[str] | None,
    typer.Option(
        "--rule",
        help="How to ask an endpoint, as name=number: concurrency, requests-per-minute, pairs-per-minute, retry-wait. "
        "May be repeated.",
    ),
]
CacheOption = Annotated[
    Path | None, typer.Option("--cache", help="A file that keeps every score that was paid for, and gives it again.")
]
ThreadsOption = Annotated[
    int | None,
    typer.Option(
        "--threads",
        help="The threads of a model that ONNX Runtime runs; by default one for each core that may be used.",
    ),
]


MarkedOption = Annotated[bool, typer.Option("--marked", help="One [ ] in each line of a text file marks its mention.")]


EngineOption = Annotated[str, typer.Option("--engine", help=f"Who does the work: {', '.join(ENGINES)} (extra `ray`).")]
AddressOption = Annotated[
    str | None,
    typer.Option("--address", help="The address of a Ray cluster; by default one is started on this machine."),
]
WorkersOption = Annotated[
    int | None, typer.Option("--workers", help="How many workers of the engine ray; by default as many as fit.")
]
CpusPerWorkerOption = Annotated[
    float | None, typer.Option("--cpus-per-worker", help="Cores for each worker of the engine ray; 1 by default.")
]
WorkersPerGpuOption = Annotated[
    int | None, typer.Option("--workers-per-gpu", help="Workers of the engine ray that share a GPU; none has one else.")
]


EmbeddingsOption = Annotated[
    Path | None,
    typer.Option("--embeddings", help="An .npy file with an embedding for each item, in the order of the corpus."),
]


def _seed(value: int) -> int:
    if value < 0:
        raise typer.BadParameter(f"a seed must be at least 0, got {value}")
    return value


SeedOption = Annotated[
    int, typer.Option("--seed", callback=_seed, help="The seed of everything that is drawn at random.")
]


@contextmanager
def needs_extra(extra: str) -> Iterator[None]:
    """Around imports that an extra brings: name it, where it is missing."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise InputError(f"this needs {error.name}; run pip install 'anncur[{extra}]'") from error


def engine_from(
    name: str,
    *,
    address: str | None = None,
    workers: int | None = None,
    cpus_per_worker: float | None = None,
    workers_per_gpu: int | None = None,
) -> Engine:
    """An engine by its name, with its settings."""
    if name == RayEngine.name:
        cpus = 1 if cpus_per_worker is None else cpus_per_worker
        return RayEngine(address=address, workers=workers, cpus_per_worker=cpus, workers_per_gpu=workers_per_gpu)
    settings = {
        "--address": address,
        "--workers": workers,
        "--cpus-per-worker": cpus_per_worker,
        "--workers-per-gpu": workers_per_gpu,
    }
    given = [option for option, value in settings.items() if value is not None]
    if given:
        raise InputError(f"{' and '.join(given)} goes with --engine ray")
    return as_engine(name)


@contextmanager
def results_alone(engine: Engine) -> Iterator[None]:
    """Keep standard output for results: what Ray has to say of its workers goes to standard error."""
    with redirect_stdout(sys.stderr) if engine.is_elsewhere else nullcontext():
        yield


def scorer_from(
    name: str,
    *,
    batch_size: int | None = None,
    retries: int | None = None,
    max_calls: int | None = None,
    threads: int | None = None,
    rules: Sequence[str] | None = None,
    cache: Path | None = None,
    shares_requests: bool | None = None,
) -> GuardedScorer:
    """Load a scorer by its name; modules in the current folder count."""
    import_from_here()
    return load_scorer(
        name,
        batch_size=batch_size,
        retries=retries,
        max_calls=max_calls,
        threads=threads,
        cache=cache,
        shares_requests=shares_requests,
        **_parsed_rules(rules or ()),
    )


def _parsed_rules(rules: Sequence[str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for rule in rules:
        name, _, value = rule.partition("=")
        if name not in RULES:
            raise InputError(f"--rule must be name=number, with one of the names {', '.join(RULES)}; got {rule!r}")
        try:
            number = float(value)
        except ValueError:
            raise InputError(f"--rule {name}=… must be a number, got {value!r}") from None
        found[name.replace("-", "_")] = int(number) if number.is_integer() else number
    return found


def open_index(
    path: Path,
    scorer: str | None = None,
    *,
    retries: int | None = None,
    max_calls: int | None = None,
    threads: int | None = None,
    rules: Sequence[str] | None = None,
    cache: Path | None = None,
    **options: Any,
) -> Index:
    """An index with its scorer, by name or as the index remembers it; modules in the current folder count."""
    import_from_here()
    if retries is None and max_calls is None and threads is None and not rules and cache is None:
        return Index.open(path, scorer or None, **options)  # which loads it when it is needed
    loaded = scorer_of(path, scorer, retries=retries, max_calls=max_calls, threads=threads, rules=rules, cache=cache)
    return Index.open(path, loaded, **options)


def scorer_of(path: Path, scorer: str | None, **options: Any) -> GuardedScorer:
    """The scorer of an index, by name or as the index remembers it; `options` are those of `scorer_from`."""
    name = scorer or Index.open(path, check=False).info.scorer_name
    if not name:
        raise InputError(f"{path} was built with a scorer that has no name to load it by; pass --scorer")
    return scorer_from(name, **options)


def read_embeddings(path: Path | None) -> NDArray[Any] | None:
    """The array of an .npy file; it is read as it is needed."""
    if path is None:
        return None
    try:
        rows: NDArray[Any] = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        message = f"--embeddings must be an .npy file with a row for each item, can't read {path}: {error}"
        raise InputError(message) from error
    return rows


@contextmanager
def naming_lines(corpus: Path) -> Iterator[None]:
    """Around work on the items of a file: where two of them share an id, name their lines."""
    try:
        yield
    except DuplicateIdError:
        check_ids(corpus)
        raise


def import_from_here() -> None:
    """Let `package.module:name` find modules in the current folder, as `python -m` does."""
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())


def drawn_queries(
    path: Path, n_queries: int | None, seed: int, *, marked: bool, option: str = "--n-anchor-queries"
) -> list[Query]:
    """All queries of a file, or as many as an option asks for, drawn at random."""
    if n_queries is not None:
        whole_number(option, n_queries, least=1)
    queries = list(read_queries(path, marked=marked))
    if not queries:
        raise InputError(f"{path} holds no queries; an index is tuned and calibrated on some like those to come")
    if n_queries is not None and n_queries > len(queries):
        warnings.warn(
            f"{option} {n_queries} is more than the {len(queries)} of {path}: all of them are taken",
            AnncurWarning,
            stacklevel=2,
        )
    if n_queries is None or n_queries >= len(queries):
        return queries
    order = np.random.default_rng(seed).permutation(len(queries))
    return [queries[position] for position in order[:n_queries]]
