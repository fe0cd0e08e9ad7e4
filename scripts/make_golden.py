"""Write the golden index of the current format, which tests/reliability/test_golden.py opens for ever after.

    python scripts/make_golden.py

Run once for each format, and never again for an old one: what it wrote then is what users have on their disks. The
digest that it shows goes into the test."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import anncur
from anncur.storage.manifest import FORMATS

OUT = Path(__file__).parent.parent / "tests" / "reliability" / "golden" / f"format-{FORMATS[-1]}"
QUERIES = ["a [bat] that eats fruit", "birds of the night", "the largest cat"]
ITEMS = [
    anncur.Item("fox", "A flying fox eats figs and mangoes", "Flying fox", {"wings": True}),
    anncur.Item("owl", "An owl hunts at night", "Owl", {"wings": True}),
    anncur.Item("tiger", "The tiger is the largest of the cats", metadata={"wings": False}),
    anncur.Item("dodo", "The dodo is gone"),
]
ADDED = [anncur.Item("günther", "Günther's vole: größer als eine Maus", "Vole")]


class LettersInCommon:
    """Counts the different letters that query and item share, and adds a little for the length of the item.

    Prepares an item as its length and its different letters in their order."""

    fingerprint = "letters in common, 1"

    def prepare(self, items: Sequence[anncur.Item]) -> list[bytes]:
        return [f"{len(item.full_text)} {''.join(sorted(set(item.full_text)))}".encode() for item in items]

    def score(self, query: anncur.Query, items: Sequence[anncur.Item]) -> list[float]:
        split = [item.prepared.decode().split(" ", 1) for item in items]
        return [len(set(query.marked_text) & set(letters)) + int(length) / 64 for length, letters in split]


def main() -> None:
    """Build, add and remove, and keep just what the last version needs."""
    if OUT.exists():
        sys.exit(f"{OUT} is there; a golden index is never written twice")
    index = anncur.Index.build(ITEMS, LettersInCommon(), QUERIES, path=OUT, items_per_chunk=2)
    index.add(ADDED)
    index.remove(["dodo"])
    index.gc()
    (OUT / "lock").unlink()
    sys.stdout.write(f"{index.digest()}\n")


if __name__ == "__main__":
    main()
