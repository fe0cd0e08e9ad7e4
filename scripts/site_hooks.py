"""The pages of docs/ as a site: in the order of docs/README.md, and with links that leave docs/ as plain text.

MkDocs calls these functions (mkdocs.yml)."""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

HEADING = re.compile(r"^## (.+)$", re.M)
LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s]+)\)")


def on_config(config: Any) -> Any:
    """Take the order of pages from the page that lists them."""
    index = (Path(config.docs_dir) / "README.md").read_text(encoding="utf-8")
    parts = HEADING.split(index)[1:]
    sections = zip(parts[::2], parts[1::2], strict=True)
    config.nav = [{"Pages": "README.md"}, *({title: list(pages_of(text))} for title, text in sections)]
    return config


def pages_of(text: str) -> list[str]:
    """The pages that a section of the list links to, each once."""
    links = (target.partition("#")[0] for _, _, target in LINK.findall(text))
    return list(dict.fromkeys(link for link in links if link.endswith(".md") and not link.startswith("..")))


def on_page_markdown(markdown: str, *, page: Any, config: Any, files: Any) -> str:
    """Leave the text of a link whose target isn't part of the site."""
    folder = posixpath.dirname(page.file.src_uri)

    def replaced(match: re.Match[str]) -> str:
        path = match[3].partition("#")[0]
        leaves = "://" not in path and posixpath.normpath(posixpath.join(folder, path)).startswith("..")
        return match[2] if leaves else match[0]

    return LINK.sub(replaced, markdown)
