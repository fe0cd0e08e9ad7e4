"""Vectors in a database that others run: rows by key, which all versions of an index and all its processes share.

The vectors of a space are uploaded once, under keys that never change. A version of an index is a set of these keys:
whatever else the database has, of newer or older versions, is dropped from its answers. So nothing is deleted while
somebody may need it, and a search of an older version continues undisturbed.

The client keeps the vectors too, in files or in memory. It multiplies what the database found by the vectors as they
are, and ranks by itself where that is better: where few items pass a filter, or where the database is down."""

from __future__ import annotations

import math
import os
import threading
import time
import warnings
import weakref
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from anncur.arrays import NO_POSITIONS, FloatMatrix, Positions
from anncur.candidates import Candidates
from anncur.errors import AnncurWarning, DatabaseError
from anncur.progress import Progress, silent
from anncur.vectors.base import Ranked
from anncur.vectors.effort import POOR_RECALL, tune_effort
from anncur.vectors.local import LocalVectors
from anncur.vectors.prepared import Prepared, Transform

Keys: TypeAlias = NDArray[np.int64]  # of vectors in a space, ascending

SEGMENT_BITS = 32
ROWS_AT_ONCE = 8192  # of an upload: what a lost connection costs
HEADROOM = 1.25  # of lengths: vectors of later items may be longer than those that are there
SPARE = 32  # more items than are wanted: some may be of other versions
LARGE_SHARE = 0.25  # of all items: where more are wanted, all of them are ranked here
PAUSE = 5.0  # seconds before a database that was down is asked again
CHECK_SECONDS = 60.0  # between two looks whether all rows are there
CHECK_SHARE = 0.01  # of the time that such looks may take


class VectorTable(Protocol):
    """The vectors of one space in a database. Thread-safe."""

    name: str

    def prepare(self, make_transform: Callable[[], Transform], *, width: int, n_items: int) -> Transform:
        """Make a table for `n_items` items where there is none; the transform of the rows in it, which is made now if
        it is new."""
        ...

    @property
    def n_lost(self) -> int:
        """How often the connection was lost: what the server holds may be lost as well."""
        ...

    @property
    def is_elsewhere(self) -> bool:
        """Whether the database is another process, which still answers when this one ends."""
        ...

    def is_dropped(self) -> bool:
        """Whether `drop` was called, by anybody."""
        ...

    def writing(self) -> AbstractContextManager[object]:
        """While it is held, others wait who want to write too, if the database can see to that."""
        ...

    def missing(self, keys: Keys) -> Keys:
        """Those that have no row."""
        ...

    def write(self, keys: Keys, rows: FloatMatrix) -> None:
        """Add rows; those that are there are left alone."""
        ...

    def finish(self) -> None:
        """Make the rows that were written ready to be searched."""
        ...

    @property
    def n_rows(self) -> int:
        """About how many rows there are."""
        ...

    @property
    def most_effort(self) -> int: ...

    @property
    def most_found(self) -> int:
        """The most rows of one answer."""
        ...

    def search(self, queries: FloatMatrix, n_best: int, *, exclude: Sequence[Keys], effort: int) -> Sequence[Keys]:
        """For each query the keys of the `n_best` nearest rows, without those in its `exclude`, in one request."""
        ...

    def forget(self, keys: Keys) -> None:
        """Delete rows, for good."""
        ...

    def drop(self) -> None:
        """Delete all of it."""
        ...


@dataclass
class Health:
    """What the searches of a process have seen of a database. Shared by versions, and by threads."""

    ask_after: float = 0.0  # on the monotonic clock
    check_after: float = 0.0
    n_lost: int = 0  # connections, when rows were checked last
    checking: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def fail(self) -> None:
        self.ask_after, self.check_after = time.monotonic() + PAUSE, 0.0

    def pass_check(self, n_lost: int, seconds: float) -> None:
        """All rows are there, which took some seconds to find out."""
        self.n_lost, self.check_after = n_lost, time.monotonic() + max(CHECK_SECONDS, seconds / CHECK_SHARE)

    def needs_check(self, n_lost: int) -> bool:
        """Whether rows may be missing: the connection was lost since the last look, or that was long ago."""
        return n_lost != self.n_lost or time.monotonic() >= self.check_after

    @property
    def is_down(self) -> bool:
        return time.monotonic() < self.ask_after


@dataclass(frozen=True, eq=False)
class Tuning:
    """How hard the database looks, and the recall then."""

    effort: int
    recall: float


@dataclass(frozen=True, eq=False)
class DatabaseVectors:
    """Ranks by rows of a table; made by `connect`. `keys` has one for each vector, in ascending order."""

    vectors: LocalVectors
    keys: Keys
    table: VectorTable
    transform: Transform
    too_long: Positions  # items that the database can't rank among the others
    tuning: Tuning
    health: Health = field(default_factory=Health)

    @classmethod
    def connect(
        cls, vectors: LocalVectors, keys: Keys, table: VectorTable, *, progress: Progress = silent
    ) -> DatabaseVectors:
        """Upload what is missing, and look how hard the database must search."""
        health, n_lost, start = Health(), table.n_lost, time.monotonic()
        transform = table.prepare(
            lambda: Prepared(vectors).transform.with_headroom(HEADROOM), width=vectors.width, n_items=len(vectors)
        )
        prepared = Prepared(vectors, transform)
        upload(prepared, keys, table, progress=progress)
        health.pass_check(n_lost, time.monotonic() - start)
        made = cls(vectors, keys, table, transform, prepared.too_long(), Tuning(1, 1.0), health)
        tuning = Tuning(*tune_effort(made._tried, vectors, most=table.most_effort))
        if tuning.recall < POOR_RECALL:
            warnings.warn(
                f"{table.name} finds only {tuning.recall:.0%} of the items that an exact ranking has at its top; "
                "index=flat in its name finds them all",
                AnncurWarning,
                stacklevel=2,
            )
        return replace(made, tuning=tuning)

    def dropped_at_end(self) -> DatabaseVectors:
        """The same; its table is dropped when nobody uses it any more, nor one that was made from it."""
        at_end = weakref.finalize(self.health, _drop, self.table, os.getpid())  # which all of them share
        at_end.atexit = self.table.is_elsewhere
        return self

    @property
    def width(self) -> int:
        return self.vectors.width

    @property
    def recall(self) -> float:
        return self.tuning.recall

    def __len__(self) -> int:
        return len(self.vectors)

    def top(
        self, query_vectors: FloatMatrix, n_best: int, *, exclude: Sequence[Positions], among: Candidates
    ) -> list[Ranked]:
        found = self._ask(query_vectors, n_best, exclude, among)
        if found is None:
            return self.vectors.top(query_vectors, n_best, exclude=exclude, among=among)
        return self._ranked(found, query_vectors, n_best, exclude=exclude, among=among)

    def take(self, positions: Positions) -> FloatMatrix:
        return self.vectors.take(positions)

    def add(self, vectors: FloatMatrix) -> DatabaseVectors:
        keys = next_keys(self.keys, len(vectors))
        return self.following(self.vectors.add(vectors), np.concatenate([self.keys, keys]))

    def remove(self, positions: Positions) -> DatabaseVectors:
        return self.following(self.vectors.remove(positions), np.delete(self.keys, positions))

    def following(self, vectors: LocalVectors, keys: Keys) -> DatabaseVectors:
        """That of the items of another version, in the same space."""
        transform = self.table.prepare(lambda: self.transform, width=self.width, n_items=len(vectors))
        prepared = Prepared(vectors, transform)
        upload(prepared, keys, self.table)
        return replace(self, vectors=vectors, keys=keys, transform=transform, too_long=prepared.too_long())

    def _ask(
        self, query_vectors: FloatMatrix, n_best: int, exclude: Sequence[Positions], among: Candidates
    ) -> Sequence[Positions] | None:
        """What the database finds for each query; None where all is ranked here."""
        n_asked = self._n_asked(n_best, among)
        n_most = n_asked + max(map(len, exclude), default=0)
        is_many = n_most > min(LARGE_SHARE * len(self), self.table.most_found)
        if among.are_few or is_many or self.health.is_down:
            return None
        try:
            self._check_rows()
            found = self._found(query_vectors, n_asked, self.tuning.effort, exclude)
            if self._check_rows():  # the connection was lost meanwhile
                found = self._found(query_vectors, n_asked, self.tuning.effort, exclude)
            return found
        except DatabaseError as error:
            self.health.fail()
            warnings.warn(
                f"{error}; until it answers again, all items are ranked here, which may take longer",
                AnncurWarning,
                stacklevel=3,
            )
            return None

    def _ranked(
        self,
        found: Sequence[Positions],
        query_vectors: FloatMatrix,
        n_best: int,
        *,
        exclude: Sequence[Positions],
        among: Candidates,
    ) -> list[Ranked]:
        """The best of what was found, by the vectors as they are; of all items where too few were found."""
        ranked = []
        for place, (vector, row, excluded) in enumerate(zip(query_vectors, found, exclude, strict=True)):
            left = among.of(np.setdiff1d(np.concatenate([row, self.too_long]), excluded))
            if len(left) < min(n_best, len(among) - len(excluded)):  # others are of other versions, or don't pass
                one = query_vectors[place : place + 1]
                ranked += self.vectors.top(one, n_best, exclude=[excluded], among=among)
            else:
                ranked.append(self.vectors.ranked(left, vector, n_best))
        return ranked

    def _tried(self, query_vectors: FloatMatrix, n_best: int, effort: int) -> list[Positions]:
        """What a search with some effort finds."""
        everything, none = Candidates(len(self)), [NO_POSITIONS] * len(query_vectors)
        found = self._found(query_vectors, self._n_asked(n_best, everything), effort, none)
        ranked = self._ranked(found, query_vectors, n_best, exclude=none, among=everything)
        return [of_query.positions for of_query in ranked]

    def _n_asked(self, n_best: int, among: Candidates) -> int:
        """More than are wanted: some rows are of other versions, and some items don't pass."""
        share = len(among) / max(self.table.n_rows, len(self))
        return math.ceil(n_best / max(share, 1e-9)) + SPARE

    def _check_rows(self) -> bool:
        """Look now and then whether the database has all rows, and upload what it lost; whether it had lost some."""
        with self.health.checking:
            n_lost, start = self.table.n_lost, time.monotonic()
            if not self.health.needs_check(n_lost):
                return False
            if self.table.is_dropped():
                raise DatabaseError(
                    f"{self.table.name} no longer has the vectors of this version, which a newer one has replaced; "
                    "call refresh(), or open the index again"
                )
            n_uploaded = self._refill()
            self.health.pass_check(n_lost, time.monotonic() - start)
        if n_uploaded:
            warnings.warn(
                f"{self.table.name} had lost {n_uploaded:,} of {len(self):,} vectors, which were uploaded again",
                AnncurWarning,
                stacklevel=4,
            )
        return n_uploaded > 0

    def _refill(self) -> int:
        """Upload rows that were lost, perhaps with their table; how many these were."""
        transform = self.table.prepare(lambda: self.transform, width=self.width, n_items=len(self))
        if not len(self.table.missing(self.keys)):
            return 0
        return upload(Prepared(self.vectors, transform), self.keys, self.table)

    def _found(
        self, query_vectors: FloatMatrix, n_asked: int, effort: int, exclude: Sequence[Positions]
    ) -> list[Positions]:
        """Positions for each query, in no order."""
        gone = [self.keys[positions] for positions in exclude]
        queries = self.transform.for_queries(query_vectors)
        found = self.table.search(queries, n_asked, exclude=gone, effort=effort)
        return [positions_of(row, self.keys) for row in found]


def upload(prepared: Prepared, keys: Keys, table: VectorTable, *, progress: Progress = silent) -> int:
    """Write the rows that a table lacks, batch by batch: what was written stays when it is stopped. Their number."""
    missing = table.missing(keys)
    if not len(missing):
        table.finish()
        return 0
    with table.writing():
        missing = table.missing(keys)  # others may have written them
        progress("uploading vectors", 0, len(missing))
        for start in range(0, len(missing), ROWS_AT_ONCE):
            some = missing[start : start + ROWS_AT_ONCE]
            rows = prepared.take(np.searchsorted(keys, some))
            table.write(some, prepared.lengthened(rows))
            progress("uploading vectors", start + len(some), len(missing))
        lost = table.missing(keys)
        if len(lost):
            raise DatabaseError(
                f"{table.name} was given {len(missing):,} vectors, but doesn't have {len(lost):,} of them; look into "
                "its log, and try again"
            )
        table.finish()
    return len(missing)


def positions_of(found: Keys, keys: Keys) -> Positions:
    """The places of those that are there."""
    places = np.minimum(np.searchsorted(keys, found), len(keys) - 1)
    known: Positions = places[keys[places] == found]
    return known


def next_keys(keys: Keys, n: int) -> Keys:
    """Keys of a segment behind all others, with a number that nobody else is likely to choose for other vectors."""
    last = int(keys[-1]) >> SEGMENT_BITS if len(keys) else 0
    segment = last + 1 + int(np.random.default_rng().integers(2**20))
    return (segment << SEGMENT_BITS) + np.arange(n, dtype=np.int64)


def _drop(table: VectorTable, pid: int) -> None:
    """Drop a table that belongs to this process, not to the one that forked it."""
    if pid != os.getpid():
        return
    try:
        table.drop()
    except DatabaseError as error:
        warnings.warn(f"vectors that nobody needs are still in the database: {error}", AnncurWarning, stacklevel=2)
