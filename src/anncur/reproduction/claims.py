"""The paper's claims, each judged by rows: confirmed, refuted, different, or not measured, with the number.

A claim about many cells is confirmed where all of them agree, refuted where none does, and different between; the best
share of the budget is judged by its median, and one falling curve shows that curves aren't monotone. Reads rows, feeds
the report; measures nothing itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from anncur.evaluation.rows import Row
from anncur.reproduction import curve_claims, scorer_claims
from anncur.reproduction.matrix import CUT, ORACLE
from anncur.reproduction.verdicts import NOT_MEASURED, Finding


@dataclass(frozen=True)
class Claim:
    """What the paper claims, the numbers that it prints, and how rows judge it (None where they can't)."""

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


CLAIMS = (
    Claim("[EMB] scores are less skewed than [CLS] scores", "a figure", scorer_claims.emb_is_less_skewed),
    Claim("[EMB] links as well as [CLS]", "65.5 against 65.9 on test", scorer_claims.emb_links_as_well),
    Claim("k >= 10: ahead of re-ranking at larger budgets", "a figure", curve_claims.ahead_at_large_cost),
    Claim("k = 1: behind re-ranking with trained dual encoders", "a figure", curve_claims.behind_at_one),
    Claim("k = 1: level with scratch+ce or above", "a figure", curve_claims.level_with_scratch),
    Claim("The best share of the budget for anchors is 40 to 60%", "40 to 60%", curve_claims.best_share),
    Claim("More anchor queries always help", "a figure", curve_claims.more_anchors_help),
    Claim("Distilled encoders are not monotone in training size", "a figure", curve_claims.distilled_are_not_monotone),
    Claim("Larger worlds are harder", "a figure", curve_claims.larger_worlds_are_harder),
    Claim(
        "Indexing is cheaper than distillation",
        "10 h against 11 to 14.5 h, 500 queries",
        scorer_claims.cheaper_than_distillation,
    ),
    Claim("Pseudo-inverse and MIPS build are negligible beside scoring", "not printed", scorer_claims.negligible),
    Claim(
        "The time of pair-training is flat in the size of the world",
        "4.4 to 5.2 h, 10K to 104K",
        scorer_claims.pair_training_is_flat,
    ),
    Claim("[EMB] has a lower rank than [CLS]", "45 against 315", scorer_claims.emb_has_lower_rank),
    Claim("[EMB] is easier to approximate than [CLS]", "a figure", scorer_claims.emb_is_easier),
    Claim("Recall collapses at equal anchors", "a figure", scorer_claims.collapses),
    Claim("The oracle cures the collapse", "a figure", scorer_claims.cured_by(ORACLE)),
    Claim("Our cutoff cures the collapse (not in the paper)", "", scorer_claims.cured_by(CUT)),
    Claim("itemCUR is above fixedITEM and below ANNCUR", "a figure", curve_claims.item_item_order),
)
