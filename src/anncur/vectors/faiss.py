"""Vectors in faiss (extra `ann`): flat in half precision, or approximate, by cells (IVF) or a graph (HNSW).

Cells and graphs are made for nearest neighbours: on inner products as they are, a graph loses most items. So vectors
get one more coordinate, which makes all of them equally long, and the nearest are those of the largest product."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anncur.arrays import FloatMatrix, Positions
from anncur.candidates import Candidates
from anncur.errors import InputError
from anncur.ranking import top_k
from anncur.vectors.base import Ranked
from anncur.vectors.exact import ExactVectors
from anncur.vectors.half import single

FLAT, IVF, HNSW = "flat", "ivf", "hnsw"
KINDS = (FLAT, IVF, HNSW)
ROWS_AT_ONCE = 65_536
POINTS_PER_CELL = 64  # that k-means looks at
N_ITERATIONS = 8  # of k-means
N_NEIGHBOURS = 32  # of an item in a graph
LANES = 16  # faiss has fast code for widths that are a multiple of this, and takes ten times as long for others
WANTED_RECALL, LEAST_EFFORT = 0.99, 16  # of the best `DEPTH` items; cells or paths that are looked at
N_TRIED, DEPTH = 32, 200


class FaissVectors:
    """Ranks by a faiss index of the same vectors as an array, from which they are taken."""

    def __init__(self, vectors: ExactVectors, kind: str = FLAT, *, seed: int = 0) -> None:
        if kind not in KINDS:
            raise InputError(f"faiss ranks by {', '.join(KINDS)}, got {kind!r}; pass vectors='faiss:{IVF}', say")
        self._vectors = vectors
        self._kind = kind
        self._index = _build(vectors, kind, seed)
        self.effort = LEAST_EFFORT
        self.recall = 1.0  # of the best items for random query vectors
        if kind != FLAT:
            self._tune(np.random.default_rng(seed))

    @property
    def width(self) -> int:
        return self._vectors.width

    def __len__(self) -> int:
        return len(self._vectors)

    def top(
        self, query_vectors: FloatMatrix, n_best: int, *, exclude: Sequence[Positions], among: Candidates
    ) -> list[Ranked]:
        if among.are_few:
            return self._vectors.top(query_vectors, n_best, exclude=exclude, among=among)
        n_asked = min(n_best + max(map(len, exclude), default=0), len(among))
        found = self._search(query_vectors, n_asked, among)
        return [
            self._ranked(row, vector, n_best, excluded)
            for row, vector, excluded in zip(found, query_vectors, exclude, strict=True)
        ]

    def take(self, positions: Positions) -> FloatMatrix:
        return self._vectors.take(positions)

    def add(self, vectors: FloatMatrix) -> FaissVectors:
        return FaissVectors(self._vectors.add(vectors), self._kind)

    def remove(self, positions: Positions) -> FaissVectors:
        return FaissVectors(self._vectors.remove(positions), self._kind)

    def _search(self, query_vectors: FloatMatrix, n_asked: int, among: Candidates) -> NDArray[np.int64]:
        """Positions for each query, -1 where there are no more."""
        queries = _padded(query_vectors, self._index.d)
        positions: NDArray[np.int64] = self._index.search(queries, n_asked, params=self._parameters(among))[1]
        return positions

    def _ranked(self, found: Positions, vector: FloatMatrix, n_best: int, excluded: Positions) -> Ranked:
        """What was found, in ascending order of positions where products are the same."""
        left = np.sort(found[(found >= 0) & ~np.isin(found, excluded)])
        products = self.take(left) @ vector.astype(np.float32)
        best = top_k(products, n_best)
        return Ranked(left[best], products[best])

    def _parameters(self, among: Candidates) -> Any:
        import faiss

        mask = None if among.passing is None else np.zeros(len(self), dtype=np.bool_)
        if mask is not None:
            mask[among.passing] = True
        selected = {} if mask is None else {"sel": faiss.IDSelectorBitmap(np.packbits(mask, bitorder="little"))}
        if self._kind == IVF:
            return faiss.SearchParametersIVF(nprobe=self.effort, **selected)
        if self._kind == HNSW:
            return faiss.SearchParametersHNSW(efSearch=self.effort, **selected)
        return faiss.SearchParameters(**selected)

    def _tune(self, rng: np.random.Generator) -> None:
        """Look at as many cells or paths as the wanted recall takes, for query vectors at random."""
        queries = rng.standard_normal((N_TRIED, self.width)).astype(np.float32)
        everything, none = Candidates(len(self)), [np.empty(0, dtype=np.int64)] * N_TRIED
        depth = min(DEPTH, len(self))
        true = self._vectors.top(queries, depth, exclude=none, among=everything)
        most = self._index.nlist if self._kind == IVF else 64 * LEAST_EFFORT
        while True:
            found = self._search(queries, depth, everything)
            both = zip(found, true, strict=True)
            self.recall = float(np.mean([np.isin(ranked.positions, row).mean() for row, ranked in both]))
            if self.recall >= WANTED_RECALL or self.effort >= most:
                return
            self.effort = min(2 * self.effort, most)


def _build(vectors: ExactVectors, kind: str, seed: int) -> Any:
    """A faiss index of all vectors."""
    import faiss

    if kind == FLAT:
        flat = faiss.IndexScalarQuantizer(
            _padded_width(vectors.width), faiss.ScalarQuantizer.QT_fp16, faiss.METRIC_INNER_PRODUCT
        )
        for rows in _blocks(vectors):
            flat.add(_padded(rows, flat.d))
        return flat
    longest = max(float(np.einsum("ij,ij->i", rows, rows).max()) for rows in _blocks(vectors))
    index = _approximate(vectors, kind, longest, seed)
    for rows in _blocks(vectors):
        index.add(_padded(_lengthened(rows, longest), index.d))
    return index


def _approximate(vectors: ExactVectors, kind: str, longest: float, seed: int) -> Any:
    """An empty index by cells or a graph."""
    import faiss

    width, half = _padded_width(vectors.width + 1), faiss.ScalarQuantizer.QT_fp16
    if kind == HNSW:
        graph = faiss.IndexHNSWSQ(width, half, N_NEIGHBOURS)
        graph.train(np.zeros((1, width), dtype=np.float32))
        return graph
    n_cells = max(1, round(4 * np.sqrt(len(vectors))))
    cells = faiss.IndexIVFScalarQuantizer(faiss.IndexFlatL2(width), width, n_cells, half)
    cells.cp.niter, cells.cp.seed = N_ITERATIONS, seed + 1
    cells.cp.max_points_per_centroid, cells.cp.min_points_per_centroid = POINTS_PER_CELL, 1
    n_points = min(len(vectors), POINTS_PER_CELL * n_cells)
    drawn = np.sort(np.random.default_rng(seed).choice(len(vectors), n_points, replace=False))
    cells.train(_padded(_lengthened(single(vectors.take(drawn)), longest), width))
    return cells


def _lengthened(rows: FloatMatrix, longest: float) -> FloatMatrix:
    """Vectors with one more coordinate, so that all are as long as the longest."""
    squares = np.einsum("ij,ij->i", rows, rows)
    return np.hstack([rows, np.sqrt(np.maximum(0, longest - squares))[:, None]])


def _padded(rows: FloatMatrix, width: int) -> NDArray[np.float32]:
    """With zeros behind them."""
    padded = np.zeros((len(rows), width), dtype=np.float32)
    padded[:, : rows.shape[1]] = rows
    return padded


def _padded_width(width: int) -> int:
    return -(-width // LANES) * LANES


def _blocks(vectors: ExactVectors) -> Iterator[FloatMatrix]:
    for start in range(0, len(vectors), ROWS_AT_ONCE):
        yield single(vectors.take(np.arange(start, min(start + ROWS_AT_ONCE, len(vectors)))))


def check_faiss() -> None:
    """Refuse to begin where faiss is missing."""
    try:
        import faiss  # noqa: F401
    except ModuleNotFoundError as error:
        raise InputError("vectors='faiss' needs faiss; run pip install 'anncur[ann]', or use 'exact'") from error
