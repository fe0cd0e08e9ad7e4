"""The shape of the package: imports point one way, and the light parts stay light."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import anncur

SOURCE = Path(anncur.__file__).parent

LAYERS = [
    ["errors"],
    ["arrays", "texts", "progress", "numbers", "cores"],
    ["items"],
    ["ranking", "tokens", "datasets"],
    ["models"],
    ["scorers", "candidates"],
    ["scores", "factors"],
    ["anchors"],
    ["search"],
    ["index"],
    ["training"],
    ["evaluation"],
    ["__init__"],
    ["cli"],
]
LAYER = {name: number for number, names in enumerate(LAYERS) for name in names}
HEAVY = [
    "torch",
    "transformers",
    "sentence_transformers",
    "ray",
    "fastapi",
    "faiss",
    "sklearn",
    "matplotlib",
    "bm25s",
    "onnxruntime",
]


def modules() -> list[Path]:
    return sorted(SOURCE.rglob("*.py"))


def part(file: Path) -> str:
    return file.relative_to(SOURCE).parts[0].removesuffix(".py")


def imported_parts(file: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            names |= {
                f"{node.module}.{alias.name}" if node.module == "anncur" else str(node.module) for alias in node.names
            }
        elif isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
    parts = {name.split(".")[1] if "." in name else "__init__" for name in names if name.split(".")[0] == "anncur"}
    return {name if name in LAYER else "__init__" for name in parts}


@pytest.mark.parametrize("file", modules(), ids=lambda file: str(file.relative_to(SOURCE)))
def test_imports_point_one_way(file: Path) -> None:
    own = part(file)
    upwards = {name for name in imported_parts(file) - {own} if LAYER[name] >= LAYER[own]}
    assert not upwards, f"{own} may not import {upwards}"


@pytest.mark.parametrize("file", modules(), ids=lambda file: str(file.relative_to(SOURCE)))
def test_every_module_says_what_it_is_for(file: Path) -> None:
    assert ast.get_docstring(ast.parse(file.read_text()))


def test_importing_anncur_loads_nothing_heavy() -> None:
    program = f"import sys, anncur; print([name for name in {HEAVY} if name in sys.modules])"
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert loaded.strip() == "[]"


def test_importing_anncur_takes_less_than_half_a_second() -> None:
    """Of the processor, so that it is the same on a busy machine."""
    program = "import time; start = time.process_time(); import anncur; print(time.process_time() - start)"
    command = [sys.executable, "-c", program]
    tries = [subprocess.run(command, capture_output=True, text=True, check=True).stdout for _ in range(3)]
    assert min(map(float, tries)) < 0.5


def test_every_public_name_is_there_and_documented() -> None:
    for name in anncur.__all__:
        assert getattr(anncur, name).__doc__, name
