"""How text falls into words, the same for every part that counts words."""

from __future__ import annotations

import re

WORD = re.compile(r"\w+")


def words(text: str) -> list[str]:
    """Runs of letters, digits and underscores, in lower case."""
    return WORD.findall(text.lower())
