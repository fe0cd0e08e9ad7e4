"""Vectors in faiss (extra `ann`): flat in half precision, or approximate, by cells (IVF) or a graph (HNSW).

What faiss holds is centred and scaled. Cells and graphs are made for nearest neighbours: on inner products as they are,
a graph loses most items. So vectors are lengthened there (`prepared.py`).

Rows of faiss are never moved or deleted: items that go are left out of what is searched, and items that come are added
to a copy. Cells and scale stay those of the first items, until too much has changed and all is built again."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anncur.arrays import NO_POSITIONS, FloatMatrix, FloatVector, Positions
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
HEADROOM = 1.1  # of lengths: vectors of later items may be longer than those that are there
MOST_GONE = 0.25  # of the rows: where more items went, all is built again
MOST_GROWTH = 2.0  # times the items that it was built of: where there are more, all is built again


class FaissVectors:
    """Ranks by a faiss index of an array's vectors; with `offsets`, these are one more coordinate of each vector."""

    def __init__(
        self, vectors: ExactVectors, kind: str = FLAT, *, offsets: FloatVector | None = None, seed: int = 0
    ) -> None:
        if kind not in KINDS:
            raise InputError(f"faiss ranks by {', '.join(KINDS)}, got {kind!r}; pass vectors='faiss:{IVF}', say")
        self._vectors = LocalVectors(vectors, offsets)
        self._kind = kind
        self._transform = Prepared(self._vectors).transform.with_headroom(HEADROOM)
        self._index = _build(Prepared(self._vectors, self._transform), kind, seed)
        self._n_built = len(vectors)
        self._rows = np.arange(len(vectors))  # in faiss, by position
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
        return self.following(self._vectors.add(vectors), gone=NO_POSITIONS)

    def remove(self, positions: Positions) -> FaissVectors:
        return self.following(self._vectors.remove(positions), gone=positions)

    def following(self, vectors: LocalVectors, *, gone: Positions) -> FaissVectors:
        """That of the items of a later version: those before without some of them, and behind them all that are new."""
        kept = np.delete(self._rows, gone)
        n_rows = self._index.ntotal + len(vectors) - len(kept)
        prepared = Prepared(vectors, self._transform)
        has_changed = len(vectors) < (1 - MOST_GONE) * n_rows or n_rows > MOST_GROWTH * self._n_built
        if has_changed or (self._kind != FLAT and len(prepared.too_long(len(kept)))):
            return FaissVectors(vectors.vectors, self._kind, offsets=vectors.offsets)
        later = copy.copy(self)
        later._vectors = vectors
        later._rows = np.concatenate([kept, np.arange(self._index.ntotal, n_rows)])
        if len(vectors) > len(kept):
            later._index = _grown(self._index, prepared, len(kept), self._kind)
        return later

    def _search(self, query_vectors: FloatMatrix, n_asked: int, among: Candidates, effort: int) -> NDArray[np.int64]:
        """Positions for each query, -1 where there are no more."""
        lengths = np.linalg.norm(query_vectors, axis=1, keepdims=True)
        queries = _padded(query_vectors / np.where(lengths > 0, lengths, 1.0), self._index.d)
        rows: NDArray[np.int64] = self._index.search(queries, n_asked, params=self._parameters(among, effort))[1]
        return np.where(rows < 0, -1, np.searchsorted(self._rows, rows))

    def _parameters(self, among: Candidates, effort: int) -> Any:
        import faiss

        mask = None
        if among.passing is not None or len(self) < self._index.ntotal:
            mask = np.zeros(self._index.ntotal, dtype=np.bool_)
            mask[self._rows if among.passing is None else self._rows[among.passing]] = True
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
        index = faiss.IndexScalarQuantizer(width, half, faiss.METRIC_INNER_PRODUCT)
    else:
        index = _approximate(prepared, kind, seed)
    return _filled(index, prepared, 0, kind)


def _grown(index: Any, prepared: Prepared, start: int, kind: str) -> Any:
    """A copy with the vectors from a position on added."""
    import faiss

    return _filled(faiss.clone_index(index), prepared, start, kind)


def _filled(index: Any, prepared: Prepared, start: int, kind: str) -> Any:
    for rows in prepared.blocks(start):
        index.add(_padded(rows if kind == FLAT else prepared.lengthened(rows), index.d))
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
