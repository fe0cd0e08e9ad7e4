"""The report of the reproduction: the paper's claims judged, the scoreboard with intervals, then every experiment.

Reads rows alone; written as one HTML page and one Markdown page with figures."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from anncur.evaluation.page import Exhibit, Section, write_pages
from anncur.evaluation.plots import WORLD, draw_all
from anncur.evaluation.report import (
    NAME,
    Tabulate,
    depth_tables,
    experiment_sections,
    histogram_tables,
    latest_rows,
    means_table,
    overview,
    parts_table,
    provenance_section,
    scoreboard_tables,
)
from anncur.evaluation.rows import Row, grouped, mean, select
from anncur.reproduction.claims import judge_claims
from anncur.reproduction.plots import FIGURES
from anncur.reproduction.protocol import best_splits

PROTOCOLS = """\
Two protocols stand side by side. `paper` is the authors' own: a pseudo-inverse in float32 from which nothing is cut
off, anchor items at random, one seed, a cost of n_anchor_items + n_rerank whose split is swept in tenths and chosen on
the test queries themselves, anchors thrown away after they were paid for. `sound` is ours: test queries come from
documents that no anchor query comes from, all settings are chosen on held-out anchor queries, every pair is charged
once and every exact score counts, several seeds with 95% intervals over documents. Recall is the share of the scorer's
own top k that is found; an item tied with the k-th exact score counts as found."""
VERDICTS = """\
A claim about many cells is confirmed where all of them agree, refuted where none does, and different between. The best
share of the budget is judged by its median; and one falling curve shows that curves aren't monotone."""
PAPER_RANKS = """\
The paper has 315 for [CLS] and 45 for [EMB] (816 and 354 with random, 396 and 67 with TF-IDF negatives) for 3,374 x
10,031 scores, by NumPy's tolerance in float32, which for that shape is 1.2e-3 of the largest singular value. The
variance is that around the mean of all scores."""
PAPER_TIMES = """\
The paper has 10 h of scoring for 500 queries and 10,031 items, and 1 h (`match`) to 4.5 h (`pair`) of training. Tuning
is for adaptive search; it scores no pairs."""
PAPER_LINKING = """\
The paper has 65.9 for [CLS] and 65.5 for [EMB] on its test worlds, and 88.0 for the recall of 64 candidates."""


def write_report(rows: Sequence[Row], folder: Path) -> list[Path]:
    """Write the report and its figures into a folder; returns the two pages."""
    shown = latest_rows(rows)
    pictures = draw_all(FIGURES, shown, folder / "figures")
    measured = [row for row in shown if row.cell.experiment != "statistics"]
    sections = [overview(measured, PROTOCOLS), _claims(shown)]
    sections += experiment_sections(TITLES, TABLES, shown, pictures)
    return write_pages([*sections, provenance_section(shown)], folder, NAME)


def _claims(rows: Sequence[Row]) -> Section:
    verdicts = [[each.claim, each.paper, f"**{each.verdict}**", each.ours] for each in judge_claims(rows)]
    header = ["claim", "in the paper", "here", "our numbers"]
    return Section("The paper's claims, and ours", [Exhibit(VERDICTS, header, verdicts)])


def _anchor_query_tables(rows: Sequence[Row]) -> Iterator[Exhibit]:
    return _curve_tables(rows, "n_anchor_queries", "anchor queries")


def _world_size_tables(rows: Sequence[Row]) -> Iterator[Exhibit]:
    return _curve_tables(rows, "n_items", "items in the world")


def _curve_tables(rows: Sequence[Row], column: str, label: str) -> Iterator[Exhibit]:
    """Recall at one cost against a column."""
    for (world, scorer, k, cost), some in grouped(best_splits(rows), *WORLD, "k", "cost").items():
        lead = f"{world}, {scorer}: recall of the top {k} at a cost of {cost} in %, by {label}:"
        yield means_table(some, column, "recall", lead=lead)


def _rank_tables(rows: Sequence[Row]) -> Iterator[Exhibit]:
    yield parts_table(rows, "rank", note=PAPER_RANKS)


def _indexing_tables(rows: Sequence[Row]) -> Iterator[Exhibit]:
    """A line for each world and number of anchor queries, a column for each stage."""
    stages = list(grouped(rows, "method", "part"))
    lines = []
    for (world, scorer, n_queries, n_items), some in grouped(rows, *WORLD, "n_anchor_queries", "n_items").items():
        seconds = [select(some, method=method, part=part) for method, part in stages]
        shown = [f"{mean(found, 'seconds'):.2f}" if found else "" for found in seconds]
        lines.append([world, scorer, f"{n_queries:,}", f"{n_items:,}", *shown])
    header = ["world", "scorer", "queries", "items", *(f"{method}: {part}, s" for method, part in stages)]
    yield Exhibit(header=header, rows=lines, note=PAPER_TIMES)


def _linking_tables(rows: Sequence[Row]) -> Iterator[Exhibit]:
    shares = ("recall", "accuracy", "normalised_accuracy")
    lines = [
        [row.cell.world, row.cell.method, f"{row['n_mentions']:,}", *(f"{100 * row[name]:.1f}" for name in shares)]
        for row in rows
    ]
    header = ["world", "ranker", "mentions", "recall of 64", "accuracy", "normalised accuracy"]
    yield Exhibit(header=header, rows=lines, note=PAPER_LINKING)


def _statistics_tables(rows: Sequence[Row]) -> Iterator[Exhibit]:
    lines = [[row.cell.part, row.cell.world, f"{row.cell.n_items:,}", f"{row['n_mentions']:,}"] for row in rows]
    yield Exhibit(header=["split", "world", "entities", "mentions"], rows=lines)


TITLES = {
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
TABLES: dict[str, Tabulate] = {
    "scoreboard": scoreboard_tables,
    "anchor-queries": _anchor_query_tables,
    "world-size": _world_size_tables,
    "rank": _rank_tables,
    "histogram": histogram_tables,
    "indexing": _indexing_tables,
    "linking": _linking_tables,
    "statistics": _statistics_tables,
    "depth": depth_tables,
}
