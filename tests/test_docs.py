"""The documentation is true: the reference is current, the README's example runs, its links lead somewhere."""

from __future__ import annotations

import re
import runpy
from pathlib import Path
from typing import Any

import pytest

import anncur

ROOT = Path(__file__).parent.parent
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "benchmarks" / "README.md",
    *(ROOT / "docs").rglob("*.md"),
]


def test_the_command_line_reference_is_what_the_commands_say() -> None:
    reference = runpy.run_path(str(ROOT / "scripts" / "make_cli_reference.py"))["reference"]
    assert (ROOT / "docs" / "cli.md").read_text(encoding="utf-8") == reference(), "run `make docs`"


def test_the_readmes_python_runs(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """All of it in one go; only what stands for the user's own things is given."""
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    scored: list[tuple[str, str]] = []

    def out_of_quota_once(pairs: list[tuple[str, str]]) -> list[float]:
        if len(scored) == 320:
            scored.append(("the answer that never came", ""))
            raise anncur.AnncurError("quota")
        scored.extend(pairs)
        return [float(len(item)) for _, item in pairs]

    names: dict[str, Any] = {
        "queries": ["one", "two"],
        "anchor_queries": ["three", "four"],
        "my_api": out_of_quota_once,
    }
    for block in blocks:
        exec(compile(block, "README.md", "exec"), names)
    assert "'a box of 230 pencils'" in capsys.readouterr().out
    assert len(names["many"]) == 2
    assert len(scored) == 1 + 2 * 2000 + 8, "what was kept must not be paid for again"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_to_a_file_leads_somewhere(page: Path) -> None:
    links = re.findall(r"\]\(([^)#]+)\)", page.read_text(encoding="utf-8"))
    broken = [link for link in links if "://" not in link and not (page.parent / link).exists()]
    assert not broken


def test_every_target_of_the_makefile_that_is_promised_exists() -> None:
    targets = set(re.findall(r"^([a-z-]+):.*##", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert {"setup", "demo", "test", "test-all", "check", "fmt", "bench", "bench-all", "docs"} <= targets
