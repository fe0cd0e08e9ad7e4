"""Retrieval with judgements in BEIR's layout: `corpus.jsonl`, `queries.jsonl` and `qrels/<split>.tsv`.

Items and queries are read by `jsonl.py`. Feeds `evaluation/`; computes no metric."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from anncur.datasets.jsonl import read_items, read_lines, read_queries
from anncur.errors import FileFormatError, InputError
from anncur.items import Corpus, Query

Qrels: TypeAlias = dict[str, dict[str, int]]  # grades by query id and item id
HEADER = ["query-id", "corpus-id", "score"]


@dataclass(frozen=True, slots=True)
class BeirSplit:
    """A corpus, and the queries of one split with their judgements."""

    items: Corpus
    queries: list[Query]
    qrels: Qrels


def read_beir(folder: str | Path, split: str = "test") -> BeirSplit:
    """A split's judged queries, in their file's order, and the whole corpus.

    A judged item that the corpus lacks stays in the judgements, as in published figures."""
    qrels = read_qrels(folder, split)
    queries = [query for query in read_queries(folder) if query.id in qrels]
    missing = qrels.keys() - {query.id for query in queries}
    if missing:
        raise FileFormatError(
            f"{_qrels_file(folder, split)}: judges query {min(missing)!r} and {len(missing) - 1} others that are not "
            f"in {Path(folder) / 'queries.jsonl'}; the files belong to different data sets"
        )
    return BeirSplit(Corpus(read_items(folder)), queries, qrels)


def read_qrels(folder: str | Path, split: str = "test") -> Qrels:
    """The judgements of a split: whole numbers, 0 for an item that isn't relevant."""
    file = _qrels_file(folder, split)
    qrels: Qrels = {}
    for where, query_id, item_id, grade in _judgements(file):
        if qrels.setdefault(query_id, {}).setdefault(item_id, grade) != grade:
            raise FileFormatError(f"{where}: query {query_id!r} and item {item_id!r} were judged differently above")
    if not qrels:
        raise FileFormatError(f"{file}: holds no judgements")
    return qrels


def _qrels_file(folder: str | Path, split: str) -> Path:
    file = Path(folder) / "qrels" / f"{split}.tsv"
    if not file.is_file():
        there = sorted(other.stem for other in file.parent.glob("*.tsv"))
        raise InputError(f"no file {file}; take one of the splits {', '.join(there) or '(there are none)'}")
    return file


def _judgements(file: Path) -> Iterator[tuple[str, str, str, int]]:
    """Each judgement's file and line, query, item and grade."""
    lines = ((where, line.rstrip("\r\n").split("\t")) for where, line in read_lines(file))
    where, header = next(lines, (f"{file}:1", []))
    if header != HEADER:
        raise FileFormatError(f"{where}: the first line must be the header {HEADER}, got {header}")
    for where, fields in lines:
        if len(fields) != len(HEADER) or not all(fields):
            raise FileFormatError(
                f"{where}: a judgement is query id, item id and grade with tabs between, got {fields}"
            )
        if not re.fullmatch(r"-?[0-9]{1,9}", fields[2]):
            raise FileFormatError(f"{where}: a grade must be a whole number, got {fields[2]!r}")
        yield where, fields[0], fields[1], int(fields[2])
