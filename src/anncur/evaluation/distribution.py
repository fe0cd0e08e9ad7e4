"""What a scorer's scores look like: how many principal components explain them, and how they are distributed.

Reads the exact scores of a study, feeds the report. Few components and many are what makes a scorer easy or hard."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

import numpy as np

from anncur.arrays import FloatMatrix, FloatVector
from anncur.evaluation.rows import Batch, Cell, Row
from anncur.evaluation.study import Study
from anncur.factors import spectrum as spectra

SCORER = "scorer"
EXPLAINED_VARIANCES = (0.9, 0.95, 0.99)
BINS = np.linspace(-6, 20, 105)  # in standard deviations: good scores lie far on the right
MOMENTS = {"skewness": 3, "kurtosis": 4}  # by their exponents


def spectrum(study: Study) -> Iterator[Batch]:
    """How many principal components of the exact scores explain most of what differs between queries."""
    cells = {study.cell("spectrum", SCORER, part=variance_name(share)): share for share in EXPLAINED_VARIANCES}

    def measure(missing: Sequence[Cell]) -> Iterator[Row]:
        scores = study.world.exact_scores
        shares = spectra.spectrum([scores.T])
        for cell in missing:
            n_components = spectra.n_components(shares, cells[cell]) if shares else 0
            yield Row(cell, {"n_components": n_components, "most_components": len(shares), "n_queries": len(scores)})

    yield Batch(list(cells), measure)


def variance_name(share: float) -> str:
    """How a share of the variance is called in rows and tables."""
    return f"{share:.0%} of the variance"


def histogram(study: Study) -> Iterator[Batch]:
    """How the scores of the scorer and of each retriever are distributed, in standard deviations from their mean."""
    for method in (SCORER, *(each.name for each in study.retrievers)):
        cells = [study.cell("histogram", method, part=part) for part in (*map(str, range(len(BINS) - 1)), *MOMENTS)]
        yield Batch(cells, partial(_distribution, study))


def _distribution(study: Study, cells: Sequence[Cell]) -> Iterator[Row]:
    scores = _scores_of(study, cells[0].method)
    standard = (scores - scores.mean(dtype=np.float64)) / (scores.std(dtype=np.float64) or 1.0)
    shares = np.histogram(standard, BINS)[0] / len(standard)
    for cell in cells:
        if cell.part in MOMENTS:
            yield Row(cell, {"value": float((standard ** MOMENTS[cell.part]).mean())})
        else:
            place = int(cell.part)
            yield Row(cell, {"score": float(BINS[place : place + 2].mean()), "share": float(shares[place])})


def _scores_of(study: Study, method: str) -> FloatVector:
    if method == SCORER:
        return study.world.exact_scores.ravel()
    (retriever,) = [each for each in study.retrievers if each.name == method]
    scores: FloatMatrix = retriever.scores(study.world.queries)
    return scores.ravel()
