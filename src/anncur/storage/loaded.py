"""What has been read of an index's segments, kept by their names, so that the next version reads only what is new.

Holds open files, arrays and specs for `version.py`, and knows nothing of what they mean. What is kept belongs to files
with the hashes that a manifest lists: where these differ, it is dropped."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from anncur.arrays import FloatMatrix, Positions
from anncur.storage.files import FileRecord

Made = TypeVar("Made")


@dataclass(frozen=True, eq=False)
class HeldRows:
    """Exact scores of some rows of a segment: a view of the matrix of the version that was read last, not a copy."""

    rows: Positions  # in ascending order
    values: FloatMatrix

    def take(self, rows: Positions) -> FloatMatrix | None:
        """The scores of these rows, if all of them are here."""
        if np.array_equal(rows, self.rows):
            return self.values
        places = np.minimum(np.searchsorted(self.rows, rows), len(self.rows) - 1)
        return self.values[places] if np.array_equal(self.rows[places], rows) else None


class LoadedSegment:
    """What has been read of one segment. Thread-safe."""

    def __init__(self, records: Mapping[str, FileRecord]) -> None:
        self.records = records
        self.scores: HeldRows | None = None  # replaced as a whole
        self._made: dict[Hashable, Any] = {}
        self._making = threading.RLock()

    def get(self, what: Hashable, make: Callable[[], Made], *, keeps: bool = True) -> Made:
        """What was read before, or is read now."""
        with self._making:
            if what in self._made:
                kept: Made = self._made[what]
                return kept
            made = make()
            if keeps:
                self._made[what] = made
            return made


class LoadedSegments:
    """What has been read of the segments of the version that was asked for last. Thread-safe.

    With `keeps_encoded`, also what retrievers derived: a second copy of it, worth its memory where versions change."""

    def __init__(self, *, keeps_encoded: bool = False) -> None:
        self.keeps_encoded = keeps_encoded
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
