"""Write the golden index of the current format, which tests/reliability/test_golden.py opens in every later version.

    python scripts/make_golden.py [--out FOLDER]

Run once for each format, and never again for an old one: what it wrote then is what users have on their disks. It
prints the digest that the test compares with."""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

import anncur
from anncur.storage.files import LOCK, LOCKS, WRITER
from anncur.storage.manifest import FORMATS

GOLDEN = Path(__file__).parent.parent / "tests" / "reliability" / "golden" / f"format-{FORMATS[-1]}"
QUERIES: list[anncur.Query | str] = [
    anncur.Query.marked("a [bat] that eats fruit"),
    "birds of the night",
    "the largest cat",
]
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
    """Build, add and remove, and keep only the files of the last version."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=GOLDEN)
    out: Path = parser.parse_args().out
    if out.exists():
        sys.exit(f"{out} exists; a golden index is never written twice")
    index = anncur.Index.build(ITEMS, LettersInCommon(), QUERIES, path=out, items_per_chunk=2, retrievers=["bm25"])
    index.add(ADDED)
    index.remove(["dodo"])
    index.gc()
    for name in (LOCK, WRITER):
        (out / name).unlink(missing_ok=True)
    shutil.rmtree(out / LOCKS, ignore_errors=True)
    sys.stdout.write(f"{index.digest()}\n")


if __name__ == "__main__":
    main()
