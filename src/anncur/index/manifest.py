"""Manifests: what one version of an index consists of, down to the last byte.

A folder of numbered manifests, each published once and never changed. Readers take the newest that verifies, and so see
one whole version. No timestamps, no pickles: the same index has the same manifest."""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from anncur.errors import DamagedError, DamagedWarning, InputError
from anncur.index.files import FileRecord, publish_file

FORMAT = 1
MANIFESTS, LEARNED, QUERIES = "manifests", "learned", "queries-"


@dataclass(frozen=True)
class Segment:
    """Some items and their exact scores: a folder of that name, never changed. `removed` are rows that are hidden."""

    name: str
    removed: tuple[int, ...] = ()


@dataclass(frozen=True)
class Manifest:
    """One version of an index. `files` are all that it needs, by their path within the index."""

    version: int
    scorer: str
    scorer_name: str
    higher_is_better: bool
    dtype: str
    retrievers: tuple[str, ...]
    anchors: str
    seed: int
    segments: tuple[Segment, ...]
    splits: tuple[tuple[int, float], ...]
    files: Mapping[str, FileRecord]

    def next(self, **changes: Any) -> Manifest:
        """The version after this one."""
        return replace(self, version=self.version + 1, **changes)

    def encode(self) -> bytes:
        """JSON, and a line with its hash."""
        body = json.dumps({"format": FORMAT, **asdict(self)}, indent=1, sort_keys=True).encode()
        return body + b"\n" + hashlib.sha256(body).hexdigest().encode() + b"\n"

    @classmethod
    def decode(cls, content: bytes, path: Path) -> Manifest:
        """Read what `encode` wrote; hashed before it is parsed."""
        body, _, digest = content.rstrip(b"\n").rpartition(b"\n")
        if hashlib.sha256(body).hexdigest().encode() != digest:
            raise DamagedError(f"{path} doesn't match its checksum")
        fields: dict[str, Any] = json.loads(body)
        found = fields.pop("format")
        if found != FORMAT:
            raise InputError(f"{path} has format {found}, this version of anncur reads format {FORMAT}; update anncur")
        fields["segments"] = tuple(Segment(s["name"], tuple(s["removed"])) for s in fields["segments"])
        fields["splits"] = tuple((int(count), float(cutoff)) for count, cutoff in fields["splits"])
        fields["retrievers"] = tuple(fields["retrievers"])
        fields["files"] = {name: FileRecord(**record) for name, record in fields["files"].items()}
        return cls(**fields)


def manifest_path(folder: Path, version: int) -> Path:
    """Where a version's manifest is."""
    return folder / MANIFESTS / f"{version:08}.json"


def versions(folder: Path) -> list[int]:
    """The versions that have a manifest, the newest first."""
    found = (path.stem for path in (folder / MANIFESTS).glob("*.json"))
    return sorted((int(stem) for stem in found if stem.isdecimal()), reverse=True)


def publish(folder: Path, manifest: Manifest) -> None:
    """Make a version the newest; its files must be in place."""
    publish_file(manifest_path(folder, manifest.version), manifest.encode())


def read_manifest(folder: Path, version: int) -> Manifest:
    """One version's manifest."""
    path = manifest_path(folder, version)
    try:
        content = path.read_bytes()
    except OSError as error:
        raise DamagedError(f"{path} can't be read: {error.strerror or error}") from error
    return Manifest.decode(content, path)


def newest_manifest(folder: Path) -> Manifest:
    """The newest manifest that verifies; one that doesn't is passed over with a warning."""
    problems: list[DamagedError] = []
    for version in versions(folder):
        try:
            manifest = read_manifest(folder, version)
        except DamagedError as error:
            problems.append(error)
            continue
        for problem in problems:
            warnings.warn(f"{problem}; version {version} is used instead", DamagedWarning, stacklevel=2)
        return manifest
    if problems:
        raise problems[0]
    raise InputError(f"no index at {folder}; build one with `anncur build … --out {folder}`")
