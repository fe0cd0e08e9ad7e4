"""Write docs/tutorial.ipynb from docs/tutorial.md, so that they stay in step.

Blocks of python and sh become cells, and the text that a block shows what that cell prints. A comment such as
`<!-- in the notebook: hits -->` becomes a cell that only a notebook has use for."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parent.parent / "docs"
SOURCE, TARGET = DOCS / "tutorial.md", DOCS / "tutorial.ipynb"
PART = re.compile(
    r"^```(?P<language>\w+)\n(?P<code>.*?)^```$|^<!-- in the notebook: (?P<extra>[^\n]+) -->$", re.M | re.S
)
PASTED = "Paste the blocks one after the\nother into a Python session, or run the [notebook](tutorial.ipynb)."
KERNEL = {"display_name": "Python 3", "language": "python", "name": "python3"}


def notebook() -> str:
    """The whole file."""
    text = SOURCE.read_text(encoding="utf-8")
    assert PASTED in text
    cells = [{"id": f"cell-{number}", **cell} for number, cell in enumerate(cells_of(text.replace(PASTED, "")))]
    described = {"kernelspec": KERNEL, "language_info": {"name": "python"}}
    whole = {"cells": cells, "metadata": described, "nbformat": 4, "nbformat_minor": 5}
    return json.dumps(whole, indent=1, ensure_ascii=False, sort_keys=True) + "\n"


def cells_of(text: str) -> list[dict[str, Any]]:
    """The cells, without their ids."""
    cells: list[dict[str, Any]] = []
    end = 0
    for match in PART.finditer(text):
        cells += explanation(text[end : match.start()])
        end = match.end()
        if match["language"] == "text":
            cells[-1]["outputs"] = [{"name": "stdout", "output_type": "stream", "text": lines(match["code"])}]
        elif match["language"] == "sh":
            cells.append(code_cell("%%bash\n" + match["code"]))
        else:
            cells.append(code_cell(match["code"] or match["extra"]))
    return cells + explanation(text[end:])


def explanation(text: str) -> list[dict[str, Any]]:
    """A cell of what stands between two blocks, if anything does."""
    return [{"cell_type": "markdown", "metadata": {}, "source": lines(text.strip())}] if text.strip() else []


def code_cell(code: str) -> dict[str, Any]:
    """A cell that was not run."""
    return {"cell_type": "code", "execution_count": None, "metadata": {}, "outputs": [], "source": lines(code.rstrip())}


def lines(text: str) -> list[str]:
    """A text as notebooks store it."""
    return text.splitlines(keepends=True)


if __name__ == "__main__":
    TARGET.write_text(notebook(), encoding="utf-8")
