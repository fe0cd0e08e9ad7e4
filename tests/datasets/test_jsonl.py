"""Reading items and queries from files."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from pathlib import Path

import pytest

from anncur import Item, Query, read_items, read_queries
from anncur.datasets.jsonl import check_ids, read_documents
from anncur.errors import DuplicateIdError, FileFormatError, InputError


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def test_items_come_from_json_lines_in_their_order(tmp_path: Path) -> None:
    file = write(tmp_path / "items.jsonl", '{"id": "a", "text": "x"}\n\n{"_id": 2, "title": "t", "text": "y"}\n')
    assert list(read_items(file)) == [Item("a", "x"), Item("2", "y", "t")]


def test_a_beir_folder_gives_items_and_queries(tmp_path: Path) -> None:
    write(tmp_path / "corpus.jsonl", '{"_id": "4983", "title": "T", "text": "body", "metadata": {}}\n')
    write(tmp_path / "queries.jsonl", '{"_id": "0", "text": "a claim"}\n')
    assert list(read_items(tmp_path)) == [Item("4983", "body", "T")]
    assert list(read_queries(str(tmp_path))) == [Query("a claim", "0")]


def test_a_text_file_has_one_query_per_line_of_plain_text(tmp_path: Path) -> None:
    file = write(tmp_path / "queries.txt", "a [bat]\n\n a[0] [or b \n")
    assert list(read_queries(file)) == [Query("a [bat]"), Query("a[0] [or b")]


def test_brackets_in_a_marked_text_file_are_the_mention(tmp_path: Path) -> None:
    file = write(tmp_path / "queries.txt", "a [bat]\n\\[sic] [two words] here\n")
    assert list(read_queries(file, marked=True)) == [
        Query("a bat", mention=(2, 5)),
        Query("[sic] two words here", mention=(6, 15)),
    ]


@pytest.mark.parametrize("line", ["no mention", "[two] of [them]", "an empty []", "an open [one"])
def test_a_marked_line_without_exactly_one_mention_is_named(tmp_path: Path, line: str) -> None:
    queries = read_queries(write(tmp_path / "queries.txt", f"a [bat]\n\n{line}\n"), marked=True)
    assert next(queries).mention == (2, 5)
    with pytest.raises(FileFormatError, match=r"queries\.txt:3: a marked query must have exactly one \[mention\]"):
        next(queries)


def test_brackets_in_json_lines_are_plain_text_and_never_marks(tmp_path: Path) -> None:
    file = write(tmp_path / "queries.jsonl", '{"text": "a [bat]"}\n{"text": "a bat", "mention": [2, 5]}\n')
    assert list(read_queries(file)) == [Query("a [bat]"), Query("a bat", mention=(2, 5))]
    with pytest.raises(InputError, match=r"marked queries must be in a \.txt file, got .*queries\.jsonl; .*'mention'"):
        read_queries(file, marked=True)


def test_a_query_may_name_the_document_that_it_comes_from(tmp_path: Path) -> None:
    file = write(tmp_path / "queries.jsonl", '{"text": "a", "document": "d1"}\n\n{"text": "b"}\n')
    assert list(read_documents(file)) == ["d1", ""]
    assert list(read_documents(write(tmp_path / "queries.txt", "one\n\ntwo\n"))) == ["", ""]


def test_reading_is_lazy_so_a_bad_line_costs_nothing_before_it(tmp_path: Path) -> None:
    items = read_items(write(tmp_path / "items.jsonl", '{"id": "a", "text": "x"}\nnot json\n'))
    assert next(items).id == "a"
    with pytest.raises(FileFormatError, match=r"items\.jsonl:2: not JSON"):
        next(items)


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("[" * 100_000, "not JSON"),
        ('{"id": ' + "9" * 5000 + "}", "not JSON"),
        ('{"id": "a", "text": "b", "metadata": 5}', "'metadata' must be"),
        ("[1, 2]", "one JSON object, got list"),
        ('{"id": "a"}', "needs a 'text'"),
        ('{"id": "a", "text": "\\u0000"}', "NUL"),
        ('{"id": "a", "text": "\\ud800"}', r"surrogate U\+D800"),
    ],
)
def test_a_bad_line_is_named_with_its_problem(tmp_path: Path, line: str, problem: str) -> None:
    file = write(tmp_path / "items.jsonl", line + "\n")
    with pytest.raises(FileFormatError, match=rf"items\.jsonl:1: .*{problem}"):
        list(read_items(file))


def test_a_file_in_another_format_is_told_which_are_read(tmp_path: Path) -> None:
    with pytest.raises(FileFormatError, match=r"items\.csv:1: not JSON: .* items are read from JSON lines and BEIR"):
        list(read_items(write(tmp_path / "items.csv", "id,text\na,x\n")))


def test_lines_of_items_that_share_an_id_are_named(tmp_path: Path) -> None:
    lines = ['{"id": "a", "text": "x"}', "", '{"id": "b", "text": "x"}', '{"_id": "a", "text": "y"}']
    check_ids(write(tmp_path / "unique.jsonl", "\n".join(lines[:3])))
    file = write(tmp_path / "items.jsonl", "\n".join(lines))
    with pytest.raises(
        DuplicateIdError, match=r"items\.jsonl:4: ids must be unique, and .*items\.jsonl:1 has 'a' too;"
    ):
        check_ids(file)


def test_a_file_that_is_not_utf8_is_named(tmp_path: Path) -> None:
    file = tmp_path / "items.jsonl"
    file.write_bytes(b'{"id": "a", "text": "\xff\xfe"}\n')
    with pytest.raises(FileFormatError, match="not UTF-8"):
        list(read_items(file))


@pytest.mark.parametrize("read", [read_items, read_queries])
def test_a_missing_file_is_named_at_once(tmp_path: Path, read: Callable[[Path], object]) -> None:
    with pytest.raises(InputError, match=r"no file .*nothing\.jsonl"):
        read(tmp_path / "nothing.jsonl")


def test_files_may_be_gzipped(tmp_path: Path) -> None:
    with gzip.open(tmp_path / "items.jsonl.gz", "wt") as items, gzip.open(tmp_path / "q.txt.gz", "wt") as queries:
        items.write('{"id": "a", "text": "x"}\n')
        queries.write("a query\n")
    assert list(read_items(tmp_path / "items.jsonl.gz")) == [Item("a", "x")]
    assert list(read_queries(tmp_path / "q.txt.gz")) == [Query("a query")]
