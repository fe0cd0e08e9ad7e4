"""Manifests: what one version of an index consists of, down to the last byte.

A folder of numbered manifests, each published once and never changed. Readers take the newest that verifies, and so see
one whole version. No timestamps, no pickles: the same index has the same manifest."""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Hashable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from anncur.arrays import Positions
from anncur.errors import DamagedError, DamagedWarning, InputError
from anncur.storage.files import FileRecord, publish_file, read_file, write_file

# that we read; 2 has what a scorer prepared, 3 settings of version 0.2, 4 what retrievers derive, 5 columns and
# engines, 6 vectors of items
FORMATS = (1, 2, 3, 4, 5, 6)
MANIFESTS, SEGMENTS, DERIVED, QUERIES = "manifests", "segments", "learned", "queries-"
ANCHORS, RANKS = "anchors.int64", "ranks.int16"  # plain little-endian numbers
TUNED = "tuned.json"
FEEDBACK, FEEDBACK_ITEMS = "feedback.json", "feedback.float32"  # the feedback model, if the query log was fitted
PREPARED = "prepared.sqlite"
PILOT = "pilot"
CALIBRATION = "calibration"  # scores of one that was begun
NEWEST = "newest"  # beside the manifests: the number of the newest, so that its loss is noticed
RENAMED = {"anchor_method": "anchors"}  # fields whose name in the file is another
ORIGINAL = {name: field for field, name in RENAMED.items()}
SIGNATURE = 66  # bytes: a newline, a hash in hex, a newline


@dataclass(frozen=True)
class Segment:
    """Some items and their exact scores: a folder of that name, never changed. `removed` are rows that are hidden."""

    name: str
    removed: tuple[int, ...] = ()

    def rows(self, start: int, stop: int) -> Positions:
        """The rows from one up to another, without those that are hidden."""
        is_there = np.ones(stop - start, dtype=np.bool_)
        first, last = np.searchsorted(self._hidden, [start, stop])
        is_there[self._hidden[first:last] - start] = False
        return start + np.flatnonzero(is_there)

    @cached_property
    def _hidden(self) -> Positions:
        """The same as `removed`, in ascending order; it may be asked for once per chunk."""
        return np.sort(np.array(self.removed, dtype=np.int64))


@dataclass(frozen=True)
class Manifest:
    """One version of an index. `files` are all that it needs, by their path within the index."""

    version: int
    scorer: str
    scorer_name: str
    higher_is_better: bool
    dtype: str
    retrievers: tuple[str, ...]
    anchor_method: str
    seed: int
    segments: tuple[Segment, ...]
    splits: tuple[tuple[int, float], ...]
    ranks_shape: tuple[int, ...]
    files: Mapping[str, FileRecord]
    embed_queries: str = ""  # the name of the user's function
    vectors: str = "exact"  # the engine that ranks all items

    def encode(self) -> bytes:
        """JSON, and a line with its hash."""
        fields = {RENAMED.get(name, name): value for name, value in asdict(self).items()}
        return _signed(json.dumps({"format": FORMATS[-1], **fields}, indent=1, sort_keys=True).encode())

    @classmethod
    def decode(cls, content: bytes, path: Path) -> Manifest:
        """Read what `encode` wrote; hashed before it is parsed."""
        body = content[:-SIGNATURE]
        if content != _signed(body):
            raise DamagedError(f"{path} doesn't match its checksum")
        fields: dict[str, Any] = json.loads(body)
        found = fields.pop("format")
        if found not in FORMATS:
            known = ", ".join(map(str, FORMATS))
            raise InputError(f"{path} has format {found}, this version of anncur reads {known}; update anncur")
        fields = {ORIGINAL.get(name, name): value for name, value in fields.items()}
        fields["segments"] = tuple(Segment(s["name"], tuple(s["removed"])) for s in fields["segments"])
        fields["splits"] = tuple((int(count), float(cutoff)) for count, cutoff in fields["splits"])
        fields["ranks_shape"] = tuple(fields["ranks_shape"])
        fields["retrievers"] = tuple(fields["retrievers"])
        fields["files"] = {name: FileRecord(**record) for name, record in fields["files"].items()}
        return cls(**fields)


def manifest_path(folder: Path, version: int) -> Path:
    """Where a version's manifest is."""
    return folder / MANIFESTS / f"{version:08}.json"


def versions(folder: Path) -> list[int]:
    """The versions that have a manifest, and the newest that was ever published; the newest first."""
    newest = _recorded_newest(folder) or 0  # before the others are listed, so that it is never ahead of them
    stems = (path.stem for path in (folder / MANIFESTS).glob("*.json"))
    return sorted({int(stem) for stem in stems if stem.isdecimal()} | ({newest} - {0}), reverse=True)


def next_version(folder: Path) -> int:
    """The number that the next version will have; also a damaged one is never replaced."""
    return max(versions(folder), default=0) + 1


def publish(folder: Path, manifest: Manifest, *, least: int = 1) -> Manifest:
    """Make this the newest version, whatever number it had; its files must be in place. Needs the lock.

    Its number is at least `least`: that of a copy goes on from that of the original, which files are named by."""
    published = replace(manifest, version=max(least, next_version(folder)))
    publish_file(manifest_path(folder, published.version), published.encode())
    record_newest(folder, published.version)
    return published


def record_newest(folder: Path, number: int) -> None:
    """Record which version is the newest, so that its loss is noticed. Needs the lock."""
    write_file(folder / MANIFESTS / NEWEST, _signed(str(number).encode()))


def restore_newest(folder: Path) -> None:
    """Record the newest version that verifies, where that isn't recorded. Needs the lock."""
    if newest_damage(folder):
        record_newest(folder, newest_manifest(folder).version)


def newest_damage(folder: Path) -> list[str]:
    """What is wrong with the record of the newest version, if anything."""
    number = _recorded_newest(folder)
    path = folder / MANIFESTS / NEWEST
    if number is None:
        return [f"{path} is damaged"]
    return [] if number or not versions(folder) else [f"{path} is missing"]


def newest_mark(folder: Path) -> Hashable:
    """Changes whenever a version is published: the number of the newest and the file that holds it. Parses nothing."""
    try:
        found = (folder / MANIFESTS / NEWEST).stat()
    except OSError:
        return None
    return _recorded_newest(folder), found.st_ino, found.st_mtime_ns


def read_manifest(folder: Path, version: int) -> Manifest:
    """One version's manifest."""
    path = manifest_path(folder, version)
    return Manifest.decode(read_file(path), path)


def newest_manifest(folder: Path) -> Manifest:
    """The newest manifest that verifies; one that doesn't is passed over with a warning."""
    while True:
        known = versions(folder)
        manifest, problems = _first_whole(folder, known)
        if problems and versions(folder)[:1] != known[:1]:
            continue  # not damaged but deleted, because a newer one was published
        if manifest is None:
            raise problems[0] if problems else no_index(folder)
        for problem in problems:
            warnings.warn(f"{problem}; version {manifest.version} is used instead", DamagedWarning, stacklevel=2)
        return manifest


def is_whole_index(folder: Path) -> bool:
    """Whether there is a manifest that verifies."""
    return _first_whole(folder, versions(folder))[0] is not None


def no_index(folder: Path) -> InputError:
    """The error for a folder that holds no index, or not yet."""
    if any(folder.glob("segments/*/plan.json")):
        return InputError(f"{folder} holds an unfinished build; run the same `anncur build` again to resume it")
    return InputError(f"no index at {folder}; build one with `anncur build`")


def _first_whole(folder: Path, known: list[int]) -> tuple[Manifest | None, list[DamagedError]]:
    problems: list[DamagedError] = []
    for version in known:
        try:
            return read_manifest(folder, version), problems
        except DamagedError as error:
            problems.append(error)
    return None, problems


def _recorded_newest(folder: Path) -> int | None:
    """The number that was recorded as the newest; 0 where none was, None where the record is damaged."""
    try:
        content = (folder / MANIFESTS / NEWEST).read_bytes()
    except FileNotFoundError:
        return 0
    except OSError:
        return None
    body = content[:-SIGNATURE]
    return int(body) if body and content == _signed(body) else None


def _signed(body: bytes) -> bytes:
    return body + b"\n" + hashlib.sha256(body).hexdigest().encode() + b"\n"
