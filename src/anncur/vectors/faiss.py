"""Vectors in faiss (extra `ann`): flat in half precision, or approximate, by cells (IVF) or a graph (HNSW).

What faiss holds is centred and scaled, which changes no order: half precision has little range, and a level that all
items share would drown their differences. Cells and graphs are made for nearest neighbours: on inner products as they
are, a graph loses most items. So vectors get one more coordinate there, which makes all of them equally long, and the
nearest are those of the largest product.

Rows of faiss are never moved or deleted: items that go are left out of what is searched, and items that come are added
to a copy. Cells and scale stay those of the first items, until too much has changed and all is built again."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

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
HEADROOM = 1.2  # times the longest squared length, for items that are longer and come later
MOST_GONE = 0.25  # of the rows: where more items went, all is built again
MOST_GROWTH = 2.0  # times the items that it was built of: where there are more, all is built again


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
        self._scaling = _Scaling.of(_Rows(vectors, offsets))
        self._index = _build(_Rows(vectors, offsets, self._scaling), kind, seed)
        self._n_built = len(vectors)
        self._rows = np.arange(len(vectors))  # in faiss, by position
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
            return self.following(self._vectors.add(vectors), None, gone=NO_POSITIONS)
        offsets = np.concatenate([self._offsets, vectors[:, -1]])
        return self.following(self._vectors.add(vectors[:, :-1]), offsets, gone=NO_POSITIONS)

    def remove(self, positions: Positions) -> FaissVectors:
        offsets = None if self._offsets is None else np.delete(self._offsets, positions)
        return self.following(self._vectors.remove(positions), offsets, gone=positions)

    def following(self, vectors: ExactVectors, offsets: FloatVector | None, *, gone: Positions) -> FaissVectors:
        """That of the items of a later version: those before without some of them, and behind them all that are new."""
        kept = np.delete(self._rows, gone)
        n_rows = self._index.ntotal + len(vectors) - len(kept)
        rows = _Rows(vectors, offsets, self._scaling)
        has_changed = len(vectors) < (1 - MOST_GONE) * n_rows or n_rows > MOST_GROWTH * self._n_built
        if has_changed or (self._kind != FLAT and not rows.are_shorter(len(kept))):
            return FaissVectors(vectors, self._kind, offsets=offsets)
        later = copy.copy(self)
        later._vectors, later._offsets = vectors, offsets
        later._rows = np.concatenate([kept, np.arange(self._index.ntotal, n_rows)])
        if len(vectors) > len(kept):
            later._index = _grown(self._index, rows, len(kept), self._kind)
        return later

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
        rows: NDArray[np.int64] = self._index.search(queries, n_asked, params=self._parameters(among))[1]
        return np.where(rows < 0, -1, np.searchsorted(self._rows, rows))

    def _ranked(self, found: Positions, vector: FloatVector, n_best: int, excluded: Positions) -> Ranked:
        """What was found, in ascending order of positions where products are the same."""
        left = np.sort(found[(found >= 0) & ~np.isin(found, excluded)])
        products = self.take(left) @ vector.astype(np.float32)
        best = top_k(products, n_best)
        return Ranked(left[best], products[best])

    def _parameters(self, among: Candidates) -> Any:
        import faiss

        mask = None
        if among.passing is not None or len(self) < self._index.ntotal:
            mask = np.zeros(self._index.ntotal, dtype=np.bool_)
            mask[self._rows if among.passing is None else self._rows[among.passing]] = True
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


class _Scaling(NamedTuple):
    """How vectors become what faiss holds: centred, with the longest about 1."""

    mean: FloatVector
    scale: float
    longest: float  # squared, after that

    @classmethod
    def of(cls, rows: _Rows) -> _Scaling:
        """That of these vectors."""
        total = sum(block.sum(axis=0, dtype=np.float64) for block in rows.blocks())
        centred = cls(np.asarray(total / len(rows), dtype=np.float32), 1.0, 0.0)
        blocks = replace(rows, scaling=centred).blocks()
        longest = max(float(np.einsum("ij,ij->i", block, block).max()) for block in blocks)
        scale = float(2.0 ** -np.round(np.log2(longest) / 2)) if longest > 0 else 1.0
        return cls(centred.mean, scale, HEADROOM * longest * scale**2)


NOT_SCALED = _Scaling(np.zeros(1, dtype=np.float32), 1.0, 0.0)


@dataclass(frozen=True, eq=False)
class _Rows:
    """Vectors of items with their offsets behind them, scaled if it says how."""

    vectors: ExactVectors
    offsets: FloatVector | None
    scaling: _Scaling = NOT_SCALED

    def __len__(self) -> int:
        return len(self.vectors)

    @property
    def width(self) -> int:
        return self.vectors.width + (self.offsets is not None)

    def take(self, positions: Positions) -> FloatMatrix:
        rows = single(self.vectors.take(positions))
        if self.offsets is not None:
            rows = np.hstack([rows, self.offsets[positions, None].astype(np.float32)])
        scaled: FloatMatrix = (rows - self.scaling.mean) * np.float32(self.scaling.scale)
        return scaled

    def lengthened(self, rows: FloatMatrix) -> FloatMatrix:
        """Scaled vectors with one more coordinate, so that all are as long as the longest."""
        squares = np.einsum("ij,ij->i", rows, rows)
        return np.hstack([rows, np.sqrt(np.maximum(0, self.scaling.longest - squares))[:, None]])

    def are_shorter(self, start: int) -> bool:
        """Whether no vector from a position on is longer than what all are made to be."""
        return all((np.einsum("ij,ij->i", block, block) <= self.scaling.longest).all() for block in self.blocks(start))

    def blocks(self, start: int = 0) -> Iterator[FloatMatrix]:
        """All from a position on."""
        for first in range(start, len(self), ROWS_AT_ONCE):
            yield self.take(np.arange(first, min(first + ROWS_AT_ONCE, len(self))))


def _build(rows: _Rows, kind: str, seed: int) -> Any:
    """A faiss index of all vectors."""
    import faiss

    if kind == FLAT:
        width, half = _padded_width(rows.width), faiss.ScalarQuantizer.QT_fp16
        index = faiss.IndexScalarQuantizer(width, half, faiss.METRIC_INNER_PRODUCT)
    else:
        index = _approximate(rows, kind, seed)
    return _filled(index, rows, 0, kind)


def _grown(index: Any, rows: _Rows, start: int, kind: str) -> Any:
    """A copy with the vectors from a position on added."""
    import faiss

    return _filled(faiss.clone_index(index), rows, start, kind)


def _filled(index: Any, rows: _Rows, start: int, kind: str) -> Any:
    for block in rows.blocks(start):
        index.add(_padded(block if kind == FLAT else rows.lengthened(block), index.d))
    return index


def _approximate(rows: _Rows, kind: str, seed: int) -> Any:
    """An empty index by cells or a graph."""
    import faiss

    width, half = _padded_width(rows.width + 1), faiss.ScalarQuantizer.QT_fp16
    if kind == HNSW:
        graph = faiss.IndexHNSWSQ(width, half, N_NEIGHBOURS)
        graph.train(np.zeros((1, width), dtype=np.float32))
        return graph
    n_cells = min(len(rows), round(4 * np.sqrt(len(rows))))
    cells = faiss.IndexIVFScalarQuantizer(faiss.IndexFlatL2(width), width, n_cells, half)
    cells.cp.niter, cells.cp.seed = N_ITERATIONS, seed + 1
    cells.cp.max_points_per_centroid, cells.cp.min_points_per_centroid = POINTS_PER_CELL, 1
    n_points = min(len(rows), POINTS_PER_CELL * n_cells)
    drawn = np.sort(np.random.default_rng(seed).choice(len(rows), n_points, replace=False))
    cells.train(_padded(rows.lengthened(rows.take(drawn)), width))
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
