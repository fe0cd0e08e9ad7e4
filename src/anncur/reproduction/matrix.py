"""Score matrices themselves: heatmaps over anchors of recall and of approximation error, rank, and the time of
indexing beyond the scores."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import numpy as np

from anncur.arrays import FloatMatrix, Positions
from anncur.evaluation.distribution import EXPLAINED_VARIANCES, SCORER, variance_name
from anncur.evaluation.protocol import build
from anncur.evaluation.rows import Batch, Cell, Row
from anncur.evaluation.scoreboard import ANNCUR
from anncur.evaluation.worlds import QuerySplit
from anncur.factors.cur import (
    PAPER_CUTOFF,
    AnchorBlock,
    Oracle,
    approximate,
    link_matrix,
    numerical_rank,
    relative_error,
    variance_rank,
)
from anncur.reproduction.protocol import PAPER, paper_guesses, paper_link_matrix, random_split, recall_curve
from anncur.reproduction.study import PaperStudy
from anncur.search.posterior import Posterior
from anncur.tuning.splits import CUTOFFS

CUT, ORACLE = "ANNCUR, tuned cutoff", "oracle CUR"
N_FOLDS = 4
MOST_HELD_OUT = 16  # queries of a fold
PAPER_TOLERANCE = 1.2e-3  # the tolerance of `matrix_rank` for the paper's 3374 x 10031 in float32
NUMPY_RANK, PAPER_RANK = "NumPy's tolerance", "the paper's tolerance"
Goal: TypeAlias = tuple[int, int]  # k, and the number of best guesses that are retrieved

SCORING, INVERSE, VECTORS, MIPS, TUNING = "scoring", "pseudo-inverse", "item vectors", "MIPS index", "tuning"


@dataclass(frozen=True, eq=False)
class Problem:
    """Exact scores to approximate, anchors, and a goal; the oracle knows the exact scores of all queries."""

    exact_scores: FloatMatrix
    split: QuerySplit
    anchor_items: Positions
    goal: Goal
    oracle: Oracle

    @property
    def anchor_scores(self) -> FloatMatrix:
        """Of the anchor queries on all items."""
        return self.exact_scores[self.split.anchors]

    @property
    def test_scores(self) -> FloatMatrix:
        """Of the test queries on all items."""
        return self.exact_scores[self.split.tests]

    def guesses(self, link: FloatMatrix) -> FloatMatrix:
        """The test queries' scores by a link matrix."""
        return approximate(self.test_scores[:, self.anchor_items], link, self.anchor_scores)


def heatmap(study: PaperStudy) -> Iterator[Batch]:
    """Recall and approximation error for numbers of anchor queries and items, on all other queries.

    Three link matrices: the paper's, one with a cutoff that was chosen on held-out anchor queries, and the oracle's."""
    sizes, oracles = study.sizes, Oracles(study.world.exact_scores)
    for seed in range(sizes.n_grid_seeds):
        for n_anchor_queries in sizes.grid:
            for n_anchor_items in sizes.grid:
                columns = {"n_anchor_queries": n_anchor_queries, "n_anchor_items": n_anchor_items, "seed": seed}
                cells = [
                    study.cell("heatmap", method, protocol=PAPER, k=sizes.grid_k, n_rerank=sizes.grid_depth, **columns)
                    for method in LINKS
                ]
                yield Batch(cells, partial(_heat, study.world.exact_scores, oracles))


class Oracles:
    """An oracle for each seed, of which the last one is kept: its pseudo-inverses serve a whole grid, and are large."""

    def __init__(self, exact_scores: FloatMatrix) -> None:
        self._exact_scores = exact_scores
        self._made: dict[int, Oracle] = {}

    def get(self, seed: int) -> Oracle:
        """The one of a seed."""
        if seed not in self._made:
            self._made = {seed: Oracle(self._exact_scores, cutoff=PAPER_CUTOFF)}
        return self._made[seed]


def _heat(exact_scores: FloatMatrix, oracles: Oracles, cells: Sequence[Cell]) -> Iterator[Row]:
    for cell in cells:
        assert cell.n_anchor_queries, "every cell of the grid has one"
        assert cell.k, "and a k"
        assert cell.n_rerank, "and a depth"
        split = random_split(len(exact_scores), n_anchors=cell.n_anchor_queries, seed=cell.seed)
        anchor_items = np.random.default_rng([cell.seed, 1]).permutation(exact_scores.shape[1])[: cell.n_anchor_items]
        problem = Problem(exact_scores, split, anchor_items, (cell.k, cell.n_rerank), oracles.get(cell.seed))
        guesses, tests = LINKS[cell.method](problem), problem.test_scores
        recalls = recall_curve(guesses, tests, [cell.k], [cell.n_rerank])[problem.goal]
        yield Row(
            cell, {"recall": float(recalls.mean()), "error": relative_error(tests, guesses), "n_tests": len(tests)}
        )


def _guess_as_paper(problem: Problem) -> FloatMatrix:
    return paper_guesses(problem.anchor_scores, problem.test_scores, problem.anchor_items)


def _guess_with_cutoff(problem: Problem) -> FloatMatrix:
    cutoff = choose_cutoff(problem.anchor_scores, problem.anchor_items, problem.goal)
    return problem.guesses(link_matrix(problem.anchor_scores[:, problem.anchor_items], cutoff=cutoff))


def _guess_by_oracle(problem: Problem) -> FloatMatrix:
    return problem.guesses(problem.oracle.link_matrix(problem.split.anchors, problem.anchor_items))


def choose_cutoff(anchor_scores: FloatMatrix, anchor_items: Positions, goal: Goal) -> float:
    """The cutoff with the best recall on held-out anchor queries.

    Each fold leaves out as large a part of the anchor items as of the queries, so that its block is as square as the
    whole: that is what a cutoff is for."""
    k, depth = goal
    totals = np.zeros(len(CUTOFFS))
    for fold in range(min(N_FOLDS, len(anchor_scores))):
        is_held = np.arange(len(anchor_scores)) % N_FOLDS == fold
        items = anchor_items[np.arange(len(anchor_items)) % N_FOLDS != fold]
        held, others = anchor_scores[is_held][:MOST_HELD_OUT], anchor_scores[~is_held]
        block = AnchorBlock(others[:, items])
        for place, cutoff in enumerate(CUTOFFS):
            guesses = approximate(held[:, items], block.link_matrix(cutoff), others)
            totals[place] += recall_curve(guesses, held, [k], [depth])[goal].sum()
    return CUTOFFS[int(totals.argmax())]


LINKS: dict[str, Callable[[Problem], FloatMatrix]] = {
    ANNCUR: _guess_as_paper,
    CUT: _guess_with_cutoff,
    ORACLE: _guess_by_oracle,
}


def rank(study: PaperStudy) -> Iterator[Batch]:
    """The rank of the score matrix: by NumPy's tolerance, by that of the paper's matrices, by explained variance."""
    ranks: dict[str, Callable[[FloatMatrix], dict[str, Any]]] = {
        NUMPY_RANK: lambda scores: numerical_rank(scores.astype(np.float32))._asdict(),
        PAPER_RANK: lambda scores: numerical_rank(scores, tolerance=PAPER_TOLERANCE)._asdict(),
        **{variance_name(share): partial(_variance_rank, share=share) for share in EXPLAINED_VARIANCES},
    }
    cells = {study.cell("rank", SCORER, part=name): find for name, find in ranks.items()}

    def measure(missing: Sequence[Cell]) -> Iterator[Row]:
        for cell in missing:
            scores = study.world.exact_scores
            yield Row(cell, {**cells[cell](scores), "n_queries": len(scores)})

    yield Batch(list(cells), measure)


def _variance_rank(scores: FloatMatrix, share: float) -> dict[str, Any]:
    """Around the mean of all scores, without which the first component would explain nearly everything."""
    return {"rank": variance_rank(scores - scores.mean(), share), "explained_variance": share}


def indexing(study: PaperStudy) -> Iterator[Batch]:
    """The seconds of each stage of indexing: scoring where its pace is known, and everything after it."""
    has_pace = study.world.seconds_per_pair is not None
    for n_anchor_queries in study.sizes.curve_anchors:
        columns = {"n_anchor_queries": n_anchor_queries, "n_anchor_items": study.sizes.n_anchor_items[-1]}
        stages = [*([SCORING] if has_pace else []), INVERSE, VECTORS, MIPS]
        cells = [study.cell("indexing", ANNCUR, part=stage, **columns) for stage in stages]
        cells.append(study.cell("indexing", Posterior.name, part=TUNING, n_anchor_queries=n_anchor_queries))
        yield Batch(cells, partial(_times, study, n_anchor_queries))


def _times(study: PaperStudy, n_anchor_queries: int, missing: Sequence[Cell]) -> Iterator[Row]:
    n_pairs = n_anchor_queries * len(study.world.items)
    seconds = {**_stages(study, n_anchor_queries), SCORING: (study.world.seconds_per_pair or 0.0) * n_pairs}
    yield from (Row(cell, {"seconds": seconds[cell.part]}) for cell in missing)


def _stages(study: PaperStudy, n_anchor_queries: int) -> dict[str, float]:
    """The seconds of what comes after scoring."""
    scores = study.world.exact_scores
    split = random_split(len(scores), n_anchors=n_anchor_queries, seed=0)
    anchor_scores = scores[split.anchors]
    anchor_items = np.random.default_rng(0).permutation(scores.shape[1])[: study.sizes.n_anchor_items[-1]]
    link, for_inverse = _timed(lambda: paper_link_matrix(anchor_scores[:, anchor_items]))
    vectors, for_vectors = _timed(lambda: np.ascontiguousarray((link @ anchor_scores).T))
    _, for_mips = _timed(lambda: _mips_index(vectors))
    _, for_tuning = _timed(lambda: build(study.world, split, study.undistilled))
    return {INVERSE: for_inverse, VECTORS: for_vectors, MIPS: for_mips, TUNING: for_tuning}


def _mips_index(vectors: FloatMatrix) -> object:
    """A graph for search by inner product, where faiss is installed; else a copy, which exact search needs."""
    try:
        import faiss
    except ModuleNotFoundError:
        return vectors.copy()
    index = faiss.IndexHNSWFlat(vectors.shape[1], 32, faiss.METRIC_INNER_PRODUCT)
    index.add(vectors)
    return index


def _timed(make: Callable[[], Any]) -> tuple[Any, float]:
    started = time.perf_counter()
    made = make()
    return made, time.perf_counter() - started
