"""The paper's claims, each judged by rows: confirmed, refuted, different, or not measured, with the number.

A claim about many cells is confirmed where all of them agree, refuted where none does, and different between; the best
share of the budget is judged by its median, and one falling curve shows that curves aren't monotone. Reads rows, feeds
the report; measures nothing itself."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from anncur.evaluation.experiments.curves import FIXED_ITEM, ITEM_CUR
from anncur.evaluation.experiments.matrix import CUT, INVERSE, MIPS, ORACLE, SCORING, VECTORS
from anncur.evaluation.experiments.models import PAIR, TRAINING
from anncur.evaluation.linking import MACRO
from anncur.evaluation.paper import ANNCUR, best_splits, equally_good_splits
from anncur.evaluation.rows import Row, distinct, grouped, mean, select
from anncur.evaluation.study import DISTILLED
from anncur.evaluation.verdicts import (
    CONFIRMED,
    DIFFERENT,
    NOT_MEASURED,
    REFUTED,
    Finding,
    agreement,
    all_positive,
    lines,
    series,
    trend,
)
from anncur.planning.advice import rerank_name

COLLAPSE = 0.05  # a loss of recall that nobody takes for noise
NEGLIGIBLE = 0.01  # a share of the time
FLAT = 1.5  # a ratio of times between the largest and the smallest world


@dataclass(frozen=True)
class Claim:
    """What the paper says, the numbers that it prints for it, and how rows judge it; None where they can't."""

    text: str
    paper: str
    judge: Callable[[Sequence[Row]], Finding | None]


@dataclass(frozen=True)
class Verdict:
    """A claim, judged."""

    claim: str
    paper: str
    verdict: str
    ours: str


def judge_claims(rows: Sequence[Row]) -> list[Verdict]:
    """All claims, in the order of the paper."""
    found = []
    for claim in CLAIMS:
        verdict, ours = claim.judge(rows) or (NOT_MEASURED, "")
        found.append(Verdict(claim.text, claim.paper, verdict, ours))
    return found


def at_cost(rows: Iterable[Row]) -> list[Row]:
    """The curves over cost with the most anchor queries of each world, with the best split of each cost."""
    return best_splits(_most_anchors(select(rows, experiment="recall-at-cost")))


def _most_anchors(rows: Iterable[Row]) -> list[Row]:
    """Those with the most anchor queries of each world."""
    return [
        row
        for some in grouped(rows, "world", "scorer", "data").values()
        for row in select(some, n_anchor_queries=distinct(some, "n_anchor_queries")[-1])
    ]


def _ahead_at_large_cost(rows: Sequence[Row]) -> Finding | None:
    leads = [lead for k, cost, most, lead in _leads(rows, rerank_name("")) if k >= 10 and cost == most]
    names = sorted({row.cell.method for row in at_cost(rows)} - {ANNCUR})
    return all_positive(leads, f"points ahead of the best of {', '.join(names)} at the largest cost, k >= 10")


def _behind_at_one(rows: Sequence[Row]) -> Finding | None:
    """Dual encoders that were trained on gold links are called base, base+ce."""
    leads = [-lead for k, _, _, lead in _leads(rows, rerank_name("base")) if k == 1]
    return all_positive(leads, "points behind the best of them, k = 1, all costs")


def _leads(rows: Sequence[Row], beginning: str) -> list[tuple[int, int, int, float]]:
    """k, cost, the largest cost of this world, and how far ANNCUR is ahead of the best method that is called so."""
    found = []
    for some in grouped(at_cost(rows), "world", "scorer", "data").values():
        most = distinct(some, "cost")[-1]
        for (k, cost), cell in grouped(some, "k", "cost").items():
            ours, others = _recalls(cell, ANNCUR), _recalls(cell, beginning)
            if ours and others:
                found.append((k, cost, most, max(ours) - max(others)))
    return found


def _recalls(rows: Iterable[Row], beginning: str) -> list[float]:
    """Of the methods whose names begin so."""
    return [row["recall"] for row in rows if row.cell.method.startswith(beginning)]


def _best_share(rows: Sequence[Row]) -> Finding | None:
    """Cells with several equally good splits, which have found all that can be found, tell nothing."""
    tried = _most_anchors(select(rows, experiment="recall-at-cost", method=ANNCUR))
    best = equally_good_splits([row for row in tried if (row.cell.k or 0) >= 10])
    cells = [equal[0].cell for equal in best if len(equal) == 1]
    if not cells:
        return None
    low, middle, high = np.quantile(
        [(cell.n_anchor_items or 0) / (cell.cost or 1) for cell in cells], [0.25, 0.5, 0.75]
    )
    told = f"median {middle:.0%}, half of {len(cells)} cells between {low:.0%} and {high:.0%}"
    told += f"; in {len(best) - len(cells)} others several splits are equally good" if len(best) > len(cells) else ""
    return (CONFIRMED if 0.4 <= middle <= 0.6 else DIFFERENT), told


def _more_anchors_help(rows: Sequence[Row]) -> Finding | None:
    best = select(best_splits(select(rows, experiment="anchor-queries")), method=ANNCUR)
    return trend(series(best, "n_anchor_queries"), +1)


def _larger_worlds_are_harder(rows: Sequence[Row]) -> Finding | None:
    return trend(series(best_splits(select(rows, experiment="world-size")), "n_items"), -1)


def _distilled_are_not_monotone(rows: Sequence[Row]) -> Finding | None:
    """Distilled dual encoders are called by the number of queries that they were distilled from."""
    distilled = [row for row in select(rows, experiment="anchor-queries") if DISTILLED in row.cell.method]
    by_name: dict[tuple[str, str, str], list[Row]] = {}
    for row in distilled:
        by_name.setdefault((row.cell.world, row.cell.scorer, row.cell.method.partition(DISTILLED)[0]), []).append(row)
    curves = [line for some in by_name.values() for line in lines(some, "n_anchor_queries")]
    if not curves:
        return None
    falling = [line for line in curves if any(later < earlier for earlier, later in pairwise(line))]
    return (CONFIRMED if falling else REFUTED), f"{len(falling)} of {len(curves)} curves fall somewhere"


def _emb_is_easier(rows: Sequence[Row]) -> Finding | None:
    """Judged where anchors are not equal in number: the collapse where they are is another claim, and told beside."""
    heat = select(rows, experiment="heatmap", method=ANNCUR)
    unequal = [row for row in heat if row.cell.n_anchor_queries != row.cell.n_anchor_items]
    on_diagonal = _heads([row for row in heat if row.cell.n_anchor_queries == row.cell.n_anchor_items], "recall")
    told = "points of recall more for [EMB], mean of the heatmap off its diagonal"
    told += f" ({100 * np.mean(on_diagonal):+.1f} on it)" if on_diagonal else ""
    return all_positive(_heads(unequal, "recall"), told)


def _emb_has_lower_rank(rows: Sequence[Row]) -> Finding | None:
    pairs = _pairs_of_heads(select(rows, experiment="rank", part="the paper's tolerance"), "rank")
    told = ", ".join(f"{emb:.0f} against {cls:.0f}" for emb, cls in pairs)
    return (agreement([emb < cls for emb, cls in pairs]), told) if pairs else None


def _emb_is_less_skewed(rows: Sequence[Row]) -> Finding | None:
    pairs = _pairs_of_heads(select(rows, experiment="histogram", method="scorer", part="skewness"), "value")
    told = ", ".join(f"skewness {emb:.2f} against {cls:.2f}" for emb, cls in pairs)
    return (agreement([emb < cls for emb, cls in pairs]), told) if pairs else None


def _emb_links_as_well(rows: Sequence[Row]) -> Finding | None:
    linked = [row for row in select(rows, experiment="linking") if row.cell.scorer and row.cell.world != MACRO]
    leads = _heads(linked, "accuracy")
    told = f"{', '.join(f'{100 * lead:+.1f}' for lead in leads)} points of accuracy for [EMB]"
    return (agreement([lead > -0.01 for lead in leads]), told) if leads else None


def _heads(rows: Sequence[Row], name: str) -> list[float]:
    """By how much [EMB] is above [CLS], in every world that has both."""
    return [emb - cls for emb, cls in _pairs_of_heads(rows, name)]


def _pairs_of_heads(rows: Sequence[Row], name: str) -> list[tuple[float, float]]:
    """The means of [EMB] and [CLS] over the cells that both have; a scorer's name tells which it is, and the built-in
    one is [EMB]."""
    columns = ("part", "k", "cost", "n_anchor_queries", "n_anchor_items", "n_rerank", "seed")
    pairs = []
    for some in grouped(rows, "world", "n_items").values():
        of_emb = [row for row in some if "emb" in row.cell.scorer.lower() or row.cell.scorer == "builtin"]
        of_cls = [row for row in some if "cls" in row.cell.scorer.lower()]
        emb, cls = grouped(of_emb, *columns), grouped(of_cls, *columns)
        both = [key for key in emb if key in cls]
        if both:
            emb_mean, cls_mean = (mean([row for key in both for row in head[key]], name) for head in (emb, cls))
            pairs.append((emb_mean, cls_mean))
    return pairs


def _collapses(rows: Sequence[Row]) -> Finding | None:
    dips = _dips(rows, ANNCUR)
    if not dips:
        return None
    deep = [dip > COLLAPSE for dip in dips]
    verdict = CONFIRMED if all(deep) else DIFFERENT if any(deep) else REFUTED
    return verdict, f"recall {_below(dips)} its neighbours at equal anchors"


def _cured_by(method: str) -> Callable[[Sequence[Row]], Finding | None]:
    """Whether a method finds at equal anchors what the paper's link matrix finds beside them."""

    def judge(rows: Sequence[Row]) -> Finding | None:
        dips, theirs = _dips(rows, method), _dips(rows, ANNCUR)
        if not dips:
            return None
        told = f"{_below(dips)} those neighbours, where ANNCUR is {_below(theirs)}"
        return agreement([dip <= COLLAPSE for dip in dips]), told

    return judge


def _below(dips: Sequence[float]) -> str:
    points = 100 * float(np.mean(dips))
    return f"{abs(points):.1f} points {'below' if points >= 0 else 'above'}"


def _dips(rows: Sequence[Row], method: str) -> list[float]:
    """How far a method's recall at equal anchors is below ANNCUR's with the next fewer and more anchor items."""
    dips = []
    for some in grouped(select(rows, experiment="heatmap"), "world", "scorer", "data").values():
        grid = distinct(some, "n_anchor_queries")
        for before, n_anchors, after in zip(grid, grid[1:], grid[2:], strict=False):
            row = select(some, n_anchor_queries=n_anchors)
            around = [mean(select(row, method=ANNCUR, n_anchor_items=n), "recall") for n in (before, after)]
            dips.append(float(np.mean(around)) - mean(select(row, method=method, n_anchor_items=n_anchors), "recall"))
    return [dip for dip in dips if not np.isnan(dip)]


def _item_item_order(rows: Sequence[Row]) -> Finding | None:
    differences: list[float] = []
    for some in grouped(select(rows, experiment="item-item"), "world", "scorer", "data", "k", "n_rerank").values():
        cell, fixed = some[0].cell, _recalls(some, FIXED_ITEM)
        if cell.k == 100 and (cell.n_rerank or 0) >= 100 and fixed:
            for n_anchor_items in distinct(some, "n_anchor_items"):
                same = select(some, n_anchor_items=n_anchor_items)
                item_cur, anncur = (mean(select(same, method=name), "recall") for name in (ITEM_CUR, ANNCUR))
                differences += [
                    after - before for before, after in ((fixed[0], item_cur), (item_cur, anncur)) if before < 1
                ]
    known = [difference for difference in differences if not np.isnan(difference)]
    return all_positive(known, "points from each to the next, k = 100")


def _negligible(rows: Sequence[Row]) -> Finding | None:
    shares = []
    for some in _indexings(rows):
        scoring = _seconds(some, SCORING)
        if scoring:
            shares.append(_seconds(some, INVERSE, VECTORS, MIPS) / scoring)
    if not shares:
        return None
    return agreement([share < NEGLIGIBLE for share in shares]), f"{max(shares):.2%} of the scoring time at most"


def _cheaper_than_distillation(rows: Sequence[Row]) -> Finding | None:
    pairs = []
    for some in _indexings(rows):
        trainings = [row["seconds"] for row in some if row.cell.part == TRAINING]
        if trainings and _seconds(some, INVERSE):
            pairs.append((_seconds(some, INVERSE, VECTORS, MIPS), min(trainings)))
    told = "; ".join(f"{ours:.1f} s beside the scores, against {theirs:.0f} s" for ours, theirs in pairs)
    return (agreement([ours < theirs for ours, theirs in pairs]), told) if pairs else None


def _pair_training_is_flat(rows: Sequence[Row]) -> Finding | None:
    trainings = select(rows, experiment="indexing", method=PAIR, part=TRAINING)
    findings = []
    for some in grouped(trainings, "scorer", "n_anchor_queries").values():
        sizes = distinct(some, "n_items")
        if len(sizes) > 1:
            smallest, largest = (mean(select(some, n_items=size), "seconds") for size in (sizes[0], sizes[-1]))
            findings.append((largest / smallest, sizes[-1] / sizes[0]))
    told = ", ".join(f"{times:.2f} times the time for {size:.1f} times the items" for times, size in findings)
    told += ", what embedding all items takes included"
    return (agreement([times < FLAT for times, _ in findings]), told) if findings else None


def _indexings(rows: Sequence[Row]) -> list[list[Row]]:
    """The stages of indexing, those of one world and number of anchor queries together."""
    return list(grouped(select(rows, experiment="indexing"), "world", "scorer", "n_items", "n_anchor_queries").values())


def _seconds(rows: Sequence[Row], *stages: str) -> float:
    """Of some stages of our indexing together."""
    return math.fsum(row["seconds"] for row in rows if row.cell.part in stages and row.cell.method == ANNCUR)


def _level_with_scratch(rows: Sequence[Row]) -> Finding | None:
    leads = []
    for some in grouped(at_cost(rows), "world", "scorer", "data").values():
        cell = select(some, k=1, cost=distinct(some, "cost")[-1])
        ours, scratch = _recalls(cell, ANNCUR), _recalls(cell, rerank_name("scratch+ce"))
        if ours and scratch:
            leads.append(max(ours) - max(scratch))
    if not leads:
        return None
    return agreement([lead > -0.01 for lead in leads]), f"{100 * np.mean(leads):+.1f} points at the largest cost, k = 1"


CLAIMS = (
    Claim("[EMB] scores are less skewed than [CLS] scores", "a figure", _emb_is_less_skewed),
    Claim("[EMB] links as well as [CLS]", "65.5 against 65.9 on test", _emb_links_as_well),
    Claim("k >= 10: ahead of re-ranking at larger budgets", "a figure", _ahead_at_large_cost),
    Claim("k = 1: behind re-ranking with trained dual encoders", "a figure", _behind_at_one),
    Claim("k = 1: level with scratch+ce or above", "a figure", _level_with_scratch),
    Claim("The best share of the budget for anchors is 40 to 60%", "40 to 60%", _best_share),
    Claim("More anchor queries always help", "a figure", _more_anchors_help),
    Claim("Distilled encoders are not monotone in training size", "a figure", _distilled_are_not_monotone),
    Claim("Larger worlds are harder", "a figure", _larger_worlds_are_harder),
    Claim(
        "Indexing is cheaper than distillation", "10 h against 11 to 14.5 h, 500 queries", _cheaper_than_distillation
    ),
    Claim("Pseudo-inverse and MIPS build are negligible beside scoring", "not printed", _negligible),
    Claim(
        "The time of pair-training is flat in the size of the world",
        "4.4 to 5.2 h, 10K to 104K",
        _pair_training_is_flat,
    ),
    Claim("[EMB] has a lower rank than [CLS]", "45 against 315", _emb_has_lower_rank),
    Claim("[EMB] is easier to approximate than [CLS]", "a figure", _emb_is_easier),
    Claim("Recall collapses at equal anchors", "a figure", _collapses),
    Claim("The oracle cures the collapse", "a figure", _cured_by(ORACLE)),
    Claim("Our cutoff cures the collapse (not in the paper)", "", _cured_by(CUT)),
    Claim("itemCUR is above fixedITEM and below ANNCUR", "a figure", _item_item_order),
)
