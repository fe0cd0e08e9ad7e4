"""The exact scores of the anchor queries on all items: what an index is made of, and what costs money.

Filled by `filling.py`, feeds `factors/` and the index. Items in rows, so that a row is an item's vector; anchor queries
in columns; turned so that higher is better. NaN marks what has not been scored, so that a missing chunk can't pass for
data. A chunk of items is one unit of work: several processes may fill one stored matrix, in any order, and a chunk that
two of them score is merely paid for twice."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from anncur.arrays import FloatMatrix, Positions
from anncur.engines.base import Engine
from anncur.engines.local import LOCAL
from anncur.errors import DamagedError, FingerprintError, InputError, ResumeError, StorageError
from anncur.filling import Chunks, ChunkSource, ItemsAt, Known, fill_chunks, read_or_empty
from anncur.items import Query, TextDigest
from anncur.progress import Progress, silent
from anncur.scorers.guard import GuardedScorer

if TYPE_CHECKING:
    import tensorstore

PAIRS_PER_CHUNK = 50_000  # against files that are too many, or too large to write often
DTYPES = ("float32", "float16")


@dataclass(frozen=True)
class ScoreSpec:
    """What a matrix is bound to: under another spec its scores would be others.

    `anchor_queries` and `items` are digests of texts. The batch size is part of it, because it moves a neural scorer's
    last digits, and so is the number of threads that the scorer declares."""

    scorer: str
    higher_is_better: bool
    anchor_queries: str
    items: str
    n_items: int
    n_anchor_queries: int
    items_per_chunk: int
    batch_size: int
    threads: int | None
    dtype: str

    @classmethod
    def make(
        cls,
        scorer: GuardedScorer,
        queries: Sequence[Query],
        *,
        items_digest: str,
        n_items: int,
        items_per_chunk: int | None = None,
        dtype: str = "float32",
    ) -> ScoreSpec:
        """The spec for these queries and items; without `items_per_chunk`, some fifty thousand pairs to a chunk."""
        if not isinstance(dtype, str) or dtype not in DTYPES:  # np.dtype("float32") equals "float32", but isn't JSON
            raise InputError(f"dtype must be one of {', '.join(DTYPES)}, got {dtype!r}")
        return cls(
            scorer=scorer.fingerprint,
            higher_is_better=scorer.rules.higher_is_better,
            anchor_queries=digest_queries(queries),
            items=items_digest,
            n_items=n_items,
            n_anchor_queries=len(queries),
            items_per_chunk=items_per_chunk or default_items_per_chunk(len(queries)),
            batch_size=scorer.rules.batch_size,
            threads=scorer.threads,
            dtype=dtype,
        )

    def check_same(
        self, other: ScoreSpec, built: str = "these exact scores were built", remedy: str = "give the same, or none"
    ) -> None:
        """Refuse another spec than this, and name all that differs; `built` begins the message."""
        differences = list(self._differences(other))
        if differences:
            error = ResumeError if self.scorer == other.scorer else FingerprintError
            raise error(f"{built} with {' and '.join(differences)}; {remedy}")

    def _differences(self, other: ScoreSpec) -> Iterator[str]:
        """What another spec has otherwise, in words."""
        if self.scorer != other.scorer:
            yield f"another scorer ({self.scorer} there, {other.scorer} given)"
        if self.anchor_queries != other.anchor_queries:
            yield f"other anchor queries{_counts(self.n_anchor_queries, other.n_anchor_queries)}"
        if self.items != other.items:
            yield f"other items{_counts(self.n_items, other.n_items)}"
        are_usual = all(
            spec.items_per_chunk == default_items_per_chunk(spec.n_anchor_queries) for spec in (self, other)
        )
        for name in ("higher_is_better", "items_per_chunk", "batch_size", "threads", "dtype"):
            ours, theirs = getattr(self, name), getattr(other, name)
            if ours != theirs and not (name == "items_per_chunk" and are_usual):  # which follows from the queries
                yield f"another {name} ({ours} there, {theirs} given)"

    @property
    def n_chunks(self) -> int:
        """Units of work."""
        return -(-self.n_items // self.items_per_chunk)

    def chunk_range(self, chunk: int) -> tuple[int, int]:
        """The first position of a chunk, and the first after it."""
        start = chunk * self.items_per_chunk
        return start, min(start + self.items_per_chunk, self.n_items)

    def to_json(self) -> str:
        """The spec as text, the same text for the same spec."""
        return json.dumps(asdict(self), indent=1, sort_keys=True)

    @classmethod
    def from_json(cls, text: str | bytes) -> ScoreSpec:
        """Read what `to_json` wrote."""
        try:
            return cls(**json.loads(text))
        except (ValueError, TypeError) as error:
            raise DamagedError(f"the spec of some exact scores can't be read: {error}") from error


class ScoreMatrix:
    """Exact scores, items in rows and anchor queries in columns, bound to a spec."""

    def __init__(self, spec: ScoreSpec, chunks: Chunks) -> None:
        self.spec = spec
        self._chunks = chunks

    @classmethod
    def in_memory(cls, spec: ScoreSpec, values: FloatMatrix | None = None) -> ScoreMatrix:
        """A matrix that lives with the process, empty unless `values` are given."""
        return cls(spec, MemoryChunks(spec, values))

    @classmethod
    def stored(cls, location: str, spec: ScoreSpec) -> ScoreMatrix:
        """A matrix at a TensorStore location (a folder, or the address of an object store), new or resumed."""
        return cls(spec, StoredChunks(location, spec))

    @property
    def n_items(self) -> int:
        """The number of rows."""
        return self.spec.n_items

    @property
    def n_anchor_queries(self) -> int:
        """The number of columns."""
        return self.spec.n_anchor_queries

    def chunk(self, chunk: int) -> FloatMatrix:
        """One chunk in float32."""
        return self._chunks.read(chunk).astype(np.float32, copy=False)

    def parts(self) -> Iterator[tuple[int, FloatMatrix]]:
        """All chunks in their order, each with the position of its first item."""
        for chunk in range(self.spec.n_chunks):
            yield chunk * self.spec.items_per_chunk, self.chunk(chunk)

    def rows(self, positions: Positions) -> FloatMatrix:
        """The rows at these positions, (n_positions, n_anchor_queries), touching only their chunks."""
        found = np.empty((len(positions), self.spec.n_anchor_queries), dtype=np.float32)
        chunks = positions // self.spec.items_per_chunk
        for chunk in np.unique(chunks).tolist():
            wanted = np.flatnonzero(chunks == chunk)
            found[wanted] = self.chunk(chunk)[positions[wanted] - chunk * self.spec.items_per_chunk]
        return found

    def all(self) -> FloatMatrix:
        """The whole matrix in memory."""
        if isinstance(self._chunks, MemoryChunks):
            return self._chunks.values.astype(np.float32, copy=False)
        return np.concatenate([values for _, values in self.parts()])

    @property
    def n_missing(self) -> int:
        """Pairs that are still to be scored; a damaged chunk is missing as a whole."""
        return sum(int(np.isnan(read_or_empty(self._chunks, chunk)).sum()) for chunk in range(self.spec.n_chunks))

    def fill(
        self,
        scorer: GuardedScorer,
        queries: Sequence[Query],
        items_at: ItemsAt,
        *,
        shard: tuple[int, int] = (0, 1),
        known: Known | None = None,
        engine: Engine = LOCAL,
        progress: Progress = silent,
    ) -> None:
        """Score what is missing, chunk by chunk, by an engine; of `shard` (i, n) only every n-th chunk.

        `known` gives scores that were paid for before, with NaN for those that weren't. What was paid for stays in the
        matrix, also when something fails half-way through a chunk."""
        part, n_parts = shard
        source = ChunkSource(queries, items_at, known)
        mine = range(part, self.spec.n_chunks, n_parts)
        fill_chunks(self._chunks, mine, scorer, source, engine=engine, progress=progress)

    def copy_from(self, other: ScoreMatrix) -> None:
        """Take over all scores of a matrix with the same spec."""
        for chunk in range(self.spec.n_chunks):
            self._chunks.write(chunk, other._chunks.read(chunk))

    def write_rows(self, parts: Iterable[FloatMatrix]) -> None:
        """Take over the scores of all items, which come some rows at a time, in their order."""
        waiting, chunk = np.empty((0, self.spec.n_anchor_queries), dtype=self.spec.dtype), 0
        for part in parts:
            waiting = np.concatenate([waiting, part])
            while chunk < self.spec.n_chunks and len(waiting) >= (size := self._chunk_size(chunk)):
                self._chunks.write(chunk, waiting[:size])
                waiting, chunk = waiting[size:], chunk + 1
        assert chunk == self.spec.n_chunks, "there are scores for every item"

    def _chunk_size(self, chunk: int) -> int:
        start, stop = self.spec.chunk_range(chunk)
        return stop - start


class MemoryChunks:
    """Chunks of one array."""

    is_shared = False

    def __init__(self, spec: ScoreSpec, values: FloatMatrix | None = None) -> None:
        empty = np.full((spec.n_items, spec.n_anchor_queries), np.nan, dtype=spec.dtype)
        self.values: FloatMatrix = empty if values is None else values.astype(spec.dtype, copy=False)
        self.spec = spec

    def read(self, chunk: int) -> FloatMatrix:
        return self.values[slice(*self.spec.chunk_range(chunk))]

    def write(self, chunk: int, values: FloatMatrix) -> None:
        self.values[slice(*self.spec.chunk_range(chunk))] = values


class StoredChunks:
    """Chunks of a zarr v3 array kept by TensorStore, each with a checksum, written with fsync and rename.

    Pickled, it is opened again at the same location, which must be there: a folder that processes share."""

    is_shared = True

    def __init__(self, location: str, spec: ScoreSpec, *, create: bool = True) -> None:
        self.location = location
        self.spec = spec
        self._array = _open_array(location, spec, create=create)

    def __reduce__(self) -> tuple[partial[StoredChunks], tuple[str, ScoreSpec]]:
        return partial(StoredChunks, create=False), (self.location, self.spec)

    def read(self, chunk: int) -> FloatMatrix:
        start, stop = self.spec.chunk_range(chunk)
        try:
            values: FloatMatrix = self._array[start:stop].read().result()
        except (ValueError, OSError) as error:
            raise DamagedError(f"{self.location}: chunk {chunk} of the exact scores is damaged: {error}") from error
        return values

    def write(self, chunk: int, values: FloatMatrix) -> None:
        start, stop = self.spec.chunk_range(chunk)
        try:
            self._array[start:stop].write(values).result()
        except (ValueError, OSError) as error:
            raise StorageError(
                f"can't write chunk {chunk} of the exact scores, {values.nbytes:,} bytes, to {self.location}: {error}; "
                "make room or repair the storage, and run the same again: what is written stays"
            ) from error


def default_items_per_chunk(n_queries: int) -> int:
    """Items in a chunk, unless it is said: some fifty thousand pairs."""
    return max(16, min(4096, PAIRS_PER_CHUNK // max(1, n_queries)))


def _counts(there: int, given: int) -> str:
    return "" if there == given else f" ({there:,} there, {given:,} given)"


def digest_queries(queries: Sequence[Query]) -> str:
    """A hash of what a scorer sees of queries."""
    digest = TextDigest()
    digest.add(*(query.marked_text for query in queries))
    return str(digest)


def chunk_key(chunk: int) -> str:
    """The name of a chunk's file within the matrix."""
    return f"c/{chunk}/0"


def decode_chunk(stored: bytes | memoryview, spec: ScoreSpec, chunk: int) -> FloatMatrix:
    """The values of a chunk's file, after it was hashed: little-endian numbers, and a checksum of four bytes.

    The last chunk is stored at full length, filled up with NaN."""
    values = np.frombuffer(
        stored, dtype=np.dtype(spec.dtype).newbyteorder("<"), count=(len(stored) - 4) // np.dtype(spec.dtype).itemsize
    )
    start, stop = spec.chunk_range(chunk)
    return values.reshape(spec.items_per_chunk, spec.n_anchor_queries)[: stop - start]


def _open_array(location: str, spec: ScoreSpec, *, create: bool) -> tensorstore.TensorStore:
    import tensorstore  # here, because it takes a tenth of a second to import

    metadata: dict[str, Any] = {
        "shape": [spec.n_items, spec.n_anchor_queries],
        "data_type": spec.dtype,
        "fill_value": "NaN",
        "chunk_grid": {
            "name": "regular",
            "configuration": {"chunk_shape": [spec.items_per_chunk, max(1, spec.n_anchor_queries)]},
        },
        "codecs": [{"name": "bytes", "configuration": {"endian": "little"}}, {"name": "crc32c"}],
    }
    folder = location.rstrip("/") + "/"
    kvstore = folder if "://" in location else {"driver": "file", "path": folder}
    array = {"driver": "zarr3", "kvstore": kvstore, "metadata": metadata}
    try:
        return tensorstore.open(array, open=True, create=create).result()
    except (ValueError, OSError) as error:
        remedy = "" if create else "; workers need a path that they share with the process that started them"
        raise StorageError(f"can't open the exact scores at {location}: {error}{remedy}") from error
