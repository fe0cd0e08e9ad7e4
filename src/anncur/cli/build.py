"""`anncur build`, `add`, `upsert` and `remove`: make an index on disk, and change it."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from anncur.anchors import ANCHOR_METHODS
from anncur.cli.frame import DebugOption, JsonOption, console, print_json, show_progress
from anncur.cli.options import (
    AddressOption,
    BatchOption,
    CacheOption,
    CorpusArgument,
    CpusPerWorkerOption,
    EmbeddingsOption,
    EngineOption,
    IndexArgument,
    MarkedOption,
    MaxCallsOption,
    NAnchorQueriesOption,
    OwnQueriesOption,
    OwnScorerOption,
    RetriesOption,
    RulesOption,
    ScorerOption,
    SeedOption,
    ThreadsOption,
    WorkersOption,
    WorkersPerGpuOption,
    drawn_queries,
    engine_from,
    naming_lines,
    open_index,
    read_embeddings,
    results_alone,
    scorer_from,
)
from anncur.datasets.jsonl import read_items
from anncur.errors import InputError
from anncur.index.index import Index
from anncur.vectors.engines import DATABASES, EXACT, NAMES, VectorEngine


def build(
    corpus: CorpusArgument,
    out: Annotated[Path, typer.Option("--out", help="The folder of the index.")],
    queries: OwnQueriesOption = None,
    scorer: ScorerOption = "builtin",
    n_anchor_queries: NAnchorQueriesOption = None,
    marked: MarkedOption = False,
    retriever: Annotated[
        list[str] | None,
        typer.Option(
            "--retriever",
            help="bm25, tfidf, minilm, rrf, a dual encoder's folder, st:NAME, or package.module:name; may be repeated. "
            "By default bm25, and the embeddings that are given, else minilm if it is installed. Adaptive search "
            "begins with them, as far as tuning finds them useful; the method rerank takes one.",
        ),
    ] = None,
    embeddings: EmbeddingsOption = None,
    embed_queries: Annotated[
        str | None,
        typer.Option(
            "--embed-queries",
            help="package.module:name of a function that embeds a list of queries; the index remembers it.",
        ),
    ] = None,
    anchor_method: Annotated[
        str,
        typer.Option("--anchor-method", help=f"How the method anncur gets anchor items: {', '.join(ANCHOR_METHODS)}."),
    ] = "pivoted_qr",
    vectors: Annotated[
        str, typer.Option("--vectors", help=f"Who ranks all items: {', '.join((*NAMES, *DATABASES))}.")
    ] = EXACT,
    dtype: Annotated[str, typer.Option("--dtype", help="float32, or float16 at half the size.")] = "float32",
    items_per_chunk: Annotated[int | None, typer.Option("--items-per-chunk", help="Items in one unit of work.")] = None,
    shard: Annotated[
        str | None, typer.Option("--shard", help="i/n: score only every n-th chunk, from the i-th.")
    ] = None,
    engine: EngineOption = "local",
    address: AddressOption = None,
    workers: WorkersOption = None,
    cpus_per_worker: CpusPerWorkerOption = None,
    workers_per_gpu: WorkersPerGpuOption = None,
    batch_size: BatchOption = None,
    retries: RetriesOption = None,
    max_calls: MaxCallsOption = None,
    rule: RulesOption = None,
    cache: CacheOption = None,
    threads: ThreadsOption = None,
    seed: SeedOption = 0,
    as_json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Score all items for the anchor queries, and make an index of it, tuned for adaptive search.

    Without queries nothing is scored: searches work from the first query on, and find more with anchor queries
    (`anncur plan` tells how much) or when `anncur learn` has a query log to fit. A build can be stopped at any moment,
    by Ctrl-C or worse: run the same again, and it resumes.

    Examples:

    - `anncur build corpus.jsonl --queries queries.jsonl --out my.anncur`
    - `anncur build corpus.jsonl --queries queries.jsonl --out my.anncur --scorer my_module:scorer`
    - `anncur build corpus.jsonl --queries q.txt --out my.anncur --scorer my_module:scorer --shard 0/4`
    - `anncur build corpus.jsonl --out my.anncur --embeddings corpus.npy --embed-queries my_module:embed`
    - `anncur build corpus.jsonl --queries q.txt --out my.anncur --engine ray --workers 4`
    """
    runs_on = engine_from(
        engine,
        address=address,
        workers=workers,
        cpus_per_worker=cpus_per_worker,
        workers_per_gpu=workers_per_gpu,
    )
    guarded = scorer_from(
        scorer, batch_size=batch_size, retries=retries, max_calls=max_calls, threads=threads, rules=rule, cache=cache
    )
    with show_progress(as_json=as_json) as progress, results_alone(runs_on), naming_lines(corpus):
        index = Index.build(
            read_items(corpus),
            guarded,
            [] if queries is None else drawn_queries(queries, n_anchor_queries, seed, marked=marked),
            path=out,
            retrievers=retriever or None,
            embeddings=read_embeddings(embeddings),
            embed_queries=embed_queries,
            anchor_method=anchor_method,
            vectors=vectors,
            engine=runs_on,
            dtype=dtype,
            items_per_chunk=items_per_chunk,
            shard=_parse_shard(shard),
            scorer_name=scorer,
            seed=seed,
            progress=progress,
        )
    n_pairs = guarded.calls_made
    if as_json:
        print_json({"path": str(out), "is_complete": index.is_complete, "calls": n_pairs})
    elif index.is_complete:
        command = f"anncur search {shlex.quote(str(out))} 'what you look for'"
        console().print(f"{out} is ready; {n_pairs:,} pairs scored. Try: {command}", markup=False, soft_wrap=True)
        engine = index.info.vectors
        if VectorEngine(engine).is_approximate:
            found = f"{engine} finds {index.engine_recall():.1%} of the items that an exact ranking has at its top."
            console().print(found, markup=False, soft_wrap=True)
    else:
        message = f"This shard of {out} is done with {n_pairs:,} pairs; others are still missing."
        console().print(message, markup=False, soft_wrap=True)


def add(
    index: IndexArgument,
    corpus: CorpusArgument,
    embeddings: EmbeddingsOption = None,
    scorer: OwnScorerOption = None,
    retries: RetriesOption = None,
    max_calls: MaxCallsOption = None,
    rule: RulesOption = None,
    cache: CacheOption = None,
    threads: ThreadsOption = None,
    as_json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Score new items for the anchor queries, and add them.

    Examples:

    - `anncur add my.anncur new.jsonl`
    - `anncur add my.anncur new.jsonl --embeddings new.npy`
    """
    opened = open_index(index, scorer, retries=retries, max_calls=max_calls, threads=threads, rules=rule, cache=cache)
    with show_progress(as_json=as_json) as progress, naming_lines(corpus):
        opened.add(read_items(corpus), embeddings=read_embeddings(embeddings), progress=progress)
    _show(opened, index, as_json=as_json)


def upsert(
    index: IndexArgument,
    corpus: CorpusArgument,
    embeddings: EmbeddingsOption = None,
    scorer: OwnScorerOption = None,
    retries: RetriesOption = None,
    max_calls: MaxCallsOption = None,
    rule: RulesOption = None,
    cache: CacheOption = None,
    threads: ThreadsOption = None,
    as_json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Add new items, and replace those whose ids are already there.

    What is the same in all is left alone; where only metadata changed, nothing is scored. Interrupted, it resumes.

    Examples:

    - `anncur upsert my.anncur today.jsonl`
    - `anncur upsert my.anncur today.jsonl --embeddings today.npy`
    """
    opened = open_index(index, scorer, retries=retries, max_calls=max_calls, threads=threads, rules=rule, cache=cache)
    with show_progress(as_json=as_json) as progress, naming_lines(corpus):
        opened.upsert(read_items(corpus), embeddings=read_embeddings(embeddings), progress=progress)
    _show(opened, index, as_json=as_json)


def remove(
    index: IndexArgument,
    ids: Annotated[list[str], typer.Argument(help="The ids of items.")],
    as_json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Hide items at once, and for good.

    Examples:

    - `anncur remove my.anncur n02139199 n02139671`
    """
    opened = Index.open(index, check=False)
    opened.remove(ids)
    version = opened.info.version
    if as_json:
        print_json({"path": str(index), "version": version, "removed": ids})
    else:
        console().print(f"Removed {len(set(ids))} item(s); {index} is at version {version}.", markup=False)


def _show(opened: Index, path: Path, *, as_json: bool) -> None:
    info = opened.info
    if as_json:
        print_json({"path": str(path), "version": info.version, "n_items": info.n_items})
    else:
        console().print(f"{path} has {info.n_items:,} items at version {info.version}.", markup=False)


def _parse_shard(shard: str | None) -> tuple[int, int] | None:
    if shard is None:
        return None
    part, slash, n_parts = shard.partition("/")
    if not slash or not part.isdecimal() or not n_parts.isdecimal():
        raise InputError(f"--shard must look like 0/4, got {shard!r}")
    return int(part), int(n_parts)
