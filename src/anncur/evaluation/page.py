"""A page of headings, paragraphs, tables and pictures, written as Markdown and as one HTML file.

Knows nothing of what it says. Pictures stand inside the HTML, and beside the Markdown."""

from __future__ import annotations

import base64
import html
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem; color: #222; }
table { border-collapse: collapse; margin: 1rem 0; font-size: 0.9rem; display: block; overflow-x: auto; }
th, td { border: 1px solid #ccc; padding: 0.25rem 0.6rem; text-align: left; vertical-align: top; }
th { background: #f2f2f2; } figure { margin: 1.5rem 0; } img { max-width: 100%; } figcaption { color: #555; }
"""


@dataclass(frozen=True)
class Heading:
    """A title of a level, from 1."""

    text: str
    level: int = 2


@dataclass(frozen=True)
class Paragraph:
    """Some sentences."""

    text: str


@dataclass(frozen=True)
class Table:
    """Rows under a header."""

    header: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True)
class Image:
    """A picture's file and its caption."""

    file: Path
    caption: str


QueryBlock: TypeAlias = Heading | Paragraph | Table | Image


def write_pages(blocks: Sequence[QueryBlock], folder: Path, name: str) -> list[Path]:
    """Write `name.md` and `name.html` into a folder; pictures must be in it, or below."""
    markdown, page = folder / f"{name}.md", folder / f"{name}.html"
    markdown.write_text("\n".join(_markdown(block, folder) for block in blocks), encoding="utf-8")
    title = next((block.text for block in blocks if isinstance(block, Heading)), name)
    page.write_text(_document(title, "\n".join(_html(block) for block in blocks)), encoding="utf-8")
    return [markdown, page]


def _markdown(block: QueryBlock, folder: Path) -> str:
    if isinstance(block, Heading):
        return f"{'#' * block.level} {block.text}\n"
    if isinstance(block, Paragraph):
        return f"{block.text}\n"
    if isinstance(block, Image):
        return f"![{block.caption}]({block.file.relative_to(folder).as_posix()})\n\n*{block.caption}*\n"
    lines = [block.header, ["---"] * len(block.header), *block.rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def _html(block: QueryBlock) -> str:
    if isinstance(block, Heading):
        return f"<h{block.level}>{html.escape(block.text)}</h{block.level}>"
    if isinstance(block, Paragraph):
        return f"<p>{_marked(block.text)}</p>"
    if isinstance(block, Image):
        content = base64.b64encode(block.file.read_bytes()).decode()
        shown = f'<img alt="{html.escape(block.caption)}" src="data:image/png;base64,{content}">'
        return f"<figure>{shown}<figcaption>{html.escape(block.caption)}</figcaption></figure>"
    header = _line(block.header, "th", html.escape)
    return f"<table>{header}{''.join(_line(row, 'td', _marked) for row in block.rows)}</table>"


def _line(cells: Sequence[str], tag: str, show: Callable[[str], str]) -> str:
    return "<tr>" + "".join(f"<{tag}>{show(cell)}</{tag}>" for cell in cells) + "</tr>"


def _marked(text: str) -> str:
    """Bold and code, as Markdown marks them."""
    bold = re.sub(r"\*\*(.+?)\*\*", r"<b>\1</b>", html.escape(text, quote=False))
    return re.sub(r"`(.+?)`", r"<code>\1</code>", bold)


def _document(title: str, body: str) -> str:
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{html.escape(title)}</title>'
        f"<style>{STYLE}</style></head>\n<body>\n{body}\n</body></html>\n"
    )
