"""What every command shares: its options, where it writes, and the edge where errors become one line and a code.

Results go to standard output, everything else to standard error, so that `--json` can be piped. Exit codes: 0 done,
1 an error that the user can repair, 2 wrong usage, 70 a bug of ours, 130 interrupted, 141 nobody reads the output."""

from __future__ import annotations

import functools
import io
import json
import os
import re
import sys
import traceback
from collections.abc import Callable
from typing import Annotated, Any

import typer
from rich.console import Console

from anncur.errors import AnncurError
from anncur.progress import Lines, ProgressDisplay, display_for, json_line

JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object, and progress as JSON lines.")]
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
        try:
            command(**options)
            sys.stdout.flush()
        except (typer.Exit, typer.Abort, typer.BadParameter):
            raise
        except KeyboardInterrupt:
            _fail("interrupted; run the same again to resume", code=130, debug=False)
        except BrokenPipeError:  # whoever read our output has seen enough
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(141) from None
        except (AnncurError, OSError) as error:
            _fail(str(error), code=1, debug=options["debug"])
        except Exception as error:
            _fail(f"a bug in anncur: {type(error).__name__}: {error}; --debug shows where", 70, debug=options["debug"])

    return run


def console() -> Console:
    """Where results for people go."""
    return Console(highlight=False)


def print_json(value: Any) -> None:
    """Print one JSON object as the result."""
    written = json.dumps(value, ensure_ascii=False, default=str)
    sys.stdout.write(_C1.sub(lambda found: f"\\u{ord(found[0]):04x}", written) + "\n")  # JSON escapes the others itself


def printable(text: str) -> str:
    """A text that does nothing to a terminal but show: without escape sequences and other controls."""
    return _CONTROLS.sub("", _ESCAPES.sub("", text))


def show_progress(*, as_json: bool) -> ProgressDisplay:
    """A bar on a terminal, plain lines in a log, JSON lines for programs."""
    return Lines(sys.stderr, json_line) if as_json else display_for(sys.stderr)


def _fail(message: str, code: int, *, debug: bool) -> None:
    if debug:
        traceback.print_exc()
    out = Console(stderr=True, highlight=False, soft_wrap=True)
    out.print("[bold red]error:[/]", end=" ")
    out.print(printable(" ".join(message.split())), markup=False)
    raise typer.Exit(code)
