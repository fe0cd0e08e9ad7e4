"""All methods side by side in the `sound` protocol, and what the task's own judges say as more items are scored.

Rows keep how much each test query found, and a row for each seed tells the documents that the queries come from, so
that intervals can be taken over documents."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from anncur.arrays import NO_POSITIONS
from anncur.datasets.trec import write_run
from anncur.evaluation.baselines import FixedItems
from anncur.evaluation.experiments.curves import FIXED_ITEM, ITEM_CUR
from anncur.evaluation.judgements import judge
from anncur.evaluation.paper import ANNCUR
from anncur.evaluation.protocols import Outcome, build, measure
from anncur.evaluation.recall import recalls
from anncur.evaluation.rows import Batch, Cell, Row
from anncur.evaluation.study import Study
from anncur.evaluation.tasks import Split, Task
from anncur.index.index import Index
from anncur.planning.advice import rerank_name
from anncur.search.adacur import Adacur
from anncur.search.anncur import Anncur
from anncur.search.axn import INDUCTIVE, TRANSDUCTIVE, Axn
from anncur.search.base import Method
from anncur.search.methods import Exhaustive, Rerank
from anncur.search.posterior import Posterior

SOUND = "sound"
DOCUMENTS = "documents"
QUERIES, ITEMS, NOTHING = "queries", "items", "nothing"  # what an index learns from
RUN_DEPTH = 100  # items of a query in a run
JUDGED_K = 10  # as in nDCG@10


@dataclass(frozen=True, eq=False)
class Ground:
    """An index that knows the anchors of a split, and the test queries."""

    task: Task
    split: Split
    index: Index


class Grounds:
    """The grounds of a study, of which the last one is kept: an index is as large as the scores that it knows."""

    def __init__(self, study: Study) -> None:
        self._study = study
        self._made: dict[tuple[int, str], Ground] = {}

    def get(self, seed: int, over: str = QUERIES) -> Ground:
        """The ground of a seed, with an index over its anchor queries, over items in their place, or over nothing."""
        key = (seed, over)
        if key not in self._made:
            self._made = {key: self._make(seed, over)}
        return self._made[key]

    def _make(self, seed: int, over: str) -> Ground:
        study, task, split = self._study, self._study.task, self._study.sound_split(seed)
        if over == NOTHING:
            return Ground(task, split, build(task, Split(NO_POSITIONS, split.tests), study.retrievers, seed=seed))
        if over == QUERIES:
            return Ground(task, split, build(task, split, study.untaught, seed=seed))
        items = task.item_task()
        n_items = len(items.queries) - len(task.queries)
        split = Split(np.arange(n_items), split.tests + n_items)
        return Ground(items, split, build(items, split, [], seed=seed))


@dataclass(frozen=True)
class Way:
    """A method as it is measured: what its index is over, and the budget that it needs more than."""

    method: Method
    over: str = QUERIES
    above: int = 0


def ways(study: Study, split: Split) -> dict[str, Way]:
    """All methods that the study has the parts for; those over the same index come together."""
    first = study.first_stage()
    found = {rerank_name(each.name): Way(Rerank(each.name), NOTHING) for each in study.retrievers_for(split)}
    found |= {Exhaustive.name: Way(Exhaustive(), NOTHING)}
    if study.task.item_scores is not None:
        found |= {FIXED_ITEM: Way(FixedItems(study.task.item_scores.items), ITEMS), ITEM_CUR: Way(Anncur(), ITEMS)}
    found |= {ANNCUR: Way(Anncur())}
    found |= {f"{ANNCUR}, {n} anchors": Way(Anncur(n_anchor_items=n), above=n) for n in study.sizes.n_anchor_items}
    found |= {f"ADACUR from {first.name}": Way(Adacur(retriever=first.name))}
    found |= {f"AXN, {TRANSDUCTIVE}": Way(Axn(retriever=first.name))}
    if first.item_vectors() is not None and importlib.util.find_spec("torch") is not None:
        found |= {f"AXN, {INDUCTIVE}": Way(Axn(retriever=first.name, kind=INDUCTIVE))}
    return {**found, Posterior.name: Way(Posterior())}


def scoreboard(study: Study) -> Iterator[Batch]:
    """Every method, k and budget, for several splits by document; exhaustive search once for each, as a check."""
    grounds = Grounds(study)
    for seed in range(study.sizes.n_seeds):
        columns = {"protocol": SOUND, "seed": seed, "n_anchor_queries": _n_anchors(study)}
        yield documents(study, "scoreboard", **columns)
        for name, way in ways(study, study.sound_split(seed)).items():
            budgets = (len(study.task.items),) if way.method.is_exact else study.sizes.costs
            cells = [
                study.cell("scoreboard", name, k=k, cost=budget, **columns)
                for budget in budgets
                for k in study.sizes.ks
                if k < budget and way.above < budget
            ]
            yield Batch(cells, partial(_measure, grounds, way))


def documents(study: Study, experiment: str, **columns: Any) -> Batch:
    """The documents of a seed's test queries, by their numbers in the task."""
    _, group_of = np.unique(np.asarray(study.task.groups), return_inverse=True)

    def measure(missing: Sequence[Cell]) -> Iterator[Row]:
        yield from (Row(cell, {"groups": group_of[study.sound_split(cell.seed).tests].tolist()}) for cell in missing)

    return Batch([study.cell(experiment, DOCUMENTS, **columns)], measure)


def measure_cells(ground: Ground, method: Method, cells: Sequence[Cell]) -> Iterator[Row]:
    """What a policy finds in the cells of one seed."""
    wanted = {(cell.k, cell.cost): cell for cell in cells}
    budgets = sorted({cell.cost for cell in cells if cell.cost is not None})
    ks = sorted({cell.k for cell in cells if cell.k is not None})
    for outcome in measure(ground.index, ground.task, ground.split, method, ks=ks, budgets=budgets):
        cell = wanted.get((outcome.k, outcome.budget))
        if cell is not None:
            yield Row(cell, _values(outcome))


def depth(study: Study) -> Iterator[Batch]:
    """The task's own metrics as more items are scored: where a scorer is worse than it seems, they fall."""
    if study.task.qrels is None:
        return
    grounds = Grounds(study)
    columns = {"protocol": SOUND, "n_anchor_queries": _n_anchors(study), "k": JUDGED_K}
    methods: dict[str, Method] = {rerank_name(each.name): Rerank(each.name) for each in study.untaught}
    methods |= {Posterior.name: Posterior(), Exhaustive.name: Exhaustive()}
    for name, method in methods.items():
        few = sorted({JUDGED_K, 2 * JUDGED_K, *(cost for cost in study.sizes.costs if cost > JUDGED_K)})
        for budget in (len(study.task.items),) if method.is_exact else few:
            yield Batch([study.cell("depth", name, cost=budget, **columns)], partial(_judged, study, grounds, method))


def _n_anchors(study: Study) -> int:
    return study.sizes.n_anchor_queries[-1]


def _measure(grounds: Grounds, way: Way, cells: Sequence[Cell]) -> Iterator[Row]:
    yield from measure_cells(grounds.get(cells[0].seed, way.over), way.method, cells)


def _values(outcome: Outcome) -> dict[str, Any]:
    return {
        "recall": float(outcome.recalls.mean()),
        "calls": float(outcome.calls.mean()),
        "seconds": outcome.seconds,
        "found": np.rint(outcome.recalls * outcome.k).astype(int).tolist(),
    }


def _judged(study: Study, grounds: Grounds, method: Method, cells: Sequence[Cell]) -> Iterator[Row]:
    assert study.task.qrels is not None, "only where there are judgements"
    (cell,), ground = cells, grounds.get(0)
    queries = ground.task.queries_at(ground.split.tests)
    answers = ground.index.search_many(queries, RUN_DEPTH, cell.cost, method=method)
    if study.runs is not None:
        write_run(study.runs / f"{cell.method.replace(' ', '-')}-{cell.cost}.trec", answers, name=cell.method)
    found = recalls(answers, ground.task.exact_scores[ground.split.tests], JUDGED_K)
    yield Row(cell, {**judge(answers, study.task.qrels), "recall": float(found.mean()), "n_tests": len(queries)})
