"""The paper's claims, judged by made-up rows that agree with them, contradict them, or show nothing."""

from __future__ import annotations

from typing import Any

import pytest

from anncur.evaluation.linking import MACRO
from anncur.evaluation.rows import Cell, Row
from anncur.evaluation.scoreboard import ANNCUR
from anncur.reproduction.claims import CLAIMS, judge_claims
from anncur.reproduction.matrix import CUT, INVERSE, MIPS, ORACLE, SCORING, VECTORS
from anncur.reproduction.models import PAIR, TRAINING
from anncur.reproduction.verdicts import CONFIRMED, DIFFERENT, NOT_MEASURED, REFUTED


def row(experiment: str, method: str, values: dict[str, Any], **columns: Any) -> Row:
    return Row(Cell(experiment, columns.pop("world", "toy"), method, **columns), values)


def at_cost(method: str, recall: float, *, k: int = 10, cost: int = 500, anchors: int | None = None) -> Row:
    columns = {"k": k, "cost": cost, "n_anchor_items": anchors, "n_anchor_queries": 500}
    return row("recall-at-cost", method, {"recall": recall}, **columns)


def heads(experiment: str, method: str, name: str, emb: float, cls: float, **columns: Any) -> list[Row]:
    return [
        row(experiment, method, {name: value}, scorer=scorer, **columns)
        for scorer, value in {"builtin": emb, "small-cls": cls}.items()
    ]


def heat(emb: float, cls: float, n_anchor_items: int = 100) -> list[Row]:
    return heads("heatmap", ANNCUR, "recall", emb, cls, n_anchor_queries=50, n_anchor_items=n_anchor_items)


def series(experiment: str, column: str, method: str, recalls: list[float]) -> list[Row]:
    return [
        row(experiment, method, {"recall": recall}, k=100, cost=500, **{column: 100 * (place + 1)})
        for place, recall in enumerate(recalls)
    ]


def grid(equal: dict[str, float], beside: float = 0.8) -> list[Row]:
    """A heatmap whose diagonal is given for each link matrix."""
    return [
        row(
            "heatmap",
            method,
            {"recall": recall if n_queries == n_items else beside},
            n_anchor_queries=n_queries,
            n_anchor_items=n_items,
        )
        for method, recall in equal.items()
        for n_queries in (10, 20, 50)
        for n_items in (10, 20, 50)
    ]


def stages(training: float = 100.0, inverse: float = 0.1) -> list[Row]:
    seconds = {SCORING: 1000.0, INVERSE: inverse, VECTORS: 0.1, MIPS: 0.1}
    ours = [row("indexing", ANNCUR, {"seconds": value}, part=name) for name, value in seconds.items()]
    return [*ours, row("indexing", PAIR, {"seconds": training}, part=TRAINING)]


def trainings(larger: float) -> list[Row]:
    return [
        row("indexing", PAIR, {"seconds": seconds}, part=TRAINING, n_items=n_items, n_anchor_queries=500)
        for n_items, seconds in {10_000: 100.0, 100_000: larger}.items()
    ]


def item_item(fixed: float, item_cur: float, anncur: float, depth: int = 200) -> list[Row]:
    return [
        row("item-item", method, {"recall": recall}, k=100, n_rerank=depth, n_items=1000, n_anchor_items=anchors)
        for method, recall, anchors in (("fixedITEM", fixed, None), ("itemCUR", item_cur, 50), (ANNCUR, anncur, 50))
    ]


def of_size(*recalls: float) -> list[Row]:
    """A distilled dual encoder, trained on more and more queries."""
    return [
        row("anchor-queries", f"rerank base+ce@{n}", {"recall": recall}, k=100, cost=500, n_anchor_queries=n)
        for n, recall in zip((100, 500, 2000), recalls, strict=True)
    ]


TIED = [at_cost(ANNCUR, 1.0, anchors=anchors) for anchors in (50, 100)]
JUDGED: list[tuple[str, list[Row], str]] = [
    ("less skewed", heads("histogram", "scorer", "value", 0.5, 3.0, part="skewness"), CONFIRMED),
    ("less skewed", heads("histogram", "scorer", "value", 3.0, 0.5, part="skewness"), REFUTED),
    ("links as well", heads("linking", "builtin", "accuracy", 0.655, 0.659), CONFIRMED),
    ("links as well", heads("linking", "builtin", "accuracy", 0.60, 0.66), REFUTED),
    ("links as well", heads("linking", "builtin", "accuracy", 0.60, 0.66, world=MACRO), NOT_MEASURED),  # no world
    ("ahead of re-ranking", [at_cost(ANNCUR, 0.9, anchors=250), at_cost("rerank base", 0.8)], CONFIRMED),
    ("ahead of re-ranking", [at_cost(ANNCUR, 0.7, anchors=250), at_cost("rerank base", 0.8)], REFUTED),
    ("k = 1: behind", [at_cost(ANNCUR, 0.7, k=1, anchors=250), at_cost("rerank base", 0.8, k=1)], CONFIRMED),
    ("k = 1: behind", [at_cost(ANNCUR, 0.9, k=1, anchors=250), at_cost("rerank base", 0.8, k=1)], REFUTED),
    ("k = 1: behind", [at_cost(ANNCUR, 0.7, k=1, anchors=250), at_cost("rerank bm25", 0.8, k=1)], NOT_MEASURED),
    ("scratch+ce", [at_cost(ANNCUR, 0.80, k=1, anchors=250), at_cost("rerank scratch+ce@500", 0.8, k=1)], CONFIRMED),
    ("scratch+ce", [at_cost(ANNCUR, 0.60, k=1, anchors=250), at_cost("rerank scratch+ce@500", 0.8, k=1)], REFUTED),
    ("best share", [at_cost(ANNCUR, 0.9, anchors=250), at_cost(ANNCUR, 0.8, anchors=50)], CONFIRMED),
    ("best share", [at_cost(ANNCUR, 0.8, anchors=250), at_cost(ANNCUR, 0.9, anchors=50)], DIFFERENT),
    ("best share", TIED, NOT_MEASURED),  # equally good
    ("best share", [*TIED, at_cost(ANNCUR, 0.9, k=50, anchors=250)], CONFIRMED),
    ("scratch+ce", [at_cost("rerank scratch+ce@500", 0.8, k=1)], NOT_MEASURED),  # of a run that was stopped
    ("More anchor queries", series("anchor-queries", "n_anchor_queries", ANNCUR, [0.1, 0.2, 0.3]), CONFIRMED),
    ("More anchor queries", series("anchor-queries", "n_anchor_queries", ANNCUR, [0.1, 0.4, 0.3]), DIFFERENT),
    ("More anchor queries", series("anchor-queries", "n_anchor_queries", ANNCUR, [0.3, 0.2, 0.1]), REFUTED),
    ("Larger worlds", series("world-size", "n_items", ANNCUR, [0.3, 0.2, 0.1]), CONFIRMED),
    ("Larger worlds", series("world-size", "n_items", ANNCUR, [0.1, 0.2, 0.3]), REFUTED),
    ("not monotone", of_size(0.5, 0.4, 0.6), CONFIRMED),
    ("not monotone", of_size(0.4, 0.5, 0.6), REFUTED),
    ("cheaper than distillation", stages(), CONFIRMED),
    ("cheaper than distillation", stages(training=0.1), REFUTED),
    ("negligible", stages(), CONFIRMED),
    ("negligible", stages(inverse=500.0), REFUTED),
    ("pair-training", trainings(110.0), CONFIRMED),
    ("pair-training", trainings(900.0), REFUTED),
    ("lower rank", heads("rank", "scorer", "rank", 45, 315, part="the paper's tolerance"), CONFIRMED),
    ("lower rank", heads("rank", "scorer", "rank", 315, 45, part="the paper's tolerance"), REFUTED),
    ("easier to approximate", heat(0.9, 0.6), CONFIRMED),
    ("easier to approximate", heat(0.6, 0.9), REFUTED),
    ("easier to approximate", heat(0.9, 0.6) + 5 * heat(0.1, 0.6, n_anchor_items=50), CONFIRMED),  # the diagonal
    ("collapses", grid({ANNCUR: 0.3}), CONFIRMED),
    ("collapses", grid({ANNCUR: 0.8}), REFUTED),
    ("The oracle cures", grid({ANNCUR: 0.3, ORACLE: 0.85}), CONFIRMED),
    ("The oracle cures", grid({ANNCUR: 0.3, ORACLE: 0.4}), REFUTED),
    ("Our cutoff cures", grid({ANNCUR: 0.3, CUT: 0.79}), CONFIRMED),
    ("Our cutoff cures", grid({ANNCUR: 0.3, CUT: 0.4}), REFUTED),
    ("itemCUR", item_item(0.1, 0.5, 0.9), CONFIRMED),
    ("itemCUR", item_item(0.1, 0.5, 0.9) + item_item(1.0, 1.0, 1.0, depth=1000), CONFIRMED),  # of all items
    ("itemCUR", item_item(0.1, 1.0, 1.0), CONFIRMED),  # no more can be found
    ("itemCUR", item_item(0.1, 0.9, 0.5), DIFFERENT),
    ("itemCUR", item_item(0.9, 0.5, 0.1), REFUTED),
]


@pytest.mark.parametrize(
    ("claim", "rows", "verdict"), JUDGED, ids=lambda value: value if isinstance(value, str) else ""
)
def test_rows_judge_a_claim(claim: str, rows: list[Row], verdict: str) -> None:
    (found,) = [each for each in judge_claims(rows) if claim in each.claim]
    assert found.verdict == verdict
    assert bool(found.ours) == (verdict != NOT_MEASURED), "a verdict comes with its number"


def test_a_recall_above_its_neighbours_is_not_called_below_them() -> None:
    (found,) = [each for each in judge_claims(grid({ANNCUR: 0.3, ORACLE: 0.85})) if "The oracle cures" in each.claim]
    assert found.ours == "5.0 points above those neighbours, where ANNCUR is 50.0 points below"


def test_every_claim_has_rows_that_confirm_it_and_rows_that_do_not() -> None:
    for claim in CLAIMS:
        verdicts = {verdict for part, _, verdict in JUDGED if part in claim.text}
        assert CONFIRMED in verdicts, claim.text
        assert verdicts - {CONFIRMED, NOT_MEASURED}, claim.text


def test_without_rows_nothing_was_measured() -> None:
    assert {found.verdict for found in judge_claims([])} == {NOT_MEASURED}


def test_a_method_that_is_as_bad_everywhere_cures_nothing() -> None:
    rows = grid({ANNCUR: 0.3}) + grid({CUT: 0.4}, beside=0.4)
    (found,) = [each for each in judge_claims(rows) if "Our cutoff" in each.claim]
    assert found.verdict == REFUTED


def test_claims_are_judged_world_by_world() -> None:
    rows = [
        row(
            "recall-at-cost",
            method,
            {"recall": recall},
            world=world,
            k=10,
            cost=500,
            n_anchor_items=250 if method == ANNCUR else None,
            n_anchor_queries=500,
        )
        for world, (ours, theirs) in {"first": (0.9, 0.5), "second": (0.5, 0.9)}.items()
        for method, recall in ((ANNCUR, ours), ("rerank base", theirs))
    ]
    (found,) = [each for each in judge_claims(rows) if "ahead of" in each.claim]
    assert found.verdict == DIFFERENT
