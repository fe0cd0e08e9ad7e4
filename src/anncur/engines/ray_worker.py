"""What runs in a worker of the Ray engine: loads what a job needs, does units, and tells how they went.

Errors and warnings go back as values, because those of foreign code can't always be sent. Two threads: one does units,
the other answers how far the unit is, and takes the order to stop."""

from __future__ import annotations

import sys
import threading
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from anncur.engines.base import Loader, Worker
from anncur.errors import AnncurError, EngineError


class StoppedError(AnncurError):
    """The job was stopped; what was done of the unit is kept."""


@dataclass(frozen=True)
class Outcome:
    """What came of a unit, or of loading: a result or an error, the warnings, and the pairs that were asked for."""

    result: Any
    error: AnncurError | None
    warnings: tuple[Warning, ...]
    n_calls: int = 0


class RayWorker:
    """The actor."""

    def __init__(self, loader: bytes, paths: Sequence[str]) -> None:
        self._pickled = loader
        sys.path.extend(path for path in paths if path not in sys.path)  # where modules are named by the user
        self._worker: Worker | None = None
        self._progress = (-1, 0)  # the unit in work, and how much of it was done
        self._is_stopped = threading.Event()

    def start(self) -> Outcome:
        """Load what the job needs, unless it is loaded."""
        return _outcome(self._load, is_returned=False)

    def do(self, unit: int, payload: Any) -> Outcome:
        """Do a unit."""
        self._progress = (unit, 0)
        return _outcome(lambda: self._load()(payload, self._report), calls_made=self._calls_made)

    def progress(self) -> tuple[int, int]:
        """The unit in work, and how much of it was done."""
        return self._progress

    def stop(self) -> None:
        """End the unit in work, with what was done of it kept; do no other."""
        self._is_stopped.set()

    def _load(self) -> Worker:
        if self._is_stopped.is_set():
            raise StoppedError("stopped")
        if self._worker is None:
            from ray import cloudpickle

            loader: Loader = cloudpickle.loads(self._pickled)
            self._worker = loader()
        return self._worker

    def _report(self, n_more: int) -> None:
        unit, n_done = self._progress
        self._progress = (unit, n_done + n_more)
        if self._is_stopped.is_set():
            raise StoppedError("stopped")

    def _calls_made(self) -> int:
        return 0 if self._worker is None else self._worker.calls_made


def _outcome(
    work: Callable[[], Any], *, calls_made: Callable[[], int] = lambda: 0, is_returned: bool = True
) -> Outcome:
    before, result, failure = calls_made(), None, None
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            result = work()
        except AnncurError as error:
            failure = error
            failure.kept = None  # what it holds is stored, or of no use to another process
        except Exception as error:  # anything may come out of somebody else's code
            failure = EngineError(f"{type(error).__name__}: {error}")
    result = result if is_returned else None
    return Outcome(result, failure, tuple(_plain(one.message) for one in caught), calls_made() - before)


def _plain(message: Warning | str) -> Warning:
    """A warning that can be sent: one of ours, or its text."""
    is_ours = isinstance(message, Warning) and type(message).__module__ == "anncur.errors"
    return message if is_ours else UserWarning(str(message))  # type: ignore[return-value]
