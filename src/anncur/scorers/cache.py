"""A cache of scores on disk: a pair that was paid for once is not paid for again.

One SQLite file that the threads and processes of a machine share (not machines: its locks don't work on a network
drive). It holds a hash of scorer and texts beside each score, so that whoever has the pair finds its score, and nobody
reads texts out of it. A score that was put survives a kill; a power cut may take the last seconds. A score whose
checksum fails is dropped, and whatever else goes wrong with the file is a warning: nobody's search fails for it.
Knows nothing of scorers, and never scores."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import math
import os
import sqlite3
import struct
import threading
import time
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TypeAlias, TypeVar

import filelock

from anncur.errors import AnncurWarning, DamagedWarning, InputError
from anncur.numbers import whole_number
from anncur.scorers.base import TextPair

APPLICATION, VERSION = 0x616E6373, 1  # what SQLite's header says of a file of ours: "ancs"
TABLE = f"anncur_scores_{VERSION}"  # named so that a file is known by its first page even if its header is damaged
PAGE, MAGIC = 4096, b"SQLite format 3\0"
LEAST_BYTES, MOST_LOG_BYTES = 2**20, 2**26
BYTES_PER_PAIR = 100  # in the table and in its index, which is two thirds full
KEYS_PER_QUERY = 500  # old builds of SQLite take 999
BUSY_SECONDS, RETRY_SECONDS = 5.0, 30.0
BUSY = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_PROTOCOL}
DAMAGED = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}
DAMAGED |= {sqlite3.SQLITE_ERROR, sqlite3.SQLITE_SCHEMA}  # "no such table", and there was one
DAMAGED |= {sqlite3.SQLITE_CONSTRAINT, sqlite3.SQLITE_MISMATCH, sqlite3.SQLITE_TOOBIG}  # by what was read

Result = TypeVar("Result")
Row: TypeAlias = tuple[int, object, object]  # its id, a key, and a record of a score, if it is not damaged
Identity: TypeAlias = tuple[int, int]  # device and inode: which file it is, whatever its name

_USING = threading.RLock()  # held during every use of SQLite, so that no fork falls into one
_OPEN: weakref.WeakSet[ScoreCache] = weakref.WeakSet()


class ScoreCache:
    """Keeps the scores that were put last, in at most about `most_bytes` on disk.

    When it is full, those that were put first go, a batch at a time, however often they were used; a pair that is put
    again counts as new. Their space is used again, and given back where `most_bytes` is less than it was. The file
    grows to `most_bytes` less what its log may need: a quarter, or 64 MiB.

    May be shared by threads, opened by many processes, forked and pickled. After `close`, the next use opens it again.
    A file that isn't a cache of scores is an `InputError`. All else that fails gives one warning of its kind, and no
    score is found or kept until it works again; a damaged file is renamed to end in `.damaged`, and a new one begun."""

    _connection: sqlite3.Connection | None = None
    _identity: Identity | None = None

    def __init__(self, path: str | Path, *, most_bytes: int = 2**30) -> None:
        self.path = Path(path).resolve()  # SQLite puts the log beside the file, not beside a link to it
        self._most_bytes = whole_number("most_bytes", most_bytes, least=LEAST_BYTES)
        self._warned: set[str] = set()
        self._resume_at = {"read": 0.0, "write": 0.0}  # when an operation that failed is tried again
        if os.path.exists(self.path) and not os.path.isfile(self.path):  # unlike pathlib's, they never raise
            raise InputError(f"a cache of scores is a file, and {self.path} is something else; pass another path")
        with _USING:
            _refuse_foreign(self.path)
        self.get("", [("", "")])  # warns at once of what is wrong

    def get(self, fingerprint: str, pairs: Sequence[TextPair]) -> list[float | None]:
        """The score of each pair, None where it is unknown."""
        keys = _keys(fingerprint, pairs)
        rows = self._attempt("read", lambda connection: _select(connection, set(keys)), otherwise=list[Row]())
        scores = {key: _decode(key, record) for _, key, record in rows}
        damaged = [number for number, key, _ in rows if scores[key] is None]
        if damaged:
            self._drop(damaged)
        return [scores.get(key) for key in keys]

    def put(self, fingerprint: str, pairs: Sequence[TextPair], scores: Sequence[float]) -> None:
        """Keep the scores of pairs; they are there for every process when this returns."""
        values = [float(score) for score in scores]
        if not all(map(math.isfinite, values)):
            raise InputError("only finite scores are cached, got NaN or infinity; check what the scorer returns")
        keys = _keys(fingerprint, pairs)
        rows = {key: _encode(key, value) for key, value in zip(keys, values, strict=True)}
        self._attempt("write", lambda connection: self._insert(connection, rows), otherwise=None)

    def close(self) -> None:
        """Close the file."""
        with _USING:
            self._disconnect()

    def __len__(self) -> int:
        count = f"SELECT count(*) FROM {TABLE}"
        return self._attempt("read", lambda connection: _number(connection, count), otherwise=0)

    def __repr__(self) -> str:
        size = os.path.getsize(self.path) if os.path.isfile(self.path) else 0
        return f"ScoreCache({str(self.path)!r}, {size / 2**20:.1f} of {self._most_bytes / 2**20:.1f} MiB)"

    def __reduce__(self) -> tuple[Callable[[Path], ScoreCache], tuple[Path]]:
        return partial(ScoreCache, most_bytes=self._most_bytes), (self.path,)

    def __del__(self) -> None:
        self.close()

    @property
    def _log_bytes(self) -> int:
        """How long the write-ahead log may become."""
        return min(self._most_bytes // 4, MOST_LOG_BYTES)

    @property
    def _pairs_at_once(self) -> int:
        """Pairs in one transaction, which may change, and log, a page for each that comes and each that goes."""
        return max(64, self._log_bytes // PAGE // 5)

    def _insert(self, connection: sqlite3.Connection, rows: dict[bytes, bytes]) -> None:
        left = iter(sorted(rows.items()))  # neighbours in the index
        while batch := list(islice(left, self._pairs_at_once)):
            self._make_room(connection, len(batch))
            with connection:
                connection.execute("BEGIN IMMEDIATE")
                connection.executemany(f"INSERT OR REPLACE INTO {TABLE} (key, record) VALUES (?, ?)", batch)

    def _make_room(self, connection: sqlite3.Connection, n_new: int) -> None:
        """Delete what was put first until the new pairs fit."""
        most_pages = (self._most_bytes - self._log_bytes) // PAGE
        needed = n_new * BYTES_PER_PAIR // PAGE + 8
        oldest = f"DELETE FROM {TABLE} WHERE id IN (SELECT id FROM {TABLE} ORDER BY id LIMIT {self._pairs_at_once})"
        while _n_used_pages(connection) + needed > most_pages and connection.execute(oldest).rowcount > 0:
            pass
        excess = _number(connection, "PRAGMA page_count") - most_pages
        if excess > 0:
            connection.executescript(f"PRAGMA incremental_vacuum({excess})")  # `execute` gives back one page only

    def _drop(self, damaged: list[int]) -> None:
        """Delete rows that are damaged."""
        delete, rows = f"DELETE FROM {TABLE} WHERE id = ?", [(number,) for number in damaged]
        self._attempt("write", lambda connection: connection.executemany(delete, rows).rowcount, otherwise=0)
        message = f"{len(damaged)} damaged score(s) in {self.path} were dropped, to be scored again; check the disk"
        self._warn("score", message, DamagedWarning)

    def _attempt(self, operation: str, work: Callable[[sqlite3.Connection], Result], *, otherwise: Result) -> Result:
        """What comes of some work on the file; where that fails, `otherwise` and a warning."""
        with _USING:
            if time.monotonic() < self._resume_at[operation]:
                return otherwise
            for _ in range(2):  # again where a new file has taken the place of the one that failed
                try:
                    return work(self._connect())
                except (sqlite3.Error, UnicodeDecodeError, OSError, InputError) as error:
                    self._disconnect()
                    if not self._is_replaced(error):
                        break
            self._resume_at[operation] = time.monotonic() + RETRY_SECONDS
            return otherwise

    def _connect(self) -> sqlite3.Connection:
        """A connection to the file that is there now, made if there is none."""
        if self._connection is not None and self._identity == _identity(self.path):
            return self._connection
        self._disconnect()
        if _is_missing(self.path):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with _alone(self.path):
                if _is_missing(self.path):
                    _create(self.path)
        self._identity = _identity(self.path)
        _refuse_foreign(self.path)
        address, options = f"{self.path.as_uri()}?mode=rw", {"uri": True, "check_same_thread": False}
        self._connection = sqlite3.connect(address, timeout=BUSY_SECONDS, isolation_level=None, **options)
        self._connection.text_factory = bytes  # where there is text, it is damage, and need not be UTF-8
        _OPEN.add(self)
        self._connection.executescript(f"""
            PRAGMA synchronous = NORMAL;
            PRAGMA cache_size = -16384;
            PRAGMA wal_autocheckpoint = {self._log_bytes // PAGE // 4};
            PRAGMA journal_size_limit = {self._log_bytes // 4};
        """)
        return self._connection

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(sqlite3.Error):
                connection.close()

    def _is_replaced(self, error: Exception) -> bool:
        """Warn of an error; whether there is, or can be made, another file than the one that failed."""
        if self._identity is not None and self._identity != _identity(self.path):
            return True  # by another process
        kind, remedy = _diagnosis(error)
        if kind != "damaged":
            self._warn(kind, f"no scores are cached in {self.path} for now ({error}): {remedy}", AnncurWarning)
            return False
        aside = self.path.with_name(f"{self.path.name}.damaged")
        try:
            with _alone(self.path):
                if self._identity == _identity(self.path):
                    _remove_log(self.path)
                    os.replace(self.path, aside)
        except OSError as obstacle:
            self._warn("stuck", f"{self.path} is damaged and can't be renamed ({obstacle}); delete it", AnncurWarning)
            return False
        message = f"{self.path} is damaged ({error}) and was renamed to {aside.name}; its scores are paid for again"
        self._warn(kind, message, DamagedWarning)
        return True

    def _warn(self, kind: str, message: str, category: type[AnncurWarning]) -> None:
        if kind not in self._warned:
            self._warned.add(kind)
            warnings.warn(message, category, stacklevel=5)


def _keys(fingerprint: str, pairs: Iterable[TextPair]) -> list[bytes]:
    """Hashes of pairs, keyed by the fingerprint; where the query ends is part of it."""
    secret = hashlib.blake2b(_encoded(fingerprint)).digest()
    start = hashlib.blake2b(key=secret, digest_size=16, person=b"anncur scores")
    keys = []
    for query_text, item_text in pairs:
        query, state = _encoded(query_text), start.copy()
        state.update(len(query).to_bytes(8, "little"))
        state.update(query)
        state.update(_encoded(item_text))
        keys.append(state.digest())
    return keys


def _encoded(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")  # whatever a scorer takes


def _encode(key: bytes, score: float) -> bytes:
    value = struct.pack("<d", score)
    return value + _checksum(key, value)


def _decode(key: object, record: object) -> float | None:
    """The score in a record, None where that or its key is damaged."""
    if not isinstance(key, bytes) or not isinstance(record, bytes) or record[8:] != _checksum(key, record[:8]):
        return None
    score: float = struct.unpack("<d", record[:8])[0]
    return score


def _checksum(key: bytes, value: bytes) -> bytes:
    return hashlib.blake2b(key + value, digest_size=8).digest()


def _select(connection: sqlite3.Connection, keys: set[bytes]) -> list[Row]:
    """The rows of keys, as they were found."""
    rows: list[Row] = []
    left = iter(keys)
    while batch := list(islice(left, KEYS_PER_QUERY)):
        marks = ", ".join("?" * len(batch))
        rows += connection.execute(f"SELECT id, key, record FROM {TABLE} WHERE key IN ({marks})", batch)
    return rows


def _number(connection: sqlite3.Connection, query: str) -> int:
    return int(connection.execute(query).fetchone()[0])


def _n_used_pages(connection: sqlite3.Connection) -> int:
    return _number(connection, "PRAGMA page_count") - _number(connection, "PRAGMA freelist_count")


def _identity(path: Path) -> Identity | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _is_missing(path: Path) -> bool:
    return not path.exists() or path.stat().st_size == 0


@contextlib.contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Be the one process that may change which file stands at a path."""
    lock = path.with_name(f"{path.name}.lock")
    lock.touch()  # says what is wrong with the folder, where a lock would wait for it to be repaired
    with filelock.FileLock(lock, timeout=BUSY_SECONDS):
        yield


def _create(path: Path) -> None:
    """Make an empty cache, aside and renamed, so that nobody sees half of it."""
    staged = path.with_name(f"{path.name}.new")
    staged.unlink(missing_ok=True)
    _remove_log(staged)
    with contextlib.closing(sqlite3.connect(staged, isolation_level=None)) as connection:
        connection.executescript(f"""
            PRAGMA page_size = {PAGE};
            PRAGMA auto_vacuum = INCREMENTAL;
            PRAGMA application_id = {APPLICATION};
            PRAGMA user_version = {VERSION};
            CREATE TABLE {TABLE} (id INTEGER PRIMARY KEY, key BLOB NOT NULL UNIQUE, record BLOB NOT NULL);
            PRAGMA journal_mode = WAL;
        """)
    _remove_log(path)  # that of a file which was deleted alone would be applied to the new one
    os.replace(staged, path)


def _remove_log(path: Path) -> None:
    for ending in ("-wal", "-shm", "-journal"):
        path.with_name(path.name + ending).unlink(missing_ok=True)


def _refuse_foreign(path: Path) -> None:
    """Refuse a file that is no cache of scores, or that of a version to come, and touch it no further."""
    identity = _identity(path)
    if any(cache._connection and cache._identity == identity for cache in _OPEN):
        return  # known to be one; and closing a file frees the locks that SQLite has on it in this process
    try:
        with path.open("rb") as file:
            page = file.read(PAGE)
    except OSError:
        return  # missing, or a matter for whoever uses it
    is_named = page[68:72] == APPLICATION.to_bytes(4, "big")
    if TABLE.encode() in page or (is_named and int.from_bytes(page[60:64], "big") <= VERSION):
        return
    if is_named and page.startswith(MAGIC):
        raise InputError(f"{path} was written by a later version of anncur; upgrade anncur, or pass another path")
    is_blank = not any(page[:100]) or (len(page) < 100 and page[:16] == MAGIC[: len(page)])
    if not is_named and not is_blank:
        raise InputError(f"{path} is not a cache of scores, and is left as it is; pass another path")


def _diagnosis(error: Exception) -> tuple[str, str]:
    """What kind of failure it is, and what to do."""
    code = getattr(error, "sqlite_errorcode", -1) & 0xFF  # without what SQLite adds in higher bits
    if isinstance(error, InputError):
        return "foreign", "remove the file, or pass another path"
    if code in DAMAGED or isinstance(error, UnicodeDecodeError):  # of a message that quotes what was read
        return "damaged", ""
    if code in BUSY or isinstance(error, filelock.Timeout):
        return "busy", "stop the program that keeps it locked, or give this one another path"
    if code == sqlite3.SQLITE_FULL or getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT):
        return "full", "free space on the disk, or pass a path on another one"
    return "unusable", "check that its folder can be written, or pass another path"


def _before_fork() -> None:
    """Close every cache: a child can't use what SQLite knows of its parent's files and locks."""
    _USING.acquire()
    for cache in list(_OPEN):
        cache._disconnect()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_USING.release, after_in_child=_USING.release)
