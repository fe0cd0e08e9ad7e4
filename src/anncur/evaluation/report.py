"""The report of a benchmark: what to use and what it costs, the scoreboard, the task's metrics, the scorer's scores.

Reads rows alone; written as one HTML page and one Markdown page with figures."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

from anncur.errors import InputError
from anncur.evaluation.cost_report import Recommendation, cost_sections, recommendations
from anncur.evaluation.distribution import MOMENTS, SCORER
from anncur.evaluation.intervals import Lead, leads, measured_methods, recall_interval
from anncur.evaluation.judgements import MEASURES
from anncur.evaluation.page import Exhibit, Picture, Section, write_pages
from anncur.evaluation.plots import FIGURES, WORLD, draw_all
from anncur.evaluation.recommendation import NO_TERMS, Terms
from anncur.evaluation.rows import Row, distinct, grouped, mean, select
from anncur.evaluation.scoreboard import DOCUMENTS
from anncur.search.posterior import Posterior

NAME = "report"
PROTOCOL = """\
Test queries come from documents that no anchor query comes from, all settings are chosen on held-out anchor queries,
every pair is charged once and every exact score counts, several seeds with 95% intervals over documents. Recall is the
share of the scorer's own top k that is found; an item tied with the k-th exact score counts as found."""
COMPONENTS = """\
Principal components of the exact scores, items less their own mean over the queries. The fewer of them explain most of
the variance, the fewer anchor queries and pairs a search needs."""
MOMENTS_NOTE = """\
Where scores are skewed, few items stand out from all others; kurtosis is 3 for a normal distribution."""

Tabulate: TypeAlias = Callable[[Sequence[Row]], Iterator[Exhibit]]


def write_report(rows: Sequence[Row], folder: Path, terms: Terms = NO_TERMS) -> list[Path]:
    """Write the report and its figures into a folder; returns the two pages."""
    known = [row for row in rows if row.cell.experiment in TABLES]
    if rows and not known:
        names = ", ".join(TABLES)
        raise InputError(f"no rows of {names}; for rows of `anncur bench reproduce` alone pass --claims")
    shown = latest_rows(known)
    pictures = draw_all(FIGURES, shown, folder / "figures")
    costs = cost_sections(shown, folder / "figures", terms)
    sections = experiment_sections(TITLES, TABLES, shown, pictures)
    return write_pages([*costs, overview(shown, PROTOCOL), *sections, provenance_section(shown)], folder, NAME)


def recommend_all(rows: Sequence[Row], terms: Terms = NO_TERMS) -> list[Recommendation]:
    """What the report of these rows begins with, for every world and scorer."""
    return recommendations(latest_rows([row for row in rows if row.cell.experiment in TABLES]), terms)


def latest_rows(rows: Sequence[Row]) -> list[Row]:
    """Of each experiment the rows of the scores that were measured last, so that no others mix with them."""
    if not rows:
        raise InputError("there are no rows to report; make some with `anncur bench run`")
    last = {(row.cell.experiment, row.cell.world, row.cell.scorer): row.cell.data for row in rows if row.cell.data}
    return [
        row for row in rows if row.cell.data in ("", last.get((row.cell.experiment, row.cell.world, row.cell.scorer)))
    ]


def overview(rows: Sequence[Row], protocol: str) -> Section:
    """The worlds and experiments that there are rows of."""
    table = []
    for (world, scorer), some in grouped(rows, *WORLD).items():
        sizes = distinct(some, "n_items")
        names = ", ".join(dict.fromkeys(row.cell.experiment for row in some))
        span = dict.fromkeys((*sizes[:1], *sizes[-1:]))
        table.append([world, scorer, " to ".join(f"{size:,}" for size in span), names])
    header = ["world", "scorer", "items", "experiments"]
    return Section("What was measured", [Exhibit(header=header, rows=table, note=protocol)])


def experiment_sections(
    titles: Mapping[str, Sequence[str]],
    tables: Mapping[str, Tabulate],
    rows: Sequence[Row],
    pictures: Mapping[str, Sequence[Picture]],
) -> Iterator[Section]:
    """A section for each title with the tables and pictures of its experiments, where there are any."""
    for title, names in titles.items():
        exhibits: list[Exhibit] = []
        shown: list[Picture] = []
        for name in names:
            some = select(rows, experiment=name)
            exhibits += tables[name](some) if some and name in tables else ()
            shown += pictures.get(name, ())
        if exhibits or shown:
            yield Section(title, exhibits, shown)


def provenance_section(rows: Sequence[Row]) -> Section:
    """The versions and machines that rows were measured with."""
    counts: dict[tuple[str, ...], int] = {}
    for row in rows:
        key = tuple(str(row.values.get(name, "")) for name in ("version", "commit", "hardware", "numpy"))
        counts[key] = counts.get(key, 0) + 1
    header = ["version", "commit", "hardware", "NumPy", "rows"]
    table = [[*key, f"{count:,}"] for key, count in counts.items()]
    return Section("How it was measured", [Exhibit(header=header, rows=table)])


def scoreboard_tables(rows: Sequence[Row]) -> Iterator[Exhibit]:
    """A table for each world and k, the best in bold, and where the default method is not the best."""
    for (world, scorer, n_anchors, n_items), some in grouped(rows, *WORLD, "n_anchor_queries", "n_items").items():
        documents, measured = select(some, method=DOCUMENTS), measured_methods(some)
        yield Exhibit(heading=_board_name(world, scorer, n_anchors, n_items, len(distinct(documents, "seed"))))
        for k in distinct(measured, "k"):
            yield _recall_table(select(measured, k=k), documents)
        if select(measured, method=Posterior.name):
            yield Exhibit(note=_describe(leads(some)))
        else:
            yield Exhibit(note=f"The default method, {Posterior.name}, has not been measured yet.")


def _board_name(world: str, scorer: str, n_anchors: int, n_items: int, n_seeds: int) -> str:
    seeds = "1 seed" if n_seeds == 1 else f"{n_seeds} seeds"
    sizes = f"{n_anchors:,} anchor queries, {n_items:,} items, {seeds}"
    return ", ".join(filter(None, (world, scorer, sizes)))


def _recall_table(rows: Sequence[Row], documents: Sequence[Row]) -> Exhibit:
    """The recall of every method at one k, by budget."""
    budgets = distinct(rows, "cost")
    lines = [
        [name, *(_recall(select(of_method, cost=budget), rows, documents) for budget in budgets)]
        for (name,), of_method in grouped(rows, "method").items()
    ]
    lead = f"Recall of the top {rows[0].cell.k} in %, by pairs scored, with half the width of its 95% interval:"
    return Exhibit(lead, ["method", *(f"{budget:,} pairs" for budget in budgets)], lines)


def _recall(rows: Sequence[Row], of_k: Sequence[Row], documents: Sequence[Row]) -> str:
    """A recall with its interval, in bold if it is the best of its column."""
    if not rows:
        return ""
    rivals = grouped(select(of_k, cost=rows[0].cell.cost), "method").values()
    interval = recall_interval(rows, documents)
    shown = f"{100 * interval.mean:.1f} ± {50 * (interval.high - interval.low):.1f}"
    return f"**{shown}**" if mean(rows, "recall") >= max(mean(rival, "recall") for rival in rivals) else shown


def _describe(found: Sequence[Lead]) -> str:
    if not found:
        return f"The default method, {Posterior.name}, is the best in every cell."
    cells = "; ".join(
        f"top {lead.k} with {lead.budget} pairs: {lead.method} by {100 * lead.difference.mean:.1f} points "
        f"({100 * lead.difference.low:.1f} to {100 * lead.difference.high:.1f})"
        for lead in found
    )
    n_clear = sum(lead.is_clear for lead in found)
    chance = "all within chance" if not n_clear else f"{n_clear} beyond chance"
    rule = f"Cells where the default method, {Posterior.name}, is not the best, with intervals of the difference"
    return f"{rule}: {cells}. Of these, {chance}."


def depth_tables(rows: Sequence[Row]) -> Iterator[Exhibit]:
    """The task's own metrics, and beside them the recall of the scorer's own best, by pairs scored."""
    for (world, scorer), some in grouped(rows, *WORLD).items():
        metrics = {name: f"{name} by the judgements" for name in MEASURES}
        metrics["recall"] = f"recall of the scorer's own top {some[0].cell.k}"
        for name, metric in metrics.items():
            yield means_table(some, "cost", name, lead=f"{world}, {scorer}: {metric} in %, by pairs scored:")


def means_table(rows: Sequence[Row], column: str, value: str, *, lead: str) -> Exhibit:
    """A line for each method, with the mean of a value for every place of a column."""
    places = distinct(rows, column)
    lines = []
    for (method,), some in grouped(rows, "method").items():
        cells = [select(some, **{column: place}) for place in places]
        lines.append([method, *(f"{100 * mean(found, value):.1f}" if found else "" for found in cells)])
    return Exhibit(lead, ["method", *(f"{place:,}" for place in places)], lines)


def parts_table(rows: Sequence[Row], value: str, *, note: str) -> Exhibit:
    """A line for each world and scorer, with a value for every part."""
    parts = list(dict.fromkeys(row.cell.part for row in rows))
    lines = []
    for (world, scorer), some in grouped(rows, *WORLD).items():
        values = [f"{select(some, part=part)[0][value]}" if select(some, part=part) else "" for part in parts]
        lines.append([world, scorer, f"{some[0]['n_queries']:,} x {some[0].cell.n_items:,}", *values])
    return Exhibit(header=["world", "scorer", "matrix", *parts], rows=lines, note=note)


def _spectrum_tables(rows: Sequence[Row]) -> Iterator[Exhibit]:
    yield parts_table(rows, "n_components", note=COMPONENTS)


def histogram_tables(rows: Sequence[Row]) -> Iterator[Exhibit]:
    """The moments of the scorer's and of the retrievers' scores."""
    lines = []
    for (world, scorer, method), some in grouped(rows, *WORLD, "method").items():
        moments = [f"{mean(select(some, part=name), 'value'):.2f}" for name in MOMENTS]
        lines.append([world, scorer if method == SCORER else method, *moments])
    yield Exhibit(header=["world", "scores of", *MOMENTS], rows=lines, note=MOMENTS_NOTE)


TITLES = {
    "The scoreboard": ("scoreboard",),
    "The task's own metrics": ("depth",),
    "Principal components": ("spectrum",),
    "How scores are distributed": ("histogram",),
}
TABLES: dict[str, Tabulate] = {
    "scoreboard": scoreboard_tables,
    "depth": depth_tables,
    "spectrum": _spectrum_tables,
    "histogram": histogram_tables,
}
