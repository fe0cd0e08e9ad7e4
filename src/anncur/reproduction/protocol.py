"""How the paper's authors measured: the `paper` protocol, with all its quirks.

Guesses come from a pseudo-inverse in float32 from which nothing is cut off, with anchor items at random. The best
guesses of all items are re-ranked: anchors among them are charged again, other anchors are thrown away. A cost is
n_anchor_items + n_rerank, its split is swept in tenths, and the best one is chosen on the test queries themselves
(`best_splits`). Reads exact scores, feeds experiments; uses no scorer and no index."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np

from anncur.arrays import FloatMatrix, FloatVector, Positions
from anncur.evaluation.recall import kth_best
from anncur.evaluation.rows import Cell, Row, grouped
from anncur.evaluation.worlds import QuerySplit
from anncur.factors.cur import PAPER_CUTOFF
from anncur.ranking import top_k

PAPER, PAPER_BY_DOCUMENT = "paper", "paper, split by document"
N_PARTS = 10  # that a cost is split into

Guess = Callable[[str, int | None], FloatMatrix]  # by method and number of anchor items, (n_tests, n_items)


def random_split(n_queries: int, *, n_anchors: int, n_tests: int | None = None, seed: int) -> QuerySplit:
    """Anchor queries at random, and as tests all others, or the last `n_tests`, which are then the same for any number
    of anchor queries."""
    order = np.random.default_rng(seed).permutation(n_queries)
    first_test = n_anchors if n_tests is None else n_queries - n_tests
    return QuerySplit(np.sort(order[:n_anchors]), np.sort(order[first_test:]))


def paper_link_matrix(anchor_block: FloatMatrix) -> FloatMatrix:
    """The pseudo-inverse as the authors computed it, (n_anchor_items, n_anchor_queries)."""
    link: FloatMatrix = np.linalg.pinv(anchor_block.astype(np.float32), rcond=PAPER_CUTOFF)
    return link


def paper_guesses(anchor_scores: FloatMatrix, test_scores: FloatMatrix, anchor_items: Positions) -> FloatMatrix:
    """The paper's approximation of the test queries' scores, in float32 throughout. (n_tests, n_items)"""
    item_vectors = paper_link_matrix(anchor_scores[:, anchor_items]) @ anchor_scores.astype(np.float32)
    guesses: FloatMatrix = test_scores[:, anchor_items].astype(np.float32) @ item_vectors
    return guesses


def recall_curve(
    guesses: FloatMatrix, exact_scores: FloatMatrix, ks: Sequence[int], depths: Sequence[int]
) -> dict[tuple[int, int], FloatVector]:
    """The share of each query's best k among its best guesses, by k and the number of guesses.

    Both matrices are (n_queries, n_items): the paper's Top-k-Recall@k_r, where the depth is k_r."""
    best = np.stack([top_k(row, max(depths)) for row in guesses])
    retrieved = np.take_along_axis(exact_scores, best, axis=1)  # (n_queries, deepest), best guess first
    curve: dict[tuple[int, int], FloatVector] = {}
    for k in ks:
        found = np.cumsum(retrieved >= kth_best(exact_scores, k)[:, None], axis=1)
        curve |= {(k, depth): np.minimum(found[:, min(depth, best.shape[1]) - 1], k) / k for depth in depths}
    return curve


def splits_of(cost: int) -> list[int]:
    """The numbers of anchor items that are tried, in tenths of a cost."""
    return [tenth * cost // N_PARTS for tenth in range(1, N_PARTS)]


def recall_rows(cells: Iterable[Cell], exact_scores: FloatMatrix, guess: Guess) -> Iterator[Row]:
    """The recall of the best `n_rerank` guesses in each cell; each method guesses once.

    `exact_scores` are the test queries', (n_tests, n_items)."""
    by_guess: dict[tuple[str, int | None], list[Cell]] = {}
    for cell in cells:
        by_guess.setdefault((cell.method, cell.n_anchor_items), []).append(cell)
    for (method, n_anchor_items), some in by_guess.items():
        ks = sorted({cell.k for cell in some if cell.k is not None})
        depths = sorted({cell.n_rerank for cell in some if cell.n_rerank is not None})
        curve = recall_curve(guess(method, n_anchor_items), exact_scores, ks, depths)
        for cell in some:
            assert cell.k, "recall is that of a k"
            assert cell.n_rerank, "at a depth"
            recall = float(curve[cell.k, cell.n_rerank].mean())
            yield Row(cell, {"recall": recall, "calls": cell.cost, "n_tests": len(exact_scores)})


def best_splits(rows: Sequence[Row]) -> list[Row]:
    """Of ANNCUR's rows at a cost, those with the best split, chosen on test; the rows of other methods as they are."""
    return [equal[0] for equal in equally_good_splits(rows)]


def equally_good_splits(rows: Sequence[Row]) -> list[list[Row]]:
    """The same with all splits that are as good as the best: where recall can't rise any more, there are several."""
    what = ("protocol", "experiment", "world", "scorer", "data", "seed")
    where = ("n_anchor_queries", "n_items", "method", "k", "cost")
    found = []
    for some in grouped(rows, *what, *where).values():
        best = max(row["recall"] for row in some)
        found.append([row for row in some if row["recall"] == best])
    return found
