"""All methods side by side in the `sound` protocol, and the task's own metrics as more items are scored.

Rows hold how much each test query found, and one row for each seed lists the documents that the queries come from, so
that intervals can be taken over documents."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias, TypeVar

import numpy as np

from anncur.arrays import NO_POSITIONS
from anncur.datasets.trec import write_run
from anncur.evaluation.choices import bagel_grid, choose, gar_grid, refit_grid
from anncur.evaluation.judgements import judge
from anncur.evaluation.protocol import SOUND, Outcome, build, measure
from anncur.evaluation.recall import recalls
from anncur.evaluation.rows import Batch, Cell, Row
from anncur.evaluation.study import Study
from anncur.evaluation.worlds import QuerySplit, ScoredWorld
from anncur.index.index import Index
from anncur.planning.advice import rerank_name
from anncur.planning.comparison import TRIED, posterior_name
from anncur.retrievers.loading import RRF
from anncur.retrievers.rrf import Rrf
from anncur.retrievers.stored import StoredRetriever
from anncur.search.adacur import Adacur
from anncur.search.anncur import Anncur
from anncur.search.axn import INDUCTIVE, TRANSDUCTIVE, Axn
from anncur.search.base import Method
from anncur.search.methods import Exhaustive, Rerank
from anncur.search.posterior import Posterior

ANNCUR = "ANNCUR"
DOCUMENTS = "documents"
RUN_DEPTH = 100  # items of a query in a run
JUDGED_K = 10  # as in nDCG@10


@dataclass(frozen=True, eq=False)
class Trial:
    """An index that knows the anchors of a split, and the test queries."""

    world: ScoredWorld
    split: QuerySplit
    index: Index


AnyStudy = TypeVar("AnyStudy", bound=Study)
BuildTrial: TypeAlias = Callable[[AnyStudy, int], Trial]  # of a study and a seed


@dataclass(frozen=True)
class Variant:
    """A method as it is measured: how its index is built, the budget that it needs more than, and other settings of it,
    among which anchor queries choose."""

    method: Method
    over: BuildTrial[Any]
    above: int = 0
    others: tuple[Method, ...] = ()


def over_anchors(study: Study, seed: int) -> Trial:
    """An index over the anchor queries."""
    split = study.sound_split(seed)
    return Trial(study.world, split, build(study.world, split, study.undistilled, seed=seed))


def over_nothing(study: Study, seed: int) -> Trial:
    """An index without anchor queries, for methods that need none."""
    split = study.sound_split(seed)
    unanchored = QuerySplit(NO_POSITIONS, split.tests)
    return Trial(study.world, split, build(study.world, unanchored, study.retrievers, seed=seed))


def over_few(study: Study, seed: int, *, n_anchors: int) -> Trial:
    """An index over some of the anchor queries."""
    split = study.sound_split(seed)
    return Trial(study.world, split, build(study.world, split.fewer(n_anchors, seed), study.undistilled, seed=seed))


def over_fused(study: Study, seed: int) -> Trial:
    """The same with the fusion of the retrievers, where there are several."""
    split, retrievers = study.sound_split(seed), study.undistilled
    if can_be_fused(study):
        retrievers = [*retrievers, StoredRetriever(Rrf(retrievers), study.world.queries, study.world.items)]
    unanchored = QuerySplit(NO_POSITIONS, split.tests)
    return Trial(study.world, split, build(study.world, unanchored, retrievers, seed=seed))


def can_be_fused(study: Study) -> bool:
    """Whether a study has several retrievers and not their fusion."""
    names = [each.name for each in study.undistilled]
    return len(names) > 1 and RRF not in names


class Trials:
    """The trials of a study, of which the last one is kept: an index is as large as its anchor scores."""

    def __init__(self, study: Study) -> None:
        self.study = study
        self._made: dict[tuple[int, BuildTrial[Any]], Trial] = {}

    def get(self, seed: int, over: BuildTrial[Any] = over_anchors) -> Trial:
        """The trial of a seed."""
        if (seed, over) not in self._made:
            self._made = {(seed, over): over(self.study, seed)}
        return self._made[seed, over]


Extend: TypeAlias = Callable[[Trials, Variant, Cell], Iterator[Batch]]  # of a variant, and a cell without k and cost


def variants(study: Study, split: QuerySplit) -> dict[str, Variant]:
    """All methods that the study has the parts for; those over the same index come together."""
    return {
        **cheap_variants(study, split),
        **rival_variants(study),
        ANNCUR: Variant(Anncur(), over_anchors),
        **adaptive_variants(study),
    }


def cheap_variants(study: Study, split: QuerySplit) -> dict[str, Variant]:
    """Re-ranking with each retriever, and exhaustive search."""
    rerank = {rerank_name(each.name): Rerank(each.name) for each in study.retrievers_for(split)}
    methods: dict[str, Method] = {**rerank, Exhaustive.name: Exhaustive()}
    return {name: Variant(method, over_nothing) for name, method in methods.items()}


def rival_variants(study: Study) -> dict[str, Variant]:
    """What others do without anchor queries, for which these choose the settings: fusion where there are several
    retrievers, the others where one has item vectors."""
    first = study.first_stage()
    rankings = [RRF, first.name] if can_be_fused(study) else [first.name]
    grids: dict[str, list[Method]] = {}
    if can_be_fused(study):
        grids[rerank_name(RRF)] = [Rerank(RRF)]
    if first.item_vectors() is not None:
        grids |= {"GAR": gar_grid(None, rankings), "ReFIT": refit_grid(first.name), "BAGEL": bagel_grid(first.name)}
    return {name: Variant(grid[0], over_fused, others=tuple(grid[1:])) for name, grid in grids.items()}


def adaptive_variants(study: Study) -> dict[str, Variant]:
    """The methods that search in rounds."""
    first = study.first_stage()
    methods: dict[str, Method] = {
        f"ADACUR from {first.name}": Adacur(retriever=first.name),
        f"AXN, {TRANSDUCTIVE}": Axn(retriever=first.name),
    }
    has_torch = importlib.util.find_spec("torch") is not None
    if study.sizes.has_slow_methods and first.item_vectors() is not None and has_torch:
        methods[f"AXN, {INDUCTIVE}"] = Axn(retriever=first.name, kind=INDUCTIVE)
    methods[Posterior.name] = Posterior()
    return {**{name: Variant(method, over_anchors) for name, method in methods.items()}, **few_anchor_variants(study)}


def few_anchor_variants(study: Study) -> dict[str, Variant]:
    """The default method without anchor queries, and with few of them, where there are more."""
    counts = (0, *(count for count in TRIED if count < study.sizes.n_anchor_queries))
    return {posterior_name(count): Variant(Posterior(), partial(over_few, n_anchors=count)) for count in counts}


def scoreboard(
    study: AnyStudy,
    choose: Callable[[AnyStudy, QuerySplit], Mapping[str, Variant]] = variants,
    extend: Extend | None = None,
) -> Iterator[Batch]:
    """Every method, k and budget, for several splits by document; exhaustive search once for each, as a check.

    `extend` adds batches over the same index."""
    trials = Trials(study)
    for seed in range(study.sizes.n_seeds):
        columns = {"protocol": SOUND, "seed": seed, "n_anchor_queries": study.sizes.n_anchor_queries}
        yield documents(study, "scoreboard", **columns)
        for name, variant in choose(study, study.sound_split(seed)).items():
            budgets = (len(study.world.items),) if variant.method.is_exact else study.sizes.budgets
            cells = [
                study.cell("scoreboard", name, k=k, cost=budget, **columns)
                for budget in budgets
                for k in study.sizes.ks
                if k < budget and variant.above < budget
            ]
            yield Batch(cells, partial(_measure, trials, variant))
            if extend is not None:
                yield from extend(trials, variant, study.cell("scoreboard", name, **columns))


def documents(study: Study, experiment: str, **columns: Any) -> Batch:
    """The documents of a seed's test queries, by their numbers in the world."""
    _, group_of = np.unique(np.asarray(study.world.groups), return_inverse=True)

    def measure(missing: Sequence[Cell]) -> Iterator[Row]:
        yield from (Row(cell, {"groups": group_of[study.sound_split(cell.seed).tests].tolist()}) for cell in missing)

    return Batch([study.cell(experiment, DOCUMENTS, **columns)], measure)


def measure_cells(
    trial: Trial, method: Method, cells: Sequence[Cell], *, max_rounds: int | None = None
) -> Iterator[Row]:
    """What a method finds in the cells of one seed."""
    wanted = {(cell.k, cell.cost): cell for cell in cells}
    budgets = sorted({cell.cost for cell in cells if cell.cost is not None})
    ks = sorted({cell.k for cell in cells if cell.k is not None})
    build_calls = trial.index.info.build_calls
    for outcome in measure(
        trial.index, trial.world, trial.split, method, ks=ks, budgets=budgets, max_rounds=max_rounds
    ):
        cell = wanted.get((outcome.k, outcome.budget))
        if cell is not None:
            yield Row(cell, {**_values(outcome), "build_calls": build_calls})


def depth(study: Study) -> Iterator[Batch]:
    """The task's own metrics as more items are scored: where judges and scorer disagree, they fall."""
    if study.world.qrels is None:
        return
    trials = Trials(study)
    columns = {"protocol": SOUND, "n_anchor_queries": study.sizes.n_anchor_queries, "k": JUDGED_K}
    methods: dict[str, Method] = {rerank_name(each.name): Rerank(each.name) for each in study.undistilled}
    methods |= {Posterior.name: Posterior(), Exhaustive.name: Exhaustive()}
    few = sorted({JUDGED_K, 2 * JUDGED_K, *(budget for budget in study.sizes.budgets if budget > JUDGED_K)})
    for name, method in methods.items():
        for budget in (len(study.world.items),) if method.is_exact else few:
            yield Batch([study.cell("depth", name, cost=budget, **columns)], partial(_judged, study, trials, method))


def _measure(trials: Trials, variant: Variant, cells: Sequence[Cell]) -> Iterator[Row]:
    trial = trials.get(cells[0].seed, variant.over)
    for method, some in _by_method(trial, variant, cells):
        yield from measure_cells(trial, method, some)


def _by_method(trial: Trial, variant: Variant, cells: Sequence[Cell]) -> list[tuple[Method, list[Cell]]]:
    """Each setting of a variant, with the cells for whose k and budget it was chosen."""
    if not variant.others:
        return [(variant.method, list(cells))]
    grid = [variant.method, *variant.others]
    points = {(cell.k or 0, cell.cost or 0): cell for cell in cells}
    ks, budgets = (sorted(set(values)) for values in zip(*points, strict=True))
    chosen = choose(grid, trial.index, trial.world, trial.split, ks=ks, budgets=budgets)
    return [(method, [cell for point, cell in points.items() if chosen[point] is method]) for method in grid]


def _values(outcome: Outcome) -> dict[str, Any]:
    return {
        "recall": float(outcome.recalls.mean()),
        "calls": float(outcome.calls.mean()),
        "rounds": float(outcome.rounds.mean()),
        "seconds": outcome.seconds,
        "found": np.rint(outcome.recalls * outcome.k).astype(int).tolist(),
    }


def _judged(study: Study, trials: Trials, method: Method, cells: Sequence[Cell]) -> Iterator[Row]:
    assert study.world.qrels is not None, "only where there are judgements"
    (cell,), trial = cells, trials.get(0)
    queries = trial.world.queries_at(trial.split.tests)
    answers = trial.index.search_many(queries, RUN_DEPTH, cell.cost, method=method)
    if study.runs is not None:
        write_run(study.runs / f"{cell.method.replace(' ', '-')}-{cell.cost}.trec", answers, name=cell.method)
    found = recalls(answers, trial.world.exact_scores[trial.split.tests], JUDGED_K)
    spent = {name: float(np.mean([getattr(hits, name) for hits in answers])) for name in ("calls", "seconds")}
    spent["rounds"] = float(np.mean([hits.n_rounds for hits in answers]))
    yield Row(
        cell, {**judge(answers, study.world.qrels), "recall": float(found.mean()), "n_tests": len(queries), **spent}
    )
