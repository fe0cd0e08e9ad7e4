"""What to use and what it costs, as the first sections of a report: the recommendation, a figure, and tables.

Reads rows alone, one world and scorer after the other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from anncur.evaluation.cost_plots import draw_against_costs, draw_total_cost
from anncur.evaluation.costs import (
    DOLLARS,
    ENDPOINT,
    GPU,
    Line,
    Offer,
    Unit,
    break_even,
    cost_lines,
    in_dollars,
    in_pairs,
    in_seconds,
)
from anncur.evaluation.judgements import MEASURES
from anncur.evaluation.page import Exhibit, Picture, Section
from anncur.evaluation.plots import WORLD, safe_name, save_figure
from anncur.evaluation.recommendation import NO_TERMS, Reckoning, Terms, reasons, reckon, recommend
from anncur.evaluation.rows import Row, distinct, grouped, select

SHOWN_RECALLS = (0.8, 0.9, 0.95)
MOST_NAMED = 4  # methods in a caption
PER = 1000  # queries that a price is given for
COSTS_NOTE = """\
Pairs are interpolated between the budgets that were measured; "-" where a recall isn't reached with these. Anchor
queries are scored with all items once, when an index is built."""
SECONDS_NOTE = """\
Of a query that is searched alone: rounds x latency + pairs x seconds per pair + the method's own seconds. Methods that
search in rounds were measured with fewer of them too, and each number is that of the best. Retrievers' own time isn't
in them."""
BREAK_EVEN_NOTE = """\
For how many queries the method of a row costs less in all, build included, than that of a column."""


def cost_sections(rows: Sequence[Row], folder: Path, terms: Terms = NO_TERMS) -> Iterator[Section]:
    """The recommendation for every world and scorer, and below it what that rests on; figures go to the folder."""
    for (world, scorer), of_world in grouped(rows, *WORLD).items():
        found = reckon(last_board(select(of_world, experiment="scoreboard")), terms)
        if found is None:
            continue
        name = " with ".join(filter(None, (world, scorer)))
        judged = select(of_world, experiment="depth")
        folder.mkdir(parents=True, exist_ok=True)
        yield recommendation_section(name, found, folder)
        yield costs_section(name, found, judged, folder)


def last_board(rows: Sequence[Row]) -> list[Row]:
    """The rows with the number of anchor queries that was measured last."""
    return select(rows, n_anchor_queries=rows[-1].cell.n_anchor_queries) if rows else []


def recommendation_section(name: str, found: Reckoning, folder: Path) -> Section:
    """One sentence, its reasons, and one figure."""
    file = folder / f"{safe_name(f'total-cost-{name}')}.png"
    save_figure(draw_total_cost(found), file)
    reached = {offer.line.name for offer in found.offers}
    missing = [line.name for line in found.lines if line.name not in reached]
    named = ", ".join(missing) if len(missing) <= MOST_NAMED else f"{len(missing)} others"
    never = f" Not shown, because they don't find as much: {named}." if missing else ""
    caption = (
        f"{name}: the build and all queries together, as more queries are served; both axes are logarithmic.{never}"
    )
    points = Exhibit(points=list(reasons(found)))
    return Section(f"What to use for {name}", [points], [Picture(file, caption)], answer=recommend(found))


def costs_section(name: str, found: Reckoning, judged: Sequence[Row], folder: Path) -> Section:
    """Pairs, seconds and dollars of every method, break-evens, and figures of what is found against them."""
    units = cost_units(found)
    pictures = list(_pictures(name, found.lines, units, f"recall of the top {found.k}, %", folder))
    k = distinct(judged, "k")[-1:]
    for measure in MEASURES if k else ():
        lines = cost_lines(judged, k=k[0], value=measure)
        pictures += _pictures(f"{name}, {measure}", lines, units, f"{measure}, %", folder)
    exhibits = [pairs_table(found), seconds_table(found, units), break_even_table(found)]
    return Section(f"What it costs: {name}", exhibits, pictures)


def cost_units(found: Reckoning) -> dict[str, Unit]:
    """The cost models that are shown, and dollars where there is a price."""
    models = [found.model, GPU, ENDPOINT] if found.model is not None else [GPU, ENDPOINT]
    units = {str(model): in_seconds(model) for model in models}
    price = found.terms.price_per_1000
    return units if price is None else {**units, f"${price:g} per 1,000 pairs": in_dollars(price)}


def pairs_table(found: Reckoning) -> Exhibit:
    """The pairs that each recall takes."""
    header = ["method", "pairs to build", *(f"pairs a query for {recall:.0%}" for recall in SHOWN_RECALLS)]
    rows = []
    for line in found.lines:
        needs = [line.need(recall, in_pairs()) for recall in SHOWN_RECALLS]
        shown = ["-" if need is None else f"{need.pairs:,.0f}" for need in needs]
        rows.append([line.name, f"{line.build_pairs:,.0f}", *shown])
    return Exhibit(f"Pairs for a share of the scorer's top {found.k}:", header, rows, COSTS_NOTE)


def seconds_table(found: Reckoning, units: dict[str, Unit]) -> Exhibit:
    """What the recall takes with every cost model, per query, or 1,000 of them where it is dollars."""
    names = [f"{title}, {PER:,} queries" if unit.name == DOLLARS else title for title, unit in units.items()]
    rows = [[line.name, *(_shown_need(line, found.recall, unit) for unit in units.values())] for line in found.lines]
    lead = f"Seconds and dollars for {found.recall:.0%} of the scorer's top {found.k}:"
    return Exhibit(lead, ["method", *names], [row for row in rows if set(row[1:]) != {"-"}], SECONDS_NOTE)


def _shown_need(line: Line, recall: float, unit: Unit) -> str:
    need = line.need(recall, unit)
    return "-" if need is None else unit.show(unit.of_query(need) * (PER if unit.name == DOLLARS else 1))


def break_even_table(found: Reckoning) -> Exhibit:
    """For every pair of methods that reach the recall, for how many queries the one costs less than the other."""
    rows = [[ours.line.name, *(compare(ours, theirs) for theirs in found.offers)] for ours in found.offers]
    lead = f"Which costs less in all, in {found.unit.name}, for {found.recall:.0%} of the scorer's top {found.k}:"
    return Exhibit(lead, ["", *(offer.line.name for offer in found.offers)], rows, BREAK_EVEN_NOTE)


def compare(ours: Offer, theirs: Offer) -> str:
    """For how many queries ours costs less."""
    if ours is theirs:
        return ""
    since, until = break_even(ours, theirs), break_even(theirs, ours)
    if since is not None:
        return f"from {since:,.0f} on" if since else "always"
    if until is not None:
        return f"up to {until:,.0f}" if until else "never"
    return "always" if ours.build < theirs.build else "never"


def _pictures(name: str, lines: Sequence[Line], units: dict[str, Unit], label: str, folder: Path) -> Iterator[Picture]:
    figure = draw_against_costs(lines, units, label)
    if figure is not None:
        figure.suptitle(name)
        file = folder / f"{safe_name(f'costs-{name}')}.png"
        save_figure(figure, file)
        yield Picture(file, f"{name}: {label.removesuffix(', %')} against what a query costs.")
