"""What every command shares: its options, where it writes, and the edge where errors become one line and a code.

Results go to standard output, everything else to standard error, so that `--json` can be piped; progress, warnings and
errors are JSON lines then, too. Exit codes: 0 done, 1 an error that the user can repair, 2 wrong usage, 70 a bug of
ours, 130 interrupted, 141 nobody reads the output."""

from __future__ import annotations

import functools
import io
import json
import os
import re
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Annotated, Any

import typer
from rich.console import Console

from anncur.errors import AnncurError, AnncurWarning
from anncur.progress import Lines, ProgressDisplay, display_for, json_line

JsonOption = Annotated[
    bool, typer.Option("--json", help="Print one JSON object; progress, warnings and errors are JSON lines.")
]
# sequences that move the cursor, colour, set titles or write to the clipboard, as ECMA-48 has them
_ESCAPES = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]"
    r"|(?:\x1b[\]PX^_]|[\x90\x98\x9d-\x9f])[^\x07\x1b\x9c]*(?:\x07|\x1b\\|\x9c)?"
    r"|\x1b[ -/]*[0-~]?"
)
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")  # and overrides of direction
_C1 = re.compile(r"[\x7f-\x9f]")

DebugOption = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]


def at_the_edge(command: Callable[..., None]) -> Callable[..., None]:
    """Let a command end in one clear line and an exit code, whatever happens; every command has a `debug` option."""

    @functools.wraps(command)
    def run(**options: Any) -> None:
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, io.TextIOWrapper):
                stream.reconfigure(errors="replace")  # a terminal that can't show a character still shows the rest
        fail = partial(_fail, as_json=options.get("as_json", False))
        try:
            with _short_warnings(as_json=options.get("as_json", False)):
                command(**options)
            sys.stdout.flush()
        except (typer.Exit, typer.Abort, typer.BadParameter):
            raise
        except KeyboardInterrupt:
            fail("interrupted; run the same again to resume", 130, debug=False)
        except BrokenPipeError:  # whoever read our output has seen enough
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(141) from None
        except (AnncurError, OSError) as error:
            fail(str(error), 1, debug=options["debug"])
        except Exception as error:
            fail(f"a bug in anncur: {type(error).__name__}: {error}; --debug shows where", 70, debug=options["debug"])

    return run


def console() -> Console:
    """Where results for people go."""
    return Console(highlight=False)


def print_json(value: Any) -> None:
    """Print one JSON object as the result."""
    sys.stdout.write(_json_line(value))


def printable(text: str) -> str:
    """A text that does nothing to a terminal but show: without escape sequences and other controls."""
    return _CONTROLS.sub("", _ESCAPES.sub("", text))


def show_progress(*, as_json: bool) -> ProgressDisplay:
    """A bar on a terminal, plain lines in a log, JSON lines for programs."""
    return Lines(sys.stderr, json_line) if as_json else display_for(sys.stderr)


@contextmanager
def _short_warnings(*, as_json: bool) -> Iterator[None]:
    """Let a warning of ours be one line, without the place in our code that gives it."""
    usual = warnings.showwarning

    def show(message: Warning | str, category: type[Warning], *place: Any, **options: Any) -> None:
        if issubclass(category, AnncurWarning):
            text = _in_one_line(str(message))
            sys.stderr.write(_json_line({"warning": text}) if as_json else f"warning: {printable(text)}\n")
        else:
            usual(message, category, *place, **options)

    warnings.showwarning = show
    try:
        yield
    finally:
        warnings.showwarning = usual


def _fail(message: str, code: int, *, debug: bool, as_json: bool) -> None:
    if debug:
        traceback.print_exc()
    text = _in_one_line(message)
    if as_json:
        sys.stderr.write(_json_line({"error": text}))
    else:
        out = Console(stderr=True, highlight=False, soft_wrap=True)
        out.print("[bold red]error:[/]", end=" ")
        out.print(printable(text), markup=False)
    raise typer.Exit(code)


def _in_one_line(message: str) -> str:
    return " ".join(message.split())


def _json_line(value: Any) -> str:
    written = json.dumps(value, ensure_ascii=False, default=str)
    return _C1.sub(lambda found: f"\\u{ord(found[0]):04x}", written) + "\n"  # JSON escapes the others itself
