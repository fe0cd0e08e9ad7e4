"""Anchor queries come back from disk as they were, whatever their texts hold."""

from __future__ import annotations

from pathlib import Path

import anncur


def by_length(pairs: list[tuple[str, str]]) -> list[float]:
    return [float(len(query) % 7 * len(item) + len(item)) for query, item in pairs]


def test_a_text_with_line_separators_of_unicode_stays_one_query(tmp_path: Path) -> None:
    queries = ["one\u2028two", "next\x85line", "page\x0cbreak", *(f"query {'x' * number}" for number in range(5))]
    items = [f"item {'y' * number}" for number in range(30)]
    built = anncur.Index.build(items, by_length, queries, path=tmp_path / "x.anncur")
    opened = anncur.Index.open(tmp_path / "x.anncur", by_length)
    assert [query.text for query in opened.anchor_queries] == queries
    assert opened.search("query", budget=10).ids == built.search("query", budget=10).ids
