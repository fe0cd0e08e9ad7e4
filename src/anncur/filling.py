"""Scores what is missing of a matrix, chunk by chunk, by whichever engine does it.

Reads items and queries, asks a guarded scorer, feeds the chunks of `scores.py`. A chunk is written every two seconds
while it is scored: a kill loses the requests of these seconds and the one in flight, and nothing else. Where another
process scores a chunk, this one sends it the items and what is known of their scores; it writes the chunk itself where
all processes share the storage, and sends it back where they don't."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from anncur.arrays import FloatMatrix, FloatVector, Positions
from anncur.engines.base import Engine, Job, Loader, Report, Spread
from anncur.errors import DamagedError, FingerprintError, InputError, ScorerOutputError, StorageError
from anncur.items import Corpus, Item, Query
from anncur.progress import Progress
from anncur.scorers.guard import GuardedScorer
from anncur.scorers.meter import Meter
from anncur.scorers.payment import Payments
from anncur.waiting import run

if TYPE_CHECKING:
    from anncur.scores import ScoreSpec

STAGE = "scoring anchor queries"
SECONDS_AT_STAKE = 2.0  # a chunk that is being scored is written this often, so that a kill costs little

Known: TypeAlias = Callable[[Sequence[Item], Sequence[Query]], FloatMatrix]
ItemsAt: TypeAlias = Callable[[int, int], Sequence[Item]]  # the items from a position up to another


class Chunks(Protocol):
    """Where chunks are kept; `is_shared` where other processes reach it, too."""

    is_shared: bool
    spec: ScoreSpec

    def read(self, chunk: int, /) -> FloatMatrix:
        """(items of the chunk, n_anchor_queries), NaN where nothing has been scored; a damaged one is an error."""
        ...

    def write(self, chunk: int, values: FloatMatrix, /) -> None:
        """Replace a chunk, wholly or not at all."""
        ...


@dataclass(frozen=True, eq=False)
class ChunkSource:
    """What chunks are made of. `known` gives scores that were paid for before, with NaN for those that weren't."""

    queries: Sequence[Query]
    items_at: ItemsAt
    known: Known | None = None


def fill_chunks(
    chunks: Chunks,
    units: Sequence[int],
    scorer: GuardedScorer,
    source: ChunkSource,
    *,
    engine: Engine,
    progress: Progress,
) -> None:
    """Score what is missing of some chunks. What was paid for stays in them, whatever stops it."""
    engine.run(FillJob(chunks, units, scorer, source, progress))
    if not engine.is_elsewhere:
        return
    late = [unit for unit in units if n_missing(chunks, unit)]  # a worker that was given up may write its last late
    engine.run(FillJob(chunks, late, scorer, source, progress))
    gone = [unit for unit in late if n_missing(chunks, unit)]
    if gone:
        raise StorageError(
            f"workers have written {len(gone)} chunk(s) of exact scores that don't arrive here, the first of them "
            f"{gone[0]}; give the index a path that all workers share with this process"
        )


def read_or_empty(chunks: Chunks, chunk: int) -> FloatMatrix:
    """A copy of a chunk; of a damaged one nothing is left."""
    try:
        return np.array(chunks.read(chunk))
    except DamagedError:
        start, stop = chunks.spec.chunk_range(chunk)
        return np.full((stop - start, chunks.spec.n_anchor_queries), np.nan, dtype=chunks.spec.dtype)


def n_missing(chunks: Chunks, chunk: int) -> int:
    """Pairs of a chunk that are still to be scored."""
    return int(np.isnan(read_or_empty(chunks, chunk)).sum())


@dataclass(frozen=True, eq=False)
class ChunkPayload:
    """A chunk to be scored: its items as the scorer gets them, and its scores so far, NaN where there is none."""

    chunk: int
    items: Sequence[Item]
    values: FloatMatrix


class FillJob(Job[ChunkPayload, FloatMatrix | None]):
    """Scores some chunks; a unit is a chunk."""

    noun = "chunk"

    def __init__(
        self, chunks: Chunks, units: Sequence[int], scorer: GuardedScorer, source: ChunkSource, progress: Progress
    ) -> None:
        self.units = units
        self._chunks = chunks
        self._scorer = scorer
        self._source = source
        self._counter = _Counter(progress, total=sum(map(self._size, units)))

    def loader(self, spread: Spread | None) -> Loader:
        if spread is None:
            return partial(ChunkWorker, self._scorer, self._source.queries, self._chunks)
        chunks = self._chunks if self._chunks.is_shared else NoChunks(self._chunks.spec)
        scorer = shared_scorer(self._scorer, spread)
        return partial(_checked_worker, scorer, self._scorer.fingerprint, self._source.queries, chunks)

    def payload(self, unit: int) -> ChunkPayload | None:
        values, size = read_or_empty(self._chunks, unit), self._size(unit)
        if not np.isnan(values).any():
            self._counter.put(unit, size)
            return None
        items = self._source.items_at(*self._chunks.spec.chunk_range(unit))
        if self._source.known is not None:
            values = _with_known(values, self._source.known(items, self._source.queries))
            if not np.isnan(values).any():
                self._chunks.write(unit, values)
                self._counter.put(unit, size)
                return None
        self._counter.begin()
        self._counter.put(unit, size - int(np.isnan(values).sum()))
        return ChunkPayload(unit, items, values)

    def left(self, unit: int) -> int:
        return n_missing(self._chunks, unit)

    def advance(self, unit: int, n_more: int) -> None:
        self._counter.add(unit, n_more)

    def finish(self, unit: int, result: FloatMatrix | None) -> None:
        if result is not None:
            self._chunks.write(unit, result)
        self._counter.put(unit, self._size(unit))

    def count(self, n_calls: int) -> None:
        self._scorer.count(n_calls)

    def describe(self, unit: int) -> str:
        start, stop = self._chunks.spec.chunk_range(unit)
        first, last = (self._source.items_at(place, place + 1)[0].id for place in (start, stop - 1))
        return f"items {first!r} to {last!r}"

    def _size(self, unit: int) -> int:
        start, stop = self._chunks.spec.chunk_range(unit)
        return (stop - start) * len(self._source.queries)


class ChunkWorker:
    """Scores chunks in the process that it is made in."""

    def __init__(self, scorer: GuardedScorer, queries: Sequence[Query], chunks: Chunks) -> None:
        self._scorer = scorer
        self._queries = queries
        self._chunks = chunks

    @property
    def calls_made(self) -> int:
        return self._scorer.calls_made

    def __call__(self, payload: ChunkPayload, report: Report) -> FloatMatrix | None:
        values = np.array(payload.values)  # what another process sent can't be written to
        write = partial(self._chunks.write, payload.chunk, values)
        try:
            _fill_values(values, Corpus(payload.items), self._queries, self._scorer, report=report, flush=_Flush(write))
        finally:  # whatever happened, keep what was paid for
            write()
        return None if self._chunks.is_shared else values


class NoChunks:
    """Keeps nothing: for a process that sends back what it scored."""

    is_shared = False

    def __init__(self, spec: ScoreSpec) -> None:
        self.spec = spec

    def read(self, chunk: int) -> FloatMatrix:
        raise DamagedError(f"chunk {chunk} is in another process")

    def write(self, chunk: int, values: FloatMatrix) -> None:
        """Nothing."""


def shared_scorer(scorer: GuardedScorer, spread: Spread) -> GuardedScorer:
    """A scorer as each of several workers gets it, so that all together keep its rules."""
    if scorer.cache is not None and spread.n_machines > 1:
        raise InputError(
            f"a cache of scores is a file for the processes of one machine, and these workers are on "
            f"{spread.n_machines}; leave out the cache: a build keeps what it has scored anyway"
        )
    return scorer.with_rules(scorer.rules.divided(spread.n_workers))


def check_loaded(scorer: GuardedScorer, fingerprint: str) -> None:
    """Refuse a scorer that became another one in the process that it was loaded in."""
    if scorer.fingerprint != fingerprint:
        raise FingerprintError(
            f"a worker has loaded the scorer {scorer.fingerprint} in the place of {fingerprint}; give all machines the "
            "same model and code"
        )


def _checked_worker(scorer: GuardedScorer, fingerprint: str, queries: Sequence[Query], chunks: Chunks) -> ChunkWorker:
    check_loaded(scorer, fingerprint)
    return ChunkWorker(scorer, queries, chunks)


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
        self._done: dict[int, int] = {}  # by chunk
        self._n_done = 0
        self._is_scoring = False

    def begin(self) -> None:
        self._is_scoring = True

    def add(self, chunk: int, n_more: int) -> None:
        self.put(chunk, self._done[chunk] + n_more)

    def put(self, chunk: int, n_done: int) -> None:
        n_more = n_done - self._done.get(chunk, 0)
        self._done[chunk], self._n_done = n_done, self._n_done + n_more
        if n_more > 0 and self._is_scoring:
            self._progress(STAGE, self._n_done, self._total)


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
    report: Report,
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
        report(sum(len(rows) for _, rows in portion))
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
