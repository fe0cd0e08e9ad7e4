"""The documentation is true: its code runs and prints what it shows, its links lead somewhere, its names exist.

A page's python and sh blocks run in their order, in a temporary folder, without a network. A text block right after one
shows what it prints: each of its lines, in their order. A block that can't run here says why in a comment above it:

    <!-- not run: it installs packages -->

and one that runs where a library is installed names it:

    <!-- runs with: langchain_core -->"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import runpy
import subprocess
import sys
import tomllib
import types
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import anncur

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "CHANGELOG.md",
    ROOT / "benchmarks" / "README.md",
    *sorted(DOCS.rglob("*.md")),
]
RUN = [DOCS / "tutorial.md", *sorted((DOCS / "how-to").glob("*.md")), DOCS / "adaptive.md", DOCS / "api.md"]
FRAGMENTS = {DOCS / "architecture.md"}  # shows the form of a method
NOT_RUN = [page for page in PAGES if page not in {*RUN, *FRAGMENTS, ROOT / "README.md"}]
BLOCK = re.compile(
    r"^(?:(?P<reason><!-- not run: [^\n]+ -->)\n|<!-- runs with: (?P<library>[\w.]+) -->\n)?"
    r"```(?P<language>\w*)\n(?P<code>.*?)^```$",
    re.M | re.S,
)
LINK = re.compile(r"\]\(([^)\s]+)\)")
EXTRAS = re.compile(r"(?:anncur|\.)\[([a-z,]+)\]|\(extras? ((?:`[a-z]+`(?:, | and )?)+)\)")
LARGEST_PICTURE = 80_000  # bytes


def named(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


@dataclass(frozen=True)
class Block:
    language: str
    code: str
    line: int
    is_run: bool
    shown: tuple[str, ...] = ()  # lines that it must print


def blocks_of(page: Path) -> list[Block]:
    text = page.read_text(encoding="utf-8")
    matches = list(BLOCK.finditer(text))
    found = []
    for place, match in enumerate(matches):
        after = matches[place + 1] if place + 1 < len(matches) else None
        shows = after is not None and after["language"] == "text" and not text[match.end() : after.start()].strip()
        shown = tuple(line.rstrip() for line in after["code"].splitlines()) if after is not None and shows else ()
        line = text.count("\n", 0, match.start("code"))
        is_run = match["reason"] is None and (match["library"] is None or is_installed(match["library"]))
        found.append(Block(match["language"], match["code"], line, is_run, shown))
    return found


def is_installed(library: str) -> bool:
    try:
        return importlib.util.find_spec(library) is not None
    except ModuleNotFoundError:  # nor is the package that it is a part of
        return False


class Reader:
    """Somebody who pastes the blocks of a page one after the other."""

    def __init__(self, page: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self._page = page
        self._capsys = capsys
        self.names: dict[str, Any] = {"__name__": "__main__"}

    def paste_all(self) -> None:
        for block in blocks_of(self._page):
            if block.is_run and block.language in {"python", "sh"}:
                printed = self._run_python(block) if block.language == "python" else self._run_shell(block)
                self._compare(block, printed)

    def _run_python(self, block: Block) -> str:
        self._capsys.readouterr()
        padded = "\n" * block.line + block.code  # so that a traceback has the line of the page
        exec(compile(padded, str(self._page), "exec"), self.names)
        return self._capsys.readouterr().out

    def _run_shell(self, block: Block) -> str:
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        environment = {**os.environ, "PATH": path, "COLUMNS": "100", "TERM": "dumb"}
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", block.code], env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, f"{named(self._page)}, line {block.line}:\n{done.stderr}"
        return done.stdout

    def _compare(self, block: Block, printed: str) -> None:
        lines = iter([line.rstrip() for line in printed.splitlines()])
        for shown in block.shown:
            if shown and shown != "…":
                assert shown in lines, f"{named(self._page)}, line {block.line} shows {shown!r} and prints:\n{printed}"


@pytest.fixture
def in_empty_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:  # those that a page has written itself
        if str(getattr(sys.modules[name], "__file__", None)).startswith(str(tmp_path)):
            del sys.modules[name]


SLOW = {
    "tutorial.md",
    "maintain.md",
    "retrievers.md",
    "suitability.md",
    "deploy.md",
    "embeddings.md",
    "slow-scorers.md",
    "many-queries.md",
}  # seconds each


@pytest.mark.parametrize(
    "page", [pytest.param(page, marks=pytest.mark.slow) if page.name in SLOW else page for page in RUN], ids=named
)
def test_the_code_of_a_page_runs_and_prints_what_is_shown(
    page: Path, capsys: pytest.CaptureFixture[str], in_empty_folder: Path
) -> None:
    assert any(block.is_run for block in blocks_of(page))
    Reader(page, capsys).paste_all()


class CommonWords:
    """Stands for a CrossEncoder of sentence-transformers, which would load its model from a hub."""

    def __init__(self, name: str) -> None:
        self.config = types.SimpleNamespace(_name_or_path=name)

    def predict(self, pairs: list[tuple[str, str]], *, activation_fn: Any = None, show_progress_bar: Any = None) -> Any:
        assert activation_fn is not None
        assert show_progress_bar is False
        return [float(len(set(query.split()) & set(text.split()))) for query, text in pairs]


def test_the_readmes_code_runs_with_a_stand_in_for_the_cross_encoder(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, in_empty_folder: Path
) -> None:
    stand_in = types.ModuleType("sentence_transformers")
    stand_in.CrossEncoder = CommonWords  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "sentence_transformers", stand_in)
    words = ("small", "large", "old", "young")
    items = [{"id": str(number), "text": f"a {word} bat"} for number, word in enumerate(words)]
    (in_empty_folder / "corpus.jsonl").write_text("".join(json.dumps(item) + "\n" for item in items))
    (in_empty_folder / "queries.jsonl").write_text("".join(json.dumps({"text": word}) + "\n" for word in words))
    reader = Reader(ROOT / "README.md", capsys)
    reader.paste_all()
    hits: anncur.Hits = reader.names["hits"]
    assert (len(hits), hits.calls) == (5, 50)
    assert hits.estimated_recall is not None
    assert [hit.score for hit in hits] == CommonWords("").predict(
        [(hits.query.text, hit.item.full_text) for hit in hits], activation_fn=abs, show_progress_bar=False
    )


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_bytes()) < 6_600


@pytest.mark.parametrize("page", NOT_RUN, ids=named)
def test_only_pages_that_are_run_have_python(page: Path) -> None:
    assert not [block for block in blocks_of(page) if block.language == "python" and block.is_run]


def test_every_how_to_and_every_other_page_is_in_the_index_of_pages() -> None:
    index = DOCS / "README.md"
    linked = {(DOCS / link.partition("#")[0]).resolve() for link in LINK.findall(index.read_text(encoding="utf-8"))}
    pages = {page for page in DOCS.rglob("*.md") if "reproduction" not in page.parts and page != index}
    assert not {named(page) for page in pages - linked}


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_every_link_leads_somewhere(page: Path) -> None:
    links = [link for link in LINK.findall(page.read_text(encoding="utf-8")) if "://" not in link]
    broken = [link for link in links if not leads_somewhere(page, link)]
    assert not broken


def leads_somewhere(page: Path, link: str) -> bool:
    path, _, anchor = link.partition("#")
    target = page.parent / path if path else page
    return target.exists() and (not anchor or anchor in anchors(target))


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as they are made of their texts."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_the_command_line_reference_is_what_the_commands_say() -> None:
    reference = runpy.run_path(str(ROOT / "scripts" / "make_cli_reference.py"))["reference"]
    assert (DOCS / "cli.md").read_text(encoding="utf-8") == reference(), "run `make docs`"


def test_the_readmes_picture_shows_the_committed_rows() -> None:
    image = pytest.importorskip("PIL.Image", reason="needs the extra `plots`")
    script = runpy.run_path(str(ROOT / "scripts" / "draw_readme.py"))
    shown = json.loads(image.open(script["TARGET"]).text["Description"])
    drawn = json.loads(json.dumps(script["mean_recalls"](script["read_rows"]())))
    assert shown == drawn, "run scripts/draw_readme.py"
    assert all(len(points) == 4 for methods in drawn.values() for points in methods.values())


def test_every_picture_is_small_and_shown_on_some_page() -> None:
    shown = {
        (page.parent / link).resolve() for page in PAGES for link in LINK.findall(page.read_text(encoding="utf-8"))
    }
    for picture in (DOCS / "images").iterdir():
        assert picture.stat().st_size < LARGEST_PICTURE, picture.name
        assert picture in shown, picture.name


def test_every_make_target_that_a_page_names_exists() -> None:
    targets = set(re.findall(r"^([a-z-]+):.*##", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M))
    promised = {
        (named(page), target)
        for page in PAGES
        for target in re.findall(r"(?:^|`)make ([a-z-]+)", page.read_text(encoding="utf-8"), re.M)
    }
    assert {target for _, target in promised} >= {"demo", "test", "check", "docs"}
    assert not {(page, target) for page, target in promised if target not in targets}


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_no_page_imports_deeper_than_the_package(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert not re.findall(r"^\s*(?:from|import) anncur\.(?!integrations\.)\S+", text, re.M)


def test_every_name_of_the_package_that_a_page_uses_is_public() -> None:
    for page in PAGES:
        code = "\n".join(block.code for block in blocks_of(page) if block.language == "python")
        used = set(re.findall(r"\banncur\.([A-Za-z_]+)", code)) - {"__file__", "anncur", "integrations"}
        assert not {name for name in used if name not in anncur.__all__}, named(page)


def test_the_page_of_python_names_has_all_of_them_and_no_others() -> None:
    rows = re.findall(r"^\| (.+?) \|", (DOCS / "api.md").read_text(encoding="utf-8"), re.M)
    listed = {name for row in rows for name in re.findall(r"`anncur\.(\w+)", row)}
    assert listed == set(anncur.__all__)
    methods = {name for row in rows for name in re.findall(r"`index\.(\w+)", row)}
    assert methods == {name for name in dir(anncur.Index) if not name.startswith("_")} - {"build", "open"}


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_every_extra_that_a_page_names_exists(page: Path) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    text = page.read_text(encoding="utf-8")
    assert set(extras_named(text)) <= set(project["optional-dependencies"])


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_every_page_installs_from_a_checkout(page: Path) -> None:
    assert not re.findall(r"pip\s+install\s+'?anncur", page.read_text(encoding="utf-8"))


def extras_named(text: str) -> Iterator[str]:
    for in_brackets, in_words in EXTRAS.findall(text):
        yield from re.findall(r"[a-z]+", in_brackets)
        yield from re.findall(r"`([a-z]+)`", in_words)


def test_the_readme_names_the_extras_that_there_are() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    section = (ROOT / "README.md").read_text(encoding="utf-8").partition("Extras:")[2].partition("\n\n")[0]
    assert set(re.findall(r"`([a-z]+)`", section)) == set(project["optional-dependencies"])
