"""Which anchor queries are worth paying for: plain sentences with the numbers of a pilot.

Reads what `comparison.py` measured and what a build costs, feeds `plan.py`. A difference counts where it matters and is
more than chance over the test queries."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from anncur.planning.advice import CLEARLY, FEW_ITEMS, LEAST_TUNED, matters, score_them_all
from anncur.planning.comparison import LEAST_TEST, Comparison, K, Measured
from anncur.progress import duration
from anncur.retrievers.loading import RRF

DAY = 24 * 3600  # seconds


@dataclass(frozen=True)
class AnchorCost:
    """What it takes to score all items of a corpus for a number of anchor queries; a price where one is known."""

    n_anchor_queries: int
    n_pairs: int
    seconds: float
    price: float | None

    def __str__(self) -> str:
        price = "" if self.price is None else f", for ${self.price:,.2f}"
        return f"{self.n_pairs:,} pairs, about {duration(max(1.0, self.seconds))}{price}"


def advise_plan(found: Comparison, costs: Mapping[int, AnchorCost], *, n_items: int, n_queries: int) -> Iterator[str]:
    """What to begin with, what anchor queries add to it, and when they add no more; `n_queries` are at hand."""
    if n_items <= FEW_ITEMS:
        yield score_them_all(n_items)
    rival = max(found.reranked.items(), key=lambda named: named[1].mean, default=None)
    first, *others = found.posterior
    yield _without_anchors(first, rival, found)
    best = first if rival is None or first.mean >= rival[1].mean else rival[1]
    for measured in others:
        if matters(measured.lead(best)):
            n_anchors = measured.n_anchor_queries
            gain = f"raise this from {best.mean:.0%} to {measured.mean:.0%}"
            yield f"{n_anchors} anchor queries ({costs[n_anchors]}) {gain}"
            best = measured
    yield from _worse(found)
    yield from _more(best, others, costs, n_test=found.n_test, n_queries=n_queries)
    if rival is not None and not matters(best.lead(rival[1])):
        yield _rerank(rival[0])
    elif found.anncur is not None and matters(found.anncur.lead(best)):
        yield f"compare with the method anncur, which finds {found.anncur.mean:.0%}"
    if costs[best.n_anchor_queries].seconds > DAY:
        yield "this build takes more than a day: build in shards on several machines (shard=(i, n), --shard i/n)"


def _without_anchors(first: Measured, rival: tuple[str, Measured] | None, found: Comparison) -> str:
    """Adaptive search from the first query on, beside re-ranking with the best retriever."""
    top, averaged = f"of the scorer's top {K}", _averaged(found)
    if rival is None:
        return f"begin without anchor queries: posterior finds {first.mean:.0%} {top} ({averaged})"
    name, reranked = rival
    named = f"{name}, the best retriever," if len(found.reranked) > 1 else name
    both = f"posterior finds {first.mean:.0%} {top} and re-ranking {named} {reranked.mean:.0%} ({averaged})"
    if matters(first.lead(reranked)):
        return f"begin without anchor queries: {both}"
    if matters(reranked.lead(first)):
        return f"without anchor queries, plain re-ranking serves better: {both}"
    is_close = abs(first.mean - reranked.mean) <= CLEARLY
    why = "no difference that matters" if is_close else f"{found.n_test} test queries are too few to tell them apart"
    return f"without anchor queries, {both}: {why}"


def _averaged(found: Comparison) -> str:
    """What recalls are means over."""
    fewest, *_, most = (*found.shares.values(), *found.shares.values())
    span = f"{fewest:.0%} to {most:.0%}" if fewest < most else f"{most:.0%}"
    return f"means over {span} of the items scored"


def _worse(found: Comparison) -> Iterator[str]:
    """Where more anchor queries found less than fewer."""
    for fewer, more in pairwise(found.posterior):
        if more.mean < fewer.mean - CLEARLY:
            counts = f"{more.n_anchor_queries} anchor queries find less than {fewer.n_anchor_queries or 'none'}"
            chance = "" if matters(fewer.lead(more)) else f"; {found.n_test} test queries can't tell it from chance"
            yield f"{counts} on the pilot, {more.mean:.0%} against {fewer.mean:.0%}{chance}"


def _more(
    best: Measured, others: Sequence[Measured], costs: Mapping[int, AnchorCost], *, n_test: int, n_queries: int
) -> Iterator[str]:
    """Whether more anchor queries than those of the best would find more."""
    if not others:
        needed = LEAST_TEST + LEAST_TUNED
        yield f"{n_queries} queries are too few to measure what anchor queries would gain: pass at least {needed}"
        return
    most, n_best = others[-1], best.n_anchor_queries
    if most is best:
        if n_queries > n_best:
            yield f"more may find still more: the pilot tried {n_best} of your {n_queries} queries as anchor queries"
        return
    finds = f"{most.n_anchor_queries} ({costs[most.n_anchor_queries]}) find {most.mean:.0%}"
    if most.mean > best.mean + CLEARLY:
        yield f"{finds}, but {n_test} test queries are too few to tell whether that is chance: pass more queries"
    elif n_best:
        yield f"more than {n_best} gain nothing that matters on the pilot: {finds}"
    else:
        yield f"anchor queries gain nothing that matters on the pilot: {finds}"


def _rerank(retriever: str) -> str:
    fused = ' and "rrf" among the retrievers' if retriever == RRF else ""
    return (
        f'nothing beats plain re-ranking with {retriever} on the pilot: method=anncur.Rerank("{retriever}"){fused}, '
        "which needs no anchor queries"
    )
