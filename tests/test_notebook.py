"""The tutorial's notebook is the tutorial, and runs in a real kernel."""

from __future__ import annotations

import os
import runpy
import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).parent.parent / "docs"
NOTEBOOK = DOCS / "tutorial.ipynb"


def test_the_notebook_is_made_of_the_tutorial() -> None:
    made = runpy.run_path(str(DOCS.parent / "scripts" / "make_notebook.py"))["notebook"]()
    assert NOTEBOOK.read_text(encoding="utf-8") == made, "run `make docs`"


@pytest.mark.slow
@pytest.mark.filterwarnings("default")  # those of Jupyter are not ours
def test_the_notebook_runs_and_prints_what_is_shown(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    nbclient = pytest.importorskip("nbclient", reason="needs nbclient and ipykernel; `make package` installs them")
    nbformat = pytest.importorskip("nbformat", reason="needs nbformat; `make package` installs it")
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    shown = nbformat.read(NOTEBOOK, as_version=4)
    nbformat.validate(shown)
    ran = nbformat.read(NOTEBOOK, as_version=4)
    nbclient.NotebookClient(ran, resources={"metadata": {"path": str(tmp_path)}}, kernel_name="python3").execute()
    for before, after in zip(shown.cells, ran.cells, strict=True):
        if before.cell_type == "code":
            printed = iter(stdout(after).splitlines())
            assert all(line == "…" or line in printed for line in stdout(before).splitlines()), after.source
    tables = [cell.outputs[0].data for cell in ran.cells if cell.get("source") in {"hits", "index"}]
    assert len(tables) == 2
    assert all("<table>" in table["text/html"] for table in tables)


def stdout(cell: object) -> str:
    outputs = cell.get("outputs", [])  # type: ignore[attr-defined]
    return "".join(output.text for output in outputs if output.output_type == "stream" and output.name == "stdout")
