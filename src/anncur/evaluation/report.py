"""The report: what rows say, as one HTML page and one Markdown page with figures.

Claims of the paper with ours beside them, the scoreboard with intervals, then every experiment. Reads rows alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from anncur.errors import InputError
from anncur.evaluation.board import Loss, interval_of, losses
from anncur.evaluation.claims import judge_claims
from anncur.evaluation.experiments.matrix import N_MOMENTS
from anncur.evaluation.experiments.scoreboard import DOCUMENTS
from anncur.evaluation.judgements import MEASURES
from anncur.evaluation.page import Heading, Image, Paragraph, QueryBlock, Table, write_pages
from anncur.evaluation.paper import best_splits
from anncur.evaluation.plots import WORLD, Picture, draw_all
from anncur.evaluation.rows import Row, distinct, grouped, mean, select
from anncur.search.methods import Exhaustive
from anncur.search.posterior import Posterior

NAME = "report"
PROTOCOLS = """\
Two protocols stand side by side. `paper` is the authors' own: a pseudo-inverse in float32 from which nothing is cut
off, anchor items at random, one seed, a cost of n_anchor_items + n_rerank whose split is swept in tenths and chosen on
the test queries themselves, anchors thrown away after they were paid for. `sound` is ours: test queries come from
documents that no anchor query comes from, all settings are chosen on held-out anchor queries, every distinct call is
charged once and everything that was paid for counts, several seeds with 95% intervals over documents. Recall is the
share of the scorer's own top k that is found; an item tied with the k-th exact score counts as found."""
VERDICTS = """\
A claim about many cells is confirmed where all of them agree, refuted where none does, and different between. The best
share of the budget is judged by its median; and one falling curve shows that curves aren't monotone."""
PAPER_RANKS = """\
The paper has 315 for [CLS] and 45 for [EMB] (816 and 354 with random, 396 and 67 with TF-IDF negatives) for 3,374 x
10,031 scores, by NumPy's tolerance in float32, which for that shape is 1.2e-3 of the largest singular value. Energy is
that around the mean of all scores."""
PAPER_TIMES = """\
The paper has 10 h of scoring for 500 queries and 10,031 items, and 1 h (`match`) to 4.5 h (`pair`) of training. Tuning
is what adaptive search needs; it takes no calls."""
PAPER_LINKING = """\
The paper has 65.9 for [CLS] and 65.5 for [EMB] on its test worlds, and 88.0 for the recall of 64 candidates."""


def write_report(rows: Sequence[Row], folder: Path) -> list[Path]:
    """Write the report and its figures into a folder; gives the two pages."""
    if not rows:
        raise InputError("there are no rows to report; make some with `anncur bench run`")
    folder.mkdir(parents=True, exist_ok=True)
    latest = latest_data(rows)
    pictures = draw_all(latest, folder / "figures")
    return write_pages(list(_blocks(latest, pictures)), folder, NAME)


def latest_data(rows: Sequence[Row]) -> list[Row]:
    """Of each experiment the rows of the scores that were measured last: those of other scores would mix with them."""
    last = {(row.cell.experiment, row.cell.world, row.cell.scorer): row.cell.data for row in rows if row.cell.data}
    return [
        row for row in rows if row.cell.data in ("", last.get((row.cell.experiment, row.cell.world, row.cell.scorer)))
    ]


def _blocks(rows: Sequence[Row], pictures: Sequence[Picture]) -> Iterator[QueryBlock]:
    yield Heading("What was measured", 1)
    yield Table(["world", "scorer", "items", "experiments"], _overview(rows))
    yield Paragraph(PROTOCOLS)
    yield Heading("The paper's claims, and ours")
    yield Paragraph(VERDICTS)
    verdicts = [[each.claim, each.paper, f"**{each.verdict}**", each.ours] for each in judge_claims(rows)]
    yield Table(["claim", "in the paper", "here", "our numbers"], verdicts)
    for title, sheets in SECTIONS.items():
        found = [block for sheet in sheets for block in _section(sheet, rows, pictures)]
        if found:
            yield Heading(title)
            yield from found
    yield Heading("How it was measured")
    yield Table(["version", "commit", "hardware", "NumPy", "rows"], _circumstances(rows))


SECTIONS = {
    "The scoreboard": ("scoreboard",),
    "Recall against items retrieved": ("recall-at-depth",),
    "Recall against cost": ("recall-at-cost", "splits"),
    "The number of anchor queries": ("anchor-queries",),
    "The size of the world": ("world-size",),
    "Item-item baselines": ("item-item",),
    "Anchors, recall and approximation error": ("heatmap",),
    "Rank": ("rank",),
    "How scores are distributed": ("histogram",),
    "Indexing time": ("indexing",),
    "Entity linking": ("linking",),
    "The data": ("statistics",),
    "The task's own metrics": ("depth",),
}


def _section(sheet: str, rows: Sequence[Row], pictures: Sequence[Picture]) -> Iterator[QueryBlock]:
    """The tables of an experiment, and its figures."""
    some = select(rows, experiment=sheet)
    if some and sheet in TABLES:
        yield from TABLES[sheet](some)
    yield from (Image(picture.file, picture.caption) for picture in pictures if picture.sheet == sheet)


def _overview(rows: Sequence[Row]) -> list[list[str]]:
    table = []
    measured = [row for row in rows if row.cell.experiment != "statistics"]
    for (world, scorer), some in grouped(measured, *WORLD).items():
        sizes = distinct(some, "n_items")
        names = ", ".join(dict.fromkeys(row.cell.experiment for row in some))
        span = dict.fromkeys((*sizes[:1], *sizes[-1:]))
        table.append([world, scorer, " to ".join(f"{size:,}" for size in span), names])
    return table


def _circumstances(rows: Sequence[Row]) -> list[list[str]]:
    counts: dict[tuple[str, ...], int] = {}
    for row in rows:
        key = tuple(str(row.values.get(name, "")) for name in ("version", "commit", "hardware", "numpy"))
        counts[key] = counts.get(key, 0) + 1
    return [[*key, f"{count:,}"] for key, count in counts.items()]


def _scoreboard(rows: Sequence[Row]) -> Iterator[QueryBlock]:
    """A table for each world and k, the best in bold, and where the default method is not the best."""
    for (world, scorer, n_anchors, n_items), some in grouped(rows, *WORLD, "n_anchor_queries", "n_items").items():
        documents = select(some, method=DOCUMENTS)
        measured = [row for row in some if row.cell.method not in (DOCUMENTS, Exhaustive.name)]
        n_seeds = len(distinct(documents, "seed"))
        yield Heading(f"{world}, {scorer}, {n_anchors:,} anchor queries, {n_items:,} items, {n_seeds} seeds", 3)
        for k in distinct(measured, "k"):
            of_k = select(measured, k=k)
            budgets = distinct(of_k, "cost")
            yield Paragraph(f"Recall of the top {k} in %, by calls, with half the width of its 95% interval:")
            lines = [
                [name, *(_cell(select(of_method, cost=budget), of_k, documents) for budget in budgets)]
                for (name,), of_method in grouped(of_k, "method").items()
            ]
            yield Table(["method", *(f"{budget:,} calls" for budget in budgets)], lines)
        if select(measured, method=Posterior.name):
            yield Paragraph(_told(losses(some)))
        else:
            yield Paragraph(f"The default method, {Posterior.name}, has not been measured yet.")


def _cell(rows: Sequence[Row], of_k: Sequence[Row], documents: Sequence[Row]) -> str:
    """A recall with its interval, in bold if it is the best of its column."""
    if not rows:
        return ""
    rivals = grouped(select(of_k, cost=rows[0].cell.cost), "method").values()
    interval = interval_of(rows, documents)
    shown = f"{100 * interval.mean:.1f} ± {50 * (interval.high - interval.low):.1f}"
    return f"**{shown}**" if mean(rows, "recall") >= max(mean(rival, "recall") for rival in rivals) else shown


def _told(found: Sequence[Loss]) -> str:
    if not found:
        return f"The default method, {Posterior.name}, is the best in every cell."
    cells = "; ".join(
        f"top {loss.k} with {loss.cost} calls: {loss.winner} by {100 * loss.difference.mean:.1f} points "
        f"({100 * loss.difference.low:.1f} to {100 * loss.difference.high:.1f})"
        for loss in found
    )
    n_clear = sum(loss.is_clear for loss in found)
    chance = "all within chance" if not n_clear else f"{n_clear} beyond chance"
    rule = f"Cells where the default method, {Posterior.name}, is not the best, with intervals of the difference"
    return f"{rule}: {cells}. Of these, {chance}."


def _rank(rows: Sequence[Row]) -> Iterator[QueryBlock]:
    parts = list(dict.fromkeys(row.cell.part for row in rows))
    lines = []
    for (world, scorer), some in grouped(rows, *WORLD).items():
        ranks = [f"{select(some, part=part)[0]['rank']}" if select(some, part=part) else "" for part in parts]
        shape = f"{some[0]['n_queries']:,} x {some[0].cell.n_items:,}"
        lines.append([world, scorer, shape, *ranks])
    yield Table(["world", "scorer", "matrix", *parts], lines)
    yield Paragraph(PAPER_RANKS)


def _histogram(rows: Sequence[Row]) -> Iterator[QueryBlock]:
    lines = []
    for (world, scorer, method), some in grouped(rows, *WORLD, "method").items():
        moments = [f"{mean(select(some, part=name), 'value'):.2f}" for name in N_MOMENTS]
        lines.append([world, scorer if method == "scorer" else method, *moments])
    yield Table(["world", "scores of", *N_MOMENTS], lines)


def _indexing(rows: Sequence[Row]) -> Iterator[QueryBlock]:
    """A line for each world and number of anchor queries, a column for each stage."""
    stages = list(grouped(rows, "method", "part"))
    lines = []
    for (world, scorer, n_queries, n_items), some in grouped(rows, *WORLD, "n_anchor_queries", "n_items").items():
        seconds = [select(some, method=method, part=part) for method, part in stages]
        shown = [f"{mean(found, 'seconds'):.2f}" if found else "" for found in seconds]
        lines.append([world, scorer, f"{n_queries:,}", f"{n_items:,}", *shown])
    header = [f"{method}: {part}, s" for method, part in stages]
    yield Table(["world", "scorer", "queries", "items", *header], lines)
    yield Paragraph(PAPER_TIMES)


def _linking(rows: Sequence[Row]) -> Iterator[QueryBlock]:
    shares = ("recall", "accuracy", "normalised_accuracy")
    lines = [
        [row.cell.world, row.cell.method, f"{row['n_mentions']:,}", *(f"{100 * row[name]:.1f}" for name in shares)]
        for row in rows
    ]
    yield Table(["world", "ranker", "mentions", "recall of 64", "accuracy", "normalised accuracy"], lines)
    yield Paragraph(PAPER_LINKING)


def _statistics(rows: Sequence[Row]) -> Iterator[QueryBlock]:
    lines = [[row.cell.part, row.cell.world, f"{row.cell.n_items:,}", f"{row['n_mentions']:,}"] for row in rows]
    yield Table(["split", "world", "entities", "mentions"], lines)


def _curve(column: str, label: str) -> Callable[[Sequence[Row]], Iterator[QueryBlock]]:
    """Tables of recall at one cost against a column."""

    def tables(rows: Sequence[Row]) -> Iterator[QueryBlock]:
        for (world, scorer, k, cost), some in grouped(best_splits(rows), *WORLD, "k", "cost").items():
            yield Paragraph(f"{world}, {scorer}: recall of the top {k} at a cost of {cost} in %, by {label}:")
            yield _by_column(some, column, "recall")

    return tables


def _depth(rows: Sequence[Row]) -> Iterator[QueryBlock]:
    """What the task's judges say, and beside it the recall of the scorer's own best, by calls."""
    for (world, scorer), some in grouped(rows, *WORLD).items():
        told = {name: f"{name} by the judgements" for name in MEASURES}
        told["recall"] = f"recall of the scorer's own top {some[0].cell.k}"
        for name, what in told.items():
            yield Paragraph(f"{world}, {scorer}: {what} in %, by calls:")
            yield _by_column(some, "cost", name)


def _by_column(rows: Sequence[Row], column: str, value: str) -> Table:
    """A line for each method, with the mean of a value for every place of a column."""
    places = distinct(rows, column)
    lines = []
    for (method,), some in grouped(rows, "method").items():
        cells = [select(some, **{column: place}) for place in places]
        lines.append([method, *(f"{100 * mean(found, value):.1f}" if found else "" for found in cells)])
    return Table(["method", *(f"{place:,}" for place in places)], lines)


TABLES = {
    "scoreboard": _scoreboard,
    "anchor-queries": _curve("n_anchor_queries", "anchor queries"),
    "world-size": _curve("n_items", "items in the world"),
    "rank": _rank,
    "histogram": _histogram,
    "indexing": _indexing,
    "linking": _linking,
    "statistics": _statistics,
    "depth": _depth,
}
