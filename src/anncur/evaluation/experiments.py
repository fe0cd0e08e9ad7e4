"""The experiments on one's own data by name, and the run of a study through experiments."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import TypeVar

from anncur.errors import InputError
from anncur.evaluation import cost_rows, distribution, scoreboard
from anncur.evaluation.rows import Batch, RowFile
from anncur.evaluation.study import Study
from anncur.progress import Progress, silent

AnyStudy = TypeVar("AnyStudy", bound=Study)
Experiment = Callable[[AnyStudy], Iterator[Batch]]

EXPERIMENTS: dict[str, Experiment[Study]] = {
    "scoreboard": cost_rows.scoreboard_with_costs,
    "depth": scoreboard.depth,
    "spectrum": distribution.spectrum,
    "histogram": distribution.histogram,
}


def run_experiments(
    study: AnyStudy,
    file: RowFile,
    experiments: Mapping[str, Experiment[AnyStudy]],
    *,
    progress: Progress = silent,
) -> int:
    """Measure the missing cells of these experiments, in sizes that the world has enough for; returns the new rows."""
    fitted = study.fitted()
    return sum(
        file.make_missing(experiment(fitted), stage=f"{study.world.name}, {name}", progress=progress)
        for name, experiment in experiments.items()
    )


def choose_experiments(
    experiments: Mapping[str, Experiment[AnyStudy]], names: Collection[str]
) -> dict[str, Experiment[AnyStudy]]:
    """Those of these names, or all where none is given."""
    unknown = [name for name in names if name not in experiments]
    if unknown:
        raise InputError(f"no experiment {unknown[0]!r}; take some of {', '.join(experiments)}")
    return {name: experiments[name] for name in names or experiments}


def splits_by_document(names: Iterable[str]) -> bool:
    """Whether one of these experiments has test queries from documents that no anchor query comes from."""
    return not {"scoreboard", "depth"}.isdisjoint(names)
