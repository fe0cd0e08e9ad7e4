"""The version of an index that searches use: loaded when it is first needed, replaced when there is a newer one.

Reads a backend, feeds `index.py`. Searches go on with the version that is there while a newer one is loaded."""

from __future__ import annotations

import threading
import time
import warnings
from collections.abc import Hashable

from anncur.errors import AnncurError, AnncurWarning, InputError
from anncur.index.backend import Backend
from anncur.index.snapshot import Snapshot


class CurrentVersion:
    """One version at a time. Thread-safe.

    With `refresh_seconds`, a search that finds that nobody has looked for that long looks for a newer version."""

    def __init__(self, backend: Backend, refresh_seconds: float | None = None) -> None:
        self._backend = backend
        self.refresh_seconds = refresh_seconds
        self._loading = threading.Lock()
        self._looking = threading.Lock()
        self._snapshot: Snapshot | None = None
        self._mark: Hashable = None  # of the backend, when it was loaded
        self._looked_at = 0.0
        self._is_closed = False

    def get(self) -> Snapshot:
        """The version that is loaded, or the newest one."""
        snapshot = self._snapshot
        if snapshot is None:
            with self._loading:
                self.check_open()
                if self._snapshot is None:
                    self._mark, self._looked_at = self._backend.mark(), time.monotonic()
                    self._snapshot = self._backend.load()
                snapshot = self._snapshot
        return snapshot

    def for_search(self) -> Snapshot:
        """The version to search: a newer one, where it is time to look, and one is there."""
        snapshot = self.get()
        if self.refresh_seconds is None or time.monotonic() - self._looked_at < self.refresh_seconds:
            return snapshot
        if not self._looking.acquire(blocking=False):
            return snapshot  # another search looks
        try:
            return self._look(snapshot)
        finally:
            self._looking.release()

    def refresh(self) -> None:
        """Load the newest version."""
        with self._looking:
            snapshot = self._snapshot
            if snapshot is None:
                self.get()
            else:
                self._load_newer(snapshot)

    def outdated(self) -> None:
        """Another version may be there, to be loaded when it is needed."""
        with self._loading:  # a load that has begun may be of the version before
            if self._backend.mark() != self._mark:
                self._snapshot = None

    def close(self) -> None:
        """Let go of what is loaded, for good."""
        with self._loading:
            self._snapshot = None
            self._is_closed = True

    def check_open(self) -> None:
        """Refuse to work on an index that was closed."""
        if self._is_closed:
            raise InputError("this index was closed; open it again")

    def _look(self, snapshot: Snapshot) -> Snapshot:
        """A newer version, if there is one that can be read."""
        try:
            if self._backend.mark() != self._mark:
                snapshot = self._load_newer(snapshot)
        except AnncurError as error:
            message = f"the newest version can't be read, and version {snapshot.version} is used on: {error}"
            warnings.warn(message, AnncurWarning, stacklevel=2)
        self._looked_at = time.monotonic()
        return snapshot

    def _load_newer(self, snapshot: Snapshot) -> Snapshot:
        mark, newer = self._backend.mark(), self._backend.load()
        with self._loading:
            if self._snapshot is snapshot:  # else somebody changed the index meanwhile, or closed it
                self._snapshot, self._mark, self._looked_at = newer, mark, time.monotonic()
        return self.get()
