"""The shape of the package: imports point one way, and the light parts stay light."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import anncur

SOURCE = Path(anncur.__file__).parent

LAYERS = [
    ["errors"],
    ["arrays", "caching", "columns", "importing", "notebook", "numbers", "progress", "threads", "tracing", "waiting"],
    ["filters", "items"],
    ["story", "tokens"],
    ["ranking"],
    ["candidates", "databases", "item_scores"],
    ["vectors"],
    ["datasets", "models"],
    ["scorers", "retrievers"],
    ["engines"],
    ["filling"],
    ["scores", "factors"],
    ["anchors"],
    ["search"],
    ["rivals"],
    ["tuning"],
    ["storage"],
    ["planning"],
    ["index"],
    ["attached"],
    ["integrations"],
    ["training"],
    ["evaluation"],
    ["reproduction"],
    ["__init__"],
    ["service"],
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
    "scipy",
    "sklearn",
    "jinja2",
    "rich",
    "matplotlib",
    "bm25s",
    "onnx",
    "onnxruntime",
    "httpx",
    "pymilvus",
    "psycopg",
    "pgvector",
]


IN_TORCH = {"cli", "factors", "models", "training"}  # parts that may import torch or transformers
TORCH_MODELS = {"models/encoders.py", "models/networks.py"}
SENTENCE_TRANSFORMERS = {"models/sentence_transformers.py", "scorers/loading.py"}


def modules() -> list[Path]:
    return sorted(SOURCE.rglob("*.py"))


def part(file: Path) -> str:
    return file.relative_to(SOURCE).parts[0].removesuffix(".py")


class WithoutTypes(ast.NodeTransformer):
    """Takes away imports for types alone, which may point both ways."""

    def visit_If(self, node: ast.If) -> ast.AST | None:
        return None if ast.unparse(node.test) == "TYPE_CHECKING" else self.generic_visit(node)


def imported_parts(file: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(WithoutTypes().visit(ast.parse(file.read_text()))):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            names |= {
                f"{node.module}.{alias.name}" if node.module == "anncur" else str(node.module) for alias in node.names
            }
        elif isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
    parts = {name.split(".")[1] if "." in name else "__init__" for name in names if name.split(".")[0] == "anncur"}
    return {name if name in LAYER else "__init__" for name in parts}


def test_imports_point_one_way() -> None:
    upwards = [
        f"{file.relative_to(SOURCE)} imports {name}"
        for file in modules()
        for name in imported_parts(file) - {part(file)}
        if LAYER[name] >= LAYER[part(file)]
    ]
    assert not upwards


def imported_packages(file: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(WithoutTypes().visit(ast.parse(file.read_text()))):
        if isinstance(node, ast.ImportFrom):
            found.add(str(node.module).split(".")[0])
        elif isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
    return found


def test_torch_is_imported_only_where_models_are_trained_or_have_no_graph() -> None:
    for file in modules():
        name, packages = file.relative_to(SOURCE).as_posix(), imported_packages(file)
        if packages & {"torch", "transformers"}:
            assert part(file) in IN_TORCH, name
            assert part(file) != "models" or name in TORCH_MODELS, name
        assert "sentence_transformers" not in packages or name in SENTENCE_TRANSFORMERS, name


def test_importing_anncur_loads_nothing_heavy() -> None:
    program = f"import sys, anncur; print([name for name in {HEAVY} if name in sys.modules])"
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert loaded.strip() == "[]"


def test_anncur_is_imported_where_there_is_no_fcntl() -> None:
    """As on Windows."""
    program = "import sys; sys.modules['fcntl'] = None; import anncur"
    subprocess.run([sys.executable, "-c", program], check=True)


def test_the_command_line_needs_no_extra() -> None:
    extras = ["torch", "transformers", "scipy", "matplotlib", "ir_measures", "sentence_transformers", "pandas", "httpx"]
    program = f"import sys; sys.modules.update(dict.fromkeys({extras})); import anncur.cli.main"
    subprocess.run([sys.executable, "-c", program], check=True)


def test_importing_anncur_takes_less_than_a_second() -> None:
    """Of the processor, so that it is the same on a busy machine."""
    program = "import time; start = time.process_time(); import anncur; print(time.process_time() - start)"
    command = [sys.executable, "-c", program]
    tries = [subprocess.run(command, capture_output=True, text=True, check=True).stdout for _ in range(3)]
    assert min(map(float, tries)) < 1.0


def test_every_public_name_is_there_and_documented() -> None:
    for name in anncur.__all__:
        assert getattr(anncur, name).__doc__, name
