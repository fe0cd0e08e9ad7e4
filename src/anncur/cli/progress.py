"""Three ways to show how far long work is, all with an estimate of the time left."""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import Protocol, Self, TextIO

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

N_MARKS = 6  # lines that the pace is taken from: what was read from a cache goes faster than what comes after


class ProgressDisplay(Protocol):
    """Shows progress while it is entered; itself an `anncur.progress.Progress`."""

    def __call__(self, stage: str, done: int, total: int, /) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None: ...


class TerminalBar:
    """A bar per stage."""

    def __init__(self, console: Console) -> None:
        self._tasks: dict[str, TaskID] = {}
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("time left"),
            TimeRemainingColumn(),
            console=console,
        )

    def __call__(self, stage: str, done: int, total: int) -> None:
        if stage not in self._tasks:
            self._tasks[stage] = self._progress.add_task(stage, total=total)
        self._progress.update(self._tasks[stage], completed=done, total=total)

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()


class Lines:
    """A line when a stage begins, when it ends, and at most every `interval` seconds between; `render` writes it."""

    def __init__(
        self,
        out: TextIO,
        render: Callable[[str, int, int, float | None], str],
        *,
        interval: float = 5.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._out = out
        self._render = render
        self._interval = interval
        self._clock = clock
        self._marks: dict[str, deque[tuple[float, int]]] = {}  # when the last lines of a stage were, and how far it was
        self._last_line = 0.0

    def __call__(self, stage: str, done: int, total: int) -> None:
        now = self._clock()
        marks = self._marks.setdefault(stage, deque(maxlen=N_MARKS))
        if marks and done < marks[-1][1]:  # begun again
            marks.clear()
        if marks and done != total and now - self._last_line < self._interval:
            return
        self._last_line = now
        marks.append((now, done))
        began, done_then = marks[0]
        seconds_left = (total - done) * (now - began) / (done - done_then) if done > done_then else None
        self._out.write(self._render(stage, done, total, seconds_left) + "\n")
        self._out.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Nothing to take down."""


def plain_line(stage: str, done: int, total: int, seconds_left: float | None) -> str:
    """For a log."""
    share = 100 * done // max(total, 1)
    left = "" if seconds_left is None or done == total else f", about {duration(seconds_left)} left"
    return f"{stage}: {done:,} of {total:,} ({share}%){left}"


def json_line(stage: str, done: int, total: int, seconds_left: float | None) -> str:
    """For a program."""
    return json.dumps({"stage": stage, "done": done, "total": total, "seconds_left": seconds_left})


def duration(seconds: float) -> str:
    """A length of time for people."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"
