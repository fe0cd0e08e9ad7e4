"""What has been read of an index's segments, kept by their names, so that the next version reads only what is new.

Holds open files, mapped arrays and specs for `version.py`, and knows nothing of what they mean. What is kept belongs to
files with the hashes that a manifest lists: where these differ, it is dropped."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Mapping
from typing import Any, TypeVar

from anncur.storage.files import FileRecord

Made = TypeVar("Made")


class LoadedSegment:
    """What has been read of one segment. Thread-safe."""

    def __init__(self, records: Mapping[str, FileRecord]) -> None:
        self.records = records
        self._made: dict[Hashable, Any] = {}
        self._making = threading.RLock()

    def get(self, what: Hashable, make: Callable[[], Made]) -> Made:
        """What was read before, or is read now."""
        with self._making:
            if what not in self._made:
                self._made[what] = make()
            kept: Made = self._made[what]
            return kept


class LoadedSegments:
    """What has been read of the segments of the version that was asked for last. Thread-safe."""

    def __init__(self) -> None:
        self._segments: dict[str, LoadedSegment] = {}
        self._changing = threading.Lock()

    def of(self, records: Mapping[str, Mapping[str, FileRecord]]) -> dict[str, LoadedSegment]:
        """Those of a version, given the files of each of its segments; all others are let go."""
        with self._changing:
            kept = {name: one for name, one in self._segments.items() if one.records == records.get(name)}
            self._segments = {name: kept.get(name) or LoadedSegment(files) for name, files in records.items()}
            return self._segments

    def clear(self) -> None:
        """Let go of everything: files may have been repaired."""
        with self._changing:
            self._segments = {}
