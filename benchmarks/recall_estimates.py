"""How far `estimated_recall` can be trusted, and what `target_recall` costs, on real score matrices.

    python benchmarks/recall_estimates.py DATA --work FOLDER --scorer maxsim|builtin|MODEL [--queries 620] [--seeds 5]

The index is calibrated on its own 200 anchor queries and tested on queries of other documents. For every k and budget
the mean estimate beside the mean recall, the mean absolute error of a query's estimate, and the root of the mean
squared one beside that of the best constant, which is the test queries' own mean. For every target the recall that was
reached and the mean pairs, beside the fixed budget that gives the same recall. A rerun makes what is missing."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

import anncur
from adaptive import read_study, trials
from anncur.arrays import FloatMatrix, FloatVector
from anncur.cli.frame import show_progress
from anncur.evaluation.protocol import SOUND, points
from anncur.evaluation.recall import kth_best, recalls
from anncur.evaluation.rows import Batch, Cell, Row, RowFile, grouped, mean, select
from anncur.evaluation.scoreboard import Trial
from anncur.evaluation.study import Study
from anncur.ranking import Hits
from anncur.search.posterior import Posterior
from anncur.search.settings import KS
from matrices import make_parser

EXPERIMENT, ESTIMATE, TARGET = "recall-estimates", "estimate", "target "
N_ANCHORS = 200
TARGETS = (0.8, 0.9, 0.95)
MOST_PAIRS = 2000


def main() -> None:
    """Measure what is missing, and print the means of all seeds."""
    options = make_parser(__doc__, n_queries=620, n_seeds=5, out="recall_estimates.jsonl").parse_args()
    file = RowFile(options.out)
    with show_progress(as_json=False) as progress:
        study = read_study(options, progress)
        trial_of = trials(study, progress)
        todo = [batch(study, seed, trial_of) for seed in range(options.seeds)]
        file.make_missing(todo, stage="recall estimates", progress=progress)
    show(select(file.rows, experiment=EXPERIMENT, data=study.data))


def batch(study: Study, seed: int, trial_of: Callable[[int, int], Trial]) -> Batch:
    """Estimates for every k and budget, and targets for every k, with one seed."""
    columns = {"protocol": SOUND, "seed": seed, "n_anchor_queries": N_ANCHORS}
    parts = [{"part": ESTIMATE, "k": k, "cost": budget} for k, budget in points()]
    parts += [{"part": f"{TARGET}{target}", "k": k} for k in KS for target in TARGETS]

    def measure(missing: Sequence[Cell]) -> Iterator[Row]:
        trial = trial_of(seed, N_ANCHORS)
        yield from estimates(trial, [cell for cell in missing if cell.part == ESTIMATE])
        yield from targets(trial, [cell for cell in missing if cell.part != ESTIMATE])

    return Batch([study.cell(EXPERIMENT, Posterior.name, **columns, **part) for part in parts], measure)


def estimates(trial: Trial, missing: Sequence[Cell]) -> Iterator[Row]:
    """Estimates beside the truth."""
    queries, exact_scores = tests_of(trial)
    for cell in missing:
        answers = trial.index.search_many(queries, cell.k, cell.cost)
        estimated = np.array([hits.estimated_recall for hits in answers])
        truth = recalls(answers, exact_scores, cell.k)
        values = {
            "recall": truth.mean(),
            "estimate": estimated.mean(),
            "error": np.abs(estimated - truth).mean(),
            "squared_error": np.square(estimated - truth).mean(),
            "squared_error_of_constant": truth.var(),
        }
        yield Row(cell, values)


def targets(trial: Trial, missing: Sequence[Cell]) -> Iterator[Row]:
    """What targets reach and cost, and the fixed budget that reaches as much."""
    if not missing:
        return
    queries, exact_scores = tests_of(trial)
    curves = recall_by_pairs(trial.index.search_many(queries, max(KS), MOST_PAIRS), exact_scores)
    for cell in missing:
        answers = trial.index.search_many(queries, cell.k, target_recall=float(cell.part.removeprefix(TARGET)))
        reached = recalls(answers, exact_scores, cell.k).mean()
        enough = np.flatnonzero(curves[cell.k] >= reached - 1e-12)
        calls = np.mean([hits.calls for hits in answers])
        yield Row(cell, {"recall": reached, "calls": calls, "fixed": int(enough[0]) + 1 if len(enough) else None})


def tests_of(trial: Trial) -> tuple[list[anncur.Query], FloatMatrix]:
    """The test queries, and their exact scores. (n_tests, n_items)"""
    return trial.world.queries_at(trial.split.tests), trial.world.exact_scores[trial.split.tests]


def recall_by_pairs(answers: Sequence[Hits], exact_scores: FloatMatrix) -> dict[int, FloatVector]:
    """The mean recall after every pair, for each k: a larger budget continues where a smaller one ends."""
    paid = [np.concatenate([step.exact_scores for step in hits.trace]) for hits in answers]
    found: dict[int, FloatVector] = {}
    for k in KS:
        least = kth_best(exact_scores, k)
        curves = [np.minimum(np.cumsum(scores >= enough), k) / k for scores, enough in zip(paid, least, strict=True)]
        found[k] = np.mean(curves, axis=0)
    return found


def show(rows: Sequence[Row]) -> None:
    """Means over seeds."""
    by_point = grouped(rows, "part", "k", "cost")
    print(f"{'k, budget':>10} {'recall':>7} {'estimate':>9} {'error':>7} {'squared':>8} {'of constant':>12}")
    for (part, k, budget), some in by_point.items():
        if part == ESTIMATE:
            print(
                f"{f'{k}, {budget}':>10} {mean(some, 'recall'):>7.3f} {mean(some, 'estimate'):>9.3f} "
                f"{mean(some, 'error'):>7.3f} {mean(some, 'squared_error') ** 0.5:>8.3f} "
                f"{mean(some, 'squared_error_of_constant') ** 0.5:>12.3f}"
            )
    print(f"{'k, target':>10} {'recall':>7} {'pairs':>7} {'fixed budget of the same recall':>32}")
    for (part, k, _), some in by_point.items():
        if part != ESTIMATE:
            target = f"{k}, {part.removeprefix(TARGET)}"
            fixed = "above 2000" if any(row["fixed"] is None for row in some) else f"{mean(some, 'fixed'):.0f}"
            print(f"{target:>10} {mean(some, 'recall'):>7.3f} {mean(some, 'calls'):>7.0f} {fixed:>32}")


if __name__ == "__main__":
    main()
