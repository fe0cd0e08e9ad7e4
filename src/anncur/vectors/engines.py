"""The engines by the names that users call them: who ranks all items of an index.

exact             every item, in single precision (the default)
exact:float16     the same in half of the memory
faiss             every item, in half precision and by faiss (extra `ann`): half of the memory, and faster
faiss:ivf         the items of the nearest cells: for millions of items
faiss:hnsw        along a graph
pgvector:URL      by PostgreSQL with pgvector (extra `postgres`), where other programs may have their data
milvus:URL        by Milvus (extra `milvus`)"""

from __future__ import annotations

import threading
import time
import uuid
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from anncur.arrays import FloatVector, Positions
from anncur.databases import milvus, postgres
from anncur.databases.location import MILVUS, NO_SECRETS, PGVECTOR, Location, Secrets, is_database
from anncur.errors import AnncurWarning, InputError
from anncur.progress import Progress, showing, silent
from anncur.vectors.base import VectorIndex
from anncur.vectors.database import DatabaseVectors, Keys, VectorTable
from anncur.vectors.exact import ExactVectors
from anncur.vectors.faiss import FLAT, FaissVectors, check_faiss
from anncur.vectors.local import LocalVectors
from anncur.vectors.milvus import MilvusCollection
from anncur.vectors.naming import IVF, OPTIONS, PREFIX, check_options, table_name
from anncur.vectors.pgvector import PgvectorTable

EXACT = "exact"
TEMPORARY = "temporary"  # how the names of spaces begin that a process drops
LEAST_ITEMS = 4000  # fewer are ranked exactly, whatever the engine
NAMES = (EXACT, "exact:float16", "faiss", "faiss:ivf", "faiss:hnsw")
DATABASES = (f"{PGVECTOR}:URL", f"{MILVUS}:URL")
_TABLES: dict[str, Callable[[Location, str], VectorTable]] = {
    PGVECTOR: PgvectorTable.open,
    MILVUS: MilvusCollection.open,
}
_VARIABLES = {PGVECTOR: "PGPASSWORD or in a password file", MILVUS: milvus.TOKEN}
_DRIVERS = {PGVECTOR: postgres.check_driver, MILVUS: milvus.check_driver}


@dataclass(frozen=True)
class VectorEngine:
    """How items are ranked. A name that has a password in it loses it: that of a database is kept apart."""

    name: str = EXACT
    secrets: Secrets = field(default=NO_SECRETS, repr=False, compare=False)

    def __post_init__(self) -> None:
        if is_database(self.name):
            location = Location.parse(self.name, options=OPTIONS)
            check_options(location.option("index", IVF), location.option("prefix", PREFIX))
            object.__setattr__(self, "name", location.name)
            object.__setattr__(self, "secrets", location.secrets if any(location.secrets) else self.secrets)
        elif self.name not in NAMES:
            shown = self.name.partition("://")[0]  # behind it there may be a password
            raise InputError(f"vectors must be one of {', '.join((*NAMES, *DATABASES))}, got {shown!r}")

    @classmethod
    def wanted(cls, name: str) -> VectorEngine:
        """One that a user asks for; an error where it needs what isn't installed."""
        engine = cls(name)
        if engine.is_database:
            _DRIVERS[engine._location.kind]()
        elif engine.is_approximate:
            check_faiss(name)
        return engine

    def at_hand(self) -> VectorEngine:
        """The same, or where what it needs isn't installed, the exact one with a warning."""
        try:
            VectorEngine.wanted(self.name)
        except InputError as error:
            warnings.warn(f"{error}; until then all items are ranked exactly", AnncurWarning, stacklevel=2)
            return VectorEngine()
        return self

    def check_for_others(self) -> None:
        """Refuse a password that other machines would have to be sent: it would be in memory and files of theirs."""
        if any(self.secrets):
            raise InputError(
                f"{self.name} was given with a password, which workers don't get; leave it out of the name, and give "
                f"it to them and to this process as {_VARIABLES[self._location.kind]}"
            )

    def is_worth(self, n_items: int) -> bool:
        """Whether this number of items is ranked by another than the exact one."""
        return self.is_approximate and n_items >= LEAST_ITEMS

    @property
    def precision(self) -> np.dtype[np.floating[Any]]:
        """Of the vectors that are kept."""
        return np.dtype(np.float32 if self.name == EXACT else np.float16)

    @property
    def is_approximate(self) -> bool:
        """Whether it ranks by copies of its own of the vectors, and so may find others than the very best."""
        return not self.name.startswith(EXACT)

    @property
    def is_database(self) -> bool:
        """Whether its copies are in a database, where they outlive the process."""
        return is_database(self.name)

    def index(
        self,
        vectors: ExactVectors,
        offsets: FloatVector | None = None,
        *,
        space: str = "",
        keys: Keys | None = None,
        progress: Progress = silent,
    ) -> FaissVectors | DatabaseVectors:
        """These vectors, ready to be ranked; with `offsets`, these are one more coordinate of each.

        A database keeps the vectors of a `space` under `keys`, which are ascending. Whoever uses the same space and key
        means the same vector and offset, in every version and process. Without a name, a space is this process' own,
        and is dropped when nobody uses it any more."""
        local = LocalVectors(vectors, offsets)
        if not self.is_database:
            return FaissVectors(vectors, self.name.partition(":")[2] or FLAT, offsets=offsets)
        numbered = np.arange(len(vectors), dtype=np.int64) if keys is None else keys
        found = DatabaseVectors.connect(local, numbered, self._table(space or _temporary()), progress=progress)
        return found if space else found.dropped_at_end()

    def forget(self, space: str, keys: Keys | None = None) -> None:
        """Delete vectors of a space from a database: some of them, or all of it."""
        if self.is_database:
            table = self._table(space)
            table.drop() if keys is None else table.forget(keys)

    def table_of(self, space: str) -> str:
        """The name of a space's table or collection in a database."""
        return table_name(self._location.option("prefix", PREFIX), space)

    @property
    def _location(self) -> Location:
        return replace(Location.parse(self.name, options=OPTIONS), secrets=self.secrets)

    def _table(self, space: str) -> VectorTable:
        location = self._location
        return _TABLES[location.kind](location, space)


class Identity(NamedTuple):
    """By what vectors are known over versions and processes: the `space` that they are in, and the key of each.

    The same key in the same space is the same vector. A later version has the keys of an earlier one, less those of
    items that are gone, and behind them those of new items."""

    space: str
    keys: Keys  # (n_items,), ascending


class KeptIndex:
    """What an engine made of the vectors of one version, kept to make that of the next version from it. Thread-safe."""

    def __init__(self) -> None:
        self._made: tuple[VectorEngine, Identity, FaissVectors | DatabaseVectors] | None = None
        self._making = threading.Lock()

    def get(self, engine: VectorEngine, vectors: ExactVectors, offsets: FloatVector, identity: Identity) -> VectorIndex:
        """The index of these vectors, each with its offset behind it."""
        with self._making:
            made = self._following(engine, LocalVectors(vectors, offsets), identity)
            if made is None:
                with showing(None) as progress:  # a database may have to be filled first
                    made = engine.index(vectors, offsets, space=identity.space, keys=identity.keys, progress=progress)
            self._made = engine, identity, made
            return made

    def _following(
        self, engine: VectorEngine, vectors: LocalVectors, identity: Identity
    ) -> FaissVectors | DatabaseVectors | None:
        """From what was made before; None where that is of another engine or space, or of a later version."""
        if self._made is None or (self._made[0], self._made[1].space) != (engine, identity.space):
            return None
        _, (_, before), kept = self._made
        if isinstance(kept, DatabaseVectors):
            return kept.following(vectors, identity.keys)
        gone = _gone(before, identity.keys)
        return None if gone is None else kept.following(vectors, gone=gone)

    def __reduce__(self) -> tuple[type[KeptIndex], tuple[()]]:
        return type(self), ()


def _gone(before: Keys, keys: Keys) -> Positions | None:
    """The positions of items that are no longer there; None where this isn't a later version."""
    is_there = np.isin(before, keys)
    is_later = np.array_equal(before[is_there], keys[: int(is_there.sum())])
    return np.flatnonzero(~is_there) if is_later else None


def _temporary() -> str:
    """A name for vectors that nobody named. Where a process was killed before it dropped them, the name tells when."""
    return f"{TEMPORARY} {time.strftime('%Y-%m-%d', time.gmtime())} {uuid.uuid4().hex}"
