"""The scoreboard with what a reckoning of costs needs beside it: larger budgets, fewer rounds, and the scorer's pace.

A scorer that waits makes rounds dear, so that methods which search in rounds are also measured with few of them. Reads
studies, feeds `costs.py` through rows, whose `part` tells them from those of the scoreboard itself."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from functools import partial

from anncur.evaluation.distribution import SCORER
from anncur.evaluation.protocol import SOUND
from anncur.evaluation.rows import Batch, Cell, Row
from anncur.evaluation.scoreboard import Trials, Variant, measure_cells, scoreboard
from anncur.evaluation.study import Study
from anncur.evaluation.worlds import ScoredWorld
from anncur.search.adacur import Adacur
from anncur.search.methods import Rerank
from anncur.search.posterior import Posterior

K = 10
MORE_PAIRS = "more pairs"
LARGER_BUDGETS = (1000, 2000, 5000)
FEWER_ROUNDS = (3, 6)


def scoreboard_with_costs(study: Study) -> Iterator[Batch]:
    """All methods side by side, and what tells what they cost."""
    if study.world.request_time is not None:
        columns = {"protocol": SOUND, "n_anchor_queries": study.sizes.n_anchor_queries}
        yield Batch([study.cell("scoreboard", SCORER, **columns)], partial(_request_time, study.world))
    yield from scoreboard(study, extend=_extend)


def _extend(trials: Trials, variant: Variant, cell: Cell) -> Iterator[Batch]:
    """Re-ranking and the default method with larger budgets, and searches in few rounds."""
    sizes, n_items = trials.study.sizes, len(trials.study.world.items)
    if K not in sizes.ks:
        return
    larger = [budget for budget in LARGER_BUDGETS if max(sizes.budgets) < budget < n_items]
    if isinstance(variant.method, (Posterior, Rerank)) and larger:
        cells = [replace(cell, k=K, cost=budget, part=MORE_PAIRS) for budget in larger]
        yield Batch(cells, partial(_measure, trials, variant, None))
    for n_rounds in FEWER_ROUNDS if isinstance(variant.method, (Posterior, Adacur)) else ():
        usual = [budget for budget in sizes.budgets if budget > K]
        cells = [replace(cell, k=K, cost=budget, part=f"{n_rounds} rounds") for budget in usual]
        yield Batch(cells, partial(_measure, trials, variant, n_rounds))


def _measure(trials: Trials, variant: Variant, max_rounds: int | None, cells: Sequence[Cell]) -> Iterator[Row]:
    yield from measure_cells(trials.get(cells[0].seed, variant.over), variant.method, cells, max_rounds=max_rounds)


def _request_time(world: ScoredWorld, cells: Sequence[Cell]) -> Iterator[Row]:
    assert world.request_time is not None, "only where the scorer was timed"
    values = {**asdict(world.request_time), "n_corpus_items": world.n_corpus_items or len(world.items)}
    yield from (Row(cell, values) for cell in cells)
