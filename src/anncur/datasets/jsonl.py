"""Items and queries from JSON lines, plain text and BEIR folders, one at a time.

Feeds `items.py`; never holds more than a line. Files may be gzipped (.gz). Errors name file and line."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TextIO, TypeVar

from anncur.errors import DuplicateIdError, FileFormatError, InputError
from anncur.items import Item, Query

StrPath = str | Path
Read = TypeVar("Read", Item, Query)


def read_items(path: StrPath) -> Iterator[Item]:
    """Items of a JSON-lines file (`id` or `_id`, `text`, perhaps `title`, `metadata`), or of a BEIR folder's corpus.

    An iterator that reads a line when its item is asked for, and can be used once: a build needs no more, however large
    the file is. `list(read_items(path))` or `Corpus(read_items(path))` holds them all."""
    file = _file(path, "corpus.jsonl")
    return (_at(where, Item.from_record, record) for where, record in read_records(file))


def read_queries(path: StrPath, *, marked: bool = False) -> Iterator[Query]:
    """Queries of a JSON-lines file (`text`, perhaps `id` or `_id`, `mention`), of a BEIR folder, or of a text file.

    A file that ends in .txt has one query per line: plain text, or with `marked` a text with exactly one
    `[mention]`. An iterator, as for `read_items`."""
    file = _file(path, "queries.jsonl")
    if file.name.removesuffix(".gz").endswith(".txt"):
        read = Query.marked if marked else Query
        return (_at(where, read, line.strip()) for where, line in read_lines(file))
    if marked:
        raise InputError(f"marked queries must be in a .txt file, got {file}; JSON lines have 'mention': [start, end]")
    return (_at(where, Query.from_record, record) for where, record in read_records(file))


def check_ids(path: StrPath) -> None:
    """Refuse a file in which two items share an id, and name their lines. Holds all ids."""
    lines: dict[str, str] = {}
    for where, record in read_records(_file(path, "corpus.jsonl")):
        item_id = _at(where, Item.from_record, record).id
        if item_id in lines:
            raise DuplicateIdError(
                f"{where}: ids must be unique, and {lines[item_id]} has {item_id!r} too; rename or drop one"
            )
        lines[item_id] = where


def read_documents(path: StrPath) -> Iterator[str]:
    """The `document` that each query comes from, in the order of `read_queries`; empty where none is given."""
    file = _file(path, "queries.jsonl")
    if file.name.removesuffix(".gz").endswith(".txt"):
        return ("" for _ in read_lines(file))
    return (str(record.get("document") or "") for _, record in read_records(file))


def _file(path: StrPath, name_in_folder: str) -> Path:
    file = Path(path)
    if file.is_dir():
        file = file / name_in_folder
    if not file.is_file():
        raise InputError(f"no file {file}; pass a JSON-lines file, or a BEIR folder that holds {name_in_folder}")
    return file


def read_lines(file: Path) -> Iterator[tuple[str, str]]:
    """Every line that isn't blank, with its file and number."""
    number = 0
    with _open(file) as lines:
        try:
            for number, line in enumerate(lines, start=1):
                if line.strip():
                    yield f"{file}:{number}", line
        except UnicodeDecodeError as error:
            raise FileFormatError(f"{file}: not UTF-8 after line {number}: {error}; convert it to UTF-8") from error


def _open(file: Path) -> TextIO:
    if file.suffix == ".gz":
        return gzip.open(file, "rt", encoding="utf-8-sig")
    return file.open(encoding="utf-8-sig")


def read_records(file: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every line's JSON object, with its file and number."""
    for where, line in read_lines(file):
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise FileFormatError(
                f"{where}: not JSON: {error}; each line must be one JSON object: items are read from JSON lines and "
                "BEIR folders, queries from .txt files too"
            ) from error
        if not isinstance(record, dict):
            raise FileFormatError(f"{where}: each line must be one JSON object, got {type(record).__name__}")
        yield where, record


def _at(where: str, read: Callable[[Any], Read], raw: object) -> Read:
    try:
        return read(raw)
    except InputError as error:
        raise FileFormatError(f"{where}: {error}") from error
