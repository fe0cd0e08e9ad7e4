"""Write docs/cli.md from the commands' own help, so that it can't go stale."""

from __future__ import annotations

import sys
from pathlib import Path

from typer.testing import CliRunner

from anncur.cli.main import app

TARGET = Path(__file__).parent.parent / "docs" / "cli.md"
INTRODUCTION = """\
# Command line

Written by `make docs` from the commands' help. Results go to standard output, progress and errors to standard error.
Exit codes: 0 done, 1 an error that you can repair, 2 wrong usage, 70 a bug in anncur, 130 interrupted,
141 the output was closed.

With `--json` standard output has one JSON object, or nothing where a command fails, and standard error JSON lines:
`{"stage": …, "done": …, "total": …, "seconds_left": …}` for progress, `{"warning": …}` for a warning, and
`{"error": …}` as the last line of a command that fails. Wrong usage, code 2, is plain text.
"""


def reference() -> str:
    """The full page."""
    return "\n".join([INTRODUCTION, section(), *(section(*words) for words in all_commands())])


def all_commands() -> list[list[str]]:
    """The words of every command, those of groups included."""
    own = [[command.callback.__name__] for command in app.registered_commands if command.callback]
    groups = [group.typer_instance for group in app.registered_groups if group.typer_instance]
    return own + [
        [str(group.info.name), str(command.name)] for group in groups for command in group.registered_commands
    ]


def section(*arguments: str) -> str:
    """The help of one command."""
    shown = CliRunner().invoke(app, [*arguments, "--help"], env={"COLUMNS": "100", "TERM": "dumb"}, prog_name="anncur")
    lines = [line.rstrip() for line in shown.output.strip().splitlines()]
    return "\n".join([f"## `{' '.join(['anncur', *arguments])}`", "", "```text", *lines, "```", ""])


if __name__ == "__main__":
    TARGET.write_text(reference(), encoding="utf-8")
    sys.stdout.write(f"wrote {TARGET}\n")
