"""Which method to use, with how many anchor queries and which budget: one sentence, and its reasons with the numbers.

Reads rows through `costs.py`, feeds the report. A method that costs more to set up is recommended only where it finds
clearly more than all simpler ones: by a difference that matters, beyond chance over the documents of test queries."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from anncur.evaluation.cost_rows import K
from anncur.evaluation.costs import (
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
)
from anncur.evaluation.distribution import SCORER
from anncur.evaluation.intervals import Interval, difference, measured_methods, recall_interval
from anncur.evaluation.rows import Row, distinct, mean, select
from anncur.evaluation.scoreboard import DOCUMENTS
from anncur.planning.advice import CLEARLY, ENOUGH

RECALLS = (ENOUGH, 0.8, 0.7, 0.6, 0.5)  # the first that is reached at less than the cost of everything
MANY_QUERIES = 10_000  # that are served, where nobody tells how many
YOURS = "your scorer"


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
    """The scorer as the terms have it, or else as it was measured; None where neither is known."""
    measured = select(rows, method=SCORER)
    given = (terms.latency, terms.seconds_per_pair)
    if given == (None, None):
        values = [(row["latency"], row["seconds_per_pair"]) for row in measured if "latency" in row.values]
        return CostModel(f"{YOURS} as measured", *values[-1]) if values else None
    latency, seconds_per_pair = given
    return CostModel(YOURS, latency or 0.0, seconds_per_pair or 0.0)


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
    lead = lead_at(ours.line, theirs.line, ours.need.pairs, documents)
    is_clear = lead is None or (lead.mean > CLEARLY and lead.low > 0)
    return ours.per_query < theirs.per_query and is_clear


def lead_at(ours: Line, theirs: Line, pairs: float, documents: Sequence[Row]) -> Interval | None:
    """How much more one finds with the budget nearest to these pairs; None where they have none in common."""
    common = set(distinct(ours.rows, "cost")) & set(distinct(theirs.rows, "cost"))
    if not common or not documents:
        return None
    nearest = min(common, key=lambda budget: abs(math.log(budget / pairs)))
    return difference(select(ours.rows, cost=nearest), select(theirs.rows, cost=nearest), documents)


def recommend(found: Reckoning) -> str:
    """One sentence."""
    stages, chosen = found.stages, found.chosen
    finds = f"to find {found.recall:.0%} of the scorer's top {found.k}"
    if chosen.line.is_everything:
        return f"Score all {found.n_items:,} items for each query: no method finds that much for clearly less."
    if found.terms.n_queries is not None:
        return f"{_capital(_use(chosen))} {finds} for the {found.terms.n_queries:,} queries that you will serve."
    if len(stages) == 1 and chosen.line.is_reranking:
        return f"Keep re-ranking: {_use(chosen)} {finds}; nothing else does it for clearly less."
    if not found.place:
        return f"{_capital(_use(chosen))} {finds}."
    least = _rounded(stages[found.place].n_queries)
    return (
        f"{_capital(_use(chosen))} {finds}, if you will serve more than {least:,} queries; with fewer, {_less(found)}."
    )


def _less(found: Reckoning) -> str:
    """What serves for fewer queries than the recommendation is for."""
    method, before = found.chosen.line.method, [stage.offer for stage in found.stages[: found.place]]
    if before[-1].line.method != method:
        return _use(before[-1])
    counts = [offer.line.n_anchor_queries for offer in before if offer.line.method == method]
    if len(counts) == 1:
        return f"take {before[-1].line.anchors}"
    return "take fewer anchor queries" if min(counts) else "take fewer anchor queries, or none"


def reasons(found: Reckoning) -> Iterator[str]:
    """What the recommendation rests on."""
    yield from _stages(found)
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
            when = f"From {_rounded(stage.n_queries):,} queries on"
        elif not place:
            when = f"For up to {_rounded(following):,} queries"
        else:
            when = f"From {_rounded(stage.n_queries):,} to {_rounded(following):,} queries"
        yield f"{when}, **{stage.offer.line.name}** costs the least: {_costs(found, stage.offer)}."


def _use(offer: Offer) -> str:
    """What to do, with the budget."""
    line = offer.line
    if line.is_everything:
        return "score everything"
    budget = f"a budget of {budget_of(offer):,} pairs"
    if line.is_reranking:
        return f"re-rank {_retriever(line)} with {budget}"
    return f"search with {line.method}, {line.anchors} and {budget}"


def budget_of(offer: Offer) -> int:
    """What an offer needs, rounded up to two digits."""
    return _rounded(offer.need.pairs)


def _rounded(number: float) -> int:
    """Up to two digits that count."""
    step: int = 10 ** max(0, math.floor(math.log10(max(1.0, number))) - 1)
    return math.ceil(round(number / step, 6)) * step


def _capital(sentence: str) -> str:
    return sentence[:1].upper() + sentence[1:]


def _costs(found: Reckoning, offer: Offer) -> str:
    """What one query takes, and what is paid before the first one."""
    build_pairs = offer.line.build_pairs
    query, build = [f"{offer.need.pairs:,.0f} pairs"], [f"{build_pairs:,.0f} pairs"]
    units = [] if found.model is None else [in_seconds(found.model)]
    if found.terms.price_per_1000 is not None:
        units.append(in_dollars(found.terms.price_per_1000))
    for unit in units:
        if not math.isnan(unit.of_query(offer.need)):
            query.append(unit.show(unit.of_query(offer.need)))
            build.append(unit.show(unit.of_build(build_pairs)))
    before = f", after a build of {_joined(build)}" if offer.line.n_anchor_queries else ", and nothing to build"
    return f"{_joined(query)} a query{before}"


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
    """Where anchor queries aren't worth it."""
    if any(offer.line.n_anchor_queries for offer in found.worthwhile):
        return
    if any(offer.line.n_anchor_queries for offer in found.offers):
        yield "Anchor queries gain nothing here that is clear enough to pay for them."


def _chance(found: Reckoning) -> Iterator[str]:
    """How sure it is."""
    rows = found.chosen.line.rows
    budgets = distinct(rows, "cost")
    if not found.documents or not budgets:
        return
    nearest = min(budgets, key=lambda budget: abs(math.log(budget / found.chosen.need.pairs)))
    at = select(rows, cost=nearest)
    interval = recall_interval(at, found.documents)
    n_tests = sum(len(row["found"]) for row in at)
    yield (
        f"With {nearest:,} pairs it found {interval.mean:.0%} ({max(0.0, interval.low):.0%} to "
        f"{min(1.0, interval.high):.0%} with 95% confidence) in {n_tests:,} test searches."
    )


def _drawn(found: Reckoning) -> Iterator[str]:
    if found.n_corpus_items > found.n_items:
        yield (
            f"Measured on {found.n_items:,} of your {found.n_corpus_items:,} items, drawn at random: with all of them, "
            "a build has as many times more pairs, and a search needs more of them; `--minutes` or `--items` measures "
            "more, and `anncur plan` reckons with all."
        )
