"""`anncur bench run` and `anncur bench report`: measure all methods on exact scores, and tell what came out."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated

import typer

from anncur.cli.frame import DebugOption, JsonOption, at_the_edge, console, print_json, show_progress
from anncur.cli.options import (
    BatchOption,
    MaxCallsOption,
    RetriesOption,
    ScorerOption,
    SeedOption,
    ThreadsOption,
    needs_extra,
    scorer_from,
)
from anncur.datasets.beir import read_beir
from anncur.datasets.jsonl import read_documents, read_items, read_queries
from anncur.errors import InputError
from anncur.evaluation.own import (
    Cost,
    OwnData,
    draw_items,
    draw_queries,
    fit_sizes,
    own_task,
    sample_task,
    with_item_scores,
)
from anncur.evaluation.rows import RowFile, read_rows
from anncur.evaluation.study import PRESETS, Sizes, Study, store_retrievers
from anncur.evaluation.tasks import Task
from anncur.items import Corpus
from anncur.numbers import whole_number
from anncur.progress import duration
from anncur.retrievers.loading import load_retrievers

bench = typer.Typer(name="bench", help="Measure all methods, and report what came out.", no_args_is_help=True)


@bench.command(name="run")
@at_the_edge
def run(
    corpus: Annotated[
        Path | None,
        typer.Argument(help="JSON lines with id and text, or a BEIR folder; by default the bundled sample."),
    ] = None,
    out: Annotated[Path, typer.Option("--out", help="Where scores, rows and the report are kept.")] = Path("bench"),
    queries: Annotated[
        Path | None,
        typer.Option(
            "--queries",
            help="JSON lines, a text file with one per line, or a BEIR folder. Those with the same `document` are "
            "never on both sides of a split.",
        ),
    ] = None,
    scorer: ScorerOption = "builtin",
    retriever: Annotated[
        list[str] | None,
        typer.Option(
            "--retriever",
            help="bm25, tfidf (the default are both), minilm or a dual encoder's folder; may be repeated.",
        ),
    ] = None,
    qrels: Annotated[
        str | None,
        typer.Option("--qrels", help="A split of judgements of a BEIR folder: measure its nDCG@10 and recall too."),
    ] = None,
    preset: Annotated[str, typer.Option("--preset", help=f"How much is measured: {', '.join(PRESETS)}.")] = "quick",
    anchors: Annotated[int | None, typer.Option("--anchors", help="At most so many anchor queries.")] = None,
    tests: Annotated[int | None, typer.Option("--tests", help="At least so many test queries.")] = None,
    items: Annotated[int | None, typer.Option("--items", help="Draw so many of the items; all by default.")] = None,
    item_anchors: Annotated[
        int, typer.Option("--item-anchors", help="Score so many items as queries, for fixedITEM and itemCUR.")
    ] = 0,
    seeds: Annotated[int | None, typer.Option("--seeds", help="Splits of the scoreboard.")] = None,
    experiment: Annotated[
        list[str] | None, typer.Option("--experiment", help="Only this one; may be repeated.")
    ] = None,
    batch_size: BatchOption = None,
    retries: RetriesOption = None,
    max_calls: MaxCallsOption = None,
    threads: ThreadsOption = None,
    seed: SeedOption = 0,
    as_json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Measure all methods and the paper's experiments, on your own scorer, items and queries or on the bundled sample.

    Every pair of the queries and items taken is scored once and kept; what that costs is told before it begins. It can
    be stopped at any moment: run the same again, and it goes on where it was. Results are rows in rows.jsonl, and a
    report in HTML and Markdown with figures.

    Examples:

    - `anncur bench run --out my-bench`
    - `anncur bench run corpus.jsonl --queries queries.jsonl --scorer my_module:scorer --out my-bench`
    - `anncur bench run scifact --qrels test --scorer my-model --retriever bm25 --retriever minilm --out my-bench`
    """
    with needs_extra("bench"):
        import matplotlib  # noqa: F401  # before anything is paid for

        from anncur.evaluation.experiments.suite import EXPERIMENTS, check_names, is_by_document, run_experiments
        from anncur.evaluation.report import write_report
    names, cheap = experiment or list(EXPERIMENTS), load_retrievers(retriever or ("bm25", "tfidf"))
    check_names(names)
    _check_folder(out)
    whole_number("item_anchors", item_anchors, least=0)
    sizes = _sizes(preset, anchors, tests, seeds)
    guarded = scorer_from(scorer, batch_size=batch_size, retries=retries, max_calls=max_calls, threads=threads)
    if corpus is None and (scorer != "builtin" or queries is not None or qrels is not None):
        raise InputError("a scorer, queries and judgements of your own go with items of your own; name the corpus too")
    file = RowFile(out / "rows.jsonl")  # where rows can't be kept, nothing is paid for
    own = None if corpus is None else _drawn(_own_data(corpus, queries, qrels), sizes, items, seed=seed)
    data = own or sample_task(guarded)
    sizes = _enough_anchors(sizes, len(data.queries), tests)
    sizes = fit_sizes(sizes, data.groups, len(data.items), by_document=is_by_document(names))
    tell, kept = _teller(as_json=as_json), out / "scores"
    with show_progress(as_json=as_json) as progress:
        if isinstance(data, Task):
            task = data
        else:
            task = own_task(data, guarded, _short(scorer), kept, tell=tell, progress=progress)
        if item_anchors:
            task = with_item_scores(task, guarded, kept, item_anchors, seed=seed, tell=tell, progress=progress)
        retrievers = store_retrievers(cheap.values(), task)
        study = Study(task, retrievers, sizes, runs=out / "runs")
        n_made = run_experiments(study, file, names, progress=progress)
        pages = write_report(file.rows, out)
    _show(n_made, "new rows", file.path, pages, as_json=as_json)


@bench.command(name="report")
@at_the_edge
def report(
    rows: Annotated[list[Path], typer.Argument(help="Files of rows, as `bench run` writes them.")],
    out: Annotated[Path, typer.Option("--out", help="The folder of the report.")],
    as_json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Write what rows say as one HTML page and one Markdown page, with figures and the paper's claims judged.

    Examples:

    - `anncur bench report my-bench/rows.jsonl --out my-report`
    """
    with needs_extra("bench"):
        from anncur.evaluation.report import write_report
    _check_folder(out)
    for file in rows:
        if file.is_dir():
            raise InputError(f"{file} is a folder; name the rows.jsonl in it")
        if not file.is_file():
            raise InputError(f"no file {file}; make rows with `anncur bench run`")
    found = [row for file in rows for row in read_rows(file)]
    pages = write_report(found, out)
    _show(len(found), "rows", rows[0], pages, as_json=as_json)


def _sizes(preset: str, anchors: int | None, tests: int | None, seeds: int | None) -> Sizes:
    """A preset, but for what was given."""
    if preset not in PRESETS:
        raise InputError(f"--preset must be one of {', '.join(PRESETS)}, got {preset!r}")
    sizes = PRESETS[preset]
    if anchors is not None:
        most = whole_number("anchors", anchors, least=1)
        fewer = tuple(number for number in sizes.n_anchor_queries if number < most)
        sizes = replace(sizes, n_anchor_queries=(*fewer, most))
    n_tests = sizes.n_tests if tests is None else whole_number("tests", tests, least=1)
    n_seeds = sizes.n_seeds if seeds is None else whole_number("seeds", seeds, least=1)
    return replace(sizes, n_tests=n_tests, n_seeds=n_seeds)


def _enough_anchors(sizes: Sizes, n_queries: int, tests: int | None) -> Sizes:
    """Where there are few queries, at most a third of them for tests, unless their number was given."""
    return sizes if tests is not None else replace(sizes, n_tests=min(sizes.n_tests, n_queries // 3))


def _check_folder(out: Path) -> None:
    if out.exists() and not out.is_dir():
        raise InputError(f"--out must be a folder, and {out} is a file; name another one")


def _own_data(corpus: Path, queries: Path | None, qrels: str | None) -> OwnData:
    """What the user's files hold; a query without a document is one of its own."""
    if qrels is not None:
        split = read_beir(corpus, qrels)
        names = [query.id for query in split.queries]
        return OwnData(corpus.name, list(split.items), split.queries, names, split.qrels)
    documents = read_documents(queries or corpus)
    groups = [document or f"query {place}" for place, document in enumerate(documents)]
    items = list(Corpus(read_items(corpus)))  # which refuses ids that are there twice
    return OwnData(corpus.name.partition(".")[0], items, list(read_queries(queries or corpus)), groups)


def _drawn(data: OwnData, sizes: Sizes, n_items: int | None, *, seed: int) -> OwnData:
    """As many queries as are needed, and as many items as are wanted."""
    drawn = draw_queries(data, sizes.n_queries, seed=seed)
    return drawn if n_items is None else draw_items(drawn, whole_number("items", n_items, least=1), seed=seed)


def _short(scorer: str) -> str:
    """A scorer's name; of a model's folder or file only the last part."""
    return Path(scorer).name if Path(scorer).exists() else scorer


def _teller(*, as_json: bool) -> Callable[[Cost], None]:
    """Tells on standard error what exact scores will cost."""

    def tell(cost: Cost) -> None:
        n_pairs = cost.n_queries * cost.n_items
        told = f"{cost.n_queries:,} queries x {cost.n_items:,} items = {n_pairs:,} pairs"
        if not cost.n_missing:
            told += ", all of them scored before"
        elif cost.seconds_per_pair is not None:
            pace = f"{1000 * cost.seconds_per_pair:.3g} ms per pair"
            told += f", of which {cost.n_missing:,} are to be scored: about {duration(cost.seconds)} at {pace}"
        sys.stderr.write((json.dumps({"cost": asdict(cost)}) if as_json else told) + "\n")

    return tell


def _show(n_rows: int, what: str, file: Path, pages: list[Path], *, as_json: bool) -> None:
    if as_json:
        print_json({"n_rows": n_rows, "rows": str(file), "report": [str(page) for page in pages]})
    else:
        told = f"{n_rows:,} {what}; the report is {' and '.join(map(str, pages))}"
        console().print(told, markup=False, soft_wrap=True)
