"""Make the texts of the bundled sample: a small world of animals, and mentions of them.

    python scripts/make_sample.py path/to/wordnet-linking [--out FOLDER]

Reads a folder in ZESHEL's layout, writes into src/anncur/assets/sample/. Anchor and test mentions come from different
documents, so that no sentence is in both. `make_sample_scores.py` makes the rest of the sample."""

from __future__ import annotations

import argparse
import json
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

SAMPLE = Path(__file__).parent.parent / "src" / "anncur" / "assets" / "sample"
WORLD = "noun.animal"
N_ITEMS, N_ANCHORS, N_TEST = 2000, 150, 50
CONTEXT = 12  # words on either side of a mention


def main() -> None:
    """Write corpus, queries and licence."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, help="the folder wordnet-linking")
    parser.add_argument("--out", type=Path, default=SAMPLE)
    options = parser.parse_args()
    data, out = options.data, options.out
    rng = np.random.default_rng(0)
    out.mkdir(parents=True, exist_ok=True)
    mentions = [m for m in read_lines(data / "mentions" / "test.json") if m["corpus"] == WORLD]
    anchor_mentions, test_mentions = split_by_document(mentions, rng)
    items = choose_items(list(read_lines(data / "documents" / f"{WORLD}.json")), anchor_mentions + test_mentions, rng)
    texts = {d["document_id"]: d["text"].split() for d in read_lines(data / "documents" / "semcor.json")}
    queries = {
        name: [as_query(mention, texts[mention["context_document_id"]]) for mention in chosen]
        for name, chosen in (("anchor_queries", anchor_mentions), ("test_queries", test_mentions))
    }
    for name, rows in {"corpus": items, **queries}.items():
        write_lines(out / f"{name}.jsonl", rows)
    shutil.copyfile(data / "LICENSE", out / "LICENSE.wordnet")


def split_by_document(mentions: list[dict[str, Any]], rng: np.random.Generator) -> tuple[list[Any], list[Any]]:
    """Mentions for anchors and for the test, of different documents; at most four of the same entity."""
    documents = rng.permutation(sorted({m["context_document_id"] for m in mentions})).tolist()
    of_test = set(documents[: len(documents) // 4])
    chosen: tuple[list[Any], list[Any]] = ([], [])
    for mention in (mentions[position] for position in rng.permutation(len(mentions))):
        part = chosen[mention["context_document_id"] in of_test]
        if sum(m["label_document_id"] == mention["label_document_id"] for m in part) < 4:
            part.append(mention)
    return chosen[0][:N_ANCHORS], chosen[1][:N_TEST]


def choose_items(
    items: list[dict[str, Any]], mentions: Iterable[dict[str, Any]], rng: np.random.Generator
) -> list[dict[str, Any]]:
    """The mentioned entities and others at random, in the order of the world."""
    gold = {mention["label_document_id"] for mention in mentions}
    others = [item["document_id"] for item in items if item["document_id"] not in gold]
    kept = gold | set(rng.permutation(others)[: N_ITEMS - len(gold)].tolist())
    return [
        {"id": item["document_id"], "title": item["title"], "text": item["text"]}
        for item in items
        if item["document_id"] in kept
    ]


def as_query(mention: dict[str, Any], text: list[str]) -> dict[str, Any]:
    """A mention with its context, its span in characters, and its gold entity."""
    start, end = mention["start_index"], mention["end_index"] + 1
    before, inside, after = text[max(0, start - CONTEXT) : start], text[start:end], text[end : end + CONTEXT]
    first = sum(len(word) + 1 for word in before)
    return {
        "id": mention["mention_id"],
        "text": " ".join(before + inside + after),
        "mention": [first, first + len(" ".join(inside))],
        "gold": mention["label_document_id"],
    }


def read_lines(path: Path) -> Iterator[dict[str, Any]]:
    """The records of a JSON-lines file."""
    with path.open(encoding="utf-8") as lines:
        yield from map(json.loads, lines)


def write_lines(path: Path, rows: Iterable[dict[str, Any]]) -> None:
    """Write records as JSON lines."""
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")


if __name__ == "__main__":
    main()
