"""The exact scores of the anchor queries on all items: what an index is made of, and what costs money.

Asks the scorer for what is missing, feeds `factors/` and the index. Items in rows, so that a row is an item's vector;
anchor queries in columns; turned so that higher is better. NaN marks what has not been scored, so that a missing chunk
can't pass for data. A chunk of items is one unit of work: several processes may fill one stored matrix, in any order,
and a chunk that two of them score is merely paid for twice. A stored chunk is written every two seconds while it is
scored: a kill loses the requests of these seconds and the one in flight, and nothing else."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from anncur.arrays import FloatMatrix, FloatVector, Positions
from anncur.errors import DamagedError, FingerprintError, InputError, ResumeError, ScorerOutputError, StorageError
from anncur.items import Corpus, Item, Query, TextDigest
from anncur.progress import Progress, silent
from anncur.scorers.guard import GuardedScorer
from anncur.scorers.meter import Meter
from anncur.scorers.payment import Payments
from anncur.waiting import run

if TYPE_CHECKING:
    import tensorstore

PAIRS_PER_CHUNK = 50_000  # against files that are too many, or too large to write often
SECONDS_AT_STAKE = 2.0  # a chunk that is being scored is written this often, so that a kill costs little
DTYPES = ("float32", "float16")

Known = Callable[[Sequence[Item], Sequence[Query]], FloatMatrix]
ItemsAt = Callable[[int, int], Sequence[Item]]  # the items from a position up to another


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
            items_per_chunk=items_per_chunk or max(16, min(4096, PAIRS_PER_CHUNK // max(1, len(queries)))),
            batch_size=scorer.rules.batch_size,
            threads=scorer.threads,
            dtype=dtype,
        )

    def check_same(self, other: ScoreSpec) -> None:
        """Refuse another spec than this, and name the first field that differs."""
        if self.scorer != other.scorer:
            raise FingerprintError(
                f"these exact scores came from the scorer {self.scorer}, not from {other.scorer}; "
                "use that one, or build again in another place"
            )
        for field in fields(self):
            ours, theirs = getattr(self, field.name), getattr(other, field.name)
            if ours != theirs:
                raise ResumeError(
                    f"these exact scores were made with another {field.name}: {ours!r} then, {theirs!r} now; "
                    "resume with the same, or build again in another place"
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
        """The spec as text, the same text for the same spec."""
        return json.dumps(asdict(self), indent=1, sort_keys=True)

    @classmethod
    def from_json(cls, text: str | bytes) -> ScoreSpec:
        """Read what `to_json` wrote."""
        try:
            return cls(**json.loads(text))
        except (ValueError, TypeError) as error:
            raise DamagedError(f"the spec of some exact scores can't be read: {error}") from error


class Chunks(Protocol):
    """Where chunks are kept."""

    def read(self, chunk: int, /) -> FloatMatrix:
        """(items of the chunk, n_anchor_queries), NaN where nothing has been scored; a damaged one is an error."""
        ...

    def write(self, chunk: int, values: FloatMatrix, /) -> None:
        """Replace a chunk, wholly or not at all."""
        ...


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
        return sum(int(np.isnan(self._read_or_empty(chunk)).sum()) for chunk in range(self.spec.n_chunks))

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
        """Score what is missing, chunk by chunk; of `shard` (i, n) only every n-th chunk.

        `known` gives scores that were paid for before, with NaN for those that weren't. What was paid for stays in the
        matrix, also when something fails half-way through a chunk."""
        part, n_parts = shard
        mine = range(part, self.spec.n_chunks, n_parts)
        sizes = [(stop - start) * len(queries) for start, stop in map(self.spec.chunk_range, mine)]
        counter = _Counter(progress, total=sum(sizes))
        for chunk, size in zip(mine, sizes, strict=True):
            values = self._read_or_empty(chunk)
            if not np.isnan(values).any():
                counter.add_known(size)
                continue
            items = Corpus(items_at(*self.spec.chunk_range(chunk)))
            if known is not None:
                values = _with_known(values, known(items, queries))
            n_missing = int(np.isnan(values).sum())
            add = counter.add if n_missing else counter.add_known
            add(size - n_missing)
            write = partial(self._chunks.write, chunk, values)
            try:
                _fill_values(values, items, queries, scorer, counter=counter, flush=_Flush(write))
            finally:  # whatever happened, keep what was paid for
                write()

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

    def _read_or_empty(self, chunk: int) -> FloatMatrix:
        try:
            return np.array(self._chunks.read(chunk))
        except DamagedError:
            return _empty(self.spec, chunk)


STAGE = "scoring anchor queries"


class MemoryChunks:
    """Chunks of one array."""

    def __init__(self, spec: ScoreSpec, values: FloatMatrix | None = None) -> None:
        empty = np.full((spec.n_items, spec.n_anchor_queries), np.nan, dtype=spec.dtype)
        self.values: FloatMatrix = empty if values is None else values.astype(spec.dtype, copy=False)
        self._spec = spec

    def read(self, chunk: int) -> FloatMatrix:
        return self.values[slice(*self._spec.chunk_range(chunk))]

    def write(self, chunk: int, values: FloatMatrix) -> None:
        self.values[slice(*self._spec.chunk_range(chunk))] = values


class StoredChunks:
    """Chunks of a zarr v3 array kept by TensorStore, each with a checksum, written with fsync and rename."""

    def __init__(self, location: str, spec: ScoreSpec) -> None:
        self.location = location
        self._spec = spec
        self._array = _open_array(location, spec)

    def read(self, chunk: int) -> FloatMatrix:
        start, stop = self._spec.chunk_range(chunk)
        try:
            values: FloatMatrix = self._array[start:stop].read().result()
        except (ValueError, OSError) as error:
            raise DamagedError(f"{self.location}: chunk {chunk} of the exact scores is damaged: {error}") from error
        return values

    def write(self, chunk: int, values: FloatMatrix) -> None:
        start, stop = self._spec.chunk_range(chunk)
        try:
            self._array[start:stop].write(values).result()
        except (ValueError, OSError) as error:
            raise StorageError(
                f"can't write chunk {chunk} of the exact scores, {values.nbytes:,} bytes, to {self.location}: {error}; "
                "make room or repair the storage, and run the same again: what is written stays"
            ) from error


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


def _open_array(location: str, spec: ScoreSpec) -> tensorstore.TensorStore:
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
        return tensorstore.open(array, open=True, create=True).result()
    except (ValueError, OSError) as error:
        raise StorageError(f"can't open the exact scores at {location}: {error}") from error


def _empty(spec: ScoreSpec, chunk: int) -> FloatMatrix:
    start, stop = spec.chunk_range(chunk)
    return np.full((stop - start, spec.n_anchor_queries), np.nan, dtype=spec.dtype)


def _with_known(values: FloatMatrix, known: FloatMatrix) -> FloatMatrix:
    """Values with known ones in place of NaN, but for those that their type can't hold."""
    with np.errstate(over="ignore"):
        stored = known.astype(values.dtype)
    return np.where(np.isnan(values) & np.isfinite(stored), stored, values)


class _Counter:
    """Counts the pairs that are done, for progress; there is none while nothing had to be scored."""

    def __init__(self, progress: Progress, *, total: int) -> None:
        self._progress = progress
        self._total = total
        self._done = 0
        self._is_scoring = False

    def add(self, n_pairs: int) -> None:
        self._is_scoring = True
        self.add_known(n_pairs)

    def add_known(self, n_pairs: int) -> None:
        self._done += n_pairs
        if n_pairs and self._is_scoring:
            self._progress(STAGE, self._done, self._total)


class _Flush:
    """Writes when the last time was a while ago."""

    def __init__(self, write: Callable[[], None]) -> None:
        self._write = write
        self._last = time.monotonic()

    def __call__(self) -> None:
        if time.monotonic() - self._last >= SECONDS_AT_STAKE:
            self._write()
            self._last = time.monotonic()


def _fill_values(
    values: FloatMatrix,
    items: Corpus,
    queries: Sequence[Query],
    scorer: GuardedScorer,
    *,
    counter: _Counter,
    flush: _Flush,
) -> None:
    """Score what is missing of a chunk, in place, query by query, some requests at once."""
    payments = Payments(scorer)
    for portion in _portions(np.isnan(values), scorer):
        meters = [Meter(queries[column], items, budget=len(rows)) for column, rows in portion]
        try:
            run(payments.pay([(meter, rows) for meter, (_, rows) in zip(meters, portion, strict=True)]))
        finally:
            for meter, (column, _) in zip(meters, portion, strict=True):
                _keep(values, column, meter, fingerprint=scorer.fingerprint)
        for meter in meters:
            if meter.failure is not None:
                raise meter.failure
        counter.add(sum(len(rows) for _, rows in portion))
        flush()


def _portions(is_missing: NDArray[np.bool_], scorer: GuardedScorer) -> Iterator[list[tuple[int, Positions]]]:
    """What is missing of each column, in portions of as many pairs as are asked for at once."""
    most = scorer.rules.batch_size
    at_once = room = most * scorer.rules.at_once
    portion: list[tuple[int, Positions]] = []
    for column in range(is_missing.shape[1]):
        rows = np.flatnonzero(is_missing[:, column])
        while len(rows):
            some = rows[: room if scorer.mixes_queries else most]
            portion.append((column, some))
            rows, room = rows[len(some) :], room - (len(some) if scorer.mixes_queries else most)
            if room <= 0:
                yield portion
                portion, room = [], at_once
    if portion:
        yield portion


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
