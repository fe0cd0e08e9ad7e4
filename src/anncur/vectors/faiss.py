"""Vectors in faiss (extra `ann`): flat in half precision, or approximate, by cells (IVF) or a graph (HNSW).

What faiss holds is centred and scaled, which changes no order: half precision has little range, and a level that all
items share would drown their differences. Cells and graphs are made for nearest neighbours: on inner products as they
are, a graph loses most items. So vectors get one more coordinate there, which makes all of them equally long, and the
nearest are those of the largest product."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anncur.arrays import NO_POSITIONS, FloatMatrix, FloatVector, Positions, Selector
from anncur.candidates import Candidates
from anncur.errors import AnncurWarning, InputError
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
POOR_RECALL = 0.9  # below which the user is warned
N_TRIED, DEPTH = 32, 200
LARGE_SHARE = 0.25  # of all items: where more are wanted, all of them are ranked


@dataclass(frozen=True, eq=False)
class WeightedOffsets:
    """Offsets times what each query weighs them with: `Means` for exact rankings."""

    offsets: FloatVector  # (n_items,)
    weights: FloatVector  # (n_queries,)

    def of_items(self, items: Selector) -> FloatMatrix:
        return self.weights[:, None] * self.offsets[None, items]


class FaissVectors:
    """Ranks by a faiss index of an array's vectors; with `offsets`, these are one more coordinate of each vector."""

    def __init__(
        self, vectors: ExactVectors, kind: str = FLAT, *, offsets: FloatVector | None = None, seed: int = 0
    ) -> None:
        if kind not in KINDS:
            raise InputError(f"faiss ranks by {', '.join(KINDS)}, got {kind!r}; pass vectors='faiss:{IVF}', say")
        self._vectors = vectors
        self._kind = kind
        self._offsets = offsets
        self._index = _build(_Prepared.of(vectors, offsets), kind, seed)
        self.effort = LEAST_EFFORT
        self.recall = self._tune(np.random.default_rng(seed))
        if self.recall < POOR_RECALL:
            warnings.warn(
                f"faiss:{kind} finds only {self.recall:.0%} of the items that an exact ranking has at its top; "
                "vectors='exact' or 'faiss' finds them all",
                AnncurWarning,
                stacklevel=2,
            )

    @property
    def width(self) -> int:
        return self._vectors.width + (self._offsets is not None)

    def __len__(self) -> int:
        return len(self._vectors)

    def top(
        self, query_vectors: FloatMatrix, n_best: int, *, exclude: Sequence[Positions], among: Candidates
    ) -> list[Ranked]:
        n_asked = min(n_best + max(map(len, exclude), default=0), len(among))
        if among.are_few or n_asked > LARGE_SHARE * len(self):
            return self._exact_top(query_vectors, n_best, exclude, among)
        found = self._search(query_vectors, n_asked, among)
        ranked = [
            self._ranked(row, vector, n_best, excluded)
            for row, vector, excluded in zip(found, query_vectors, exclude, strict=True)
        ]
        for place, (of_query, excluded) in enumerate(zip(ranked, exclude, strict=True)):
            if len(of_query.positions) < min(n_best, len(among) - len(excluded)):  # cells or paths that came to an end
                (ranked[place],) = self._exact_top(query_vectors[place : place + 1], n_best, [excluded], among)
        return ranked

    def take(self, positions: Positions) -> FloatMatrix:
        vectors = self._vectors.take(positions)
        if self._offsets is None:
            return vectors
        return np.concatenate([vectors, self._offsets[positions][..., None].astype(vectors.dtype)], axis=-1)

    def add(self, vectors: FloatMatrix) -> FaissVectors:
        if self._offsets is None:
            return FaissVectors(self._vectors.add(vectors), self._kind)
        offsets = np.concatenate([self._offsets, vectors[:, -1]])
        return FaissVectors(self._vectors.add(vectors[:, :-1]), self._kind, offsets=offsets)

    def remove(self, positions: Positions) -> FaissVectors:
        offsets = None if self._offsets is None else np.delete(self._offsets, positions)
        return FaissVectors(self._vectors.remove(positions), self._kind, offsets=offsets)

    def _exact_top(
        self, query_vectors: FloatMatrix, n_best: int, exclude: Sequence[Positions], among: Candidates
    ) -> list[Ranked]:
        if self._offsets is None:
            return self._vectors.top(query_vectors, n_best, exclude=exclude, among=among)
        means = WeightedOffsets(self._offsets, query_vectors[:, -1])
        return self._vectors.top(query_vectors[:, :-1], n_best, exclude=exclude, among=among, means=means)

    def _search(self, query_vectors: FloatMatrix, n_asked: int, among: Candidates) -> NDArray[np.int64]:
        """Positions for each query, -1 where there are no more."""
        lengths = np.linalg.norm(query_vectors, axis=1, keepdims=True)
        queries = _padded(query_vectors / np.where(lengths > 0, lengths, 1.0), self._index.d)
        positions: NDArray[np.int64] = self._index.search(queries, n_asked, params=self._parameters(among))[1]
        return positions

    def _ranked(self, found: Positions, vector: FloatVector, n_best: int, excluded: Positions) -> Ranked:
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

    def _tune(self, rng: np.random.Generator) -> float:
        """Look at as many cells or paths as the wanted recall takes, for query vectors at random; the recall then."""
        queries = rng.standard_normal((N_TRIED, self.width)).astype(np.float32)
        everything, depth = Candidates(len(self)), min(DEPTH, len(self))
        true = self._exact_top(queries, depth, [NO_POSITIONS] * N_TRIED, everything)
        most = {FLAT: LEAST_EFFORT, HNSW: 64 * LEAST_EFFORT, IVF: getattr(self._index, "nlist", 1)}[self._kind]
        while True:
            both = zip(self._search(queries, depth, everything), true, strict=True)
            recall = float(np.mean([np.isin(ranked.positions, row).mean() for row, ranked in both]))
            if recall >= WANTED_RECALL or self.effort >= most:
                return recall
            self.effort = min(2 * self.effort, most)


@dataclass(frozen=True, eq=False)
class _Prepared:
    """Vectors as faiss gets them: centred, with the longest about 1."""

    vectors: ExactVectors
    offsets: FloatVector | None
    mean: FloatVector
    scale: float
    longest: float  # squared, after that

    @classmethod
    def of(cls, vectors: ExactVectors, offsets: FloatVector | None) -> _Prepared:
        whole = cls(vectors, offsets, np.zeros(1, dtype=np.float32), 1.0, 0.0)
        total = sum(rows.sum(axis=0, dtype=np.float64) for rows in whole.blocks())
        centred = cls(vectors, offsets, np.asarray(total / len(vectors), dtype=np.float32), 1.0, 0.0)
        longest = max(float(np.einsum("ij,ij->i", rows, rows).max()) for rows in centred.blocks())
        scale = float(2.0 ** -np.round(np.log2(longest) / 2)) if longest > 0 else 1.0
        return cls(vectors, offsets, centred.mean, scale, longest * scale**2)

    def __len__(self) -> int:
        return len(self.vectors)

    @property
    def width(self) -> int:
        return self.vectors.width + (self.offsets is not None)

    def take(self, positions: Positions) -> FloatMatrix:
        rows = single(self.vectors.take(positions))
        if self.offsets is not None:
            rows = np.hstack([rows, self.offsets[positions, None].astype(np.float32)])
        prepared: FloatMatrix = (rows - self.mean) * np.float32(self.scale)
        return prepared

    def lengthened(self, rows: FloatMatrix) -> FloatMatrix:
        """Prepared vectors with one more coordinate, so that all are as long as the longest."""
        squares = np.einsum("ij,ij->i", rows, rows)
        return np.hstack([rows, np.sqrt(np.maximum(0, self.longest - squares))[:, None]])

    def blocks(self) -> Iterator[FloatMatrix]:
        for start in range(0, len(self), ROWS_AT_ONCE):
            yield self.take(np.arange(start, min(start + ROWS_AT_ONCE, len(self))))


def _build(prepared: _Prepared, kind: str, seed: int) -> Any:
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


def _approximate(prepared: _Prepared, kind: str, seed: int) -> Any:
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
