"""Vectors of items from their words: latent semantic analysis, the principal components of TF-IDF rows.

The basis is found on a sample of items, by a randomised range finder; then every item is projected onto it. Inner
products of the vectors approximate those of the rows. Pure NumPy, the same result for the same items in any order, up
to rounding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anncur.arrays import FloatMatrix, FloatVector, Positions
from anncur.retrievers.base import Arrays
from anncur.threads import one_blas_thread

WIDTH = 256
OVERSAMPLING = 16  # more components than are kept, so that the kept ones are accurate
N_POWERS = 2  # of the matrix: the spectrum of words falls slowly
MOST_SAMPLED = 20_000  # items
LEAST_ITEMS = 2  # a word in one item says nothing of how items relate
TINY = 1e-6  # of the largest square of a singular value: what is below is rounding
SEPARATOR = "\n"


@dataclass(frozen=True, eq=False)
class WeightedWords:
    """TF-IDF rows of items, kept by word: word w stands in `items[starts[w]:starts[w + 1]]` with the `weights`."""

    words: list[str]
    starts: NDArray[np.int64]
    items: NDArray[np.int32]
    weights: FloatVector
    idf: FloatVector  # (n_words,)
    n_items: int


def smooth_idf(n_with: NDArray[np.int64], n_items: int) -> FloatVector:
    """Inverse document frequency, as if one more item held every word."""
    idf: FloatVector = np.log((1 + n_items) / (1 + n_with)) + 1
    return idf


def fit_basis(weighted: WeightedWords) -> dict[str, NDArray[Any]]:
    """Words that several items hold, their idf, and the principal components, (n_words, at most 256) in float16."""
    kept = np.flatnonzero(np.diff(weighted.starts) >= min(LEAST_ITEMS, weighted.n_items))
    matrix = _SparseRows.of(weighted, kept)
    if matrix.n_items > MOST_SAMPLED:
        matrix = matrix.take(np.random.default_rng(0).choice(matrix.n_items, MOST_SAMPLED, replace=False))
    with one_blas_thread():
        components = _principal_components(matrix)
    return {
        "words": np.frombuffer(SEPARATOR.join(weighted.words[word] for word in kept.tolist()).encode(), dtype=np.uint8),
        "idf": weighted.idf[kept].astype(np.float32),
        "basis": components.astype(np.float16),
    }


def idf_of(words: Sequence[str], basis: Arrays) -> FloatVector:
    """The idf of words as it was when the basis was fitted; of those that it doesn't know, the highest."""
    known = _numbered(basis)
    idf = np.append(basis["idf"], basis["idf"].max(initial=1.0))
    return np.asarray(idf[[known.get(word, -1) for word in words]], dtype=np.float64)


def project(weighted: WeightedWords, basis: Arrays) -> FloatMatrix:
    """Vectors of items in a basis, (n_items, width) in float16."""
    known = _numbered(basis)
    column = np.fromiter((known.get(word, -1) for word in weighted.words), dtype=np.int64, count=len(weighted.words))
    matrix = _SparseRows.of(weighted, np.flatnonzero(column >= 0), column)
    with one_blas_thread():
        return matrix.dot(basis["basis"].astype(np.float32)).astype(np.float16)


def _numbered(basis: Arrays) -> dict[str, int]:
    text = basis["words"].tobytes().decode()
    return {word: number for number, word in enumerate(text.split(SEPARATOR) if text else [])}


@dataclass(frozen=True, eq=False)
class _SparseRows:
    """A sparse matrix, (n_items, n_words): item i has `weights[starts[i]:starts[i + 1]]` in the columns beside them."""

    starts: NDArray[np.int64]
    columns: NDArray[np.int64]
    weights: FloatVector
    n_columns: int

    @classmethod
    def of(cls, weighted: WeightedWords, kept: Positions, column: Positions | None = None) -> _SparseRows:
        """The rows of items, with the words `kept` alone; their columns are `column`, else their places in `kept`."""
        n_with = np.diff(weighted.starts)
        if column is None:
            column = np.full(len(n_with), -1)
            column[kept] = np.arange(len(kept))
        is_kept = np.repeat(column >= 0, n_with)
        column_of, items = np.repeat(column, n_with)[is_kept], weighted.items[is_kept]
        shape = weighted.n_items, int(column.max(initial=-1)) + 1
        return cls.sorted(items, column_of, weighted.weights[is_kept], shape)

    @classmethod
    def sorted(
        cls, rows: NDArray[np.integer], columns: Positions, weights: FloatVector, shape: tuple[int, int]
    ) -> _SparseRows:
        """From places in any order."""
        order = np.argsort(rows, kind="stable")
        starts = np.concatenate([[0], np.cumsum(np.bincount(rows, minlength=shape[0]))]).astype(np.int64)
        return cls(starts, columns[order], weights[order], shape[1])

    @property
    def n_items(self) -> int:
        return len(self.starts) - 1

    @property
    def _row_of(self) -> Positions:
        return np.repeat(np.arange(self.n_items), np.diff(self.starts))

    def take(self, rows: Positions) -> _SparseRows:
        place = np.full(self.n_items, -1)
        place[np.sort(rows)] = np.arange(len(rows))
        row_of = place[self._row_of]
        is_kept = row_of >= 0
        shape = len(rows), self.n_columns
        return self.sorted(row_of[is_kept], self.columns[is_kept], self.weights[is_kept], shape)

    def transposed(self) -> _SparseRows:
        return self.sorted(self.columns, self._row_of, self.weights, (self.n_columns, self.n_items))

    def dot(self, dense: FloatMatrix) -> FloatMatrix:
        """(n_items, width) from (n_words, width), row by row: gathering the rows of all places at once takes longer."""
        product = np.zeros((self.n_items, dense.shape[1]), dtype=np.float32)
        bounds = self.starts.tolist()
        for row in np.flatnonzero(np.diff(self.starts)).tolist():
            places = slice(bounds[row], bounds[row + 1])
            product[row] = self.weights[places] @ dense[self.columns[places]]
        return product


def _principal_components(matrix: _SparseRows) -> FloatMatrix:
    """The right singular vectors of the largest singular values, (n_words, width)."""
    width = min(WIDTH + OVERSAMPLING, matrix.n_items, matrix.n_columns)
    turned = matrix.transposed()
    found = np.random.default_rng(0).standard_normal((matrix.n_columns, width), dtype=np.float32)
    for _ in range(N_POWERS):
        found = _orthonormal(turned.dot(_orthonormal(matrix.dot(found))))
    return _orthonormal(turned.dot(_orthonormal(matrix.dot(found))))[:, :WIDTH]


def _orthonormal(columns: FloatMatrix) -> FloatMatrix:
    """An orthonormal basis of what columns span, the largest first; what is only rounding is left out.

    By the eigenvectors of inner products: for tall matrices that takes a tenth of the time of QR."""
    squares, rotation = np.linalg.eigh((columns.T @ columns).astype(np.float64))
    is_kept = squares > TINY * squares.max(initial=0.0)
    chosen = (rotation[:, is_kept] / np.sqrt(squares[is_kept]))[:, ::-1]  # eigh gives the smallest first
    basis: FloatMatrix = columns @ chosen.astype(np.float32)
    return basis
