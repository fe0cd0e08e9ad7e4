"""What to use and what it costs, as the first sections of a report: the recommendation, a figure, and tables.

Reads rows alone, one world and scorer after the other."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from anncur.evaluation.cost_plots import draw_against_costs, draw_total_cost
from anncur.evaluation.costs import (
    DOLLARS,
    ENDPOINT,
    GPU,
    Line,
    Offer,
    Point,
    Unit,
    break_even,
    cost_lines,
    in_dollars,
    in_pairs,
    in_seconds,
    rounded_up,
)
from anncur.evaluation.judgements import MEASURES
from anncur.evaluation.page import Exhibit, Picture, Section
from anncur.evaluation.plots import WORLD, safe_name, save_figure
from anncur.evaluation.recommendation import NO_TERMS, Reckoning, Terms, reasons, reckon, recommend
from anncur.evaluation.rows import Row, distinct, grouped, select
from anncur.search.methods import Exhaustive, Rerank
from anncur.search.posterior import Posterior

SHOWN_RECALLS = (0.8, 0.9, 0.95)
MOST_NAMED = 4  # methods in a caption
PER = 1000  # queries that a price is given for
COMMANDS_LEAD = "To do that with all of your items:"
COSTS_NOTE = """\
Pairs are interpolated between the budgets that were measured, and rounded up to two digits; "≤" where the smallest of
these finds as much, "-" where none does. Anchor queries are scored with all items once, when an index is built."""
SECONDS_NOTE = """\
Of a query that is searched alone: rounds x latency + pairs x seconds per pair + the method's own seconds. Retrievers'
own time isn't in them."""
ALL_ROUNDS_NOTE = """\
Rounds are those that methods take where nothing limits them; with a scorer that waits, they take fewer."""
FEWER_ROUNDS_NOTE = """\
Methods that search in rounds were measured with fewer of them too, and each number is that of the best."""
BREAK_EVEN_NOTE = """\
For how many queries the method of a row costs less in all, build included, than that of a column."""


def cost_sections(rows: Sequence[Row], folder: Path, terms: Terms = NO_TERMS) -> Iterator[Section]:
    """The recommendation for every world and scorer, and below it what that rests on; figures go to the folder."""
    for of_world, found in _reckonings(rows, terms):
        name, judged = _name(of_world), select(of_world, experiment="depth")
        folder.mkdir(parents=True, exist_ok=True)
        yield recommendation_section(name, found, folder, commands=next_commands(found, of_world[0].cell.scorer))
        yield costs_section(name, found, judged, folder)


@dataclass(frozen=True)
class Recommendation:
    """What to use for the data of that name, and the commands that follow from it."""

    data: str
    sentence: str
    commands: Sequence[str]


def recommendations(rows: Sequence[Row], terms: Terms = NO_TERMS) -> list[Recommendation]:
    """What is recommended for every world and scorer."""
    return [
        Recommendation(_name(some), recommend(found), next_commands(found, some[0].cell.scorer))
        for some, found in _reckonings(rows, terms)
    ]


def _reckonings(rows: Sequence[Row], terms: Terms) -> Iterator[tuple[list[Row], Reckoning]]:
    for of_world in grouped(rows, *WORLD).values():
        found = reckon(last_board(select(of_world, experiment="scoreboard")), terms)
        if found is not None:
            yield of_world, found


def _name(rows: Sequence[Row]) -> str:
    return ", scored by ".join(filter(None, (rows[0].cell.world, rows[0].cell.scorer)))


def last_board(rows: Sequence[Row]) -> list[Row]:
    """The rows with the number of anchor queries that was measured last."""
    return select(rows, n_anchor_queries=rows[-1].cell.n_anchor_queries) if rows else []


def next_commands(found: Reckoning, scorer: str) -> list[str]:
    """How to build and search what is recommended; nothing where the command line has no such method."""
    chosen = found.chosen
    if not (chosen.line.method == Posterior.name or chosen.line.is_reranking or chosen.line.is_everything):
        return []
    build = f"anncur build CORPUS --scorer {shlex.quote(scorer or 'SCORER')}"
    if chosen.line.n_anchor_queries:
        build += f" --queries QUERIES --n-anchor-queries {chosen.line.n_anchor_queries}"
    search = 'anncur search my.anncur "a query"'
    if chosen.line.is_reranking:
        search += f" --method {Rerank.name}"
    elif chosen.line.is_everything:
        search += f" --method {Exhaustive.name}"
    retrievers = "".join(f" --retriever {shlex.quote(name)}" for name in found.retrievers)
    return [f"{build}{retrievers} --out my.anncur", f"{search} --budget {chosen.need.pairs:.0f}"]


def recommendation_section(name: str, found: Reckoning, folder: Path, *, commands: Sequence[str] = ()) -> Section:
    """One sentence, its reasons, the commands that follow, and one figure."""
    file = folder / f"{safe_name(f'total-cost-{name}')}.png"
    save_figure(draw_total_cost(found), file)
    reached = {offer.line.name for offer in found.offers}
    missing = [line.name for line in found.lines if line.name not in reached]
    named = ", ".join(missing) if len(missing) <= MOST_NAMED else f"{len(missing)} others"
    never = f" Not shown, because they don't find as much: {named}." if missing else ""
    caption = (
        f"{name}: the build and all queries together, as more queries are served; both axes are logarithmic.{never}"
    )
    exhibits = [Exhibit(points=list(reasons(found)))]
    if commands:
        exhibits.append(Exhibit(COMMANDS_LEAD, points=[f"`{command}`" for command in commands]))
    return Section(f"Recommendation: {name}", exhibits, [Picture(file, caption)], answer=recommend(found))


def costs_section(name: str, found: Reckoning, judged: Sequence[Row], folder: Path) -> Section:
    """Pairs, seconds and dollars of every method, break-evens, and figures of what is found against them."""
    units = cost_units(found)
    pictures = list(_pictures(name, found.lines, units, f"recall of the top {found.k}, %", folder))
    for measure in MEASURES:
        known = [row for row in judged if measure in row.values]
        if known:
            lines = cost_lines(known, k=distinct(known, "k")[-1], value=measure)
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
        shown = ["-" if need is None else _shown_pairs(line, need) for need in needs]
        rows.append([line.name, f"{line.build_pairs:,.0f}", *shown])
    return Exhibit(f"Pairs for a share of the scorer's top {found.k}:", header, rows, COSTS_NOTE)


def _shown_pairs(line: Line, need: Point) -> str:
    """What is reached with the smallest budget may take fewer."""
    is_least = not line.is_everything and need.pairs <= rounded_up(min(curve[0].pairs for curve in line.curves))
    return f"≤ {need.pairs:,.0f}" if is_least else f"{need.pairs:,.0f}"


def seconds_table(found: Reckoning, units: dict[str, Unit]) -> Exhibit:
    """What the recall takes with every cost model, per query, or 1,000 of them where it is dollars."""
    names = [f"{title}, {PER:,} queries" if unit.name == DOLLARS else title for title, unit in units.items()]
    rows = [[line.name, *(_shown_need(line, found.recall, unit) for unit in units.values())] for line in found.lines]
    lead = f"Seconds and dollars for {found.recall:.0%} of the scorer's top {found.k}:"
    is_limited = any(len(line.curves) > 1 for line in found.lines)
    note = f"{SECONDS_NOTE} {FEWER_ROUNDS_NOTE if is_limited else ALL_ROUNDS_NOTE}"
    return Exhibit(lead, ["method", *names], [row for row in rows if set(row[1:]) != {"-"}], note)


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
        return f"from {rounded_up(since):,} on" if since else "always"
    if until is not None:
        return f"up to {rounded_up(until):,}" if until else "never"
    return "always" if ours.build < theirs.build else "never"


def _pictures(name: str, lines: Sequence[Line], units: dict[str, Unit], label: str, folder: Path) -> Iterator[Picture]:
    figure = draw_against_costs(lines, units, label)
    if figure is not None:
        figure.suptitle(name)
        file = folder / f"{safe_name(f'costs-{name}')}.png"
        save_figure(figure, file)
        yield Picture(file, f"{name}: {label.removesuffix(', %')} against what a query costs.")
