"""The exact scores of the anchor queries on all items: what an index is made of, and what costs money.

Asks the scorer for what is missing, feeds `factors/` and the index. Items in rows, so that a row is an item's vector;
anchor queries in columns; turned so that higher is better. NaN marks what has not been scored, so that a missing chunk
can't pass for data. A chunk of items is one unit of work: several processes may fill one stored matrix, in any order,
and a chunk that two of them score is merely paid for twice."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from anncur.arrays import FloatMatrix, FloatVector, Positions
from anncur.errors import DamagedError, FingerprintError, InputError, PlanError, ScorerOutputError, StorageError
from anncur.items import Corpus, Item, Query, TextDigest
from anncur.progress import Progress, silent
from anncur.scorers.guard import GuardedScorer
from anncur.scorers.metered import Meter

if TYPE_CHECKING:
    import tensorstore

PAIRS_PER_CHUNK = 50_000  # what a kill may cost, against files that are too many
DTYPES = ("float32", "float16")

Known = Callable[[Sequence[Item], Sequence[Query]], FloatMatrix]
ItemsAt = Callable[[int, int], Sequence[Item]]  # the items from a position up to another


@dataclass(frozen=True)
class ScorePlan:
    """What a matrix is bound to: under another plan its scores would be others.

    `anchor_queries` and `items` are digests of texts. The batch size is part of it, because it moves a neural scorer's
    last digits, and so is the number of threads that the scorer says it uses."""

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
    ) -> ScorePlan:
        """The plan for these queries and items; without `items_per_chunk`, some fifty thousand pairs to a chunk."""
        if dtype not in DTYPES:
            raise InputError(f"dtype must be one of {', '.join(DTYPES)}, got {dtype!r}")
        return cls(
            scorer=scorer.fingerprint,
            higher_is_better=scorer.rules.higher_is_better,
            anchor_queries=digest_queries(queries),
            items=items_digest,
            n_items=n_items,
            n_anchor_queries=len(queries),
            items_per_chunk=items_per_chunk or max(16, min(4096, PAIRS_PER_CHUNK // max(1, len(queries)))),
            batch_size=scorer.rules.batch_size,
            threads=scorer.threads,
            dtype=dtype,
        )

    def check_same(self, other: ScorePlan) -> None:
        """Refuse another plan than this, and name the first field that differs."""
        if self.scorer != other.scorer:
            raise FingerprintError(
                f"these exact scores came from the scorer {self.scorer}, not from {other.scorer}; "
                "use that one, or score anew"
            )
        for field in fields(self):
            ours, theirs = getattr(self, field.name), getattr(other, field.name)
            if ours != theirs:
                raise PlanError(
                    f"these exact scores were made with another {field.name}: {ours!r} then, {theirs!r} now; "
                    "go on with the same, or score anew"
                )

    @property
    def n_chunks(self) -> int:
        """Units of work."""
        return -(-self.n_items // self.items_per_chunk)

    def chunk_range(self, chunk: int) -> tuple[int, int]:
        """The first position of a chunk, and the first after it."""
        start = chunk * self.items_per_chunk
        return start, min(start + self.items_per_chunk, self.n_items)

    def to_json(self) -> str:
        """The plan as text, the same text for the same plan."""
        return json.dumps(asdict(self), indent=1, sort_keys=True)

    @classmethod
    def from_json(cls, text: str | bytes) -> ScorePlan:
        """Read what `to_json` wrote."""
        try:
            return cls(**json.loads(text))
        except (ValueError, TypeError) as error:
            raise DamagedError(f"the plan of some exact scores can't be read: {error}") from error


class Chunks(Protocol):
    """Where chunks are kept."""

    def read(self, chunk: int, /) -> FloatMatrix:
        """(items of the chunk, n_anchor_queries), NaN where nothing has been scored; a damaged one is an error."""
        ...

    def write(self, chunk: int, values: FloatMatrix, /) -> None:
        """Replace a chunk, wholly or not at all."""
        ...


class ScoreMatrix:
    """Exact scores, items in rows and anchor queries in columns, bound to a plan."""

    def __init__(self, plan: ScorePlan, chunks: Chunks) -> None:
        self.plan = plan
        self._chunks = chunks

    @classmethod
    def in_memory(cls, plan: ScorePlan, values: FloatMatrix | None = None) -> ScoreMatrix:
        """A matrix that lives with the process, empty unless `values` are given."""
        return cls(plan, MemoryChunks(plan, values))

    @classmethod
    def stored(cls, location: str, plan: ScorePlan) -> ScoreMatrix:
        """A matrix at a TensorStore location (a folder, or the address of an object store), new or gone on with."""
        return cls(plan, StoredChunks(location, plan))

    @property
    def n_items(self) -> int:
        """The number of rows."""
        return self.plan.n_items

    @property
    def n_anchor_queries(self) -> int:
        """The number of columns."""
        return self.plan.n_anchor_queries

    def chunk(self, chunk: int) -> FloatMatrix:
        """One chunk in float32."""
        return self._chunks.read(chunk).astype(np.float32, copy=False)

    def parts(self) -> Iterator[tuple[int, FloatMatrix]]:
        """All chunks in their order, each with the position of its first item."""
        for chunk in range(self.plan.n_chunks):
            yield chunk * self.plan.items_per_chunk, self.chunk(chunk)

    def rows(self, positions: Positions) -> FloatMatrix:
        """The rows at these positions, (n_positions, n_anchor_queries), touching only their chunks."""
        found = np.empty((len(positions), self.plan.n_anchor_queries), dtype=np.float32)
        chunks = positions // self.plan.items_per_chunk
        for chunk in np.unique(chunks).tolist():
            wanted = np.flatnonzero(chunks == chunk)
            found[wanted] = self.chunk(chunk)[positions[wanted] - chunk * self.plan.items_per_chunk]
        return found

    def all(self) -> FloatMatrix:
        """The whole matrix in memory."""
        if isinstance(self._chunks, MemoryChunks):
            return self._chunks.values.astype(np.float32, copy=False)
        return np.concatenate([values for _, values in self.parts()])

    @property
    def n_missing(self) -> int:
        """Pairs that are still to be scored; a damaged chunk is missing as a whole."""
        return sum(int(np.isnan(self._read_or_empty(chunk)).sum()) for chunk in range(self.plan.n_chunks))

    def fill(
        self,
        scorer: GuardedScorer,
        queries: Sequence[Query],
        items_at: ItemsAt,
        *,
        shard: tuple[int, int] = (0, 1),
        known: Known | None = None,
        progress: Progress = silent,
    ) -> None:
        """Score what is missing, chunk by chunk; of several shards only every so-many-th chunk.

        `known` gives scores that were paid for before, with NaN for those that weren't.

        What was paid for stays in the matrix, also when something fails half-way through a chunk."""
        part, n_parts = shard
        mine = range(part, self.plan.n_chunks, n_parts)
        sizes = [(stop - start) * len(queries) for start, stop in map(self.plan.chunk_range, mine)]
        told = _Counted(progress, total=sum(sizes))
        for chunk, size in zip(mine, sizes, strict=True):
            values = self._read_or_empty(chunk)
            n_missing = int(np.isnan(values).sum())
            told.add(size - n_missing)
            if n_missing:
                items = Corpus(items_at(*self.plan.chunk_range(chunk)))
                if known is not None:
                    values = np.where(np.isnan(values), known(items, queries), values).astype(values.dtype)
                try:
                    _fill_values(values, items, queries, scorer, told)
                finally:  # whatever happened, keep what was paid for
                    self._chunks.write(chunk, values)

    def _read_or_empty(self, chunk: int) -> FloatMatrix:
        try:
            return np.array(self._chunks.read(chunk))
        except DamagedError:
            return _empty(self.plan, chunk)


STAGE = "scoring anchor queries"


class MemoryChunks:
    """Chunks of one array."""

    def __init__(self, plan: ScorePlan, values: FloatMatrix | None = None) -> None:
        empty = np.full((plan.n_items, plan.n_anchor_queries), np.nan, dtype=plan.dtype)
        self.values: FloatMatrix = empty if values is None else values.astype(plan.dtype, copy=False)
        self._plan = plan

    def read(self, chunk: int) -> FloatMatrix:
        return self.values[slice(*self._plan.chunk_range(chunk))]

    def write(self, chunk: int, values: FloatMatrix) -> None:
        self.values[slice(*self._plan.chunk_range(chunk))] = values


class StoredChunks:
    """Chunks of a zarr v3 array kept by TensorStore, each with a checksum, written with fsync and rename."""

    def __init__(self, location: str, plan: ScorePlan) -> None:
        self.location = location
        self._plan = plan
        self._array = _open_array(location, plan)

    def read(self, chunk: int) -> FloatMatrix:
        start, stop = self._plan.chunk_range(chunk)
        try:
            values: FloatMatrix = self._array[start:stop].read().result()
        except (ValueError, OSError) as error:
            raise DamagedError(f"{self.location}: chunk {chunk} of the exact scores is damaged: {error}") from error
        return values

    def write(self, chunk: int, values: FloatMatrix) -> None:
        start, stop = self._plan.chunk_range(chunk)
        try:
            self._array[start:stop].write(values).result()
        except (ValueError, OSError) as error:
            raise StorageError(
                f"can't write chunk {chunk} of the exact scores, {values.nbytes:,} bytes, to {self.location}: {error}; "
                "make room or mend the storage, and run the same again: what is written stays"
            ) from error


def digest_queries(queries: Sequence[Query]) -> str:
    """A hash of what a scorer sees of queries."""
    digest = TextDigest()
    digest.add(*(query.marked_text for query in queries))
    return str(digest)


def chunk_key(chunk: int) -> str:
    """The name of a chunk's file within the matrix."""
    return f"c/{chunk}/0"


def decode_chunk(stored: bytes, plan: ScorePlan, chunk: int) -> FloatMatrix:
    """The values of a chunk's file, after it was hashed: little-endian numbers, and a checksum of four bytes.

    The last chunk is stored at full length, filled up with NaN."""
    values = np.frombuffer(
        stored, dtype=np.dtype(plan.dtype).newbyteorder("<"), count=(len(stored) - 4) // np.dtype(plan.dtype).itemsize
    )
    start, stop = plan.chunk_range(chunk)
    return values.reshape(plan.items_per_chunk, plan.n_anchor_queries)[: stop - start]


def _open_array(location: str, plan: ScorePlan) -> tensorstore.TensorStore:
    import tensorstore  # here, because it takes a tenth of a second to import

    metadata: dict[str, Any] = {
        "shape": [plan.n_items, plan.n_anchor_queries],
        "data_type": plan.dtype,
        "fill_value": "NaN",
        "chunk_grid": {
            "name": "regular",
            "configuration": {"chunk_shape": [plan.items_per_chunk, max(1, plan.n_anchor_queries)]},
        },
        "codecs": [{"name": "bytes", "configuration": {"endian": "little"}}, {"name": "crc32c"}],
    }
    folder = location.rstrip("/") + "/"
    kvstore = folder if "://" in location else {"driver": "file", "path": folder}
    spec = {"driver": "zarr3", "kvstore": kvstore, "metadata": metadata}
    try:
        return tensorstore.open(spec, open=True, create=True).result()
    except (ValueError, OSError) as error:
        raise StorageError(f"can't open the exact scores at {location}: {error}") from error


def _empty(plan: ScorePlan, chunk: int) -> FloatMatrix:
    start, stop = plan.chunk_range(chunk)
    return np.full((stop - start, plan.n_anchor_queries), np.nan, dtype=plan.dtype)


class _Counted:
    """Tells how far the scoring is."""

    def __init__(self, progress: Progress, *, total: int) -> None:
        self._progress = progress
        self._total = total
        self._done = 0

    def add(self, n_pairs: int) -> None:
        self._done += n_pairs
        if n_pairs:
            self._progress(STAGE, self._done, self._total)


def _fill_values(
    values: FloatMatrix, items: Corpus, queries: Sequence[Query], scorer: GuardedScorer, told: _Counted
) -> None:
    """Score what is missing of a chunk, in place, query by query."""
    for column, query in enumerate(queries):
        missing = np.flatnonzero(np.isnan(values[:, column]))
        meter = Meter(scorer, query, items, budget=len(missing))
        try:
            meter.score(missing)
        finally:
            _keep(values, column, meter, fingerprint=scorer.fingerprint)
        told.add(len(missing))


def _keep(values: FloatMatrix, column: int, meter: Meter, *, fingerprint: str) -> None:
    """Put what a meter has paid for into a column, as far as the type can hold it."""
    exact_scores: FloatVector = meter.exact_scores
    with np.errstate(over="ignore"):
        stored = exact_scores.astype(values.dtype)
    fits = np.isfinite(stored)
    values[meter.positions[fits], column] = stored[fits]
    if not fits.all():
        raise ScorerOutputError(
            f"the scorer {fingerprint} gave {exact_scores[~fits][0]:.3g}, too large for {values.dtype}; "
            "scale its scores down" + ("" if values.dtype == np.float32 else ", or store them as float32")
        )
