"""How hard an approximate engine must look: as much as the wanted recall takes, for query vectors at random."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from anncur.arrays import NO_POSITIONS, FloatMatrix, Positions
from anncur.candidates import Candidates
from anncur.vectors.local import LocalVectors

WANTED_RECALL, LEAST_EFFORT = 0.99, 16  # of the best `DEPTH` items; cells or paths that are looked at
POOR_RECALL = 0.9  # below which the user is warned
N_TRIED, DEPTH = 32, 200


def tune_effort(
    search: Callable[[FloatMatrix, int, int], Sequence[Positions]], vectors: LocalVectors, *, most: int, seed: int = 0
) -> tuple[int, float]:
    """The least effort, by doubling, that finds enough of the best items, and the recall then.

    `search` is asked with query vectors, a number of items and an effort, and compared with an exact ranking."""
    queries = np.random.default_rng(seed).standard_normal((N_TRIED, vectors.width)).astype(np.float32)
    depth, effort = min(DEPTH, len(vectors)), min(LEAST_EFFORT, most)
    true = vectors.top(queries, depth, exclude=[NO_POSITIONS] * N_TRIED, among=Candidates(len(vectors)))
    while True:
        both = zip(search(queries, depth, effort), true, strict=True)
        recall = float(np.mean([np.isin(ranked.positions, row).mean() for row, ranked in both]))
        if recall >= WANTED_RECALL or effort >= most:
            return effort, recall
        effort = min(2 * effort, most)
