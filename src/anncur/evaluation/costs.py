"""What searches cost in pairs, seconds and dollars: per query for a recall, and in all for the queries that are served.

Reads rows, feeds `recommendation.py` and its figures. Measures nothing: a cost model turns the pairs, rounds and own
seconds of a search into the seconds that it would take with a scorer of that kind."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TypeAlias

import numpy as np

from anncur.evaluation.cost_rows import MORE_PAIRS
from anncur.evaluation.intervals import measured_parts
from anncur.evaluation.rows import Cell, Row, distinct, grouped, mean, select
from anncur.evaluation.scoreboard import ANNCUR
from anncur.progress import duration
from anncur.search.methods import Exhaustive, Rerank
from anncur.search.posterior import Posterior

BUILD_REQUEST = 100  # pairs in a request of a build
RERANKING = (f"{Rerank.name} ", "re-rank ")  # how names of methods that re-rank begin
KNOWN_ROUNDS = {**dict.fromkeys(RERANKING, 1.0), ANNCUR: 2.0}  # of rows that don't have them
EVERYTHING = "scoring everything"
PAIRS, SECONDS, DOLLARS = "pairs scored", "seconds", "dollars"
DAY = 86400  # seconds


@dataclass(frozen=True)
class Point:
    """What a method finds with one budget, and what that takes, as means over queries.

    `own_seconds` are the method's own, without the scorer's; `rounds` are NaN where nobody counted them."""

    pairs: float
    recall: float
    rounds: float = math.nan
    own_seconds: float = 0.0

    def towards(self, other: Point, share: float) -> Point:
        """Between the two: pairs by their logarithm, all else straight."""
        between = (np.interp(share, (0, 1), (getattr(self, name), getattr(other, name))) for name in BESIDE_PAIRS)
        return Point(self.pairs ** (1 - share) * other.pairs**share, *map(float, between))


BESIDE_PAIRS = ("recall", "rounds", "own_seconds")
Curve: TypeAlias = Sequence[Point]  # the fewest pairs first


@dataclass(frozen=True)
class CostModel:
    """A scorer that takes `latency` seconds for each request, and `seconds_per_pair` for each pair in it."""

    name: str
    latency: float
    seconds_per_pair: float

    def __str__(self) -> str:
        pair = f"{1000 * self.seconds_per_pair:.3g} ms per pair"
        return f"{self.name}, {1000 * self.latency:.3g} ms + {pair}" if self.latency else f"{self.name}, {pair}"

    @property
    def terms(self) -> str:
        """What a request and a pair take."""
        return f"{1000 * self.latency:.3g} ms a request and {1000 * self.seconds_per_pair:.3g} ms a pair"

    def seconds(self, point: Point) -> float:
        """Of one query that is searched alone: every round waits for a request."""
        waiting = self.latency * point.rounds if self.latency else 0.0
        return waiting + self.seconds_per_pair * point.pairs + point.own_seconds

    def build_seconds(self, n_pairs: float) -> float:
        """Of a build, one request after the other."""
        return math.ceil(n_pairs / BUILD_REQUEST) * self.latency + n_pairs * self.seconds_per_pair


GPU = CostModel("a GPU", 0.01, 0.00005)
ENDPOINT = CostModel("an endpoint", 0.2, 0.002)


@dataclass(frozen=True)
class Unit:
    """What costs are counted in: of a query, of the pairs of a build, and in words."""

    name: str
    of_query: Callable[[Point], float]
    of_build: Callable[[float], float]
    show: Callable[[float], str]


def in_pairs() -> Unit:
    """Pairs that are scored."""
    return Unit(PAIRS, lambda point: point.pairs, float, lambda pairs: f"{pairs:,.0f} pairs")


def in_seconds(model: CostModel) -> Unit:
    """Seconds with a scorer."""
    return Unit(SECONDS, model.seconds, model.build_seconds, show_seconds)


def in_dollars(price_per_1000: float) -> Unit:
    """Dollars at a price of 1,000 pairs."""

    def price(n_pairs: float) -> float:
        return price_per_1000 * n_pairs / 1000

    return Unit(DOLLARS, lambda point: price(point.pairs), price, show_dollars)


def show_seconds(seconds: float) -> str:
    """A length of time for people, from milliseconds to days."""
    if seconds < 1:
        return f"{1000 * seconds:.3g} ms"
    if seconds < 10:
        return f"{seconds:.2g} s"
    if seconds < 2 * DAY:
        return duration(seconds)
    return f"{seconds / DAY:,.0f} days"


def show_dollars(dollars: float) -> str:
    """An amount of money for people: two digits at least."""
    return f"${dollars:,.0f}" if dollars >= 100 else f"${dollars:.2f}" if dollars >= 0.1 else f"${dollars:.2g}"


@dataclass(frozen=True, eq=False)
class Line:
    """A method with a number of anchor queries: its curves, one for every limit of rounds that was measured.

    `rows` are those of the curve without a limit, for intervals."""

    method: str
    n_anchor_queries: int
    build_pairs: float
    curves: Sequence[Curve]
    rows: Sequence[Row] = ()

    @property
    def name(self) -> str:
        """The method with its number of anchor queries; that it has none is mentioned where it could have some."""
        has_some = self.n_anchor_queries or self.is_default
        return f"{self.method}, {self.anchors}" if has_some else self.method

    @property
    def anchors(self) -> str:
        """The number of anchor queries."""
        return f"{self.n_anchor_queries or 'no'} anchor queries"

    @property
    def is_everything(self) -> bool:
        """Whether it scores all items."""
        return self.method == EVERYTHING

    @property
    def is_default(self) -> bool:
        """Whether it is the default method."""
        return self.method.startswith(Posterior.name)

    @property
    def is_reranking(self) -> bool:
        """Whether it only scores the best of a retriever."""
        return self.method.startswith(RERANKING)

    @property
    def most_pairs(self) -> float:
        """Of the largest budget."""
        return max(curve[-1].pairs for curve in self.curves)

    def need(self, recall: float, unit: Unit) -> Point | None:
        """What this recall takes at the least cost, as a budget in round numbers; None where it isn't reached."""
        reached = [self._budget(point) for curve in self.curves if (point := reach(curve, recall)) is not None]
        known = [point for point in reached if not math.isnan(unit.of_query(point))]
        return min(known, key=unit.of_query, default=None)

    def _budget(self, point: Point) -> Point:
        """What is interpolated is known to two digits at best; all items are as many as they are."""
        return point if self.is_everything else replace(point, pairs=rounded_up(point.pairs))


def rounded_up(number: float) -> int:
    """To two digits that count."""
    step: int = 10 ** max(0, math.floor(math.log10(max(1.0, number))) - 1)
    return math.ceil(round(number / step, 6)) * step


def reach(curve: Curve, recall: float) -> Point | None:
    """Where a curve first has this recall, between the budgets that were measured; None where it never does.

    Where more pairs found less, which is chance, it is taken as level."""
    if curve[0].recall >= recall:
        return curve[0]
    highest = np.maximum.accumulate([point.recall for point in curve]).tolist()
    level = [replace(point, recall=most) for point, most in zip(curve, highest, strict=True)]
    for before, after in pairwise(level):
        if after.recall >= recall:
            return before.towards(after, (recall - before.recall) / (after.recall - before.recall))
    return None


def cost_lines(rows: Sequence[Row], *, k: int, value: str = "recall") -> list[Line]:
    """The lines of one world: all methods by their numbers of anchor queries, and scoring everything last.

    `value` is what points have as their recall, such as a metric of the task."""
    measured = select(measured_parts(rows), k=k)
    if not measured:
        return []
    lines = [_line(some, value) for some in _rows_of_lines(measured)]
    lines.sort(key=lambda line: (line.is_default, line.is_default and line.n_anchor_queries))
    exhaustive = select(rows, method=Exhaustive.name, k=k)
    highest = mean(exhaustive, value) if exhaustive else 1.0
    everything = Point(distinct(measured, "n_items")[-1], highest, rounds=1.0)
    return [*lines, Line(EVERYTHING, 0, 0, [[everything]])]


def _rows_of_lines(measured: Sequence[Row]) -> list[list[Row]]:
    """By method and number of anchor queries, but for re-ranking: that is the same with any of them."""
    found: dict[tuple[str, int | None], dict[Cell, Row]] = defaultdict(dict)
    for row in measured:
        cell = replace(row.cell, n_anchor_queries=None) if row.cell.method.startswith(RERANKING) else row.cell
        found[cell.method, cell.n_anchor_queries][cell] = row
    return [list(rows.values()) for rows in found.values()]


def _line(rows: Sequence[Row], value: str) -> Line:
    cell, build_pairs = rows[0].cell, _build_pairs(rows)
    n_anchors = round(build_pairs / (cell.n_items or 1))
    method = cell.method.removesuffix(", no anchor queries").removesuffix(f", {n_anchors} anchor queries")
    by_part = {part: some for (part,), some in grouped(rows, "part").items()}
    free = [*by_part.pop("", []), *by_part.pop(MORE_PAIRS, [])]
    curves = [_curve(some, value) for some in (free, *by_part.values()) if some]
    return Line(method, n_anchors, build_pairs, curves, free)


def _build_pairs(rows: Sequence[Row]) -> float:
    """Pairs that a build scored; in rows that don't have them, those of all anchor queries with all items."""
    if all("build_calls" in row.values for row in rows):
        return mean(rows, "build_calls")
    cell = rows[0].cell
    is_built = not cell.method.startswith(RERANKING)
    return float((cell.n_anchor_queries or 0) * (cell.n_items or 0)) if is_built else 0.0


def _curve(rows: Sequence[Row], value: str) -> Curve:
    points = [_point(some, value) for some in grouped(rows, "cost").values()]
    return sorted(points, key=lambda point: point.pairs)


def _point(rows: Sequence[Row], value: str) -> Point:
    pairs = np.mean([row.values.get("calls", row.cell.cost) for row in rows])
    rounds = np.mean([_rounds(row) for row in rows])
    own_seconds = np.mean([_own_seconds(row) for row in rows])
    return Point(float(pairs), mean(rows, value), float(rounds), float(own_seconds))


def _rounds(row: Row) -> float:
    known = (rounds for beginning, rounds in KNOWN_ROUNDS.items() if row.cell.method.startswith(beginning))
    return float(row.values.get("rounds", next(known, math.nan)))


def _own_seconds(row: Row) -> float:
    """Where exact scores were looked up, all seconds are the method's own."""
    return float(row.values.get("own_seconds", row.values.get("seconds", 0.0)))


@dataclass(frozen=True, eq=False)
class Offer:
    """A line that reaches a recall, and what that costs: once for the build, and for every query."""

    line: Line
    need: Point
    build: float
    per_query: float

    def total(self, n_queries: float) -> float:
        """The build and so many queries."""
        return self.build + n_queries * self.per_query


def make_offers(lines: Iterable[Line], recall: float, unit: Unit) -> list[Offer]:
    """The lines that reach a recall, with their costs."""
    needs = [(line, line.need(recall, unit)) for line in lines]
    return [
        Offer(line, need, unit.of_build(line.build_pairs), unit.of_query(need))
        for line, need in needs
        if need is not None
    ]


def break_even(ours: Offer, theirs: Offer) -> float | None:
    """The number of queries from which ours costs less in all; 0 where it always does, None where it never does."""
    extra, saved = ours.build - theirs.build, theirs.per_query - ours.per_query
    if saved <= 0:
        return None
    return max(0.0, extra / saved)


@dataclass(frozen=True, eq=False)
class Stage:
    """What costs the least from a number of queries on, until the next stage."""

    n_queries: int
    offer: Offer


def cheapest_stages(offers: Sequence[Offer]) -> list[Stage]:
    """What costs the least for how many queries, from the first one to ever more."""
    if not offers:
        return []
    stages = [Stage(1, min(offers, key=lambda offer: (offer.total(1), offer.per_query)))]
    while True:
        now = stages[-1].offer
        crossings = [(found, offer) for offer in offers if (found := break_even(offer, now)) is not None]
        if not crossings:
            return stages
        place, following = min(crossings, key=lambda crossing: (crossing[0], crossing[1].per_query))
        stages.append(Stage(max(math.ceil(place), stages[-1].n_queries + 1), following))
