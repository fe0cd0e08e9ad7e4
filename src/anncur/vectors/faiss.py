"""Vectors in faiss (extra `ann`): flat in half precision, or approximate, by cells (IVF) or a graph (HNSW).

What faiss holds is centred and scaled. Cells and graphs are made for nearest neighbours: on inner products as they are,
a graph loses most items. So vectors are lengthened there (`prepared.py`)."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anncur.arrays import FloatMatrix, FloatVector, Positions
from anncur.candidates import Candidates
from anncur.errors import AnncurWarning, InputError
from anncur.vectors.base import Ranked
from anncur.vectors.effort import LEAST_EFFORT, POOR_RECALL, tune_effort
from anncur.vectors.exact import ExactVectors
from anncur.vectors.local import LocalVectors
from anncur.vectors.prepared import Prepared

FLAT, IVF, HNSW = "flat", "ivf", "hnsw"
KINDS = (FLAT, IVF, HNSW)
POINTS_PER_CELL = 64  # that k-means looks at
N_ITERATIONS = 8  # of k-means
N_NEIGHBOURS = 32  # of an item in a graph
LANES = 16  # faiss has fast code for widths that are a multiple of this, and takes ten times as long for others
LARGE_SHARE = 0.25  # of all items: where more are wanted, all of them are ranked


class FaissVectors:
    """Ranks by a faiss index of an array's vectors; with `offsets`, these are one more coordinate of each vector."""

    def __init__(
        self, vectors: ExactVectors, kind: str = FLAT, *, offsets: FloatVector | None = None, seed: int = 0
    ) -> None:
        if kind not in KINDS:
            raise InputError(f"faiss ranks by {', '.join(KINDS)}, got {kind!r}; pass vectors='faiss:{IVF}', say")
        self._vectors = LocalVectors(vectors, offsets)
        self._kind = kind
        self._index = _build(Prepared(self._vectors), kind, seed)
        self.effort, self.recall = self._tune(seed)
        if self.recall < POOR_RECALL:
            warnings.warn(
                f"faiss:{kind} finds only {self.recall:.0%} of the items that an exact ranking has at its top; "
                "vectors='exact' or 'faiss' finds them all",
                AnncurWarning,
                stacklevel=2,
            )

    @property
    def width(self) -> int:
        return self._vectors.width

    def __len__(self) -> int:
        return len(self._vectors)

    def top(
        self, query_vectors: FloatMatrix, n_best: int, *, exclude: Sequence[Positions], among: Candidates
    ) -> list[Ranked]:
        n_asked = min(n_best + max(map(len, exclude), default=0), len(among))
        if among.are_few or n_asked > LARGE_SHARE * len(self):
            return self._vectors.top(query_vectors, n_best, exclude=exclude, among=among)
        found = self._search(query_vectors, n_asked, among, self.effort)
        ranked = [
            self._vectors.ranked(np.sort(row[(row >= 0) & ~np.isin(row, excluded)]), vector, n_best)
            for row, vector, excluded in zip(found, query_vectors, exclude, strict=True)
        ]
        for place, (of_query, excluded) in enumerate(zip(ranked, exclude, strict=True)):
            if len(of_query.positions) < min(n_best, len(among) - len(excluded)):  # cells or paths that came to an end
                one = query_vectors[place : place + 1]
                (ranked[place],) = self._vectors.top(one, n_best, exclude=[excluded], among=among)
        return ranked

    def take(self, positions: Positions) -> FloatMatrix:
        return self._vectors.take(positions)

    def add(self, vectors: FloatMatrix) -> FaissVectors:
        return self._of(self._vectors.add(vectors))

    def remove(self, positions: Positions) -> FaissVectors:
        return self._of(self._vectors.remove(positions))

    def _of(self, vectors: LocalVectors) -> FaissVectors:
        return FaissVectors(vectors.vectors, self._kind, offsets=vectors.offsets)

    def _search(self, query_vectors: FloatMatrix, n_asked: int, among: Candidates, effort: int) -> NDArray[np.int64]:
        """Positions for each query, -1 where there are no more."""
        lengths = np.linalg.norm(query_vectors, axis=1, keepdims=True)
        queries = _padded(query_vectors / np.where(lengths > 0, lengths, 1.0), self._index.d)
        positions: NDArray[np.int64] = self._index.search(queries, n_asked, params=self._parameters(among, effort))[1]
        return positions

    def _parameters(self, among: Candidates, effort: int) -> Any:
        import faiss

        mask = None if among.passing is None else np.zeros(len(self), dtype=np.bool_)
        if mask is not None:
            mask[among.passing] = True
        selected = {} if mask is None else {"sel": faiss.IDSelectorBitmap(np.packbits(mask, bitorder="little"))}
        if self._kind == IVF:
            return faiss.SearchParametersIVF(nprobe=effort, **selected)
        if self._kind == HNSW:
            return faiss.SearchParametersHNSW(efSearch=effort, **selected)
        return faiss.SearchParameters(**selected)

    def _tune(self, seed: int) -> tuple[int, float]:
        """Look at as many cells or paths as the wanted recall takes; the recall then."""
        everything = Candidates(len(self))
        return tune_effort(
            lambda queries, depth, effort: list(self._search(queries, depth, everything, effort)),
            self._vectors,
            most={FLAT: LEAST_EFFORT, HNSW: 64 * LEAST_EFFORT, IVF: getattr(self._index, "nlist", 1)}[self._kind],
            seed=seed,
        )


def _build(prepared: Prepared, kind: str, seed: int) -> Any:
    """A faiss index of all vectors."""
    import faiss

    if kind == FLAT:
        width, half = _padded_width(prepared.width), faiss.ScalarQuantizer.QT_fp16
        flat = faiss.IndexScalarQuantizer(width, half, faiss.METRIC_INNER_PRODUCT)
        for rows in prepared.blocks():
            flat.add(_padded(rows, width))
        return flat
    index = _approximate(prepared, kind, seed)
    for rows in prepared.blocks():
        index.add(_padded(prepared.lengthened(rows), index.d))
    return index


def _approximate(prepared: Prepared, kind: str, seed: int) -> Any:
    """An empty index by cells or a graph."""
    import faiss

    width, half = _padded_width(prepared.width + 1), faiss.ScalarQuantizer.QT_fp16
    if kind == HNSW:
        graph = faiss.IndexHNSWSQ(width, half, N_NEIGHBOURS)
        graph.train(np.zeros((1, width), dtype=np.float32))
        return graph
    n_cells = min(len(prepared), round(4 * np.sqrt(len(prepared))))
    cells = faiss.IndexIVFScalarQuantizer(faiss.IndexFlatL2(width), width, n_cells, half)
    cells.cp.niter, cells.cp.seed = N_ITERATIONS, seed + 1
    cells.cp.max_points_per_centroid, cells.cp.min_points_per_centroid = POINTS_PER_CELL, 1
    n_points = min(len(prepared), POINTS_PER_CELL * n_cells)
    drawn = np.sort(np.random.default_rng(seed).choice(len(prepared), n_points, replace=False))
    cells.train(_padded(prepared.lengthened(prepared.take(drawn)), width))
    return cells


def _padded(rows: FloatMatrix, width: int) -> NDArray[np.float32]:
    """With zeros behind them."""
    padded = np.zeros((len(rows), width), dtype=np.float32)
    padded[:, : rows.shape[1]] = rows
    return padded


def _padded_width(width: int) -> int:
    return -(-width // LANES) * LANES


def check_faiss(engine: str) -> None:
    """Refuse to begin where faiss is missing."""
    try:
        import faiss  # noqa: F401
    except ImportError as error:
        raise InputError(
            f"vectors={engine!r} needs faiss, which can't be imported ({error}); run pip install 'anncur[ann]', or use "
            "'exact'"
        ) from error
