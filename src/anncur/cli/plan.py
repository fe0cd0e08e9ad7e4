"""`anncur plan`: what a build will cost and bring, before anybody pays for it."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from anncur.cli.frame import DebugOption, JsonOption, console, print_json, show_progress
from anncur.cli.options import (
    BatchOption,
    CacheOption,
    CorpusArgument,
    EmbeddingsOption,
    MarkedOption,
    MaxCallsOption,
    NAnchorQueriesOption,
    QueriesOption,
    RetriesOption,
    RulesOption,
    ScorerOption,
    SeedOption,
    ThreadsOption,
    drawn_queries,
    read_embeddings,
    scorer_from,
)
from anncur.cli.tables import show_suitability
from anncur.datasets.jsonl import read_items
from anncur.errors import InputError
from anncur.planning.cluster import Cluster, ClusterPlan
from anncur.planning.plan import BuildPlan
from anncur.planning.plan import plan as make_plan
from anncur.planning.worth import AnchorCost
from anncur.progress import duration


def plan(
    corpus: CorpusArgument,
    queries: QueriesOption,
    scorer: ScorerOption = "builtin",
    n_anchor_queries: NAnchorQueriesOption = None,
    marked: MarkedOption = False,
    retriever: Annotated[
        list[str] | None, typer.Option("--retriever", help="As for build: what to compare with; may be repeated.")
    ] = None,
    embeddings: EmbeddingsOption = None,
    embed_queries: Annotated[
        str | None,
        typer.Option("--embed-queries", help="package.module:name of a function that embeds a list of queries."),
    ] = None,
    price: Annotated[float | None, typer.Option("--price", help="Price of 1,000 pairs, in dollars.")] = None,
    out: Annotated[
        Path | None, typer.Option("--out", help="The index to come: keep the pilot's scores there for its build.")
    ] = None,
    seconds: Annotated[float, typer.Option("--seconds", help="About how long the pilot may score.")] = 60.0,
    cluster: Annotated[
        bool, typer.Option("--cluster", help="Tell how long a build by the engine ray takes, with how many workers.")
    ] = False,
    price_per_hour: Annotated[
        float | None, typer.Option("--price-per-hour", help="Price of one worker of a cluster, in dollars.")
    ] = None,
    losses_per_hour: Annotated[
        float | None, typer.Option("--losses-per-hour", help="How often a worker is lost; 0 by default.")
    ] = None,
    most_workers: Annotated[
        int | None, typer.Option("--most-workers", help="The most workers to consider; 64 by default.")
    ] = None,
    deadline_hours: Annotated[
        float | None, typer.Option("--deadline-hours", help="Find the cheapest number of workers that is done by then.")
    ] = None,
    load_seconds: Annotated[
        float | None, typer.Option("--load-seconds", help="How long a worker loads the scorer; measured by default.")
    ] = None,
    start_seconds: Annotated[
        float | None,
        typer.Option("--start-seconds", help=f"Until a cluster is there; {Cluster().start_seconds:g} by default."),
    ] = None,
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
    """Find out what a build will cost and bring, with a small pilot.

    Measures how far adaptive search gets without anchor queries, with 10, with 40 and with more of them, beside
    re-ranking with each retriever and the method anncur, and advises which anchor queries are worth paying for. Nothing
    is written but, with --out, the pilot's scores, which the build then doesn't pay for again. With --cluster, a worker
    is taken to be as fast as this process: for a model in ONNX Runtime, pass --threads with the cores that it has.

    Examples:

    - `anncur plan corpus.jsonl --queries queries.jsonl`
    - `anncur plan corpus.jsonl --queries queries.jsonl --scorer my_module:scorer`
    - `anncur plan corpus.jsonl --queries queries.jsonl --scorer my_module:scorer --price 0.5 --seconds 20`
    - `anncur plan corpus.jsonl --queries queries.jsonl --embeddings corpus.npy --embed-queries my_module:embed`
    - `anncur plan corpus.jsonl --queries queries.jsonl --cluster --price-per-hour 1.2 --deadline-hours 4`
    """
    wanted = _cluster(
        cluster,
        most_workers=most_workers,
        price_per_hour=price_per_hour,
        losses_per_hour=losses_per_hour,
        deadline_hours=deadline_hours,
        load_seconds=load_seconds,
        start_seconds=start_seconds,
    )
    guarded = scorer_from(
        scorer, batch_size=batch_size, retries=retries, max_calls=max_calls, threads=threads, rules=rule, cache=cache
    )
    anchor_queries = drawn_queries(queries, n_anchor_queries, seed, marked=marked)
    with show_progress(as_json=as_json) as progress:
        made = make_plan(
            read_items(corpus),
            guarded,
            anchor_queries,
            retrievers=retriever or None,
            embeddings=read_embeddings(embeddings),
            embed_queries=embed_queries,
            price_per_1000=price,
            path=out,
            cluster=wanted,
            seconds=seconds,
            seed=seed,
            on_pilot=_PilotLine(as_json=as_json),
            progress=progress,
        )
    if as_json:
        print_json(made.to_dict())
    else:
        _show(console(), made)


@dataclass(frozen=True)
class _PilotLine:
    """Writes to standard error what the pilot will cost."""

    as_json: bool

    def __call__(self, cost: AnchorCost) -> None:
        shown = f"The pilot scores {cost}; cap it with --max-calls"
        sys.stderr.write((json.dumps({"pilot": asdict(cost)}) if self.as_json else shown) + "\n")


def _cluster(is_wanted: bool, **settings: float | None) -> Cluster | None:
    given = {name: value for name, value in settings.items() if value is not None}
    if is_wanted:
        return Cluster(**given)  # type: ignore[arg-type]  # each is of the type of its option
    if given:
        raise InputError(f"--{next(iter(given)).replace('_', '-')} goes with --cluster")
    return None


def _show(out: Console, made: BuildPlan) -> None:
    out.print(f"{made.n_items:,} items x {made.n_anchor_queries:,} anchor queries = {made.n_pairs:,} pairs to score")
    out.print(f"time    about {duration(made.seconds)}, at {1000 * made.seconds_per_pair:.3g} ms per pair")
    if made.price is not None:
        out.print(f"price   ${made.price:,.2f}")
    out.print(f"disk    about {_size(made.disk_bytes)}")
    out.print(f"memory  about {_size(made.memory_bytes)} to search it")
    out.print(_recall_table(made))
    out.print(_cost_table(made))
    if made.cluster is not None:
        out.print(_cluster_table(made.cluster))
        out.print(_best_workers(made.cluster))
    show_suitability(out, made.suitability, of=" of the pilot", title=_pilot_title(made))
    out.print("A pilot has fewer items than the whole, which is harder: take it for a comparison, not for a promise.")
    for line in made.advice:
        out.print(f"- {line}", markup=False)


def _recall_table(made: BuildPlan) -> Table:
    title = (
        f"\nShare of the scorer's top 10 that is found, mean of {made.pilot_test_queries} test queries\n(a pilot of "
        f"{made.pilot_items:,} items and {made.pilot_queries} queries, {made.pilot_calls:,} pairs)"
    )
    table = Table(title=title)
    table.add_column("pairs scored (share of the items)")
    for budget, share in {recall.budget: recall.share for recall in made.recalls}.items():
        table.add_column(f"{budget:,} ({share:.0%})", justify="right")
    for method in dict.fromkeys(recall.method for recall in made.recalls):
        table.add_row(method, *(f"{recall.recall:.0%}" for recall in made.recalls if recall.method == method))
    return table


def _pilot_title(made: BuildPlan) -> str:
    """How the second table of the pilot differs from the first one."""
    n_anchors = max(recall.n_anchor_queries for recall in made.recalls)
    known = f"with {n_anchors} anchor queries" if n_anchors else "without anchor queries"
    others = "; anncur: of held-out anchor queries" if n_anchors else ""
    return f"The same pilot {known}, for other k and budgets\n(mean of the same test queries{others})"


def _cost_table(made: BuildPlan) -> Table:
    table = Table(title="\nWhat anchor queries cost for all items")
    for name in ("anchor queries", "pairs", "time", *([] if made.price is None else ["price"])):
        table.add_column(name, justify="right")
    for cost in made.costs:
        price = [] if cost.price is None else [f"${cost.price:,.2f}"]
        table.add_row(f"{cost.n_anchor_queries:,}", f"{cost.n_pairs:,}", duration(cost.seconds), *price)
    return table


def _cluster_table(plan: ClusterPlan) -> Table:
    title = (
        f"\nOn a cluster: {plan.n_chunks:,} chunks of {_seconds(plan.chunk_seconds)}, after "
        f"{_seconds(plan.load_seconds)} to load the scorer (simulated)"
    )
    table = Table(title=title)
    for name in ("workers", "time", "price", "share of time scoring", "workers lost"):
        table.add_column(name, justify="right")
    for cost in plan.costs:
        cells = (f"${cost.price:,.2f}", f"{cost.share_scoring:.0%}", f"{cost.n_lost:.1f}")
        mark = " *" if cost.n_workers == plan.best else ""
        table.add_row(f"{cost.n_workers:,}{mark}", duration(cost.seconds), *cells)
    return table


def _seconds(seconds: float) -> str:
    return "less than 0.01 s" if seconds < 0.01 else f"{seconds:.2f} s" if seconds < 1 else f"{seconds:,.1f} s"


def _best_workers(plan: ClusterPlan) -> str:
    if plan.best is None:
        return "None of these is done by the deadline: allow more workers, or take fewer anchor queries."
    return f"* best: anncur build --engine ray --workers {plan.best}"


def _size(n_bytes: int) -> str:
    return f"{n_bytes / 2**30:.1f} GiB" if n_bytes >= 2**30 else f"{n_bytes / 2**20:.1f} MiB"
