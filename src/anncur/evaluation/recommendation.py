"""Which method to use, with how many anchor queries and which budget: one sentence, and its reasons with the numbers.

Reads rows through `costs.py`, feeds the report. A method that costs more to set up is recommended only where it finds
clearly more than all simpler ones: by a difference that matters, beyond chance over the documents of test queries."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from anncur.errors import InputError
from anncur.evaluation.cost_rows import K
from anncur.evaluation.costs import (
    SECONDS,
    CostModel,
    Line,
    Offer,
    Stage,
    Unit,
    cheapest_stages,
    cost_lines,
    in_dollars,
    in_pairs,
    in_seconds,
    make_offers,
    rounded_up,
)
from anncur.evaluation.distribution import SCORER
from anncur.evaluation.intervals import Interval, difference, measured_methods, recall_interval
from anncur.evaluation.rows import Row, distinct, mean, select
from anncur.evaluation.scoreboard import DOCUMENTS
from anncur.evaluation.study import DISTILLED
from anncur.planning.advice import CLEARLY, ENOUGH
from anncur.retrievers.loading import RRF
from anncur.search.posterior import Posterior

RECALLS = (ENOUGH, 0.8, 0.7, 0.6, 0.5)  # the first that is reached at less than the cost of everything
MANY_QUERIES = 10_000  # that are served, where nobody tells how many
YOURS = "your scorer"
DEFAULT = f"adaptive search (`{Posterior.name}`, the default)"


@dataclass(frozen=True)
class Terms:
    """What a user pays for 1,000 pairs and waits for a request, and how many queries will be served, where known.

    What isn't given of the scorer's seconds is as it was measured."""

    price_per_1000: float | None = None
    latency: float | None = None
    seconds_per_pair: float | None = None
    n_queries: int | None = None


NO_TERMS = Terms()


@dataclass(frozen=True, eq=False)
class Reckoning:
    """What every method costs for a recall, and which of them are worth what they cost more to set up."""

    k: int
    recall: float
    unit: Unit
    model: CostModel | None
    terms: Terms
    lines: Sequence[Line]
    offers: Sequence[Offer]
    worthwhile: Sequence[Offer]
    documents: Sequence[Row]
    n_items: int
    n_corpus_items: int

    @property
    def stages(self) -> list[Stage]:
        """What costs the least of what is worthwhile, for how many queries."""
        return cheapest_stages(self.worthwhile)

    @property
    def everything(self) -> Offer:
        """Scoring all items."""
        return next(offer for offer in self.offers if offer.line.is_everything)

    @property
    def place(self) -> int:
        """Which stage is recommended: that of the queries that will be served, or where nobody knows, of many."""
        n_queries = self.terms.n_queries or MANY_QUERIES
        return sum(stage.n_queries <= n_queries for stage in self.stages) - 1

    @property
    def chosen(self) -> Offer:
        """What is recommended."""
        return self.stages[self.place].offer

    @property
    def retrievers(self) -> list[str]:
        """Those that an index needs for what is recommended; one to re-rank with comes first."""
        own = [_retriever(line) for line in self.lines if line.is_reranking]
        others = [name for name in own if name != RRF and DISTILLED not in name]
        if not self.chosen.line.is_reranking:
            return [] if self.chosen.line.is_everything else others
        chosen = _retriever(self.chosen.line)
        return [chosen, *others] if chosen == RRF else [chosen]

    @property
    def best_reranking(self) -> Line | None:
        """The one that finds the most with the same pairs."""
        lines = [line for line in self.lines if line.is_reranking]
        return max(lines, key=lambda line: mean(line.rows, "recall"), default=None)


def reckon(rows: Sequence[Row], terms: Terms = NO_TERMS) -> Reckoning | None:
    """The costs of all methods on one world; None where no method was measured."""
    ks = distinct(measured_methods(rows), "k")
    if not ks:
        return None
    k = min(ks, key=lambda each: abs(each - K))
    lines, model = cost_lines(rows, k=k), scorer_model(rows, terms)
    unit = _unit(lines, model, terms)
    recall = _recall(lines, unit)
    offers, documents = make_offers(lines, recall, unit), select(rows, method=DOCUMENTS)
    n_items = distinct(rows, "n_items")[-1]
    return Reckoning(
        k=k,
        recall=recall,
        unit=unit,
        model=model,
        terms=terms,
        lines=lines,
        offers=offers,
        worthwhile=choose_worthwhile(offers, documents),
        documents=documents,
        n_items=n_items,
        n_corpus_items=max([n_items, *(row.values.get("n_corpus_items", 0) for row in select(rows, method=SCORER))]),
    )


def scorer_model(rows: Sequence[Row], terms: Terms) -> CostModel | None:
    """The scorer as the terms have it, and else as it was measured; None where neither is known."""
    timed = [row for row in select(rows, method=SCORER) if "latency" in row.values]
    measured = (timed[-1]["latency"], timed[-1]["seconds_per_pair"]) if timed else None
    given = (terms.latency, terms.seconds_per_pair)
    if given == (None, None):
        return None if measured is None else CostModel(f"{YOURS} as measured", *measured)
    if None in given and measured is None:
        raise InputError("--latency-ms and --pair-ms go together in a report of a scorer that was not timed; pass both")
    latency, of_pair = (known if own is None else own for own, known in zip(given, measured or given, strict=True))
    return CostModel(YOURS, latency, of_pair)


def _unit(lines: Sequence[Line], model: CostModel | None, terms: Terms) -> Unit:
    """Dollars where there is a price, else seconds where they are known of all methods, else pairs."""
    if terms.price_per_1000 is not None:
        return in_dollars(terms.price_per_1000)
    if model is None or any(math.isnan(model.seconds(curve[0])) for line in lines for curve in line.curves[:1]):
        return in_pairs()
    return in_seconds(model)


def _recall(lines: Sequence[Line], unit: Unit) -> float:
    """The highest of the usual recalls that some method reaches without scoring everything."""
    searches = [line for line in lines if not line.is_everything]
    return next((recall for recall in RECALLS if any(line.need(recall, unit) for line in searches)), RECALLS[0])


def choose_worthwhile(offers: Sequence[Offer], documents: Sequence[Row]) -> list[Offer]:
    """Offers that are clearly better than all simpler ones: first re-ranking, then the cheapest to build."""
    simplest_first = sorted(offers, key=_simplicity)
    chosen: list[Offer] = []
    for offer in simplest_first:
        if offer.line.is_everything or all(_is_clearly_better(offer, other, documents) for other in chosen):
            chosen.append(offer)
    return chosen


def _simplicity(offer: Offer) -> tuple[float, bool, float, float]:
    """The simplest has the least; of those that cost the same, the one that finds more."""
    return offer.build, not offer.line.is_reranking, offer.per_query, -offer.need.recall


def _is_clearly_better(ours: Offer, theirs: Offer, documents: Sequence[Row]) -> bool:
    """Whether ours costs less for a query and finds more with the budget that it needs."""
    if theirs.line.is_everything:
        return True
    return ours.per_query < theirs.per_query and _finds_clearly_more(ours, theirs, documents)


def _finds_clearly_more(ours: Offer, theirs: Offer, documents: Sequence[Row]) -> bool:
    """Whether ours finds more with the budget that it needs, as far as anybody can tell."""
    lead = lead_at(ours.line, theirs.line, ours.need.pairs, documents)
    return lead is None or (lead.mean > CLEARLY and lead.low > 0)


def lead_at(ours: Line, theirs: Line, pairs: float, documents: Sequence[Row]) -> Interval | None:
    """How much more one finds with the budget nearest to these pairs; None where they have none in common."""
    common = set(distinct(ours.rows, "cost")) & set(distinct(theirs.rows, "cost"))
    if not common or not documents:
        return None
    nearest = min(common, key=lambda budget: abs(math.log(budget / pairs)))
    return difference(select(ours.rows, cost=nearest), select(theirs.rows, cost=nearest), documents)


def recommend(found: Reckoning) -> str:
    """One sentence."""
    chosen, assumed = found.chosen, _assumed(found)
    finds = f"{found.recall:.0%} of the scorer's top {found.k}"
    if chosen.line.is_everything:
        everything = f"Score all {found.n_items:,} items for each query"
        return f"{everything}: no method finds {finds} at a clearly lower cost{assumed}."
    if len(found.stages) == 1 and chosen.line.is_reranking:
        return f"Keep re-ranking: {_use(chosen)} to find {finds}; nothing else does it at a clearly lower cost."
    return f"{_capital(_use(chosen))} to find {finds}{assumed}."


def _assumed(found: Reckoning) -> str:
    """The number of queries that it is recommended for, where that matters."""
    if found.terms.n_queries is not None:
        return f", for the {found.terms.n_queries:,} queries that you will serve"
    if len(found.stages) == 1:
        return ""
    return f", for {MANY_QUERIES:,} queries (assumed; the report lists what costs the least for fewer and for more)"


def reasons(found: Reckoning) -> Iterator[str]:
    """What the recommendation rests on."""
    yield from _stages(found)
    yield _compared_by(found)
    yield from _against_reranking(found)
    yield from _against_everything(found)
    yield from _anchors(found)
    yield from _chance(found)
    yield from _drawn(found)


def _stages(found: Reckoning) -> Iterator[str]:
    """What is the cheapest for how many queries, and what it costs."""
    stages = found.stages
    for place, stage in enumerate(stages):
        following = stages[place + 1].n_queries if place + 1 < len(stages) else None
        if len(stages) == 1:
            when = "For any number of queries"
        elif following is None:
            when = f"From {rounded_up(stage.n_queries):,} queries on"
        elif not place:
            when = f"For up to {rounded_up(following):,} queries"
        else:
            when = f"From {rounded_up(stage.n_queries):,} to {rounded_up(following):,} queries"
        yield f"{when}, **{stage.offer.line.name}** costs the least: {_costs(found, stage.offer)}."


def _compared_by(found: Reckoning) -> str:
    """What costs are, and the scorer that seconds are those of."""
    model, price = found.model, found.terms.price_per_1000
    seconds = "" if model is None else f"with {model.terms}, {model.name}"
    if price is not None:
        beside = f"; seconds are {seconds}" if seconds else ""
        return f"Methods are compared by price, ${price:g} for 1,000 pairs{beside}."
    if found.unit.name == SECONDS:
        return f"Methods are compared by time, {seconds}."
    return "Methods are compared by pairs, because their seconds aren't known."


def _use(offer: Offer) -> str:
    """What to do, with the budget."""
    line, budget = offer.line, f"a budget of {offer.need.pairs:,.0f} pairs"
    if line.is_reranking:
        return f"re-rank {_retriever(line)} with {budget}"
    method = DEFAULT if line.method == Posterior.name else line.method
    return f"use {method} with {line.anchors} and {budget}"


def _capital(sentence: str) -> str:
    return sentence[:1].upper() + sentence[1:]


def _costs(found: Reckoning, offer: Offer) -> str:
    """What one query takes, and what is paid before the first one."""
    build_pairs = offer.line.build_pairs
    query, build = [f"{offer.need.pairs:,.0f} pairs{_rounds(offer)}"], [f"{build_pairs:,.0f} pairs"]
    units = [] if found.model is None else [in_seconds(found.model)]
    if found.terms.price_per_1000 is not None:
        units.append(in_dollars(found.terms.price_per_1000))
    for unit in units:
        if not math.isnan(unit.of_query(offer.need)):
            query.append(unit.show(unit.of_query(offer.need)))
            build.append(unit.show(unit.of_build(build_pairs)))
    before = f", after a build of {_joined(build)}" if offer.line.n_anchor_queries else ", and nothing to build"
    return f"{_joined(query)} a query{before}"


def _rounds(offer: Offer) -> str:
    """In how many rounds, because fewer of them take more pairs and less time; nothing where nobody counted them."""
    if math.isnan(offer.need.rounds):
        return ""
    n_rounds = round(offer.need.rounds)
    return f" in {n_rounds} rounds" if n_rounds > 1 else " in 1 round"


def _joined(costs: Sequence[str]) -> str:
    """Pairs, with the other costs of the same in brackets."""
    return f"{costs[0]} ({', '.join(costs[1:])})" if costs[1:] else costs[0]


def _against_reranking(found: Reckoning) -> Iterator[str]:
    line = found.best_reranking
    if line is None or line is found.chosen.line:
        return
    need, ranked = line.need(found.recall, found.unit), f"Re-ranking {_retriever(line)}, the best retriever here,"
    if need is None:
        finds = max(point.recall for curve in line.curves for point in curve)
        yield f"{ranked} finds {finds:.0%} with {line.most_pairs:,.0f} pairs."
        return
    times = found.unit.of_query(need) / found.chosen.per_query
    yield f"{ranked} takes {need.pairs:,.0f} pairs a query: {times:.1f} times the cost."


def _retriever(line: Line) -> str:
    return line.method.partition(" ")[2]


def _against_everything(found: Reckoning) -> Iterator[str]:
    times = found.everything.per_query / found.chosen.per_query
    if found.chosen is not found.everything:
        cost = found.unit.show(found.everything.per_query)
        yield f"Scoring all {found.n_items:,} items takes {cost} a query: {times:.1f} times the cost."


def _anchors(found: Reckoning) -> Iterator[str]:
    """Where anchor queries aren't worth it: they find no more, or cost too much."""
    built = [offer for offer in found.offers if offer.line.n_anchor_queries]
    if not built or any(stage.offer.line.n_anchor_queries for stage in found.stages):
        return
    others = [each for each in found.worthwhile if not each.line.n_anchor_queries and not each.line.is_everything]
    if any(all(_finds_clearly_more(ours, theirs, found.documents) for theirs in others) for ours in built):
        yield "Anchor queries find more with the same pairs, but cost more than they save."
    else:
        yield "Anchor queries gain nothing here that is clear enough to pay for them."


def _chance(found: Reckoning) -> Iterator[str]:
    """How sure it is: what was found with the next larger budget that was measured."""
    rows = found.chosen.line.rows
    budgets = distinct(rows, "cost")
    if not found.documents or not budgets:
        return
    budget = next((each for each in budgets if each >= found.chosen.need.pairs), budgets[-1])
    at = select(rows, cost=budget)
    interval = recall_interval(at, found.documents)
    n_tests = sum(len(row["found"]) for row in at)
    yield (
        f"With {budget:,} pairs it found {interval.mean:.0%} ({max(0.0, interval.low):.0%} to "
        f"{min(1.0, interval.high):.0%} with 95% confidence) in {n_tests:,} test searches."
    )


def _drawn(found: Reckoning) -> Iterator[str]:
    if found.n_corpus_items > found.n_items:
        yield (
            f"Measured on {found.n_items:,} of your {found.n_corpus_items:,} items, drawn at random: with all of them, "
            "a build has as many times more pairs, and a search needs more of them; `--minutes` or `--items` measures "
            "more, and `anncur plan` reckons with all."
        )
