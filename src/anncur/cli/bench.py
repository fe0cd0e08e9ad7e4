"""`anncur bench run`, `reproduce` and `report`: measure methods on exact scores, and report the results."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Generic

import typer

from anncur.cli.frame import DebugOption, JsonOption, at_the_edge, console, print_json, show_progress
from anncur.cli.options import (
    AddressOption,
    BatchOption,
    CacheOption,
    CpusPerWorkerOption,
    EngineOption,
    MaxCallsOption,
    RetriesOption,
    RulesOption,
    ScorerOption,
    SeedOption,
    ThreadsOption,
    WorkersOption,
    WorkersPerGpuOption,
    engine_from,
    needs_extra,
    results_alone,
    scorer_from,
)
from anncur.engines.base import Engine
from anncur.errors import InputError
from anncur.evaluation.own import (
    AnySizes,
    Cost,
    OwnData,
    draw_affordable,
    draw_items,
    draw_queries,
    fit_sizes,
    own_world,
    read_own,
    sample_world,
    timed_once,
)
from anncur.evaluation.recommendation import MANY_QUERIES, Terms
from anncur.evaluation.rows import RowFile, read_rows
from anncur.evaluation.study import PRESETS, Sizes, Study, store_retrievers
from anncur.evaluation.worlds import ScoredWorld
from anncur.numbers import number, whole_number
from anncur.planning.pilot import RequestTime
from anncur.progress import Progress
from anncur.reproduction.study import PRESETS as PAPER_PRESETS
from anncur.reproduction.study import PaperStudy, score_items
from anncur.retrievers.base import Retriever
from anncur.retrievers.loading import load_retrievers
from anncur.scorers.guard import GuardedScorer

bench = typer.Typer(name="bench", help="Measure all methods, and report the results.", no_args_is_help=True)

QUICK_PRESET, QUICK_MINUTES = "quick", 10.0

CorpusArgument = Annotated[
    Path | None, typer.Argument(help="JSON lines with id and text, or a BEIR folder; by default the bundled sample.")
]
OutOption = Annotated[Path, typer.Option("--out", help="Where scores, rows and the report are kept.")]
QueriesOption = Annotated[
    Path | None,
    typer.Option(
        "--queries",
        help="JSON lines, a text file with one per line, or a BEIR folder. Those with the same `document` are never "
        "on both sides of a split.",
    ),
]
RetrieverOption = Annotated[
    list[str] | None,
    typer.Option(
        "--retriever", help="bm25, tfidf (the default are both), minilm or a dual encoder's folder; may be repeated."
    ),
]
QrelsOption = Annotated[
    str | None,
    typer.Option("--qrels", help="A split of judgements of a BEIR folder: measure its nDCG@10 and recall too."),
]
AnchorsOption = Annotated[int | None, typer.Option("--anchors", help="The most anchor queries to use.")]
TestsOption = Annotated[int | None, typer.Option("--tests", help="The fewest test queries to use.")]
ItemsOption = Annotated[int | None, typer.Option("--items", help="Draw this many of the items; all by default.")]
SeedsOption = Annotated[int | None, typer.Option("--seeds", help="The number of splits of the scoreboard.")]
MinutesOption = Annotated[
    float | None,
    typer.Option(
        "--minutes",
        help="Draw as many items and queries as can be scored in about this time; measuring methods on them takes some "
        "minutes more. By default 10 with the quick preset, unless --anchors, --tests or --items tell how many; else "
        "everything is scored.",
    ),
]
PriceOption = Annotated[float | None, typer.Option("--price", help="Price of 1,000 pairs, in dollars.")]
LatencyOption = Annotated[
    float | None,
    typer.Option(
        "--latency-ms",
        help="Milliseconds of a request to the scorer that you will use, if it is another; as measured by default.",
    ),
]
PairOption = Annotated[
    float | None, typer.Option("--pair-ms", help="Milliseconds of each pair in a request, likewise.")
]
ServedOption = Annotated[
    int | None,
    typer.Option(
        "--queries-served",
        help=f"How many queries you will serve: what is recommended costs the least then; {MANY_QUERIES:,} by default.",
    ),
]
ExperimentOption = Annotated[list[str] | None, typer.Option("--experiment", help="Run only this one; may be repeated.")]


@dataclass(frozen=True)
class _Inputs:
    """What is measured and where results go, as the options give it."""

    corpus: Path | None
    queries: Path | None
    qrels: str | None
    scorer: str
    retrievers: Sequence[str] | None
    n_items: int | None
    out: Path
    engine: Engine
    seed: int
    as_json: bool
    seconds: float | None = None  # that scoring may take


@dataclass(frozen=True, eq=False)
class _Setup(Generic[AnySizes]):
    """The same after all checks that can be made before anything is paid for."""

    inputs: _Inputs
    scorer: GuardedScorer
    retrievers: Sequence[Retriever]
    data: OwnData | ScoredWorld
    sizes: AnySizes
    file: RowFile
    request_time: RequestTime | None = None


@bench.command(name="run")
@at_the_edge
def run(
    corpus: CorpusArgument = None,
    out: OutOption = Path("bench"),
    queries: QueriesOption = None,
    scorer: ScorerOption = "builtin",
    retriever: RetrieverOption = None,
    qrels: QrelsOption = None,
    preset: Annotated[
        str, typer.Option("--preset", help=f"How much is measured: {', '.join(PRESETS)}.")
    ] = QUICK_PRESET,
    anchors: AnchorsOption = None,
    tests: TestsOption = None,
    items: ItemsOption = None,
    seeds: SeedsOption = None,
    minutes: MinutesOption = None,
    price: PriceOption = None,
    latency_ms: LatencyOption = None,
    pair_ms: PairOption = None,
    queries_served: ServedOption = None,
    experiment: ExperimentOption = None,
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
    """Measure all methods on your own scorer, items and queries, or on the bundled sample, and recommend one.

    Every pair of the queries and items that are drawn is scored once and kept; the cost is shown before scoring begins.
    The run can be stopped at any moment: run the same again, and it resumes. The report begins with one sentence: which
    method to use, with how many anchor queries and which budget, and why. Experiments: `scoreboard` (the recall of
    every method for every budget, with intervals, and what it costs), `depth` (nDCG@10 and recall by judgements, with
    --qrels), `spectrum` (how many principal components explain your scorer's scores) and `histogram` (how the scores
    are distributed). Results are rows in rows.jsonl, and a report in HTML and Markdown with figures.

    Examples:

    - `anncur bench run --out my-bench`
    - `anncur bench run corpus.jsonl --queries queries.jsonl --scorer my_module:scorer --minutes 5 --price 0.02`
    - `anncur bench run corpus.jsonl --queries queries.jsonl --scorer my_module:scorer --out my-bench`
    - `anncur bench run scifact --qrels test --scorer my-model --retriever bm25 --retriever minilm --out my-bench`
    """
    with needs_extra("bench"):
        import matplotlib  # noqa: F401  # before anything is paid for

        from anncur.evaluation.experiments import EXPERIMENTS, choose_experiments, run_experiments
        from anncur.evaluation.report import recommend_all, write_report
    chosen = choose_experiments(EXPERIMENTS, experiment or ())
    terms = _terms(price, latency_ms, pair_ms, queries_served)
    if minutes is None and preset == QUICK_PRESET and (anchors, tests, items) == (None, None, None):
        minutes = QUICK_MINUTES
    sizes = _sizes(PRESETS, preset, anchors=anchors, tests=tests, seeds=seeds)
    guarded = scorer_from(
        scorer, batch_size=batch_size, retries=retries, max_calls=max_calls, threads=threads, rules=rule, cache=cache
    )
    runs_on = engine_from(
        engine,
        address=address,
        workers=workers,
        cpus_per_worker=cpus_per_worker,
        workers_per_gpu=workers_per_gpu,
    )
    inputs = _Inputs(corpus, queries, qrels, scorer, retriever, items, out, runs_on, seed, as_json, _seconds(minutes))
    setup = _prepare(inputs, sizes, guarded, chosen, has_tests=tests is not None)
    with show_progress(as_json=as_json) as progress, results_alone(runs_on):
        world = _scored_world(setup, progress)
        study = Study(world, store_retrievers(setup.retrievers, world), setup.sizes, runs=out / "runs")
        n_made = run_experiments(study, setup.file, chosen, progress=progress)
        pages = write_report(setup.file.rows, out, terms)
    recommended = [asdict(each) for each in recommend_all(setup.file.rows, terms)]
    _show(n_made, "new rows", setup.file.path, pages, as_json=as_json, recommended=recommended)


@bench.command(name="reproduce")
@at_the_edge
def reproduce(
    corpus: CorpusArgument = None,
    out: OutOption = Path("bench/reproduction"),
    queries: QueriesOption = None,
    scorer: ScorerOption = "builtin",
    retriever: RetrieverOption = None,
    qrels: QrelsOption = None,
    preset: Annotated[
        str, typer.Option("--preset", help=f"How much is measured: {', '.join(PAPER_PRESETS)}.")
    ] = "quick",
    anchors: AnchorsOption = None,
    tests: TestsOption = None,
    items: ItemsOption = None,
    item_anchors: Annotated[
        int, typer.Option("--item-anchors", help="Score this many items as queries, for fixedITEM and itemCUR.")
    ] = 0,
    seeds: SeedsOption = None,
    experiment: ExperimentOption = None,
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
    """Rerun the experiments of the paper behind ANNCUR on your own data or the bundled sample, and judge its claims.

    Scores are paid for and kept as by `anncur bench run`, and rows are completed in the same way. The report has every
    claim of the paper with its verdict, the scoreboard, and all curves and heatmaps.

    Examples:

    - `anncur bench reproduce`
    - `anncur bench reproduce scifact --qrels train --scorer my-model --preset paper --anchors 500 --out my-bench`
    """
    with needs_extra("bench"):
        import matplotlib  # noqa: F401  # before anything is paid for

        from anncur.evaluation.experiments import choose_experiments, run_experiments
        from anncur.reproduction.experiments import EXPERIMENTS
        from anncur.reproduction.report import write_report
    chosen = choose_experiments(EXPERIMENTS, experiment or ())
    whole_number("item_anchors", item_anchors, least=0)
    sizes = _sizes(PAPER_PRESETS, preset, anchors=anchors, tests=tests, seeds=seeds)
    guarded = scorer_from(
        scorer, batch_size=batch_size, retries=retries, max_calls=max_calls, threads=threads, rules=rule, cache=cache
    )
    runs_on = engine_from(
        engine,
        address=address,
        workers=workers,
        cpus_per_worker=cpus_per_worker,
        workers_per_gpu=workers_per_gpu,
    )
    inputs = _Inputs(corpus, queries, qrels, scorer, retriever, items, out, runs_on, seed, as_json)
    setup = _prepare(inputs, sizes, guarded, chosen, has_tests=tests is not None)
    with show_progress(as_json=as_json) as progress, results_alone(runs_on):
        world = _scored_world(setup, progress)
        study = PaperStudy(world, store_retrievers(setup.retrievers, world), setup.sizes, runs=out / "runs")
        if item_anchors:
            study = _with_item_queries(setup, study, item_anchors, progress)
        n_made = run_experiments(study, setup.file, chosen, progress=progress)
        pages = write_report(setup.file.rows, out)
    _show(n_made, "new rows", setup.file.path, pages, as_json=as_json)


@bench.command(name="report")
@at_the_edge
def report(
    rows: Annotated[list[Path], typer.Argument(help="Files of rows, as `bench run` writes them, or gzipped (.gz).")],
    out: Annotated[Path, typer.Option("--out", help="The folder of the report.")],
    claims: Annotated[
        bool, typer.Option("--claims", help="The report of `bench reproduce`, which judges the paper's claims.")
    ] = False,
    price: PriceOption = None,
    latency_ms: LatencyOption = None,
    pair_ms: PairOption = None,
    queries_served: ServedOption = None,
    as_json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Write rows as one HTML page and one Markdown page, with figures.

    Examples:

    - `anncur bench report my-bench/rows.jsonl --out my-report`
    - `anncur bench report my-bench/rows.jsonl --price 0.5 --latency-ms 200 --pair-ms 2 --out my-report`
    - `anncur bench report my-reproduction/rows.jsonl --claims --out my-report`
    """
    with needs_extra("bench"):
        import matplotlib  # noqa: F401

        from anncur.evaluation.report import recommend_all, write_report
        from anncur.reproduction.report import write_report as write_claims
    terms = _terms(price, latency_ms, pair_ms, queries_served)
    _check_folder(out)
    for file in rows:
        if file.is_dir():
            raise InputError(f"{file} is a folder; name the rows.jsonl in it")
        if not file.is_file():
            raise InputError(f"no file {file}; make rows with `anncur bench run`")
    found = [row for file in rows for row in read_rows(file)]
    pages = write_claims(found, out) if claims else write_report(found, out, terms)
    recommended = [] if claims else [asdict(each) for each in recommend_all(found, terms)]
    _show(len(found), "rows", rows[0], pages, as_json=as_json, recommended=recommended)


def _terms(price: float | None, latency_ms: float | None, pair_ms: float | None, n_queries: int | None) -> Terms:
    """What a user pays, waits for and serves, as the options give it."""
    latency = None if latency_ms is None else number("--latency-ms", latency_ms, least=0) / 1000
    seconds_per_pair = None if pair_ms is None else number("--pair-ms", pair_ms, least=0) / 1000
    price_per_1000 = None if price is None else number("--price", price, least=0)
    served = None if n_queries is None else whole_number("--queries-served", n_queries, least=1)
    return Terms(price_per_1000, latency, seconds_per_pair, served)


def _seconds(minutes: float | None) -> float | None:
    return None if minutes is None else 60 * number("--minutes", minutes, least=0)


def _sizes(
    presets: Mapping[str, AnySizes], preset: str, *, anchors: int | None, tests: int | None, seeds: int | None
) -> AnySizes:
    """A preset, but for what was given."""
    if preset not in presets:
        raise InputError(f"--preset must be one of {', '.join(presets)}, got {preset!r}")
    sizes = presets[preset]
    if anchors is not None:
        sizes = sizes.with_anchors(whole_number("anchors", anchors, least=1))
    n_tests = sizes.n_tests if tests is None else whole_number("tests", tests, least=1)
    n_seeds = sizes.n_seeds if seeds is None else whole_number("seeds", seeds, least=1)
    return replace(sizes, n_tests=n_tests, n_seeds=n_seeds)


def _prepare(
    inputs: _Inputs, sizes: AnySizes, scorer: GuardedScorer, experiments: Mapping[str, object], *, has_tests: bool
) -> _Setup[AnySizes]:
    """Read the data and check everything; where the number of tests wasn't given, a third of few queries suffices."""
    from anncur.evaluation.experiments import splits_by_document

    _check_folder(inputs.out)
    retrievers = load_retrievers(inputs.retrievers or ("bm25", "tfidf"))
    is_own = inputs.scorer != "builtin" or inputs.queries is not None or inputs.qrels is not None
    if inputs.corpus is None and is_own:
        raise InputError("a scorer, queries and judgements of your own go with items of your own; name the corpus too")
    file = RowFile(inputs.out / "rows.jsonl")  # where rows can't be kept, nothing is paid for
    data = sample_world(scorer) if inputs.corpus is None else _own_data(inputs.corpus, inputs, sizes)
    by_document = splits_by_document(experiments)

    def fitting(found: OwnData | ScoredWorld) -> AnySizes:
        few = sizes if has_tests else replace(sizes, n_tests=min(sizes.n_tests, len(found.queries) // 3))
        return fit_sizes(few, found.groups, len(found.items), by_document=by_document)

    fitted, request_time = fitting(data), None
    if isinstance(data, OwnData):
        request_time = timed_once(scorer, data, inputs.out / "scores")
        data = _affordable(data, inputs, request_time)
        fitted = fitting(data)
    return _Setup(inputs, scorer, list(retrievers.values()), data, fitted, file, request_time)


def _affordable(data: OwnData, inputs: _Inputs, request_time: RequestTime) -> OwnData:
    """As many of the queries and items as can be scored in time."""
    if inputs.seconds is None:
        return data
    return draw_affordable(data, inputs.seconds / max(request_time.of_a_pair_among_many, 1e-9), seed=inputs.seed)


def _check_folder(out: Path) -> None:
    if out.exists() and not out.is_dir():
        raise InputError(f"--out must be a folder, and {out} is a file; name another one")


def _own_data(corpus: Path, inputs: _Inputs, sizes: Sizes) -> OwnData:
    """As many queries of the user's files as are needed, and as many items as are wanted."""
    drawn = draw_queries(read_own(corpus, inputs.queries, inputs.qrels), sizes.n_queries, seed=inputs.seed)
    if inputs.n_items is None:
        return drawn
    return draw_items(drawn, whole_number("items", inputs.n_items, least=1), seed=inputs.seed)


def _scored_world(setup: _Setup[AnySizes], progress: Progress) -> ScoredWorld:
    if isinstance(setup.data, ScoredWorld):
        return setup.data
    inputs = setup.inputs
    return own_world(
        setup.data,
        setup.scorer,
        inputs.out / "scores",
        scorer_name=_short(inputs.scorer),
        on_cost=_CostLine(as_json=inputs.as_json),
        request_time=setup.request_time,
        engine=inputs.engine,
        progress=progress,
    )


def _with_item_queries(
    setup: _Setup[AnySizes], study: PaperStudy, n_item_anchors: int, progress: Progress
) -> PaperStudy:
    inputs = setup.inputs
    item_queries = score_items(
        study.world,
        setup.scorer,
        inputs.out / "scores",
        n_item_anchors,
        seed=inputs.seed,
        on_cost=_CostLine(as_json=inputs.as_json),
        engine=inputs.engine,
        progress=progress,
    )
    return replace(study, item_queries=item_queries)


def _short(scorer: str) -> str:
    """A scorer's name; of a model's folder or file only the last part."""
    return Path(scorer).name if Path(scorer).exists() else scorer


@dataclass(frozen=True)
class _CostLine:
    """Writes to standard error what exact scores will cost."""

    as_json: bool

    def __call__(self, cost: Cost) -> None:
        shown = f"{cost}; then methods are measured on them, which takes some minutes"
        sys.stderr.write((json.dumps({"cost": asdict(cost)}) if self.as_json else shown) + "\n")


def _show(
    n_rows: int,
    what: str,
    file: Path,
    pages: list[Path],
    *,
    as_json: bool,
    recommended: Sequence[Mapping[str, Any]] = (),
) -> None:
    if as_json:
        report = [str(page) for page in pages]
        print_json({"n_rows": n_rows, "rows": str(file), "report": report, "recommendations": recommended})
        return
    lines = [f"{n_rows:,} {what}; the report is {' and '.join(map(str, pages))}"]
    for each in recommended:
        lines += ["", f"{each['data']}: {each['sentence']}", *(f"  {command}" for command in each["commands"])]
    console().print("\n".join(lines), markup=False, soft_wrap=True)
