"""All experiments by name, and how a study goes through them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from anncur.errors import InputError
from anncur.evaluation.experiments import curves, matrix, scoreboard
from anncur.evaluation.rows import RowFile
from anncur.evaluation.study import Experiment, Study
from anncur.progress import Progress, silent

EXPERIMENTS: dict[str, Experiment] = {
    "recall-at-depth": curves.recall_at_depth,
    "recall-at-cost": curves.recall_at_cost,
    "anchor-queries": curves.anchor_queries,
    "world-size": curves.world_size,
    "item-item": curves.item_item,
    "heatmap": matrix.heatmap,
    "rank": matrix.rank,
    "histogram": matrix.histogram,
    "indexing": matrix.indexing,
    "scoreboard": scoreboard.scoreboard,
    "depth": scoreboard.depth,
}


def run_experiments(
    study: Study, file: RowFile, names: Sequence[str] = tuple(EXPERIMENTS), *, progress: Progress = silent
) -> int:
    """Measure what is missing of these experiments, in sizes that the task has enough for; gives the rows made."""
    fitting = replace(study, sizes=study.sizes.within(study.task))
    check_names(names)
    return sum(
        file.make_missing(EXPERIMENTS[name](fitting), stage=f"{study.task.name}, {name}", progress=progress)
        for name in names
    )


def is_by_document(names: Iterable[str]) -> bool:
    """Whether one of these experiments has test queries from documents that no anchor query comes from."""
    return not {"scoreboard", "depth"}.isdisjoint(names)


def check_names(names: Iterable[str]) -> None:
    """Refuse an experiment that there isn't."""
    unknown = [name for name in names if name not in EXPERIMENTS]
    if unknown:
        raise InputError(f"no experiment {unknown[0]!r}; take some of {', '.join(EXPERIMENTS)}")
