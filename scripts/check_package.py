"""Build the wheel and the sdist, and check them as somebody would meet them: in an empty environment.

    python scripts/check_package.py [FOLDER]

Needs build, hatchling, mypy and twine (`make package` has them). The wheel is made of the sdist, installed with the
tested versions of what it needs, and searched with from the command line; a program outside sees its types. With a
folder, wheel and sdist are left there."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).parent.parent
IN_THE_WHEEL = {"anncur/py.typed", "anncur/assets/sample/LICENSE.wordnet", "anncur/integrations/langchain.py"}
IN_THE_SDIST = {"pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md", "constraints.txt", "docs/tutorial.md"}
PROGRAM = """
import anncur

index = anncur.Index.open(anncur.load_sample().index_path)
hits = index.search("a small bat that eats fruit", k=3, budget=20)
reveal_type(hits[0].score)
hits.no_such_attribute
"""


def main(folder: Path | None) -> None:
    """Check everything; end with the first thing that is wrong."""
    with tempfile.TemporaryDirectory() as temporary:
        made = Path(temporary) / "dist"
        run(sys.executable, "-m", "build", "--no-isolation", "--outdir", made, ROOT)
        wheel, sdist = next(made.glob("*.whl")), next(made.glob("*.tar.gz"))
        run(sys.executable, "-m", "twine", "check", "--strict", wheel, sdist)
        check_contents(wheel, sdist)
        python = install(wheel, Path(temporary) / "empty")
        check_search(python, Path(temporary))
        check_types(python, Path(temporary))
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
            for file in (wheel, sdist):
                shutil.copy(file, folder)
    sys.stdout.write(f"{wheel.name} and {sdist.name} are in order\n")


def check_contents(wheel: Path, sdist: Path) -> None:
    """What must be there is there, and nothing but the package is in the wheel."""
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    check(not IN_THE_WHEEL - names, f"the wheel lacks {IN_THE_WHEEL - names}")
    others = {name for name in names if not name.startswith(("anncur/", "anncur-"))}
    check(not others, f"the wheel has what is not the package's: {sorted(others)[:5]}")
    with tarfile.open(sdist) as source:
        names = {name.partition("/")[2] for name in source.getnames()}
    check(not IN_THE_SDIST - names, f"the sdist lacks {IN_THE_SDIST - names}")


def install(wheel: Path, environment: Path) -> Path:
    """Install the wheel, and what it asks for, where nothing else is."""
    run(sys.executable, "-m", "venv", environment)
    python = environment / "bin" / "python"
    run(python, "-m", "pip", "install", "--quiet", "--constraint", ROOT / "constraints.txt", wheel)
    run(python, "-m", "pip", "check")
    listed = run(python, "-m", "pip", "list", "--format=freeze").lower()
    check("torch" not in listed, "the core asks for torch")
    return python


def check_search(python: Path, folder: Path) -> None:
    """The commands work, with the scorer and the sample that come with the package."""
    anncur = python.parent / "anncur"
    (folder / "corpus.jsonl").write_text('{"id": "1", "text": "a fruit bat"}\n{"id": "2", "text": "a cricket bat"}\n')
    run(anncur, "build", folder / "corpus.jsonl", "--out", folder / "bats.anncur")
    found = run(anncur, "search", folder / "bats.anncur", "animal that eats fruit", "-k", "2", "--json")
    check('"1"' in found, f"the search found {found}")
    check("anchor queries" in run(anncur, "demo"), "the demo says nothing")


def check_types(python: Path, folder: Path) -> None:
    """A type checker sees the package's types from outside."""
    program = folder / "program.py"
    program.write_text(PROGRAM)
    command = [sys.executable, "-m", "mypy", "--strict", "--python-executable", str(python), str(program)]
    done = subprocess.run(command, cwd=folder, env=clean_environment(), capture_output=True, text=True, check=False)
    check('Revealed type is "float"' in done.stdout.replace("builtins.", ""), f"mypy sees no types:\n{done.stdout}")
    check('"Hits" has no attribute "no_such_attribute"' in done.stdout, f"mypy checks nothing:\n{done.stdout}")
    check("Found 1 error" in done.stdout, f"mypy complains of more:\n{done.stdout}")


def run(*command: str | Path) -> str:
    """What a command prints; the script ends with its output where it fails."""
    done = subprocess.run(
        list(map(str, command)), env=clean_environment(), capture_output=True, text=True, check=False, cwd=ROOT
    )
    check(done.returncode == 0, f"{' '.join(map(str, command))} failed:\n{done.stdout}{done.stderr}")
    return done.stdout


def clean_environment() -> dict[str, str]:
    """Without what would let Python find the checkout."""
    return {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}


def check(is_right: bool, message: str) -> None:
    """End with a message unless something is so."""
    if not is_right:
        sys.exit(message)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else None)
