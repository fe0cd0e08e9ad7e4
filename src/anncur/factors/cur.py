"""CUR decomposition of a score matrix: the paper's approximation, and how good it is.

Reads exact scores, feeds `search/anncur.py`. Pure NumPy in float64: no files, no models, no
randomness.

The skeleton approximation of a query's row from its scores on the anchor items is

    approx_scores = (exact scores on anchor items) @ link_matrix @ anchor_scores

(equation for the test matrix in section 2.2 of the paper, where the link matrix is U)."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from anncur.arrays import FloatMatrix, FloatVector, Positions
from anncur.caching import Cache
from anncur.item_scores import ItemScores

PAPER_CUTOFF = 1e-15  # nothing is cut off: the authors' setting, unstable when the anchor block is nearly square


class AnchorBlock:
    """The singular value decomposition of an anchor block, from which a link matrix for any cutoff is cheap."""

    def __init__(self, anchor_block: FloatMatrix) -> None:
        exact = anchor_block.astype(np.float64)  # (n_anchor_queries, n_anchor_items)
        self._left, self._values, self._right = np.linalg.svd(exact, full_matrices=False)

    def kept_rank(self, cutoff: float) -> int:
        """How many singular values are above `cutoff` times the largest."""
        return _n_above(self._values, cutoff)

    def link_matrix(self, cutoff: float) -> FloatMatrix:
        """The pseudo-inverse of the block, (n_anchor_items, n_anchor_queries)."""
        kept = slice(self.kept_rank(cutoff))
        link: FloatMatrix = (self._right[kept].T / self._values[kept]) @ self._left[:, kept].T
        return link


def link_matrix(anchor_block: FloatMatrix, *, cutoff: float) -> FloatMatrix:
    """The pseudo-inverse of the anchor block, (n_anchor_items, n_anchor_queries).

    Singular values up to `cutoff` times the largest are taken for noise: kept, they blow up what the block doesn't
    determine, and the approximation collapses when there are about as many anchor items as anchor queries."""
    return AnchorBlock(anchor_block).link_matrix(cutoff)


class Oracle:
    """Link matrices of least error, pinv(columns) @ exact_scores @ pinv(rows): they need the whole matrix.

    For comparison only. The pseudo-inverse of each set of anchors is computed once."""

    def __init__(self, exact_scores: FloatMatrix, *, cutoff: float) -> None:
        self._exact = exact_scores.astype(np.float64)
        self._cutoff = cutoff
        self._inverses: dict[tuple[int, bytes], FloatMatrix] = {}

    def link_matrix(self, anchor_queries: Positions, anchor_items: Positions) -> FloatMatrix:
        """(n_anchor_items, n_anchor_queries)"""
        columns_inverse = self._inverse(anchor_items, axis=1)  # (n_anchor_items, n_queries)
        rows_inverse = self._inverse(anchor_queries, axis=0)  # (n_items, n_anchor_queries)
        link: FloatMatrix = columns_inverse @ self._exact @ rows_inverse
        return link

    def _inverse(self, positions: Positions, *, axis: int) -> FloatMatrix:
        key = (axis, positions.tobytes())
        if key not in self._inverses:
            taken = self._exact.take(positions, axis=axis)
            self._inverses[key] = np.linalg.pinv(taken, rcond=self._cutoff)
        return self._inverses[key]


def approximate(anchor_columns: FloatMatrix, link: FloatMatrix, anchor_scores: FloatMatrix) -> FloatMatrix:
    """Approximate rows of the score matrix, (n_queries, n_items), from their scores on the anchor items."""
    approx_scores: FloatMatrix = (anchor_columns.astype(np.float64) @ link) @ anchor_scores.astype(np.float64)
    return approx_scores


def relative_error(exact_scores: FloatMatrix, approx_scores: FloatMatrix) -> float:
    """The Frobenius norm of what is missed, as a share of the exact scores' norm."""
    missed = np.linalg.norm(exact_scores.astype(np.float64) - approx_scores)
    return float(missed / np.linalg.norm(exact_scores.astype(np.float64)))


class NumericalRank(NamedTuple):
    """A rank, and the share of the largest singular value up to which values count as zero."""

    rank: int
    tolerance: float


def numerical_rank(exact_scores: FloatMatrix, *, tolerance: float | None = None) -> NumericalRank:
    """The number of singular values above `tolerance` times the largest.

    The default is the longer side times the machine precision of the scores' own type, as `numpy.linalg.matrix_rank`
    has it: in float32 the same matrix has a much lower rank than in float64, so the tolerance is part of the answer."""
    if tolerance is None:
        tolerance = max(exact_scores.shape) * float(np.finfo(exact_scores.dtype).eps)
    values: FloatVector = np.linalg.svd(exact_scores.astype(np.float64), compute_uv=False)
    return NumericalRank(_n_above(values, tolerance), tolerance)


def variance_rank(exact_scores: FloatMatrix, share: float) -> int:
    """The number of components that explain this share of the variance, the sum of squared singular values."""
    values: FloatVector = np.linalg.svd(exact_scores.astype(np.float64), compute_uv=False)
    explained = np.cumsum(values**2)
    return int(np.searchsorted(explained, share * explained[-1]) + 1) if explained[-1] > 0 else 0


def _n_above(singular_values: FloatVector, share: float) -> int:
    """How many are above this share of the largest."""
    return int((singular_values > share * singular_values.max(initial=0.0)).sum())


def estimate_queries(anchor_columns: FloatMatrix, link: FloatMatrix) -> FloatMatrix:
    """Query vectors, (n_queries, n_anchor_queries), from exact scores on anchor items, (n_queries, n_anchor_items).

    Without anchor items the estimate is the mean of the anchor queries."""
    if link.shape[0] == 0:
        return np.full((len(anchor_columns), link.shape[1]), 1 / link.shape[1])
    query_vectors: FloatMatrix = anchor_columns @ link
    return query_vectors


class CurFactors:
    """The anchor scores as item vectors, the order of the anchor items, and the link matrices in use.

    The vectors are the anchor scores themselves: `(exact @ link) @ anchor_scores` is the same product as with
    precomputed `link @ anchor_scores`, and one matrix then serves every number of anchor items and every cutoff."""

    def __init__(self, scores: ItemScores, anchor_order: Positions, *, most_links: int = 32) -> None:
        self._scores = scores
        self.anchor_order = anchor_order
        self._links: Cache[FloatMatrix] = Cache(most_links)  # by anchor items and cutoff

    @property
    def n_anchor_queries(self) -> int:
        """The width of the item vectors."""
        return self._scores.n_anchor_queries

    @property
    def item_vectors(self) -> FloatMatrix:
        """The anchor scores, (n_items, n_anchor_queries); read when they are first asked for."""
        return self._scores.all()

    def anchor_block(self, anchor_items: Positions) -> AnchorBlock:
        """The decomposed block of these anchor items."""
        return AnchorBlock(self._scores.rows(anchor_items).T)

    def link(self, anchor_items: Positions, cutoff: float) -> FloatMatrix:
        """The link matrix of these anchor items; the latest ones are remembered."""
        key = (anchor_items.tobytes(), cutoff)
        return self._links.get(key, lambda: self.anchor_block(anchor_items).link_matrix(cutoff))
