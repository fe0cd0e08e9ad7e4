"""How long work shows its progress: a bar on a terminal or in a notebook, lines in a log, or a function of the user's.

The library only calls a `Progress`; whether and where it shows is chosen at the edge."""

from __future__ import annotations

import importlib.util
import json
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Protocol, Self, TextIO, TypeAlias

from anncur.errors import InputError

if TYPE_CHECKING:
    from rich.console import Console

N_MARKS = 6  # lines that the pace is taken from: what was read from a cache goes faster than what comes after
SECONDS_OF_SILENCE = 2.0  # work that is done by then shows nothing


class Progress(Protocol):
    """Called during long work: the name of the stage, how much is done, and how much there is in all."""

    def __call__(self, stage: str, done: int, total: int, /) -> None: ...


ProgressLike: TypeAlias = Progress | bool | None  # None: shown when work takes a while


def silent(stage: str, done: int, total: int, /) -> None:
    """Show nothing."""


@contextmanager
def showing(progress: ProgressLike) -> Iterator[Progress]:
    """What to call during long work: the user's function, a display, or nothing."""
    if progress is False:
        yield silent
    elif progress is None or progress is True:
        with Late(0.0 if progress else SECONDS_OF_SILENCE) as display:
            yield display
    elif callable(progress):
        yield progress
    else:
        raise InputError(
            f"progress must be None, True, False, or a function of stage, done and total, got {progress!r}"
        )


class ProgressDisplay(Protocol):
    """Shows progress while it is entered; itself a `Progress`."""

    def __call__(self, stage: str, done: int, total: int, /) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None: ...


def display_for(stream: TextIO) -> ProgressDisplay:
    """A bar on a terminal or in a notebook, plain lines in a log."""
    from rich.console import Console

    console = Console(file=stream)
    if console.is_jupyter:
        has_bars = importlib.util.find_spec("ipywidgets") is not None  # which rich draws with there
    else:
        has_bars = console.is_terminal and not console.is_dumb_terminal and console.width >= 60
    return TerminalBar(console) if has_bars else Lines(stream, plain_line)


class Late:
    """Another display, begun when work has taken some seconds."""

    def __init__(self, seconds: float) -> None:
        self._begin_at = time.monotonic() + seconds
        self._display: ProgressDisplay | None = None

    def __call__(self, stage: str, done: int, total: int) -> None:
        if self._display is None:
            if time.monotonic() < self._begin_at or done >= total:
                return
            self._display = display_for(sys.stderr).__enter__()
        self._display(stage, done, total)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._display is not None:
            self._display.__exit__(kind, error, trace)


class TerminalBar:
    """A bar per stage."""

    def __init__(self, console: Console) -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, TaskID, TextColumn, TimeRemainingColumn
        from rich.progress import Progress as Bars

        self._tasks: dict[str, TaskID] = {}
        self._bars = Bars(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("time left"),
            TimeRemainingColumn(),
            console=console,
        )

    def __call__(self, stage: str, done: int, total: int) -> None:
        if stage not in self._tasks:
            self._tasks[stage] = self._bars.add_task(stage, total=total)
        self._bars.update(self._tasks[stage], completed=done, total=total)

    def __enter__(self) -> Self:
        self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bars.stop()


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
