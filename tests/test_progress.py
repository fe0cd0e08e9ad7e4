"""Progress with an estimate of the time left."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from typing import Any

import pytest
from rich.console import Console

from anncur.errors import InputError
from anncur.progress import Lines, TerminalBar, json_line, plain_line, showing


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def run(render: Callable[[str, int, int, float | None], str], seconds_per_step: float, n_steps: int = 10) -> list[str]:
    out, clock = io.StringIO(), Clock()
    with Lines(out, render, clock=clock) as progress:
        for done in range(n_steps + 1):
            progress("scoring", done * 1000, n_steps * 1000)
            clock.now += seconds_per_step
    return out.getvalue().splitlines()


def test_slow_work_shows_every_step_with_the_time_left() -> None:
    lines = run(plain_line, seconds_per_step=30)
    assert lines[0] == "scoring: 0 of 10,000 (0%)"
    assert lines[1] == "scoring: 1,000 of 10,000 (10%), about 4 min 30 s left"
    assert lines[-1] == "scoring: 10,000 of 10,000 (100%)"
    assert len(lines) == 11


def test_what_came_quickly_at_first_is_soon_no_part_of_the_pace() -> None:
    """Rows that were kept are read at once, and the others are still to be scored."""
    out, clock = io.StringIO(), Clock()
    with Lines(out, plain_line, clock=clock) as progress:
        for done in range(0, 130, 10):
            progress("scoring", done, 200)
            clock.now += 0.1 if done < 50 else 60
    assert out.getvalue().splitlines()[-1] == "scoring: 120 of 200 (60%), about 8 min 0 s left"


def test_a_stage_that_begins_again_is_timed_again() -> None:
    out, clock = io.StringIO(), Clock()
    with Lines(out, plain_line, clock=clock) as progress:
        for done in (0, 1, 2, 0, 1):
            progress("tuning", done, 2)
            clock.now += 1000 if done == 2 else 10
    assert out.getvalue().splitlines()[-1] == "tuning: 1 of 2 (50%), about 10 s left"


def test_fast_work_shows_its_beginning_and_its_end() -> None:
    assert len(run(plain_line, seconds_per_step=0.01)) == 2


def test_long_times_are_shown_in_hours() -> None:
    assert plain_line("scoring", 1, 100, 7384.0).endswith("about 2 h 3 min left")


def test_json_lines_carry_the_same() -> None:
    second = json.loads(run(json_line, seconds_per_step=30)[1])
    assert second == {"stage": "scoring", "done": 1000, "total": 10000, "seconds_left": 270.0}


def test_a_terminal_shows_a_bar_per_stage() -> None:
    out = io.StringIO()
    with TerminalBar(Console(file=out, force_terminal=True, width=100)) as bar:
        bar("scoring", 5, 10)
        bar("tuning", 1, 4)
    assert all(shown in out.getvalue() for shown in ("scoring", "5/10", "tuning", "1/4", "time left"))


@pytest.mark.parametrize("progress", [1, 0, "yes", [print]])
def test_anything_but_a_truth_or_a_function_is_refused(progress: Any) -> None:
    with pytest.raises(InputError, match="progress must be None, True, False, or a function"), showing(progress):
        raise AssertionError("refused before anything begins")


def test_a_function_of_the_users_own_is_called() -> None:
    calls: list[tuple[str, int, int]] = []
    with showing(lambda *call: calls.append(call)) as shown:
        shown("scoring", 1, 2)
    assert calls == [("scoring", 1, 2)]
