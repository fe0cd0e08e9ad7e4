"""What a reckoning of costs needs beside the scoreboard: larger budgets, fewer rounds, and the scorer's pace.

A scorer that waits makes rounds dear, so that methods which search in rounds are also measured with few of them. Reads
studies, feeds `costs.py` through rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from functools import partial

from anncur.evaluation.distribution import SCORER
from anncur.evaluation.protocol import SOUND
from anncur.evaluation.rows import Batch, Cell, Row
from anncur.evaluation.scoreboard import Trials, Variant, measure_cells, variants
from anncur.evaluation.study import Study
from anncur.evaluation.worlds import ScoredWorld
from anncur.search.adacur import Adacur
from anncur.search.methods import Rerank
from anncur.search.posterior import Posterior

EXPERIMENT = "costs"
K = 10
LARGER_BUDGETS = (1000, 2000, 5000)
FEWER_ROUNDS = (3, 6)


def costs(study: Study) -> Iterator[Batch]:
    """The scorer's pace; re-ranking and the default method with larger budgets; and searches in few rounds."""
    if study.world.request_time is not None:
        yield Batch([study.cell(EXPERIMENT, SCORER)], partial(_request_time, study.world))
    if K not in study.sizes.ks:
        return
    trials = Trials(study)
    for seed in range(study.sizes.n_seeds):
        columns = {"protocol": SOUND, "seed": seed, "n_anchor_queries": study.sizes.n_anchor_queries, "k": K}
        for name, variant in variants(study, study.sound_split(seed)).items():
            for max_rounds, budgets in _parts(study, variant).items():
                part = "" if max_rounds is None else f"{max_rounds} rounds"
                cells = [study.cell(EXPERIMENT, name, cost=budget, part=part, **columns) for budget in budgets]
                yield Batch(cells, partial(_measure, trials, variant, max_rounds))


def _parts(study: Study, variant: Variant) -> dict[int | None, Sequence[int]]:
    """The budgets for every limit of rounds."""
    usual = [budget for budget in study.sizes.budgets if budget > K]
    larger = [b for b in LARGER_BUDGETS if max(study.sizes.budgets) < b < len(study.world.items)]
    parts: dict[int | None, Sequence[int]] = {}
    if isinstance(variant.method, (Posterior, Rerank)) and larger:
        parts[None] = larger
    if isinstance(variant.method, (Posterior, Adacur)):
        parts |= dict.fromkeys(FEWER_ROUNDS, usual)
    return parts


def _measure(trials: Trials, variant: Variant, max_rounds: int | None, cells: Sequence[Cell]) -> Iterator[Row]:
    yield from measure_cells(trials.get(cells[0].seed, variant.over), variant.method, cells, max_rounds=max_rounds)


def _request_time(world: ScoredWorld, cells: Sequence[Cell]) -> Iterator[Row]:
    assert world.request_time is not None, "only where the scorer was timed"
    values = {**asdict(world.request_time), "n_corpus_items": world.n_corpus_items or len(world.items)}
    yield from (Row(cell, values) for cell in cells)
