"""Judges the paper's claims on scorers by rows: [EMB] against [CLS], equal anchors, and the time of indexing.

Each function returns a verdict with the numbers behind it, or None where there are no rows to judge by."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from anncur.evaluation.distribution import SCORER
from anncur.evaluation.linking import MACRO
from anncur.evaluation.rows import Row, distinct, grouped, mean, select
from anncur.evaluation.scoreboard import ANNCUR
from anncur.reproduction.matrix import INVERSE, MIPS, PAPER_RANK, SCORING, VECTORS
from anncur.reproduction.models import PAIR, TRAINING
from anncur.reproduction.verdicts import CONFIRMED, DIFFERENT, REFUTED, Finding, agreement, all_positive

COLLAPSE = 0.05  # a loss of recall that nobody takes for noise
NEGLIGIBLE = 0.01  # a share of the time
FLAT = 1.5  # a ratio of times between the largest and the smallest world


def emb_is_easier(rows: Sequence[Row]) -> Finding | None:
    """Whether ANNCUR finds more with [EMB] where anchors are not equal in number: where they are, it collapses."""
    heat = select(rows, experiment="heatmap", method=ANNCUR)
    unequal = [row for row in heat if row.cell.n_anchor_queries != row.cell.n_anchor_items]
    on_diagonal = _heads([row for row in heat if row.cell.n_anchor_queries == row.cell.n_anchor_items], "recall")
    shown = "points of recall more for [EMB], mean of the heatmap off its diagonal"
    shown += f" ({100 * np.mean(on_diagonal):+.1f} on it)" if on_diagonal else ""
    return all_positive(_heads(unequal, "recall"), shown)


def emb_has_lower_rank(rows: Sequence[Row]) -> Finding | None:
    """Whether [EMB] scores have a lower rank than [CLS] scores."""
    pairs = _pairs_of_heads(select(rows, experiment="rank", part=PAPER_RANK), "rank")
    shown = ", ".join(f"{emb:.0f} against {cls:.0f}" for emb, cls in pairs)
    return (agreement([emb < cls for emb, cls in pairs]), shown) if pairs else None


def emb_is_less_skewed(rows: Sequence[Row]) -> Finding | None:
    """Whether [EMB] scores are less skewed than [CLS] scores."""
    pairs = _pairs_of_heads(select(rows, experiment="histogram", method=SCORER, part="skewness"), "value")
    shown = ", ".join(f"skewness {emb:.2f} against {cls:.2f}" for emb, cls in pairs)
    return (agreement([emb < cls for emb, cls in pairs]), shown) if pairs else None


def emb_links_as_well(rows: Sequence[Row]) -> Finding | None:
    """Whether [EMB] is at most a point behind [CLS] in linking."""
    linked = [row for row in select(rows, experiment="linking") if row.cell.scorer and row.cell.world != MACRO]
    leads = _heads(linked, "accuracy")
    shown = f"{', '.join(f'{100 * lead:+.1f}' for lead in leads)} points of accuracy for [EMB]"
    return (agreement([lead > -0.01 for lead in leads]), shown) if leads else None


def _heads(rows: Sequence[Row], name: str) -> list[float]:
    """By how much [EMB] is above [CLS], in every world that has both."""
    return [emb - cls for emb, cls in _pairs_of_heads(rows, name)]


def _pairs_of_heads(rows: Sequence[Row], name: str) -> list[tuple[float, float]]:
    """The means of [EMB] and [CLS] over the cells that both have; a scorer's name shows which it is, and the built-in
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


def collapses(rows: Sequence[Row]) -> Finding | None:
    """Whether recall collapses where there are as many anchor items as anchor queries."""
    dips = _dips(rows, ANNCUR)
    if not dips:
        return None
    deep = [dip > COLLAPSE for dip in dips]
    verdict = CONFIRMED if all(deep) else DIFFERENT if any(deep) else REFUTED
    return verdict, f"recall {_below(dips)} its neighbours at equal anchors"


def cured_by(method: str) -> Callable[[Sequence[Row]], Finding | None]:
    """Whether a method finds at equal anchors what the paper's link matrix finds beside them."""

    def judge(rows: Sequence[Row]) -> Finding | None:
        dips, theirs = _dips(rows, method), _dips(rows, ANNCUR)
        if not dips:
            return None
        shown = f"{_below(dips)} those neighbours, where ANNCUR is {_below(theirs)}"
        return agreement([dip <= COLLAPSE for dip in dips]), shown

    return judge


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


def _below(dips: Sequence[float]) -> str:
    points = 100 * float(np.mean(dips))
    return f"{abs(points):.1f} points {'below' if points >= 0 else 'above'}"


def negligible(rows: Sequence[Row]) -> Finding | None:
    """Whether everything beside scoring takes a negligible share of the time of indexing."""
    shares = []
    for some in _indexings(rows):
        scoring = _seconds(some, SCORING)
        if scoring:
            shares.append(_seconds(some, INVERSE, VECTORS, MIPS) / scoring)
    if not shares:
        return None
    return agreement([share < NEGLIGIBLE for share in shares]), f"{max(shares):.2%} of the scoring time at most"


def cheaper_than_distillation(rows: Sequence[Row]) -> Finding | None:
    """Whether indexing beside scoring is faster than the fastest distillation."""
    pairs = []
    for some in _indexings(rows):
        trainings = [row["seconds"] for row in some if row.cell.part == TRAINING]
        if trainings and _seconds(some, INVERSE):
            pairs.append((_seconds(some, INVERSE, VECTORS, MIPS), min(trainings)))
    shown = "; ".join(f"{ours:.1f} s beside the scores, against {theirs:.0f} s" for ours, theirs in pairs)
    return (agreement([ours < theirs for ours, theirs in pairs]), shown) if pairs else None


def pair_training_is_flat(rows: Sequence[Row]) -> Finding | None:
    """Whether training on pairs takes about as long in a large world as in a small one."""
    trainings = select(rows, experiment="indexing", method=PAIR, part=TRAINING)
    findings = []
    for some in grouped(trainings, "scorer", "n_anchor_queries").values():
        sizes = distinct(some, "n_items")
        if len(sizes) > 1:
            smallest, largest = (mean(select(some, n_items=size), "seconds") for size in (sizes[0], sizes[-1]))
            findings.append((largest / smallest, sizes[-1] / sizes[0]))
    shown = ", ".join(f"{times:.2f} times the time for {size:.1f} times the items" for times, size in findings)
    shown += ", what embedding all items takes included"
    return (agreement([times < FLAT for times, _ in findings]), shown) if findings else None


def _indexings(rows: Sequence[Row]) -> list[list[Row]]:
    """The stages of indexing, those of one world and number of anchor queries together."""
    return list(grouped(select(rows, experiment="indexing"), "world", "scorer", "n_items", "n_anchor_queries").values())


def _seconds(rows: Sequence[Row], *stages: str) -> float:
    """The time of some stages of ANNCUR's indexing."""
    return math.fsum(row["seconds"] for row in rows if row.cell.part in stages and row.cell.method == ANNCUR)
