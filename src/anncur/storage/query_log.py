"""The query log: queries, ids of items and the exact scores that searches paid for, to fit a feedback model to.

On disk, a folder of files that are only ever appended to:

    animals.anncur/query_log/00000001.jsonl    a line per search: a checksum, a space, JSON

A kill at any moment leaves at most the last line torn, and the next writer takes it away. When there are more searches
than may be kept, the oldest file goes. A query that brought its own embedding is logged with it, in half precision. Ids
and not positions, because items come and go; and where an item went, a line records it, lest another one that gets its
id inherit its scores. Knows nothing of models."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import threading
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from anncur.errors import DamagedWarning
from anncur.items import Query
from anncur.storage.files import LOCK, locked, storing, sync_folder
from anncur.storage.queries import decode_embedding, encode_embedding
from anncur.vectors.half import halved

QUERY_LOG, OLDER_NAME = "query_log", "traffic"  # the folder, and what it was called before 0.2
N_FILES = 8  # that hold as much as may be kept; one of them at a time is deleted
CHECKSUM = 16  # hex digits


@dataclass(frozen=True)
class LoggedSearch:
    """A query, and the exact scores that were paid for, by item id, higher is better.

    `version` is that of the index that was searched. `drift` tells how unlike the anchor queries the query was, where
    that was known, and `drift_reference` names the queries that it was compared with."""

    query: Query
    scores: Mapping[str, float]
    version: int
    drift: float | None = None
    drift_reference: str = ""


class MemoryQueryLog:
    """Logged in memory."""

    def __init__(self) -> None:
        self._searches: list[LoggedSearch] = []
        self._gone: dict[str, int] = {}
        self._changing = threading.Lock()

    def append(self, searches: Sequence[LoggedSearch], *, most: int) -> None:
        """Append searches; the oldest go where there are more than `most`."""
        with self._changing:
            self._searches = [*self._searches, *searches][-most:]

    def forget(self, item_ids: Iterable[str], version: int) -> None:
        """Take back all scores of these items that come from before this version of the index."""
        with self._changing:
            self._gone.update(dict.fromkeys(item_ids, version))

    def read(self) -> list[LoggedSearch]:
        """All that is logged, the oldest first."""
        with self._changing:
            return _without(self._gone, self._searches)

    def read_latest(self, most: int) -> list[LoggedSearch]:
        """The latest searches, at most so many, the oldest first, also with items that were removed."""
        with self._changing:
            return self._searches[-most:]


class FolderQueryLog:
    """Logged beside an index on disk; several processes may append."""

    def __init__(self, index_folder: Path) -> None:
        older = index_folder / OLDER_NAME
        self._folder = older if older.is_dir() else index_folder / QUERY_LOG
        self._counted: dict[str, tuple[int, int]] = {}  # size and lines by file, so that it is counted once

    def append(self, searches: Sequence[LoggedSearch], *, most: int) -> None:
        """Append searches; the oldest go where there are more than `most`."""
        lines = [_line(_record(search)) for search in searches][-most:]
        per_file = -(-most // N_FILES)
        with self._locked():
            while lines:
                path, n_there = self._last_file()
                if n_there >= per_file:
                    path, n_there = self._next_file(path), 0
                n_new = min(len(lines), per_file - n_there)
                self._make_room(most - n_new)
                size = _append(path, b"".join(lines[:n_new]))
                self._counted[path.name] = (size, n_there + n_new)
                lines = lines[n_new:]

    def forget(self, item_ids: Iterable[str], version: int) -> None:
        """Take back all scores of these items that come from before this version of the index."""
        if not self._files():
            return
        with self._locked():
            _append(self._last_file()[0], _line({"removed": list(item_ids), "version": version}))

    def read(self) -> list[LoggedSearch]:
        """All that is logged, the oldest first."""
        files = self._files()
        if not files:
            return []
        searches: list[LoggedSearch] = []
        gone: dict[str, int] = {}
        n_damaged = 0
        for path in files:
            with storing(path, 0), contextlib.suppress(FileNotFoundError):  # one that was deleted meanwhile
                for line in _whole_lines(path.read_bytes(), is_last=path == files[-1]):
                    record = _checked(line)
                    if record is None:
                        n_damaged += 1
                    elif "removed" in record:
                        gone.update(dict.fromkeys(record["removed"], record["version"]))
                    else:
                        searches.append(_search(record))
        if n_damaged:
            message = f"{n_damaged} damaged record(s) in {self._folder} were dropped, {len(searches)} are whole"
            warnings.warn(message, DamagedWarning, stacklevel=2)
        return _without(gone, searches)

    def read_latest(self, most: int) -> list[LoggedSearch]:
        """The latest searches, at most so many, the oldest first, also with items that were removed; of the files, only
        the last ones are read."""
        searches: list[LoggedSearch] = []
        for path in reversed(self._files()):
            if len(searches) >= most:
                break
            with storing(path, 0), contextlib.suppress(FileNotFoundError):  # one that was deleted meanwhile
                records = [_checked(line) for line in _whole_lines(path.read_bytes(), is_last=True)]
                found = [_search(record) for record in records if record is not None and "removed" not in record]
                searches = [*found, *searches]
        return searches[-most:]

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """Alone among those who write; it is never for long."""
        with locked(self._folder / LOCK):
            yield

    def _files(self) -> list[Path]:
        return sorted(path for path in self._folder.glob("*.jsonl") if path.stem.isdecimal())

    def _last_file(self) -> tuple[Path, int]:
        """Where to append, and how many lines are there; a torn one is taken away."""
        files = self._files()
        if not files:
            return self._folder / f"{1:08}.jsonl", 0
        _drop_torn_end(files[-1])
        return files[-1], self._count(files[-1])

    def _next_file(self, path: Path) -> Path:
        return path.with_name(f"{int(path.stem) + 1:08}.jsonl")

    def _make_room(self, most: int) -> None:
        """Throw away the oldest files until no more than `most` lines are left."""
        files = self._files()
        counts = [self._count(path) for path in files]
        while sum(counts) > most:
            oldest = files.pop(0)
            with storing(oldest, 0):
                oldest.unlink(missing_ok=True)
            self._counted.pop(oldest.name, None)
            counts.pop(0)

    def _count(self, path: Path) -> int:
        with storing(path, 0):
            size = path.stat().st_size
            if self._counted.get(path.name, (-1, 0))[0] != size:
                self._counted[path.name] = (size, path.read_bytes().count(b"\n"))
        return self._counted[path.name][1]


def _without(gone: Mapping[str, int], searches: Sequence[LoggedSearch]) -> list[LoggedSearch]:
    """Searches without the scores of items that were removed after them."""
    if not gone:
        return list(searches)
    return [
        replace(search, scores={i: score for i, score in search.scores.items() if gone.get(i, 0) <= search.version})
        for search in searches
    ]


def _append(path: Path, content: bytes) -> int:
    """Write to the end of a file, and to the disk; returns its size."""
    with storing(path, len(content)):
        is_new = not path.exists()
        handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            while content:
                content = content[os.write(handle, content) :]
            os.fsync(handle)
            size = os.fstat(handle).st_size
        finally:
            os.close(handle)
        if is_new:
            sync_folder(path.parent)
    return size


def _drop_torn_end(path: Path) -> None:
    """Cut off what comes after the last newline: a line that somebody was killed in."""
    with storing(path, 0), path.open("rb+") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - 1))
        if file.read() in (b"\n", b""):
            return
        file.seek(0)
        file.truncate(file.read().rfind(b"\n") + 1)


def _whole_lines(content: bytes, *, is_last: bool) -> list[bytes]:
    """The lines of a file; the end of the last one may be torn, or still be being written."""
    *whole, rest = content.split(b"\n")
    return [*whole, rest] if rest and not is_last else whole


def _line(record: dict[str, Any]) -> bytes:
    body = json.dumps(record).encode()  # ASCII, so that a newline ends a line and nothing else does
    return b"%s %s\n" % (_checksum(body), body)


def _checked(line: bytes) -> dict[str, Any] | None:
    """The record of a line, if it is as it was written."""
    body = line[CHECKSUM + 1 :]
    if line[:CHECKSUM] != _checksum(body):
        return None
    record: dict[str, Any] = json.loads(body)
    return record


def _checksum(body: bytes) -> bytes:
    return hashlib.sha256(body).hexdigest()[:CHECKSUM].encode()


def _record(search: LoggedSearch) -> dict[str, Any]:
    query = search.query
    record: dict[str, Any] = {"query": query.text, "mention": query.mention, "version": search.version}
    record["scores"] = dict(search.scores)
    if query.embedding is not None:  # nobody could make it again
        record["embedding"] = encode_embedding(halved(query.embedding[None])[0])
    if search.drift is not None:
        record |= {"drift": search.drift, "drift_reference": search.drift_reference}
    return record


def _search(record: dict[str, Any]) -> LoggedSearch:
    mention = record["mention"]
    embedding = decode_embedding(record.get("embedding"))
    query = Query(record["query"], mention=None if mention is None else tuple(mention), embedding=embedding)
    drift, reference = record.get("drift"), record.get("drift_reference", "")  # versions before 0.2 log neither
    return LoggedSearch(query, record["scores"], record["version"], drift, reference)
